"""Write norms and variances as sums, multiplications and roots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.moves import view
from dimorder.ops.operator import Operator, in_torchs_parts, spelling
from dimorder.ops.reduction import dims_listed

aten = torch.ops.aten


_Reduced: TypeAlias = "int | Sequence[int] | None"  # the dimensions that are reduced; None is all


def _vector_norm(
    n: Tracer, x: Value, order: float = 2, dims: _Reduced = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    if not shape_of(x) or dtype_of(x).is_complex:
        return n.emit(aten.linalg_vector_norm.default, x, order, dims, keepdim, dtype=dtype)
    if dtype is not None:
        x = n.write(aten._to_copy.default, x, dtype=dtype)
    reduced = (dims_listed(x, dims), keepdim)
    if order == 2:
        squares = n.write(aten.sum.dim_IntList, n.write(aten.mul.Tensor, x, x), *reduced)
        return n.write(aten.sqrt.default, squares)
    if order == 0:
        counted = n.write(aten._to_copy.default, n.write(aten.ne.Scalar, x, 0), dtype=dtype_of(x))
        return n.write(aten.sum.dim_IntList, counted, *reduced)
    sizes = n.write(aten.abs.default, x)
    if math.isinf(order):
        return n.write(aten.amax.default if order > 0 else aten.amin.default, sizes, *reduced)
    if order == 1:
        return n.write(aten.sum.dim_IntList, sizes, *reduced)
    powers = n.write(aten.sum.dim_IntList, n.write(aten.pow.Tensor_Scalar, sizes, order), *reduced)
    return n.write(aten.pow.Tensor_Scalar, powers, 1 / order)


def _moments(n: Tracer, x: Value, dims: _Reduced, correction: float, keepdim: bool) -> tuple[Value, Value]:
    """Return the variance and the mean."""
    reduced = dims_listed(x, dims)
    mean = n.write(aten.mean.dim, x, reduced, True)
    centred = n.write(aten.sub.Tensor, x, mean)
    squares = n.write(aten.mul.Tensor, centred, centred)
    count = math.prod(shape_of(x)[dim] for dim in reduced)
    if correction == 0:
        variance = n.write(aten.mean.dim, squares, reduced, keepdim)
    else:
        total = n.write(aten.sum.dim_IntList, squares, reduced, keepdim)
        variance = n.write(aten.div.Tensor, total, max(count - correction, 0))
    shape = [size for d, size in enumerate(shape_of(x)) if d not in reduced]
    return variance, mean if keepdim else view(n, mean, shape)


def _variance(target: Any, *, root: bool = False, mean: bool = False) -> Callable[..., Value]:
    """Return the spelling of `var`, `std`, `var_mean` or `std_mean` with a correction."""

    def spell(
        n: Tracer, x: Value, dims: _Reduced = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Value:
        if not dtype_of(x).is_floating_point:
            return n.emit(target, x, dims, correction=correction, keepdim=keepdim)
        spread, middle = _moments(n, x, dims, 1 if correction is None else correction, keepdim)
        if root:
            spread = n.write(aten.sqrt.default, spread)
        return [spread, middle] if mean else spread

    return spell


def _variances(packet: Any, **kind: bool) -> Iterator[Operator]:
    yield spelling(in_float32(_variance(packet.correction, **kind)), packet.correction)
    yield from map(in_torchs_parts, (packet.dim, packet.default))  # whose flag is a correction of 1 or 0


OPERATORS = (
    spelling(in_float32(_vector_norm), aten.linalg_vector_norm.default),
    *map(
        in_torchs_parts,
        (
            *(aten.linalg_norm.default, aten.linalg_norm.ord_str),
            *(aten.linalg_matrix_norm.str_ord, aten.frobenius_norm.dim),
        ),
    ),
    *_variances(aten.var),
    *_variances(aten.std, root=True),
    *_variances(aten.var_mean, mean=True),
    *_variances(aten.std_mean, root=True, mean=True),
)
