"""Write the operators that move, repeat or rename elements as LiteRT operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.targets.litert.flatbuffer import MAX_SLICED
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.pointwise import BOOL, F32, cast
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.rows import clone, joined, paddings, permute, unfit_step, view
from dimorder.targets.table import Arguments, Row

aten = torch.ops.aten

MAX_PADDED = 5  # dimensions of PADV2, and of PAD by LiteRT's own kernels


# -- parts: values to values -------------------------------------------------------------------------------


def pad(
    w: LiteRtWriter, x: LiteRtValue, before: Sequence[int], after: Sequence[int], fill: float = 0
) -> LiteRtValue:
    """Add elements of `fill` on both sides, or remove elements for a negative number."""
    for d, (low, high) in enumerate(zip(before, after, strict=True)):
        cut = max(-low, 0), max(-high, 0)
        x = w.slice(x, d, cut[0], x.shape[d] - sum(cut))
    added = [(max(low, 0), max(high, 0)) for low, high in zip(before, after, strict=True)]
    if not any(map(any, added)):
        return x
    if fill != 0 and x.dtype == F32 and w.in_integers is None:  # XNNPACK has no PADV2
        padded = [d for d, ends in enumerate(added) if any(ends)]
        varying = [d for d, size in enumerate(x.shape) if size in w.varying]
        if not varying or varying == padded[:1] == padded:
            return w.beside_constants(x, added, torch.tensor(float(fill)))
        if not set(padded) & set(varying):
            known = torch.zeros([size if d in padded else 1 for d, size in enumerate(x.shape)])
            filled = F.pad(known, [end for ends in reversed(added) for end in ends], value=float(fill))
            return w.elementwise("ADD", pad(w, x, before, after), w.constant(filled))
    shape = [low + size + high for (low, high), size in zip(added, x.shape, strict=True)]
    if x.dtype == BOOL:  # LiteRT pads no truth values
        return cast(w, pad(w, cast(w, x, torch.int32), before, after, fill), BOOL)
    runs = _padded_runs(added) if len(added) > MAX_PADDED else [[d] for d in range(len(added))]
    inner = [math.prod(x.shape[d] for d in run[1:]) for run in runs]
    x = w.reshape(x, [x.shape[run[0]] * size for run, size in zip(runs, inner, strict=True)])
    added = [(added[d][0] * size, added[d][1] * size) for (d, *_), size in zip(runs, inner, strict=True)]
    sizes = [low + size + high for (low, high), size in zip(added, x.shape, strict=True)]
    amounts = w.constant(torch.tensor(added, dtype=torch.int32))
    if fill == 0:
        return w.reshape(w.op("PAD", [x, amounts], sizes), shape)
    return w.reshape(w.op("PADV2", [x, amounts, w.number(fill, x.dtype)], sizes), shape)


def _padded_runs(added: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the dimensions that can be merged: each that is padded, with those after it that are not."""
    runs: list[list[int]] = []
    for d, amounts in enumerate(added):
        if runs and not any(amounts):
            runs[-1].append(d)
        else:
            runs.append([d])
    return runs


# -- rows --------------------------------------------------------------------------------------------------


def _cat(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    values = [cast(w, value, a.dtype) for value in joined(w, a, lambda value: value.of)]
    return w.concat(values, a.dim % len(a.shape))


def _slice(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    dim, size = a.dim % len(x.shape), x.shape[a.dim]
    if size == a.shape[dim] and size in w.varying:  # it may be shorter at another size
        return w.op("SLICE", [x, w.sizes([0] * len(x.shape)), w.sizes(x.shape)], x.shape)
    start, end, step = slice(a.start, a.end, a.step).indices(size)
    if step == 1:
        return w.slice(x, dim, start, a.shape[dim])
    starts, ends, steps = [0] * len(x.shape), [*x.shape], [1] * len(x.shape)
    starts[dim], ends[dim], steps[dim] = start, end, step
    return w.op("STRIDED_SLICE", [x, *map(w.sizes, (starts, ends, steps))], a.shape)


def _slice_constant(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write a slice of a constant for some size, also where it takes all of the constant."""
    x = w.dense(a.x)
    dim = a.dim % len(x.shape)
    starts = [a.start if d == dim else 0 for d in range(len(x.shape))]
    return w.op("SLICE", [x, w.sizes(starts), w.sizes(a.shape)], a.shape)


def _check_slice(a: Arguments) -> str | None:
    """Leave slices of floats with steps to views, which stay in XNNPACK's delegate."""
    return None if a.dtype != F32 and len(a.shape) <= MAX_SLICED else unfit_step(a, "XNNPACK")


def _constant_pad(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    if not any(a.pad):  # they are other amounts at another dynamic size
        return w.op("PAD", [x, w.constant(torch.zeros(len(x.shape), 2, dtype=torch.int32))], x.shape)
    return pad(w, x, *paddings(a.pad, len(x.shape)), getattr(a, "value", None) or 0)


def _check_pad(a: Arguments) -> str | None:
    runs = _padded_runs([*zip(*paddings(a.pad, len(a.shape)), strict=True)])
    return None if len(runs) <= MAX_PADDED else f"padding in {len(runs)} dimensions; LiteRT has {MAX_PADDED}"


def _moved(target: Any) -> Row:
    """Return the row of a move that is read element by element, by a GATHER of constant places."""
    names = [argument.name for argument in target._schema.arguments]

    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        x = w.dense(a.self)
        given = {name: getattr(a, name) for name in names if name != "self"}
        at = target(torch.arange(x.size, dtype=torch.int32).reshape(x.shape), **given).reshape(-1)
        y = w.op("GATHER", [w.reshape(x, (x.size,)), w.constant(at)], (at.numel(),), axis=0, batchDims=0)
        return w.reshape(y, a.shape)

    return Row(build, integers=True)


def _flip(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    for dim in (dim % len(a.shape) for dim in a.dims):
        y, axis = w.in_ranks(x, dim)
        x = w.reshape(w.op("REVERSE_V2", [y, w.sizes([axis])], y.shape), a.shape)
    return x


def _check_flip(a: Arguments) -> str | None:
    return "a flip of floats, which slices write in XNNPACK's delegate" if a.dtype == F32 else None


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        SLICE_CONSTANT: Row(_slice_constant),
        aten.cat.default: Row(_cat, integers=True),
        aten.slice.Tensor: Row(_slice, _check_slice, integers=True),
        aten.constant_pad_nd.default: Row(_constant_pad, _check_pad),
        aten.expand.default: Row(lambda w, a: w.expanded(w.dense(a.self), a.shape), integers=True),
        aten._to_copy.default: Row(
            lambda w, a: cast(w, w.dense(a.self), a.dtype),
            halves=lambda a: torch.float64 not in a.floats,
            integers=True,
        ),
        aten.flip.default: Row(_flip, _check_flip, integers=True),
        aten.diagonal.default: _moved(aten.diagonal.default),
        aten.permute.default: Row(permute, relabel=True, integers=True),
        aten.view.default: Row(view, relabel=True, integers=True),
        aten.clone.default: Row(clone, relabel=True, integers=True),
    }
)
