"""Force both branches of each `torch.cond`, whatever the inputs choose."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import ops
from torch.export import ExportedProgram

from dimorder.graph.branches import COND
from dimorder.graph.exported import remade
from dimorder.graph.nodes import call_before


def force_cond_branches(program: ExportedProgram) -> Iterator[ExportedProgram]:
    """Yield the program with forced choices, so that each branch of each `torch.cond` runs once or more.

    For any two `torch.cond`, all four pairs of branches run. A program without branches yields nothing.

    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
    >>> x = torch.ones(3)
    >>> [each.module()(x)[0].item() for each in force_cond_branches(torch.export.export(Net(), (-x,)))]
    [2.0, 2.0]
    """
    count = len(program.graph.find_nodes(op="call_function", target=COND))
    for choices in _choices(count):
        module = copy.deepcopy(program.graph_module)
        nodes = module.graph.find_nodes(op="call_function", target=COND)
        for node, choice in zip(nodes, choices, strict=True):
            given: Any = node.args[0]
            chosen = call_before(node, ops.aten.full_like.default, (given, choice), like=given)
            node.args = (chosen, *node.args[1:])
        yield remade(program, root=module, graph=module.graph)


def _choices(count: int) -> list[list[bool]]:
    """Return the choices of each run: all equal, the binary digits of the positions, and their opposites.

    >>> _choices(2)
    [[True, True], [False, False], [False, True], [True, False]]
    """
    if count == 0:
        return []
    digits = [[bool(place >> i & 1) for place in range(count)] for i in range((count - 1).bit_length())]
    return [each for one in ([True] * count, *digits) for each in (one, [not choice for choice in one])]
