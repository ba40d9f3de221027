"""Write the numbers that hide scores as numbers that are just low enough, so that 8 bits hold the sum too."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import call_before, tensor_of
from dimorder.quantization.constants import writes
from dimorder.quantization.scores import HIDDEN, ScoreRun

aten = torch.ops.aten


def write_with_small_masks(model: GraphModule, softmax: Node, seen: ScoreRun, factor: int) -> Node | None:
    """Write a softmax again before the first one, with small numbers instead of very low ones.

    Only what makes and mixes the hidden scores is written again. Nothing reads the new softmax yet.

    Args:
        model: the network.
        softmax: the softmax.
        seen: what its scores were on examples.
        factor: how much lower than the scores the numbers are. A network that divides the sum needs more.

    Returns:
        The new softmax, or None if there is no low number, or if a call changes its operand.
    """
    wide, scores = set(seen.wide(softmax)), seen.range_of(softmax)
    if not wide or scores is None or any(writes(node) for node in wide):
        return None
    writer = _Writer(softmax, seen, factor * (HIDDEN + max(scores.width, -scores.low)))
    for node in list(model.graph.nodes):
        if node in wide:
            writer.write(node)
    return call_before(softmax, softmax.target, [writer.copy(arg) for arg in softmax.args], softmax.kwargs)


class _Writer:
    """Writes calls again, with numbers of at most `most`."""

    def __init__(self, softmax: Node, seen: ScoreRun, most: float) -> None:
        self.softmax, self.seen, self.most = softmax, seen, most
        self._limit = seen.limit(softmax)
        self._copies: dict[Node, Node] = {}

    def write(self, node: Node) -> None:
        arguments = node.target._schema.arguments  # type: ignore[union-attr]
        kinds = {each.name: str(each.real_type) for each in arguments}
        names = [each.name for each in arguments]
        args = tuple(self._small(arg, kinds[name]) for name, arg in zip(names, node.args, strict=False))
        kwargs = {name: self._small(arg, kinds[name]) for name, arg in node.kwargs.items()}
        copy = call_before(self.softmax, node.target, args, kwargs, like=node)
        # What is wide though no operand is, a logarithm for example.
        is_own = args == node.args and kwargs == node.kwargs
        self._copies[node] = self._clamped(copy) if is_own else copy

    def copy(self, arg: Any) -> Any:
        return self._copies.get(arg, arg) if isinstance(arg, Node) else arg

    def _small(self, arg: Any, kind: str) -> Any:
        """Return an argument with small numbers; `kind` is its type in the operator's schema."""
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._small(each, kind) for each in arg)
        if isinstance(arg, Node):
            is_given = arg.op in ("placeholder", "get_attr") and self.seen.is_wide(arg, self._limit)
            if arg not in self._copies and is_given:
                self._copies[arg] = self._clamped(arg)
            return self.copy(arg)
        is_number = isinstance(arg, (int, float)) and any(
            each in kind for each in ("Scalar", "number", "Tensor")
        )
        return max(-self.most, min(self.most, arg)) if is_number and abs(arg) > self._limit else arg

    def _clamped(self, value: Node) -> Node:
        bounds = (value, -self.most, self.most)
        return call_before(self.softmax, aten.clamp.default, bounds, like=value, value=tensor_of(value))
