"""Write norms and variances as sums, multiplications and roots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.moves import view
from dimorder.ops.operator import spelt
from dimorder.ops.reduction import dims_listed

aten = torch.ops.aten


def _vector_norm(
    n: Tracer,
    x: Value,
    order: float = 2,
    dims: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
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


def _norm(n: Tracer, x: Value, order: float | None = 2, *rest: Any, **options: Any) -> Value:
    return _vector_norm(n, x, 2 if order is None else order, *rest, **options)


def _frobenius(n: Tracer, x: Value, *rest: Any) -> Value:
    return _vector_norm(n, x, 2, *rest)


def _linalg_norm(
    n: Tracer,
    x: Value,
    order: float | str | None = None,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Write a vector norm or the Frobenius norm; other matrix norms stay whole."""
    over = len(shape_of(x)) if dims is None else len(dims)
    if order is None or order == "fro" or (over == 1 and not isinstance(order, str)):
        return _norm(n, x, None if order == "fro" else order, dims, keepdim, dtype=dtype)  # type: ignore[arg-type]
    target = aten.linalg_norm.ord_str if isinstance(order, str) else aten.linalg_norm.default
    return n.emit(target, x, order, dims, keepdim, dtype=dtype)


def _matrix_norm(
    n: Tracer,
    x: Value,
    order: str = "fro",
    dims: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    if order != "fro":
        return n.emit(aten.linalg_matrix_norm.str_ord, x, order, list(dims), keepdim, dtype=dtype)
    return _vector_norm(n, x, 2, dims, keepdim, dtype=dtype)


def _moments(
    n: Tracer, x: Value, dims: int | Sequence[int] | None, correction: float, keepdim: bool
) -> tuple[Value, Value]:
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
        variance = n.write(aten.div.Tensor, total, float(max(count - correction, 0)))
    shape = [size for d, size in enumerate(shape_of(x)) if d not in reduced]
    return variance, mean if keepdim else view(n, mean, shape)


def _variance(target: Any, *, root: bool = False, mean: bool = False) -> Callable[..., Value]:
    """Return the spelling of `var`, `std`, `var_mean` or `std_mean` with a correction."""

    def spell(
        n: Tracer,
        x: Value,
        dims: int | Sequence[int] | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Value:
        if not shape_of(x) or not dtype_of(x).is_floating_point:
            return n.emit(target, x, dims, correction=correction, keepdim=keepdim)
        spread, middle = _moments(n, x, dims, 1 if correction is None else correction, keepdim)
        if root:
            spread = n.write(aten.sqrt.default, spread)
        return [spread, middle] if mean else spread

    return spell


def _by_bias(spell: Callable[..., Value]) -> Callable[..., Value]:
    """Return the spelling of an overload whose flag sets the correction to 1 or 0."""

    def spell_dim(
        n: Tracer,
        x: Value,
        dims: int | Sequence[int] | None = None,
        unbiased: bool = True,
        keepdim: bool = False,
    ) -> Value:
        return spell(n, x, dims, correction=int(unbiased), keepdim=keepdim)

    return spell_dim


def _of_all_by_bias(spell: Callable[..., Value]) -> Callable[..., Value]:
    return lambda n, x, unbiased=True: spell(n, x, None, correction=int(unbiased), keepdim=False)


_VAR = in_float32(_variance(aten.var.correction))
_STD = in_float32(_variance(aten.std.correction, root=True))
_VAR_MEAN = in_float32(_variance(aten.var_mean.correction, mean=True))
_STD_MEAN = in_float32(_variance(aten.std_mean.correction, root=True, mean=True))

OPERATORS = (
    spelt(in_float32(_vector_norm), aten.linalg_vector_norm.default),
    spelt(
        in_float32(_norm),
        aten.norm.Scalar,
        aten.norm.ScalarOpt_dim,
        aten.norm.ScalarOpt_dtype,
        aten.norm.ScalarOpt_dim_dtype,
    ),
    spelt(in_float32(_frobenius), aten.frobenius_norm.dim),
    spelt(in_float32(_linalg_norm), aten.linalg_norm.default, aten.linalg_norm.ord_str),
    spelt(in_float32(_matrix_norm), aten.linalg_matrix_norm.str_ord),
    *(
        operator
        for name, spelling in (
            (aten.var, _VAR),
            (aten.std, _STD),
            (aten.var_mean, _VAR_MEAN),
            (aten.std_mean, _STD_MEAN),
        )
        for operator in (
            spelt(spelling, name.correction),
            spelt(_by_bias(spelling), name.dim),
            spelt(_of_all_by_bias(spelling), name.default),
        )
    ),
)
