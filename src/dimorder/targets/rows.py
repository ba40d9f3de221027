"""Write views and truth values, and read the arguments of calls, as the rows of several targets do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from dimorder.graph.quantized import IntegerType
from dimorder.ops.pointwise import clamp_bounds
from dimorder.targets.graph_writer import ViewWriter
from dimorder.targets.table import Arguments, Row, V, View, is_conversion, is_transposed, whole

aten = torch.ops.aten
Entry = TypeVar("Entry")

MAX_EXPONENT = 16  # of a power by multiplications: above it, their rounding errors add up
CLAMPS_OF_FLOATS = (aten.relu6.default, aten.hardtanh.default)


def by_overload(entries: Mapping[Any, Entry]) -> dict[Any, Entry]:
    """Return an entry for each operator as one for each of its overloads: with a tensor, and with a number.

    >>> [str(overload) for overload in by_overload({aten.mul: "MUL"})]
    ['aten.mul.Tensor', 'aten.mul.Scalar']
    """
    return {
        overload: entry
        for operator, entry in entries.items()
        for overload in (operator.Tensor, operator.Scalar)
    }


def clone(w: ViewWriter[V], a: Arguments) -> View[V] | V:
    """Write the second half of a conversion; any other clone is its operand."""
    return w.transposed(a.self) if is_conversion(a) else a.self


def permute(w: ViewWriter[V], a: Arguments) -> View[V]:
    source = a.self if isinstance(a.self, View) else whole(w.dense(a.self))
    return source.permute([d % len(source.order) for d in a.dims])


def view(w: ViewWriter[V], a: Arguments) -> View[V] | V:
    return a.self if tuple(a.self.shape) == a.shape else w.reshape(w.dense(a.self), a.shape)


def joined(w: Any, a: Arguments, type_of: Callable[[Any], IntegerType | None]) -> list[Any]:
    """Return the operands of a concatenation as values; a constant among integers has their type."""
    types = [type_of(x.value) for x in a.tensors if isinstance(x, View)]
    of = types[0] if types and not a.dtype.is_floating_point else None
    return [w.dense(x) if of is None or isinstance(x, View) else w.standing_for(x, of) for x in a.tensors]


def paddings(amounts: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """Return the paddings before and after each dimension; torch lists the last dimension first.

    >>> paddings([1, 2, 3, 4], 3)
    ([0, 3, 1], [0, 4, 2])
    """
    none = [0] * (rank - len(amounts) // 2)
    return [*none, *amounts[-2::-2]], [*none, *amounts[::-2]]


# The most numbers that one kernel adds up, one after the other: each sum is rounded. So the mean of 160,000
# equal numbers is off by 1e-3.
MOST_IN_A_SUM = 4096


def rows_of_a_sum(size: int) -> tuple[int, int]:
    """Return the rows and columns that a long sum is added up in: at least `size` together, rarely more.

    >>> rows_of_a_sum(300 * 401), rows_of_a_sum(40009)
    ((300, 401), (200, 201))
    """
    root = math.isqrt(size)
    rows = next(rows for rows in range(root, 0, -1) if size % rows == 0)
    return (rows, size // rows) if size // rows <= MOST_IN_A_SUM else (root, math.ceil(size / root))


def start_of(a: Arguments, size: int) -> int:
    """Return where a slice of a dimension of this size begins."""
    start = a.start or 0
    return min(max(start + size if start < 0 else start, 0), size)


def reduced_dims(given: Any, rank: int) -> set[int]:
    """Return the dimensions that a call reduces: all if it names none, and none for a scalar."""
    given = [given] if isinstance(given, int) else given
    return {d % rank for d in given} if given and rank else set(range(rank))


def reduced_by(a: Arguments) -> set[int]:
    """Return the dimensions that a call reduces; some operators have no argument for them."""
    return reduced_dims(getattr(a, "dim", None), len(a.self.shape))


def unfit_softmax(a: Arguments) -> str | None:
    """Return that a softmax is not over the last dimension, or None."""
    rank = a.self.meta["val"].ndim
    if not rank:
        return "softmax of a number"
    return None if a.dim % rank == rank - 1 else f"softmax over dimension {a.dim} of {rank}, not the last"


def unfit_matrices(a: Arguments) -> str | None:
    """Return that a matmul is one with a vector, or that its left operand lies transposed, or None."""
    if min(len(operand.meta["val"].shape) for operand in (a.self, a.other)) < 2:
        return "a product with a vector"
    return "a product whose left operand lies transposed" if is_transposed(a.self) else None


def constant_matrix(operand: Any) -> torch.Tensor | None:
    """Return a constant operand of a matmul as one matrix, or None for a batch or a computed one.

    >>> constant_matrix(torch.ones(1, 3, 5)).shape, constant_matrix(torch.ones(2, 3, 5))
    (torch.Size([3, 5]), None)
    """
    if not isinstance(operand, torch.Tensor) or math.prod(operand.shape[:-2]) != 1:
        return None
    return operand.reshape(operand.shape[-2:])


def ordered_bounds(target: Any, a: Arguments) -> tuple[float, float]:
    """Return the bounds of a clamp. If they cross, both are the upper one, as in torch."""
    low, high = clamp_bounds(target, vars(a))
    return min(low, high), high


def unfit_step(a: Arguments, target: str) -> str | None:
    return None if a.step == 1 else f"a slice of step {a.step}; {target} has step 1"


def unfit_weights(a: Arguments, weight: Any) -> str | None:
    constant = a.is_constant(weight) and a.is_constant(a.bias)
    return None if constant else "a weight or a bias that is not constant"


def unfit_elu(a: Arguments) -> str | None:
    return None if a.input_scale > 0 else "elu with an input scale that is not positive"


def unfit_softplus(a: Arguments) -> str | None:
    return None if a.beta else "softplus with a beta of 0"


def unfit_shift(a: Arguments) -> str | None:
    return None if a.is_constant(a.other) else "a shift by computed places"


def truth_rows(
    value: Callable[[Any, Any, torch.dtype], Any],
    xor: str,
    select: str,
    halves: Callable[[Arguments], bool] = lambda arguments: False,
    bits: Callable[..., Any] | None = None,
) -> Mapping[Any, Row]:
    """Return the rows of logical operators, on truth values and on bits, and of selections by a truth value.

    Args:
        value: writes an operand, which may be a number, as a value of a type.
        xor: the target's operator for truth values that differ.
        select: its operator that selects elements.
        halves: see `Row`; of the selections.
        bits: writes the operator of a name on the bits of integers, if the target can.
    """

    def check_bits(a: Arguments) -> str | None:
        return None if bits is not None or a.dtype == torch.bool else f"bits of {a.dtype}"

    def written(w: Any, a: Arguments, kind: str, *operands: Any) -> Any:
        values = [value(w, operand, a.dtype) for operand in operands]
        if bits is None or a.dtype == torch.bool:
            return w.elementwise(kind, *values)
        return bits(w, kind, *values)

    def both(kind: str) -> Callable[[Any, Arguments], Any]:
        return lambda w, a: written(w, a, kind, a.self, a.other)

    def negated(w: Any, a: Arguments) -> Any:
        return written(w, a, "LOGICAL_NOT", a.self)

    def where(w: Any, a: Arguments) -> Any:
        x, y = (value(w, operand, a.dtype) for operand in (a.self, a.other))
        return w.elementwise(select, value(w, a.condition, torch.bool), x, y)

    def masked_fill(w: Any, a: Arguments) -> Any:
        x, fill = (value(w, operand, a.dtype) for operand in (a.self, a.value))
        return w.elementwise(select, value(w, a.mask, torch.bool), fill, x)

    logical = {
        both("LOGICAL_AND"): (aten.logical_and.default, aten.bitwise_and.Tensor),
        both("LOGICAL_OR"): (aten.logical_or.default, aten.bitwise_or.Tensor),
        both(xor): (aten.logical_xor.default, aten.bitwise_xor.Tensor),
        negated: (aten.logical_not.default, aten.bitwise_not.default),
    }
    selections = {
        where: (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar),
        masked_fill: (aten.masked_fill.Scalar, aten.masked_fill.Tensor),
    }
    return {
        **{of_truth: Row(build) for build, (of_truth, _) in logical.items()},
        **{of_bits: Row(build, check_bits) for build, (_, of_bits) in logical.items()},
        **{target: Row(build, halves=halves) for build, targets in selections.items() for target in targets},
    }
