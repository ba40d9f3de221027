"""Write the operators that move or rename elements as TOSA operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from dimorder.targets.graph_writer import join_in_steps
from dimorder.targets.rows import clone, paddings, permute, view
from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.pointwise import cast
from dimorder.targets.tosa.writer import MAX_OPERANDS, MAX_RANK, TosaValue, TosaWriter

aten = torch.ops.aten


# -- parts: values to values -------------------------------------------------------------------------------


def slice_(w: TosaWriter, x: TosaValue, dim: int, start: int, length: int) -> TosaValue:
    """Return elements `start` to `start + length` of one dimension."""
    if length == x.shape[dim]:
        return x
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    x, dim, inner = _around(w, x, dim, _goes_in_rows(x))
    starts, sizes = [0] * len(x.shape), list(x.shape)
    starts[dim], sizes[dim] = start * inner, length * inner
    return w.reshape(w.op("SLICE", [x, w.shape(starts), w.shape(sizes)], sizes), shape)


def _goes_in_rows(x: TosaValue) -> bool:
    """Return whether a value has a rank that TOSA lacks, or several images.

    Vela cuts and joins images one by one.
    """
    return len(x.shape) > MAX_RANK or math.prod(x.shape[:-3]) > 1


def _around(w: TosaWriter, x: TosaValue, dim: int, in_rows: bool) -> tuple[TosaValue, int, int]:
    """Return `x` or rows of it, the dimension that contains `dim`, and its elements per element of `dim`."""
    if not in_rows:
        return x, dim, 1
    rows, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    return w.reshape(x, (rows, x.shape[dim] * inner)), 1, inner


def pad(
    w: TosaWriter, x: TosaValue, before: Sequence[int], after: Sequence[int], fill: float = 0
) -> TosaValue:
    """Add elements of `fill` on both sides, or remove elements for a negative number."""
    for d, (low, high) in enumerate(zip(before, after, strict=True)):
        cut = max(-low, 0), max(-high, 0)
        x = slice_(w, x, d, cut[0], x.shape[d] - sum(cut))
    amounts = [max(amount, 0) for pair in zip(before, after, strict=True) for amount in pair]
    if not any(amounts):
        return x
    shape = [
        length + low + high for length, low, high in zip(x.shape, amounts[::2], amounts[1::2], strict=True)
    ]
    return w.op("PAD", [x, w.shape(amounts), w.number(fill, x.dtype)], shape)


def concat(w: TosaWriter, values: Sequence[TosaValue], dim: int) -> TosaValue:
    """Concatenate along one dimension; many operands are concatenated in several steps."""
    return join_in_steps(values, MAX_OPERANDS, lambda group: _concatenated(w, group, dim))


def _concatenated(w: TosaWriter, values: Sequence[TosaValue], dim: int) -> TosaValue:
    total = sum(value.shape[dim] for value in values)
    in_rows = any(map(_goes_in_rows, values))
    first, axis, inner = _around(w, values[0], dim, in_rows)
    parts = [first, *(_around(w, value, dim, in_rows)[0] for value in values[1:])]
    out = [*first.shape[:axis], total * inner, *first.shape[axis + 1 :]]
    joined = w.op("CONCAT", parts, out, axis=axis)
    return w.reshape(joined, (*values[0].shape[:dim], total, *values[0].shape[dim + 1 :]))


def tile(w: TosaWriter, x: TosaValue, shape: Sequence[int]) -> TosaValue:
    """Repeat `x` in the dimensions in which it has size 1 and `shape` has not. Both have the same rank."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    constant = w.data(x)
    if constant is not None:
        return w.constant(constant.expand(shape), x.dtype)
    runs: list[list[int]] = []  # adjacent dimensions that are all repeated, or all not
    for d, (old, new) in enumerate(zip(x.shape, shape, strict=True)):
        if new == 1:
            continue
        if runs and (x.shape[runs[-1][-1]] == 1) == (old == 1):
            runs[-1].append(d)
        else:
            runs.append([d])
    merged = [math.prod(x.shape[d] for d in run) for run in runs]
    out = [math.prod(shape[d] for d in run) for run in runs]
    if len(out) > MAX_RANK:  # first repeat the last such dimension, which then merges with its neighbours
        last = max(d for d, (old, new) in enumerate(zip(x.shape, shape, strict=True)) if old != new)
        return tile(w, tile(w, x, (*x.shape[:last], *shape[last:])), shape)
    multiples = [new // old for old, new in zip(merged, out, strict=True)]
    y = w.op("TILE", [w.reshape(x, merged), w.shape(multiples)], out)
    return w.reshape(y, shape)


# -- rows --------------------------------------------------------------------------------------------------


def _expand(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return tile(w, w.reshape(x, (1,) * (len(a.shape) - len(x.shape)) + x.shape), a.shape)


def _cat(w: TosaWriter, a: Arguments) -> TosaValue:
    dtype = DTYPES[a.dtype]
    values = [cast(w, w.dense(operand), dtype) for operand in a.tensors]
    return concat(w, values, a.dim % len(a.shape))


def _slice(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return slice_(w, x, a.dim, a.start, a.shape[a.dim])


def _check_slice(a: Arguments) -> str | None:
    return None if a.step == 1 else f"a slice of step {a.step}; TOSA has step 1"


def _constant_pad(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return pad(w, x, *paddings(a.pad, len(x.shape)), getattr(a, "value", None) or 0)


def _flip(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    for dim in (dim % len(a.shape) for dim in a.dims):
        sizes = x.shape
        merged = (math.prod(sizes[:dim]), sizes[dim], math.prod(sizes[dim + 1 :]))
        y, axis = (x, dim) if len(sizes) <= MAX_RANK else (w.reshape(x, merged), 1)
        x = w.reshape(w.op("REVERSE", [y], y.shape, axis=axis), a.shape)
    return x


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.cat.default: Row(_cat, halves=is_of_one_type),
        aten.slice.Tensor: Row(_slice, _check_slice, halves=is_of_one_type),
        aten.constant_pad_nd.default: Row(_constant_pad, halves=is_of_one_type),
        aten.expand.default: Row(_expand, halves=is_of_one_type),
        aten.flip.default: Row(_flip, halves=is_of_one_type),
        aten.permute.default: Row(permute, halves=is_of_one_type),
        aten.view.default: Row(view, halves=is_of_one_type),
        aten.clone.default: Row(clone, halves=is_of_one_type),
    }
)
