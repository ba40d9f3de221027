"""Write masks as the numbers 1 and 0, and choices by masks as arithmetic, if that is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from dimorder.graph.elements import MOVERS
from dimorder.graph.nodes import args_of, bound, tensor_of
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.operator import in_torchs_parts, spelling
from dimorder.ops.pointwise import pointwise

aten = torch.ops.aten

_Number = Callable[[Tracer, torch.dtype, "dict[str, Any]"], Value]  # the dict: a call's arguments by name

CAST = aten._to_copy.default
# From here on, one float32 number may stand for several integers.
EXACT_INTEGERS = 2**24
# So low that no result of a matmul is lower.
LOWEST = -1e30


def as_number(n: Tracer, x: Value, dtype: torch.dtype) -> Value | None:
    """Return a truth value as exactly 1 or 0, computed from the inputs, or None if that is impossible."""
    known = constant_of(n, x)
    if known is not None:
        return known.to(dtype)
    key = (as_number, x, dtype)
    if key not in n.remembered:
        n.remembered[key] = _as_number(n, x, dtype)
    return n.remembered[key]


def _as_number(n: Tracer, x: Node, dtype: torch.dtype) -> Value | None:
    if x in n.given:
        return n.emit(aten._to_copy.default, x, dtype=dtype)
    if _is_move(x):
        source = as_number(n, args_of(x)[0], dtype)
        return None if source is None else _moved(n, x, source)
    if x.target in _NUMBERS:
        return _NUMBERS[x.target](n, dtype, bound(x.target, args_of(x), x.kwargs))
    return None


def cast(n: Tracer, x: Value, dtype: torch.dtype) -> Value:
    """Cast a truth value or an integer to a floating type.

    The cast is of the caller's input. Moves of elements come after the cast, where every target has them.
    """
    if not isinstance(x, Node):
        return x.to(dtype)
    if x.target is aten._to_copy.default and dtype_of(args_of(x)[0]) == torch.bool:
        return cast(n, args_of(x)[0], dtype)
    if CAST in n.fused and dtype_of(x) == torch.bool:
        return n.emit(CAST, x, dtype=dtype)
    key = (cast, x, dtype)
    if key not in n.remembered:
        number = as_number(n, x, dtype) if dtype_of(x) == torch.bool else None
        if number is None and _is_move(x):
            number = _moved(n, x, cast(n, args_of(x)[0], dtype))
        n.remembered[key] = n.emit(aten._to_copy.default, x, dtype=dtype) if number is None else number
    return n.remembered[key]


def _is_move(x: Node) -> bool:
    """Return whether a call moves the elements of its only operand."""
    return x.target in MOVERS and len(x.all_input_nodes) == 1


def _moved(n: Tracer, x: Node, source: Value) -> Value:
    """Apply a move to another value than its own operand."""
    return n.write(x.target, source, *args_of(x)[1:], **x.kwargs)


def constant_of(n: Tracer, x: Value) -> torch.Tensor | None:
    """Return the elements of a constant, or None for a computed value."""
    if isinstance(x, Node):
        return n.attributes[str(x.target)] if x.op == "get_attr" else None
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


# -- truth values

_Steps = tuple[tuple[Any, ...], ...]  # operators one after another, each with its further arguments


def _write_steps(n: Tracer, steps: _Steps, *operands: Value) -> Value:
    """Write operators: the first one of the operands, each other one of the result before it."""
    for target, *rest in steps:
        operands = (n.write(target, *operands, *rest),)
    return operands[0]


def _of_truths(steps: _Steps) -> _Number:
    """Return a computation on truth values, which become 1 or 0; it is None if one of them cannot."""

    def number(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
        operands = [given[name] for name in ("self", "other") if name in given]
        if any(dtype_of(x) != torch.bool for x in operands):
            return None
        values = [as_number(n, x, dtype) for x in operands]
        return None if any(value is None for value in values) else _write_steps(n, steps, *values)

    return number


_AND, _OR, _NOT = ((aten.mul.Tensor,),), ((aten.maximum.default,),), ((aten.rsub.Scalar, 1.0),)
_XOR = ((aten.sub.Tensor,), (aten.abs.default,))

# For each comparison of integers, how it is computed from their difference, and the one of swapped operands.
_UNEQUAL = ((aten.abs.default,), (aten.clamp_max.default, 1.0))
_ABOVE = ((aten.clamp.default, 0.0, 1.0),)
_COMPARISONS: Mapping[Any, tuple[_Steps, Any]] = MappingProxyType(
    {
        aten.eq: ((*_UNEQUAL, (aten.rsub.Scalar, 1.0)), aten.eq),
        aten.ne: (_UNEQUAL, aten.ne),
        aten.gt: (_ABOVE, aten.lt),
        aten.ge: (((aten.add.Scalar, 1.0), *_ABOVE), aten.le),
        aten.lt: (((aten.neg.default,), *_ABOVE), aten.gt),
        aten.le: (((aten.rsub.Scalar, 1.0), *_ABOVE), aten.ge),
    }
)


def _compared(comparison: Any) -> _Number:
    """Return the comparison of an integer with a constant that float32 tells from every other integer."""

    def number(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
        x, known = given["self"], constant_of(n, given["other"])
        steps, swapped = _COMPARISONS[comparison]
        if known is None:
            x, known, steps = given["other"], constant_of(n, x), _COMPARISONS[swapped][0]
        if known is None or known.is_floating_point() or known.double().abs().max() >= EXACT_INTEGERS:
            return None
        if dtype != torch.float32 or dtype_of(x).is_floating_point:
            return None
        x = cast(n, x, dtype)
        return _write_steps(n, steps, n.write(aten.sub.Tensor, x, known.to(dtype)) if known.any() else x)

    return number


def _truth_of_integer(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
    return _compared(aten.ne)(n, dtype, {**given, "other": 0})


_NUMBERS: Mapping[Any, _Number] = MappingProxyType(
    {
        aten._to_copy.default: _truth_of_integer,
        **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default), _of_truths(_AND)),
        **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), _of_truths(_OR)),
        **dict.fromkeys((aten.bitwise_xor.Tensor, aten.logical_xor.default), _of_truths(_XOR)),
        **dict.fromkeys((aten.bitwise_not.default, aten.logical_not.default), _of_truths(_NOT)),
        **{
            overload: _compared(comparison)
            for comparison in _COMPARISONS
            for overload in (comparison.Tensor, comparison.Scalar)
        },
    }
)


# -- choices


# For each operator that chooses: the places of its condition, of its value if that holds, and of the other.
_CHOICES: Mapping[Any, tuple[int, int, int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (aten.where.self, aten.where.Scalar, aten.where.ScalarOther, aten.where.ScalarSelf), (0, 1, 2)
        ),
        **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), (1, 2, 0)),
    }
)


def between_constants(target: Any) -> Callable[..., Value]:
    """Return the spelling of a choice between two finite constants as their sum, with the weights 1 and 0."""

    def spell(n: Tracer, *args: Value) -> Value:
        plain = n.emit(target, *args)
        condition, *values = (args[i] for i in _CHOICES[target])
        known = [constant_of(n, value) for value in values]
        if not isinstance(plain, Node) or not dtype_of(plain).is_floating_point:
            return plain
        dtype = dtype_of(plain)
        a, b = (None if x is None or not x.isfinite().all() else x.to(dtype) for x in known)
        mask = None if a is None or b is None else as_number(n, condition, dtype)
        if mask is None:
            return plain
        weighted = ((mask, a), (n.write(aten.rsub.Scalar, mask, 1.0), b))
        parts = [n.write(aten.mul.Tensor, m, x) for m, x in weighted if x.any() or x.dim()]  # type: ignore[union-attr]
        total = parts[0] if len(parts) == 1 else n.write(aten.add.Tensor, *parts) if parts else plain
        return total if shape_of(total) == shape_of(plain) else plain

    return spell


def bounded(n: Tracer, x: Value) -> Value:
    """Write scores that a mask sets to one value as the minimum of each score and a bound.

    The bound is that value where the mask hides a score, and ∞ elsewhere. The result is the same for all
    scores that are numbers, infinite ones included. A hidden NaN stays NaN. That is only right before a
    softmax: the key that it comes from is also NaN in the matmul after it.
    """
    if not isinstance(x, Node) or x.target not in _CHOICES:
        return x
    condition, a, b = (args_of(x)[i] for i in _CHOICES[x.target])
    dtype = dtype_of(x)
    hidden, seen = (constant_of(n, value) for value in (a, b))
    inverted = hidden is not None
    value, scores = (hidden, b) if inverted else (seen, a)
    if value is None or value.numel() != 1 or not isinstance(scores, Node) or dtype_of(scores) != dtype:
        return x
    mask = as_number(n, condition, dtype)
    if mask is None or not dtype.is_floating_point:
        return x
    scores = bounded(n, scores)
    limit, is_matmul = float(value), scores.target is aten.matmul.default
    if math.isnan(limit):
        return x
    key = (bounded, condition, dtype, limit, inverted, is_matmul)
    if key not in n.remembered:
        log, other = (n.write(aten.log.default, m) for m in (mask, n.write(aten.rsub.Scalar, mask, 1.0)))
        free = n.write(aten.sub.Tensor, *((other, log) if inverted else (log, other)))
        n.remembered[key] = _bounds(n, free, limit, is_matmul)
    upper, lower = n.remembered[key]
    y = n.write(aten.minimum.default, upper, scores)
    y = y if lower is None else n.write(aten.maximum.default, y, lower)
    return y if shape_of(y) == shape_of(x) else x


def hidden_by(mask: torch.Tensor) -> torch.Tensor:
    """Return what a mask of attention hides, as torch has it: what is false, or -∞."""
    return ~mask if mask.dtype == torch.bool else mask == -math.inf


def fully_masked_rows(mask: torch.Tensor) -> torch.Tensor:
    """Return the rows of which a mask of attention hides everything.

    >>> fully_masked_rows(torch.ones(2, 3, dtype=torch.bool).tril(-1))
    tensor([[ True],
            [False]])
    """
    return hidden_by(mask).all(-1, keepdim=True)


def split_mask(n: Tracer, mask: Node) -> tuple[Value, Value | None] | None:
    """Split a float mask into a truth value, false where the mask is -∞, and the numbers that it adds.

    The numbers are None if they are 0. Returns None for a mask whose elements are not known to be -∞.
    """
    constant = constant_of(n, mask)
    if constant is not None:
        hidden = hidden_by(constant)
        added = constant.masked_fill(hidden, 0)
        if not added.any():
            return n.as_node(~hidden), None
        return (n.as_node(~hidden), n.as_node(added)) if hidden.any() else None
    if mask.target in (SLICE_CONSTANT, CAST) or _is_move(mask):
        source = args_of(mask)[0]
        parts = split_mask(n, source) if isinstance(source, Node) and dtype_of(source) != torch.bool else None
        if parts is None:
            return None
        truth, numbers = parts
        truth = truth if mask.target is CAST else _moved(n, mask, truth)
        return truth, None if numbers is None else _moved(n, mask, numbers)
    if mask.target not in _CHOICES:
        return None
    condition, *values = (args_of(mask)[i] for i in _CHOICES[mask.target])
    known = [constant_of(n, value) for value in values]
    if shape_of(condition) != shape_of(mask) or any(
        x is None or not (x == x.flatten()[0]).all() for x in known
    ):
        return None
    choices = [float(x.flatten()[0]) for x in known if x is not None]
    if choices == [0, -math.inf]:
        return condition, None
    return (n.write(aten.logical_not.default, condition), None) if choices == [-math.inf, 0] else None


def _bounds(n: Tracer, free: Value, limit: float, is_matmul: bool) -> tuple[Value, Value | None]:
    """Return the upper and the lower bound of a score; `free` is ∞ for a visible score, else -∞.

    One bound is enough if no score is below it, as for -∞, and for limits up to `LOWEST` after a matmul.
    """
    if limit == -math.inf:
        return free, None
    if is_matmul and limit <= LOWEST:
        return n.write(aten.clamp_min.default, free, limit), None
    return free, n.write(aten.clamp_max.default, n.write(aten.neg.default, free), limit)


def _to_copy(n: Tracer, x: Value, **kwargs: Value) -> Value:
    dtype = kwargs.get("dtype")
    if dtype in (None, dtype_of(x)):
        return x
    if dtype.is_floating_point and not dtype_of(x).is_floating_point:
        return cast(n, x, dtype)
    return n.emit(aten._to_copy.default, x, dtype=dtype)


def _of_bits(target: Any) -> Callable[..., Value]:
    """Return the spelling of an operator on bits with the operands as tensors of one type.

    A number has the type that torch gives the result, and only its last bits: 300 is 44 beside int8.
    """

    def spell(n: Tracer, x: Value, other: Value) -> Value:
        if isinstance(other, Node | torch.Tensor):
            return n.write(target, x, other)
        dtype = torch.result_type(tensor_of(x), other)  # int64 for a truth value and an integer
        return n.write(target, _to_copy(n, x, dtype=dtype), torch.tensor(other).to(dtype))

    return spell


def _shift(target: Any) -> Callable[..., Value]:
    """Return the spelling of a shift whose constant places are all within the type.

    By places below 0, or beyond the type, torch shifts out every bit. Runtimes do what their CPU does.
    """

    def spell(n: Tracer, x: Value, other: Value) -> Value:
        plain, places = n.emit(target, x, other), constant_of(n, other)
        if places is None:
            return plain
        dtype = dtype_of(plain)
        last = torch.iinfo(dtype).bits - 1
        beyond = (places < 0) | (places > last)
        if not beyond.any():
            return plain
        if target is aten.bitwise_right_shift.Tensor:
            return n.emit(target, x, places.masked_fill(beyond, last))
        shifted = n.emit(target, x, places.masked_fill(beyond, 0))
        return n.write(aten.bitwise_and.Tensor, shifted, -(~beyond).to(dtype))

    return spell


_SHIFTS = ((aten.bitwise_left_shift, aten.__lshift__), (aten.bitwise_right_shift, aten.__rshift__))

OPERATORS = (
    *map(in_torchs_parts, (aten.__and__.Tensor, aten.__or__.Tensor, aten.__xor__.Tensor)),
    *map(in_torchs_parts, (aten.__and__.Scalar, aten.__or__.Scalar, aten.__xor__.Scalar)),
    *(
        spelling(_of_bits(op.Tensor), op.Scalar)
        for op in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor)
    ),
    *(spelling(_of_bits(op.Tensor), op.Tensor_Scalar, short.Tensor, short.Scalar) for op, short in _SHIFTS),
    *(pointwise(op.Tensor, spell=_shift(op.Tensor)) for op, _ in _SHIFTS),
    pointwise(aten._to_copy.default, spell=_to_copy),
    *(pointwise(target, spell=between_constants(target)) for target in _CHOICES),
)
