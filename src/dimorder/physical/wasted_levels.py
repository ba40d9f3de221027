"""Decides how many levels of a quantised value are wasted: integers that a clamp beside it takes away."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch.fx import Graph, Node

from dimorder.graph.quantized_constant import DEQUANTIZE, QUANTIZE
from dimorder.graph.schema import bound


@dataclass(frozen=True)
class WastedLevels:
    """Of the `levels` of the integers that `value` becomes, `wasted` stand for what a clamp takes away."""

    value: str
    levels: int
    wasted: int

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "levels": self.levels, "wasted": self.wasted}


def clamp_range(node: object) -> tuple[float, float] | None:
    """The bounds of a call that clamps, in place or not; None for another.

    >>> from torch.export import export
    >>> import torch
    >>> graph = export(torch.nn.ReLU6(), (torch.ones(2),)).graph
    >>> [clamp_range(node) for node in graph.nodes]
    [None, (0.0, 6.0), None]
    """
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    ends = _ENDS.get(getattr(node.target, "_opname", "").removesuffix("_"))
    low, high = (None, None) if ends is None else ends(bound(node.target, node.args, node.kwargs))
    if ends is None or any(isinstance(end, Node) for end in (low, high)):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


# By an operator's name: its bounds, of its arguments.
_ENDS: Mapping[str, Callable[[dict[str, Any]], tuple[Any, Any]]] = MappingProxyType(
    {
        "relu": lambda given: (0, None),
        "relu6": lambda given: (0, 6),
        "hardtanh": lambda given: (given["min_val"], given["max_val"]),
        "clamp": lambda given: (given["min"], given["max"]),
        "clamp_min": lambda given: (given["min"], None),
        "clamp_max": lambda given: (None, given["max"]),
    }
)


def wasted_levels(graph: Graph) -> list[WastedLevels]:
    """Each quantised value with a clamp before it, or as all that follows it, and its wasted levels."""
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
