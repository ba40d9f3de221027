"""Find the physical operators that an implementation would write, with shapes and types but without data.

A target is asked about them before their configuration is offered to the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import add_constant, set_value
from dimorder.graph.prediction import predict, without_data
from dimorder.ops.builder import AxisGroup, Builder, Physical
from dimorder.ops.call import Call
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.ops.relation import AxisOrder


def physical_calls(
    site: Site, arrangement: Arrangement, buffers: Sequence[BufferInfo]
) -> list[torch.fx.Node]:
    """Return the calls that an arrangement of a site would append to a physical program.

    Constants are `get_attr` nodes. Each node's `meta["val"]` has its shape and type. Operands have as few
    physical dimensions as possible.
    """
    trial = _DryRun(lambda node: without_data(node.meta["val"]), buffers)
    site.implementations[arrangement.implementation].lower(Call(trial, site, arrangement))
    return [node for node in trial.graph.nodes if node.op == "call_function"]


class _DryRun(Builder):
    """A builder whose tensors have no data, and whose operands are inputs."""

    writes = False

    def fetch(self, buffer: int, order: AxisOrder) -> Physical:
        return Physical(self._operand(buffer, [(axis,) for axis in order]), order, None)

    def shaped(self, buffer: int, tensor: Physical, runs: Sequence[AxisGroup]) -> torch.fx.Node:
        return self._operand(buffer, runs)

    def constant(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        return add_constant(self.graph, name, tensor)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = super().call(target, *args, **kwargs)
        metas = pytree.tree_map_only(torch.fx.Node, lambda n: n.meta["val"], (args, kwargs))
        return set_value(node, predict(target, *metas))

    def _operand(self, buffer: int, runs: Sequence[AxisGroup]) -> torch.fx.Node:
        node = self.graph.placeholder("operand")
        shape = [self.extent(buffer, run) for run in runs]
        value = self.buffers[buffer].value
        return set_value(node, torch.empty(shape, dtype=value.dtype, device="meta"))
