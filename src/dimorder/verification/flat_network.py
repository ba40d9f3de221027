"""Call a network with a flat list of tensors, as a lowered program is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.capture.captured import Captured
from dimorder.capture.state import restored
from dimorder.graph.nodes import tensors_in
from dimorder.graph.pairs import real_views
from dimorder.modules import eval_mode


def takes_floats(exported: ExportedProgram) -> list[bool]:
    """Return which of a program's tensors are floats."""
    nodes = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    values = [nodes.get(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)]
    return [value.is_floating_point() for value in values if isinstance(value, torch.Tensor)]


def flat_network(
    model: Any, program: Captured, calls: Sequence[Sequence[Any]]
) -> Callable[..., list[torch.Tensor]]:
    """Return the network as a function of the flattened tensors of some calls, one after another.

    The physical program is verified against it. `calls` has the leaves of each call: those that are not
    tensors are passed on. A network that writes buffers has its buffers restored afterwards.
    """
    given = model if isinstance(model, (torch.nn.Module, ExportedProgram)) else program.exported
    reference = given.module() if isinstance(given, ExportedProgram) else given

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed, results = iter(inputs), list[torch.Tensor]()
        with eval_mode(model), restored(reference, program.state):
            for call in calls:
                leaves = [next(feed) if isinstance(x, torch.Tensor) else x for x in call]
                args, kwargs = pytree.tree_unflatten(leaves, program.exported.call_spec.in_spec)
                tensors = real_views(tensors_in(reference(*args, **kwargs)), program.in_pairs)
                results += [tensor.clone() for tensor in tensors] if program.state else tensors
        return results

    return run
