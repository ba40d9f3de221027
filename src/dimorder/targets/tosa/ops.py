"""The table of the operators that TOSA computes, and whether it computes a given call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.fx import Node

from dimorder.program import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.tosa import moves, pointwise, reductions, spatial
from dimorder.targets.tosa.calls import Row, bind, results
from dimorder.targets.tosa.writer import DTYPES, GraphWriter, View, whole

OPERATORS: Mapping[Any, Row] = MappingProxyType(
    {**pointwise.ROWS, **moves.ROWS, **reductions.ROWS, **spatial.ROWS}
)


def supports(node: Node, constants: Collection[Node] | None = None) -> str | None:
    """None if TOSA computes `node`, else the reason why not.

    `constants` are the nodes whose value is known ahead of time; by default the placeholders that
    torch.export names as parameters, buffers and constants.

    >>> import torch
    >>> class Sums(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.cumsum(1)
    >>> program = torch.export.export(Sums(), (torch.ones(2, 3),))
    >>> [supports(node) for node in program.graph.nodes if node.op == "call_function"]
    ['TOSA has no aten.cumsum.default, and dimorder builds none from what it has']
    """
    if node.op != "call_function" or is_getitem(node):
        return None  # the source of a getitem is asked in its own turn
    row = OPERATORS.get(node.target)
    if row is None:
        return f"TOSA has no {node.target}, and dimorder builds none from what it has"
    if constants is None:
        constants = [
            n for n in node.graph.nodes if n.op == "placeholder" and n.name[:2] in ("p_", "b_", "c_")
        ]
    promoting = [n for n in node.all_input_nodes if n not in constants or n.meta["val"].dim()]
    for value in (value for n in [node, *promoting] for value in results(n)):
        reason = unsupported_value(value)
        if reason:
            return reason
    arguments = bind(node, lambda n: n)
    arguments.is_constant = lambda argument: argument is None or argument in constants
    return row.check(arguments)


def unsupported_value(value: Any) -> str | None:
    """What keeps a value of the program from being a tensor of TOSA, or None."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__} where TOSA wants a tensor"
    if value.dtype not in DTYPES:
        return f"{value.dtype}; this target has {', '.join(str(dtype) for dtype in DTYPES)}"
    if not all(isinstance(size, int) for size in value.shape):
        return f"the symbolic shape {tuple(value.shape)}"
    if value.numel() == 0:
        return f"the empty shape {tuple(value.shape)}"
    return None


def build(writer: GraphWriter, node: Node, resolve: Callable[[Node], Any]) -> View | list[View]:
    """Write the TOSA operators of `node`; its result or results."""
    arguments = bind(node, resolve)
    result = OPERATORS[node.target].build(writer, arguments)
    if isinstance(result, View):
        return result
    if isinstance(result, list):
        return [whole(value) for value in result]
    return whole(writer.reshape(result, arguments.shape))


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
