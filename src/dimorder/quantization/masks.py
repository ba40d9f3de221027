"""Keep the masks of attention from spoiling the integers of the scores.

A hidden score is -∞, or lower than the others by 100, 10,000 or 3e38. One scale for it and for the scores
makes all scores equal. So a sum of scores and masks is not quantised. The softmax of masked scores is written
in parts if all must be integers. The parts are the scores, and the numbers 1 (kept) and 0 (hidden).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dimorder.graph.elements import CASTS, MOVERS, function_copies
from dimorder.graph.nodes import args_of, bound, tensor_of
from dimorder.quantization.constants import constant_nodes
from dimorder.quantization.scores import HIDDEN, scores_of, sources_of

aten = torch.ops.aten

_FLOOR = -1e4  # lower than any score
_MOST = 64  # scores in a sum, and calls one after the other
# Operator → the names of the condition, of what is taken where it is true, and of what is taken elsewhere.
_CHOICES: Mapping[Any, tuple[str, str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (aten.where.self, aten.where.Scalar, aten.where.ScalarOther, aten.where.ScalarSelf),
            ("condition", "self", "other"),
        ),
        **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), ("mask", "value", "self")),
    }
)
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


@dataclass(frozen=True)
class Moved:
    """A value, and the calls that move its elements afterwards, the first one first."""

    value: Node | Tensor
    path: tuple[Node, ...] = ()

    def moved(self, move: Node) -> Moved:
        """Return the value after one more move."""
        return replace(self, path=(*self.path, move))


@dataclass(frozen=True)
class Mask:
    """Which scores are hidden.

    Attributes:
        truth: The truth values, or integers that are 1 for true.
        keeps: Whether a score is kept where these are true, not where they are false.
        fill: The largest number that a hidden score becomes, or that is added to it.
    """

    truth: Moved
    keeps: bool
    fill: float


@dataclass(frozen=True)
class MaskedScores:
    """A sum of scores, of which masks hide some; `calls` make and apply the masks."""

    scores: tuple[Moved, ...] = ()
    masks: tuple[Mask, ...] = ()
    calls: frozenset[Node] = frozenset()

    def joined(self, other: MaskedScores) -> MaskedScores:
        return MaskedScores(self.scores + other.scores, self.masks + other.masks, self.calls | other.calls)

    def after(self, call: Node) -> MaskedScores:
        """Return the same with a call that applies the masks, or mixes them with other scores."""
        return replace(self, calls=self.calls | {call}) if self.masks else self

    def moved(self, move: Node) -> MaskedScores:
        scores = tuple(score.moved(move) for score in self.scores)
        masks = tuple(replace(mask, truth=mask.truth.moved(move)) for mask in self.masks)
        return MaskedScores(scores, masks, self.calls | {move})


class Masks:
    """The masks of a network that torch exported, before its quantisation."""

    def __init__(self, model: GraphModule) -> None:
        self.model = model
        self._constants = constant_nodes(model)
        self._values: dict[Node, Any] = {}
        self._found: dict[Node, MaskedScores] = {}
        self._depth = 0

    def of(self, value: Any) -> MaskedScores:
        """Return what a value is the sum of: scores and masks."""
        if not isinstance(value, Node) or self._number(value) is not None:  # a number shifts a whole row
            return MaskedScores()
        if value not in self._found:
            self._depth += 1
            found = self._of(value) if self._depth < _MOST else MaskedScores((Moved(value),))
            self._depth -= 1
            is_small = len(found.scores) < _MOST
            self._found[value] = found if is_small else MaskedScores((Moved(value),))
        return self._found[value]

    def _of(self, value: Node) -> MaskedScores:
        known = self._constant(value)
        if known is not None:
            return self._of_constant(value, known)
        if value.target in _CHOICES:
            return self._of_choice(value)
        if value.target is aten.add.Tensor and value.kwargs.get("alpha", 1) == 1:
            x, y, *_ = args_of(value)
            if isinstance(x, Node) and isinstance(y, Node):
                return self._or_scores(value, self.of(x).joined(self.of(y)).after(value))
        if value.target is aten.sub.Tensor and value.kwargs.get("alpha", 1) == 1:
            x, y, *_ = args_of(value)
            mask = self._of_negative(y)
            if isinstance(x, Node) and mask is not None:
                return self.of(x).joined(_alone(mask, y)).after(value)
        if value.target is aten.mul.Tensor:
            mask = self._of_product(*args_of(value))
            return MaskedScores((Moved(value),)) if mask is None else _alone(mask, value)
        if _is_copy(value) or self._is_floor(value):
            return self._or_scores(value, self.of(args_of(value)[0]))
        if _is_move(value):
            return self._or_scores(value, self.of(args_of(value)[0]).moved(value))
        return MaskedScores((Moved(value),))

    @staticmethod
    def _or_scores(value: Node, found: MaskedScores) -> MaskedScores:
        """Return what was found; without a mask the value itself is the score."""
        return found if found.masks else MaskedScores((Moved(value),))

    def _of_constant(self, value: Node, known: Tensor) -> MaskedScores:
        if not known.any():
            return MaskedScores()
        hidden = known <= -HIDDEN
        if not known.is_floating_point() or not bool(((known == 0) | hidden).all()):
            return MaskedScores((Moved(value),))
        fill = float(known[hidden].max())
        return MaskedScores(masks=(Mask(Moved(~hidden), True, fill),))

    def _of_choice(self, value: Node) -> MaskedScores:
        names, arguments = _CHOICES[value.target], bound(value.target, value.args, value.kwargs)
        condition, where_true, where_false = (arguments[name] for name in names)
        for fill, other, keeps in ((where_true, where_false, False), (where_false, where_true, True)):
            number = self._number(fill)
            if number is not None and number <= -HIDDEN:
                mask = MaskedScores(masks=(Mask(self._condition(condition), keeps, number),))
                return mask.joined(self.of(other)).after(value)
        return MaskedScores((Moved(value),))

    def _of_negative(self, value: Any) -> Mask | None:
        """Return the mask of which a value is the negative: truth values times a number, or a choice."""
        if not isinstance(value, Node):
            return None
        if value.target is aten.mul.Tensor:
            x, y = args_of(value)
            return self._of_product(x, y, -1)
        if value.target in _CHOICES:
            names, arguments = _CHOICES[value.target], bound(value.target, value.args, value.kwargs)
            condition, where_true, where_false = (arguments[name] for name in names)
            numbers = self._number(where_true), self._number(where_false)
            for number, other, keeps in (*numbers, False), (*numbers[::-1], True):
                if other == 0 and number is not None and number >= HIDDEN:
                    return Mask(self._condition(condition), keeps, -number)
        return None

    def _is_floor(self, value: Node) -> bool:
        """Return whether a call gives its operand, unless that is lower than any score."""
        if value.target not in (aten.max.other, aten.maximum.default):
            return False
        number = self._number(args_of(value)[1])
        return number is not None and number <= _FLOOR

    def _condition(self, condition: Node) -> Moved:
        known = self._constant(condition)
        return Moved(condition if known is None else known)

    def _of_product(self, x: Any, y: Any, sign: int = 1) -> Mask | None:
        """Return the mask that truth values, or 1 minus these, times a number are, or None."""
        for factor, other in ((self._number(x), y), (self._number(y), x)):
            if factor is not None and sign * factor <= -HIDDEN and isinstance(other, Node):
                truth, hides = self._complement(other), self._truth(other)
                if truth is not None:
                    return Mask(truth, True, sign * factor)
                return None if hides is None else Mask(hides, False, sign * factor)
        return None

    def _complement(self, value: Node) -> Moved | None:
        """Return the truth values of which a value is 1 minus their numbers, or None."""
        if _is_move(value):
            source = self._complement(args_of(value)[0])
            return None if source is None else source.moved(value)
        if value.target in (aten.rsub.Scalar, aten.rsub.Tensor):
            other, one, *_ = args_of(value)
        elif value.target is aten.sub.Tensor:
            one, other, *_ = args_of(value)
        else:
            return None
        return self._truth(other) if self._number(one) == 1 else None

    def _truth(self, value: Any) -> Moved | None:
        """Return the truth values or integers that a value is a cast or a move of, or None."""
        if not isinstance(value, Node):
            return None
        if not tensor_of(value).is_floating_point():
            return Moved(value)
        if _is_move(value):
            source = self._truth(args_of(value)[0])
            return None if source is None else source.moved(value)
        return self._truth(args_of(value)[0]) if value.target in CASTS else None

    def _number(self, value: Any) -> float | None:
        """Return the number that a constant has everywhere, or None."""
        if isinstance(value, (int, float)):
            return float(value)
        known = self._constant(value)
        if known is None or not known.numel() or not bool((known == known.flatten()[0]).all()):
            return None
        return float(known.flatten()[0])

    def _constant(self, value: Any) -> Tensor | None:
        """Return the value of a node that is computed of parameters and buffers alone, or None."""
        if value not in self._constants:
            return None
        known = self._known(value)
        return known.detach() if isinstance(known, Tensor) else None

    def _known(self, node: Node) -> Any:
        if node.op == "get_attr":
            return attrgetter(str(node.target))(self.model)
        if node not in self._constants:  # only its shape and type count
            return torch.empty(tensor_of(node).shape, dtype=tensor_of(node).dtype)
        if node not in self._values:
            args, kwargs = map_arg((node.args, node.kwargs), self._known)
            self._values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._values[node]


def masking_calls(model: GraphModule) -> frozenset[Node]:
    """Return the calls that make masks of attention, or apply them to the scores of a softmax."""
    masks = Masks(model)
    return frozenset().union(*(masks.of(value).calls for value in scores_of(model).values()))


def _alone(mask: Mask, value: Node) -> MaskedScores:
    """Return a mask without scores; the calls of floats that give `value` make it."""
    return MaskedScores(masks=(mask,), calls=frozenset(sources_of([value])))


def _is_copy(value: Node) -> bool:
    """Return whether a call gives its operand's numbers at their places."""
    if value.op != "call_function" or not value.all_input_nodes:
        return False
    if value.target is aten.dropout.default:
        return not args_of(value)[2]
    if value.target in CASTS:
        before, after = tensor_of(value.all_input_nodes[0]).dtype, tensor_of(value).dtype
        return before.is_floating_point and torch.promote_types(before, after) == after
    return function_copies(value.target)


def _is_move(value: Node) -> bool:
    return value.target in MOVERS and len(value.all_input_nodes) == 1 and isinstance(value.args[0], Node)
