"""Decides how both branches of a network are tried, whatever its inputs choose."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import ops
from torch.export import ExportedProgram

from dimorder.lowering.capture.branches import COND
from dimorder.lowering.capture.exported import remade


def each_way(program: ExportedProgram) -> Iterator[ExportedProgram]:
    """The program twice where it has branches: as if the first were chosen of all, and as if the second were.

    >>> import torch
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
    >>> x = torch.ones(3)
    >>> [each.module()(x)[0].item() for each in each_way(torch.export.export(Net(), (-x,)))]
    [2.0, 2.0]
    """
    if not program.graph.find_nodes(op="call_function", target=COND):
        return
    for choice in (True, False):
        module = copy.deepcopy(program.graph_module)
        for node in module.graph.find_nodes(op="call_function", target=COND):
            given: Any = node.args[0]
            with module.graph.inserting_before(node):
                chosen = module.graph.call_function(ops.aten.full_like.default, (given, choice))
            chosen.meta = dict(given.meta)
            node.args = (chosen, *node.args[1:])
        yield remade(program, root=module, graph=module.graph)
