"""Write the operators that move or rename elements as TOSA operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from dimorder.targets.rows import clone, paddings, permute, unfit_step, view
from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.pointwise import cast
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten


# -- parts: values to values -------------------------------------------------------------------------------


def pad(
    w: TosaWriter, x: TosaValue, before: Sequence[int], after: Sequence[int], fill: float = 0
) -> TosaValue:
    """Add elements of `fill` on both sides, or remove elements for a negative number."""
    for d, (low, high) in enumerate(zip(before, after, strict=True)):
        cut = max(-low, 0), max(-high, 0)
        x = w.slice(x, d, cut[0], x.shape[d] - sum(cut))
    amounts = [max(amount, 0) for pair in zip(before, after, strict=True) for amount in pair]
    if not any(amounts):
        return x
    shape = [
        length + low + high for length, low, high in zip(x.shape, amounts[::2], amounts[1::2], strict=True)
    ]
    return w.op("PAD", [x, w.sizes(amounts), w.number(fill, x.dtype)], shape)


# -- rows --------------------------------------------------------------------------------------------------


def _expand(w: TosaWriter, a: Arguments) -> TosaValue:
    return w.tiled(w.dense(a.self), a.shape)


def _cat(w: TosaWriter, a: Arguments) -> TosaValue:
    dtype = DTYPES[a.dtype]
    values = [cast(w, w.dense(operand), dtype) for operand in a.tensors]
    return w.concat(values, a.dim % len(a.shape))


def _slice(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.slice(x, a.dim, a.start, a.shape[a.dim])


def _constant_pad(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return pad(w, x, *paddings(a.pad, len(x.shape)), getattr(a, "value", None) or 0)


def _flip(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    for dim in (dim % len(a.shape) for dim in a.dims):
        y, axis = w.in_ranks(x, dim)
        if axis + 1 == len(y.shape) and not w.reverses_last:
            y = w.reshape(y, (math.prod(y.shape[:axis]), y.shape[axis], 1))
            axis = 1
        x = w.reshape(w.op("REVERSE", [y], y.shape, axis=axis), a.shape)
    return x


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        target: replace(row, halves=is_of_one_type, integers=True)
        for target, row in {
            aten.cat.default: Row(_cat),
            aten.slice.Tensor: Row(_slice, lambda a: unfit_step(a, "TOSA")),
            aten.constant_pad_nd.default: Row(_constant_pad),
            aten.expand.default: Row(_expand),
            aten.flip.default: Row(_flip),
            aten.permute.default: Row(permute),
            aten.view.default: Row(view),
            aten.clone.default: Row(clone),
        }.items()
    }
)
