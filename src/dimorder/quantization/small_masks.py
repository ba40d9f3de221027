"""Write the numbers that hide scores as numbers that are just low enough, so that 8 bits hold the sum too."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import call_before
from dimorder.graph.prediction import computed_before
from dimorder.quantization.constants import writes
from dimorder.quantization.scores import HIDDEN, ScoreRun, sources_of

aten = torch.ops.aten

# How much lower than the scores the numbers are. A network that divides the sum needs more.
_FACTORS = (1, 4, 16)
# The types of arguments that are one number, or may be one, in torch's schemas.
_NUMBERS = ("Tensor", "number", "float", "Optional[number]", "Optional[float]")


def write_with_small_masks(model: GraphModule, softmax: Node, seen: ScoreRun) -> list[Node]:
    """Write a softmax again before the first one, with small numbers instead of very low ones.

    Calls that make the hidden scores, or mix them with others, are written again. Nothing reads the new
    softmaxes yet.

    Args:
        model: the network.
        softmax: the softmax.
        seen: what its scores were on examples.

    Returns:
        New softmaxes, of which each has lower numbers than the one before. There are none if there is no low
        number, or if a call changes its operand.
    """
    wide, scores = seen.wide(softmax), seen.range_of(softmax)
    if not wide or scores is None or any(writes(node) for node in wide):
        return []
    sources, nodes = set(sources_of([seen.scores[softmax]])), list(model.graph.nodes)
    found = []
    for factor in _FACTORS:
        writer = _SmallMasks(softmax, seen, factor * (HIDDEN + max(scores.width, -scores.low)))
        for node in nodes:
            reads_copy = not writer.copies.keys().isdisjoint(node.all_input_nodes)
            if node in wide or (node in sources and reads_copy):
                writer.write(node)
        args = [writer.copy(arg) for arg in softmax.args]
        found.append(call_before(softmax, softmax.target, args, softmax.kwargs))
    return found


class _SmallMasks:
    """Writes calls again, with numbers of at most `most`."""

    def __init__(self, softmax: Node, seen: ScoreRun, most: float) -> None:
        self.softmax, self.seen, self.most = softmax, seen, most
        self._limit = seen.limit(softmax)
        self.copies: dict[Node, Node] = {}

    def write(self, node: Node) -> None:
        arguments = node.target._schema.arguments  # type: ignore[union-attr]
        kinds = {each.name: str(each.real_type) for each in arguments}
        names = [each.name for each in arguments]
        args = tuple(self._small(arg, kinds[name]) for name, arg in zip(names, node.args, strict=False))
        kwargs = {name: self._small(arg, kinds[name]) for name, arg in node.kwargs.items()}
        copy = call_before(self.softmax, node.target, args, kwargs, like=node)
        # What is wide though no operand is, a logarithm for example.
        is_own = args == node.args and kwargs == node.kwargs
        self.copies[node] = self._clamp(copy) if is_own else copy

    def copy(self, arg: Any) -> Any:
        return self.copies.get(arg, arg) if isinstance(arg, Node) else arg

    def _small(self, arg: Any, kind: str) -> Any:
        """Return an argument with small numbers; `kind` is its type in the operator's schema."""
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._small(each, kind) for each in arg)
        if isinstance(arg, Node):
            if arg not in self.copies and self.seen.is_wide(arg, self._limit):
                if arg.op == "get_attr":
                    self.copies[arg] = self._clamp(arg)
                elif arg.op == "placeholder":
                    # A clamp would have the scale of its operand, and no observer knows numbers below 1e-7.
                    factor = math.sqrt(self.most / self.seen.ranges[arg].width)
                    once = computed_before(self.softmax, aten.mul.Tensor, arg, factor, like=arg)
                    self.copies[arg] = computed_before(self.softmax, aten.mul.Tensor, once, factor, like=arg)
            return self.copy(arg)
        is_large = isinstance(arg, (int, float)) and kind in _NUMBERS and abs(arg) > self._limit
        return max(-self.most, min(self.most, arg)) if is_large else arg

    def _clamp(self, value: Node) -> Node:
        return computed_before(self.softmax, aten.clamp.default, value, -self.most, self.most, like=value)
