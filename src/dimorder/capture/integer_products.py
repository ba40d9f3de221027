"""Replace integer matmuls in an exported program by linears of quantized values.

torchao computes with `_int_mm` if weights and activations are int8: Q Wᵀ, each row times its scale, each
column times its own. If the processor multiplies unsigned integers, Q + 128 stands for Q, and the difference
is subtracted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from dimorder.graph.nodes import call_before
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS

aten = torch.ops.aten

_SAME = ("aten.to", "aten._to_copy", "aten.reshape", "aten.view", "aten.flatten", "aten.contiguous")


def name_of(node: Any) -> str:
    """Return the namespace and name of the operator that a node calls; empty for any other node.

    >>> name_of(torch.fx.Graph().call_function(aten.relu.default))
    'aten.relu'
    """
    target: Any = getattr(node, "target", None)
    return f"{target.namespace}.{target._opname}" if isinstance(target, torch._ops.OpOverload) else ""


def as_linear(product: Node, rounded: Callable[[Node, Node], Node | None]) -> None:
    """Replace an `_int_mm` and the operators after it by a linear, if together they are one.

    Args:
        product: The call of `_int_mm`.
        rounded: `rounded(quantize, scale)` returns the value that replaces the integers of a quantize,
            dequantized by that scale, or None.
    """
    left, right = (_before_views(node) for node in product.all_input_nodes)
    offset = 0
    if name_of(left) == "aten.add":
        left, offset = _before_views(left.args[0]), left.args[1]
    after = _after(product)
    sums: Any = next(after, None)
    if offset:
        if name_of(sums) not in ("aten.sub", "aten.sub_") or not _is_offset(sums.args[1], right, offset):
            return
        sums = next(after, None)
    factors = [_other_factor(sums)]
    sums = next(after, None)
    factors.append(_other_factor(sums))
    if None in factors or name_of(right) != "aten.t":
        return
    made = rounded(left, _before_views(factors[0]))
    result = next(iter(sums.users))
    shape = (*made.meta["val"].shape[:-1], right.meta["val"].shape[1]) if made is not None else None
    if made is None or name_of(result) not in _SAME or tuple(result.meta["val"].shape) != shape:
        return
    weight = right.args[0]
    args = (weight, factors[1], None, 0, -128, 127, torch.int8)
    value = weight.meta["val"].to(torch.float32)
    real = call_before(result, DEQUANTIZE_CHANNELS, args, like=weight, value=value)
    result.replace_all_uses_with(call_before(result, aten.linear.default, (made, real)))


def _before_views(node: Any) -> Any:
    """Return the value of which a node only changes the shape or type."""
    while name_of(node) in _SAME:
        node = node.args[0]
    return node


def _after(node: Node) -> Iterator[Any]:
    """Yield the chain of readers after a node without changes of shape or type, and None at the end."""
    found: Node | None = node
    while found is not None:
        found = next(iter(found.users), None)
        if name_of(found) not in _SAME:
            yield found


def _other_factor(multiply: Any) -> Any:
    """Return the second factor of a multiplication, or None for any other node."""
    if name_of(multiply) != "aten.mul" or not isinstance(multiply.args[1], Node):
        return None
    return multiply.args[1]


def _is_offset(node: Any, weight: Node, offset: int) -> bool:
    """Return whether a node computes what an offset of the left operand adds to the matmul."""
    return (
        name_of(node) == "aten.mul"
        and node.args[1] == offset
        and name_of(node.args[0]) == "aten.sum"
        and node.args[0].args[0] is weight
    )
