"""Count the wasted levels of quantized values: integers that a clamp beside the value removes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from dimorder.graph.nodes import bound
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.graph.tracing import out_of_place
from dimorder.ops.pointwise import CLAMP_BOUNDS, clamp_bounds


@dataclass(frozen=True)
class WastedLevels:
    """The levels of one quantized value: `wasted` of them stand for numbers that a clamp removes.

    `levels` is the number of integers.
    """

    value: str
    levels: int
    wasted: int

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "levels": self.levels, "wasted": self.wasted}


def clamp_range(node: object) -> tuple[float, float] | None:
    """Return the bounds of a call that clamps, in place or not, or None for any other call.

    >>> from torch.export import export
    >>> import torch
    >>> graph = export(torch.nn.ReLU6(), (torch.ones(2),)).graph
    >>> [clamp_range(node) for node in graph.nodes]
    [None, (0.0, 6.0), None]
    """
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    target = out_of_place(node.target) or node.target
    if target not in CLAMP_BOUNDS:
        return None
    low, high = clamp_bounds(target, bound(node.target, node.args, node.kwargs))
    return float(low), float(high)


def wasted_levels(graph: Graph) -> list[WastedLevels]:
    """Return the wasted levels of each quantized value with a clamp beside it.

    The clamp is before the value, or the same clamp is at each of its readers.
    """
    found = []
    for node in graph.nodes:
        limits = _limits(node) if node.target is QUANTIZE else None
        if limits is not None:
            scale, zero, least, most = node.args[1:5]
            low, high = (min(max(bound / scale + zero, least), most) for bound in limits)
            levels, used = most - least + 1, round(high) - round(low) + 1
            found.append(WastedLevels(_named(node), levels, levels - used))
    return found


def _limits(quantize: Node) -> tuple[float, float] | None:
    before = clamp_range(quantize.args[0])
    if before is not None:
        return before
    reals = [user for user in quantize.users if user.target is DEQUANTIZE]
    if len(reals) != len(quantize.users):
        return None
    after = {clamp_range(user) for real in reals for user in real.users}
    return after.pop() if len(after) == 1 else None


def _named(quantize: Node) -> str:
    source = quantize.args[0]
    return source.name if isinstance(source, Node) else quantize.name
