"""Write masks as the numbers 1 and 0, and choices by masks as arithmetic, if that is exact.

A target that only knows floating-point numbers then computes with a mask itself, after one cast of the
caller's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from dimorder.graph.elements import MOVERS
from dimorder.graph.nodes import args_of, bound
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.operator import spelt
from dimorder.ops.pointwise import pointwise

aten = torch.ops.aten

_Number = Callable[[Tracer, torch.dtype, "dict[str, Any]"], Value]  # the dict: a call's arguments by name

# From here on, one float32 number may stand for several integers.
EXACT_INTEGERS = 2**24
# So low that no result of a matmul is lower.
LOWEST = -1e30


def as_number(n: Tracer, x: Value, dtype: torch.dtype) -> Value | None:
    """Return a truth value as exactly 1 or 0, computed from the caller's inputs.

    The result is None if no arithmetic does that.
    """
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


def _all_of(*operands: str) -> Callable[[Callable[..., Value]], _Number]:
    """Return a decorator for a computation on truth values: each named operand becomes 1 or 0.

    The number is None if one of the operands has none.
    """

    def wrap(compute: Callable[..., Value]) -> _Number:
        def number(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
            if any(dtype_of(given[name]) != torch.bool for name in operands):
                return None
            values = [as_number(n, given[name], dtype) for name in operands]
            if any(value is None for value in values):
                return None
            return compute(n, *values)

        return number

    return wrap


@_all_of("self", "other")
def _and(n: Tracer, a: Value, b: Value) -> Value:
    return n.write(aten.mul.Tensor, a, b)


@_all_of("self", "other")
def _or(n: Tracer, a: Value, b: Value) -> Value:
    return n.write(aten.maximum.default, a, b)


@_all_of("self", "other")
def _differ(n: Tracer, a: Value, b: Value) -> Value:
    return n.write(aten.abs.default, n.write(aten.sub.Tensor, a, b))


@_all_of("self")
def _not(n: Tracer, a: Value) -> Value:
    return n.write(aten.rsub.Scalar, a, 1.0)


# -- comparisons of integers with constants: the differences are integers


def _unlike(n: Tracer, difference: Value) -> Value:
    return n.write(aten.clamp_max.default, n.write(aten.abs.default, difference), 1.0)


def _alike(n: Tracer, difference: Value) -> Value:
    return n.write(aten.rsub.Scalar, _unlike(n, difference), 1.0)


def _above(n: Tracer, difference: Value) -> Value:
    return n.write(aten.clamp.default, difference, 0.0, 1.0)


def _not_below(n: Tracer, difference: Value) -> Value:
    return _above(n, n.write(aten.add.Scalar, difference, 1.0))


def _below(n: Tracer, difference: Value) -> Value:
    return _above(n, n.write(aten.neg.default, difference))


def _not_above(n: Tracer, difference: Value) -> Value:
    return _above(n, n.write(aten.rsub.Scalar, difference, 1.0))


def _compared(compute: Callable[..., Value], mirrored: Callable[..., Value]) -> _Number:
    """Return a function that computes a comparison of an integer with a constant from their difference.

    `mirrored` applies if the constant is the first operand. The constant must be so small that float32
    distinguishes it from every other integer.
    """

    def number(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
        x, known = given["self"], constant_of(n, given["other"])
        tell = compute
        if known is None:
            x, known, tell = given["other"], constant_of(n, x), mirrored
        if known is None or known.is_floating_point() or known.abs().max() >= EXACT_INTEGERS:
            return None
        if dtype != torch.float32 or dtype_of(x).is_floating_point:
            return None
        x = cast(n, x, dtype)
        return tell(n, n.write(aten.sub.Tensor, x, known.to(dtype)) if known.any() else x)

    return number


def _truth_of_integer(n: Tracer, dtype: torch.dtype, given: dict[str, Any]) -> Value | None:
    return _compared(_unlike, _unlike)(n, dtype, {**given, "other": 0})


_COMPARISONS = (
    (aten.eq, _alike, _alike),
    (aten.ne, _unlike, _unlike),
    (aten.gt, _above, _below),
    (aten.ge, _not_below, _not_above),
    (aten.lt, _below, _above),
    (aten.le, _not_above, _not_below),
)

_NUMBERS: Mapping[Any, _Number] = MappingProxyType(
    {
        aten._to_copy.default: _truth_of_integer,
        aten.bitwise_and.Tensor: _and,
        aten.logical_and.default: _and,
        aten.bitwise_or.Tensor: _or,
        aten.logical_or.default: _or,
        aten.bitwise_xor.Tensor: _differ,
        aten.logical_xor.default: _differ,
        aten.bitwise_not.default: _not,
        aten.logical_not.default: _not,
        **{
            overload: _compared(compute, mirrored)
            for packet, compute, mirrored in _COMPARISONS
            for overload in (packet.Tensor, packet.Scalar)
        },
    }
)


# -- choices


def _where(condition: Value, a: Value, b: Value) -> tuple[Value, Value, Value]:
    return condition, a, b


def _fill(x: Value, mask: Value, value: Value) -> tuple[Value, Value, Value]:
    return mask, value, x


# For each operator that chooses: its condition, its value if the condition holds, and its value otherwise.
_CHOICES: Mapping[Any, Callable[[Value, Value, Value], tuple[Value, Value, Value]]] = MappingProxyType(
    {
        aten.where.self: _where,
        aten.where.Scalar: _where,
        aten.where.ScalarOther: _where,
        aten.where.ScalarSelf: _where,
        aten.masked_fill.Scalar: _fill,
        aten.masked_fill.Tensor: _fill,
    }
)


def between_constants(target: Any) -> Callable[..., Value]:
    """Return the spelling of a choice between two finite constants as their weighted sum.

    The weights are 1 and 0.
    """

    def spell(n: Tracer, *args: Value) -> Value:
        plain = n.emit(target, *args)
        condition, *values = _CHOICES[target](*args)
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
    condition, a, b = _CHOICES[x.target](*args_of(x))
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
    limit, product = float(value), scores.target is aten.matmul.default
    if math.isnan(limit):
        return x
    key = (bounded, condition, dtype, limit, inverted, product)
    if key not in n.remembered:
        log, other = (n.write(aten.log.default, m) for m in (mask, n.write(aten.rsub.Scalar, mask, 1.0)))
        free = n.write(aten.sub.Tensor, *((other, log) if inverted else (log, other)))
        n.remembered[key] = _bounds(n, free, limit, product)
    upper, lower = n.remembered[key]
    y = n.write(aten.minimum.default, upper, scores)
    y = y if lower is None else n.write(aten.maximum.default, y, lower)
    return y if shape_of(y) == shape_of(x) else x


def _bounds(n: Tracer, free: Value, limit: float, product: bool) -> tuple[Value, Value | None]:
    """Return the upper and the lower bound of a score; `free` is ∞ for a visible score, else -∞.

    One bound is enough if no score is below it. That holds for -∞, and for limits up to `LOWEST` after a
    matmul.
    """
    if limit == -math.inf:
        return free, None
    if product and limit <= LOWEST:
        return n.write(aten.clamp_min.default, free, limit), None
    return free, n.write(aten.clamp_max.default, n.write(aten.neg.default, free), limit)


def _to_copy(n: Tracer, x: Value, **kwargs: Value) -> Value:
    dtype = kwargs.get("dtype")
    if dtype in (None, dtype_of(x)):
        return x
    if dtype.is_floating_point and not dtype_of(x).is_floating_point:
        return cast(n, x, dtype)
    return n.emit(aten._to_copy.default, x, dtype=dtype)


def _bitwise(target: Any) -> Callable[..., Value]:
    """Return the spelling of `a & b`, `a | b` or `a ^ b`, which have the names of Python's operators."""
    return lambda n, a, b: n.write(target, a, b)


OPERATORS = (
    *(
        spelt(_bitwise(getattr(aten, f"bitwise_{name}").Tensor), getattr(aten, f"__{name}__").Tensor)
        for name in ("and", "or", "xor")
    ),
    pointwise(aten._to_copy.default, spelling=_to_copy),
    *(pointwise(target, spelling=between_constants(target)) for target in _CHOICES),
)
