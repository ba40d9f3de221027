"""Ask a target which implementations it computes, by the physical calls that they write, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dimorder.capture.captured import Captured
from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.layout.costs import Costs
from dimorder.ops.operator import Implementation
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.ops.table import IMPLEMENTATIONS, PLAIN
from dimorder.physical.dry_run import physical_calls
from dimorder.planning.problem import Cost


@dataclass(frozen=True)
class Capabilities:
    """What a target can do, as the planner needs it.

    Attributes:
        computes: `computes(call, constants)` is None if the target computes a call of a physical program,
            else the reason why not. `constants` are the nodes whose values are known.
        leaves: `leaves(call)` is None if a call may run outside the target, on dense tensors, else the reason
            why not.
        implementations: the implementations that run on the target, as `operator/implementation`, of the
            operators that have several. The largest set comes first; the next set is used if there are too
            many candidate orders.
        max_rank: the highest rank of a transpose, with dimensions that stay together counted as one; None is
            unlimited.
        takes: `takes(value)` is None if a value may be an input, else the reason why not.
        own_implementations: implementations that only this target has, by the operator. Each takes
            an order of the other implementations, and comes after them.
        split_channels: the fewest channels of a piece, if a linear whose result is only cut is better split
            into one for each piece. None means that a slice takes no time.
        heads: the attention heads for which a matmul per head is as fast as one matmul of all channels.
        fixed_resizes: whether a resize needs constant sizes. A resize to dynamic sizes is then better written
            as matmuls.
    """

    computes: Callable[[torch.fx.Node, Collection[torch.fx.Node]], str | None] | None = None
    leaves: Callable[[torch.fx.Node], str | None] | None = None
    implementations: tuple[frozenset[str], ...] = (PLAIN,)
    max_rank: int | None = None
    takes: Callable[[torch.Tensor], str | None] = lambda value: None
    own_implementations: Mapping[str, tuple[Implementation, ...]] = field(default_factory=dict)
    split_channels: int | None = None
    heads: HeadLimits | None = None
    fixed_resizes: bool = False

    def __post_init__(self) -> None:
        unknown = frozenset().union(*self.implementations) - IMPLEMENTATIONS
        if unknown:
            raise ValueError(f"no implementation {', '.join(sorted(unknown))}")


class Verdicts:
    """The target's verdict on each way to run an operator, and its cost; equal calls are asked once."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.known: dict[object, tuple[str | None, str | None]] = {}
        self.costs: dict[object, Cost] = {}
        self.described: dict[torch.fx.Node, object] = {}

    def of(
        self, site: Site, arrangement: Arrangement, program: Captured, buffers: Sequence[BufferInfo]
    ) -> tuple[str | None, str | None]:
        """Return why the target cannot compute an arrangement, and why it cannot run outside either.

        Each reason is None if there is none.
        """
        if self.capabilities.computes is None:
            return None, None
        key = self._key(site, arrangement, buffers)
        if key not in self.known:
            self.known[key] = self._ask(physical_calls(site, arrangement, program, buffers))
        return self.known[key]

    def cost(
        self,
        site: Site,
        arrangement: Arrangement,
        program: Captured,
        buffers: Sequence[BufferInfo],
        costs: Costs,
    ) -> Cost:
        """Return what it costs to run an operator in an arrangement; all calls must use the same `costs`."""
        if costs.configuration is not None:
            return costs.configuration(site, arrangement, buffers)
        assert costs.calls is not None
        if not site.implementations:  # the contract's side
            return (0,) * len(costs.units)
        key = self._key(site, arrangement, buffers)
        if key not in self.costs:
            self.costs[key] = costs.calls(physical_calls(site, arrangement, program, buffers))
        return self.costs[key]

    def _key(self, site: Site, arrangement: Arrangement, buffers: Sequence[BufferInfo]) -> object:
        """Return a key that two arrangements share if they are made of the same calls."""
        implementation = site.implementations[arrangement.implementation]
        sizes = [
            tuple(
                (token, tuple(buffers[view.buffer].tensor.sizes[a] for a in axes))
                for token, axes in held.items()
            )
            for view, held in zip(site.views, site.tokens, strict=True)
        ]
        if site.node not in self.described:
            self.described[site.node] = _call_key(site.node)
        return self.described[site.node], site.kind, implementation.name, arrangement.tokens, *sizes

    def _ask(self, calls: Sequence[torch.fx.Node]) -> tuple[str | None, str | None]:
        assert self.capabilities.computes is not None
        inside, outside = None, None
        for call in calls:
            constants = [node for node in call.all_input_nodes if node.op == "get_attr"]
            reason = self.capabilities.computes(call, constants)
            if reason is None:
                continue
            inside = inside or reason
            outside = outside or (
                reason if self.capabilities.leaves is None else self.capabilities.leaves(call)
            )
        return inside, outside


def _call_key(node: torch.fx.Node) -> object:
    """Return a key of a call's own arguments: calls with equal keys are computed in the same way."""

    def operand_key(operand: torch.fx.Node) -> Any:
        value = operand.meta["val"]
        return (operand.op == "get_attr", tuple(value.shape), str(value.dtype))

    return node.target, repr(torch.fx.map_arg((node.args, node.kwargs), operand_key))
