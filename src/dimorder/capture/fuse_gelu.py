"""Write a GELU that a network spells out with `erf` as one operator.

XNNPACK has a kernel for GELU and none for `erf`, which would split the delegate.
"""

from __future__ import annotations

import math
from operator import attrgetter

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import args_of, call_before, only_reader, replace_node
from dimorder.graph.tracing import FLOATS, dtype_of, shape_of

aten = torch.ops.aten

_TOLERANCE = 1e-5  # of constants: networks write the root of 2 with 5 or more digits


def fuse_gelu(module: GraphModule) -> None:
    """Replace x/2 · (1 + erf(x/√2)) by GELU, in place. The factors may have any sequence.

    >>> from dimorder.capture.captured import capture
    >>> class Esm(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    >>> nodes = capture(Esm(), (torch.ones(2, 3),)).nodes
    >>> [str(node.target) for node in nodes if node.op == "call_function"]
    ['aten.gelu.default']
    """
    for node in module.graph.find_nodes(op="call_function", target=aten.erf.default):
        x, scale = _scaled(module, args_of(node)[0])
        last = _half_of_both(module, node, x) if _is_near(scale, math.sqrt(0.5)) else None
        if last is not None and dtype_of(last) == dtype_of(x) in FLOATS and shape_of(last) == shape_of(x):
            replace_node(last, call_before(last, aten.gelu.default, (x,)))
    module.graph.eliminate_dead_code()


def _half_of_both(module: GraphModule, erf: Node, x: Node) -> Node | None:
    """Return the node that computes x/2 · (1 + erf), or None."""
    value = only_reader(erf)
    if value is None or not _adds_one(module, value, erf):
        return None
    total, has_x = 1.0, False
    while not (has_x and _is_near(total, 0.5)):
        reader = only_reader(value)
        if reader is None or reader.target not in (aten.mul.Tensor, aten.div.Tensor):
            return None
        factor = _factor(module, reader, value)
        if factor is None and reader.target is aten.mul.Tensor and not has_x:
            left, right = args_of(reader)
            other = right if left is value else left
            base, factor = _scaled(module, other)
            has_x = base is x
            if not has_x:
                return None
        if factor is None:
            return None
        value, total = reader, total * factor
    return value


def _scaled(module: GraphModule, node: Node) -> tuple[Node, float]:
    """Return a value and the number that it is multiplied with, through calls that one call reads."""
    scale = 1.0
    while len(node.users) == 1 and node.target in (aten.mul.Tensor, aten.div.Tensor):
        for source in node.all_input_nodes:
            factor = _factor(module, node, source)
            if factor is not None:
                node, scale = source, scale * factor
                break
        else:
            break
    return node, scale


def _factor(module: GraphModule, node: Node, operand: Node) -> float | None:
    """Return the number with which a mul or div multiplies an operand, or None."""
    left, right = args_of(node)
    number = _number(module, right if left is operand else left)
    if number is None or (node.target is aten.div.Tensor and (left is not operand or number == 0)):
        return None
    return number if node.target is aten.mul.Tensor else 1 / number


def _adds_one(module: GraphModule, node: Node, operand: Node) -> bool:
    if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    left, right = args_of(node)
    return _number(module, right if left is operand else left) == 1


def _number(module: GraphModule, value: object) -> float | None:
    """Return a number, given as itself or as a constant of one element, or None."""
    if isinstance(value, Node):
        if value.op != "get_attr" or math.prod(shape_of(value)) != 1:
            return None
        return float(attrgetter(str(value.target))(module))
    return float(value) if isinstance(value, (int, float)) else None


def _is_near(number: float, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=_TOLERANCE)
