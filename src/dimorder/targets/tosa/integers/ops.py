"""List the operators of quantised networks as TOSA INT operators.

An operator between a dequantize and a quantize is computed on the integers of both. A call without floats,
such as a comparison of positions, is computed as in a float graph. A call that no row can compute in integers
is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.pointwise import CLAMP_BOUNDS
from dimorder.targets.table import Arguments, Row, Table, View
from dimorder.targets.tosa import division, logic
from dimorder.targets.tosa import indices as plain_indices
from dimorder.targets.tosa import pointwise as plain_pointwise
from dimorder.targets.tosa import reductions as plain_reductions
from dimorder.targets.tosa.integers import (
    comparisons,
    indices,
    moves,
    pointwise,
    products,
    reductions,
    resize,
)
from dimorder.targets.tosa.integers.lookups import clamp
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Lookup, numbers
from dimorder.targets.tosa.integers.sums import quantize
from dimorder.targets.tosa.integers.unsigned import with_unsigned
from dimorder.targets.tosa.ops import LACKS, unsupported_value
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter


def unfit(value: Any) -> str | None:
    """Return why a value of a quantised program cannot be a tensor of TOSA, or None."""
    return None if isinstance(value, Tensor) and value.dtype == torch.uint8 else unsupported_value(value)


def _quantize(w: W, a: Arguments) -> TosaValue:
    of = IntegerType(a.dtype, a.scale, a.zero_point)
    if of.dtype != torch.uint8:
        y = quantize(w, numbers(w, a.input), of)
        if of.dtype != torch.int8:
            return y
        clamped = clamp(w, y, a.quant_min, a.quant_max)
        w.errors[clamped.tensor] = w.errors.get(y.tensor, 0.0)
        return clamped
    integers = quantize(w, numbers(w, a.input), of.as_type(torch.int8))
    return rescale(w, integers, [1.0], "INT8", zero_point=-128, to_unsigned=True)


def _dequantize(w: W, a: Arguments) -> View[Any]:
    held: View[TosaValue] = a.input
    of, integers = w.annotation.type, held.value  # type: ignore[union-attr]  # every dequantize has a type
    assert of is not None
    if of.dtype == torch.uint8:
        integers = rescale(w, integers, [1.0], "INT8", to_zero_point=-128, unsigned=True)
        of = of.as_type(torch.int8)
    return View(Lookup.dequantize(integers, of), held.order)


_RANGES = frozenset(((-128, 127), (-127, 127), (0, 255), (-32767, 32767)))


def _check_range(a: Arguments) -> str | None:
    if a.dtype == torch.int16 and a.zero_point:
        return f"int16 with zero point {a.zero_point}, where RESCALE has one for 8 bits alone"
    if (a.quant_min, a.quant_max) in _RANGES:
        return None
    return (
        f"integers from {a.quant_min} to {a.quant_max}, where this target has int8 from -128 or -127 on, "
        "int16 from -32767 on, and uint8 at the boundary"
    )


def _without_floats(target: Any, plain: Row, row: Row | None) -> Row:
    """Return a row that computes calls without floats as `plain` does, and others as `row`, if any, does."""

    def check(a: Arguments) -> str | None:
        if not a.floats:
            return plain.check(a)
        return f"{target} of numbers that are not integers" if row is None else row.check(a)

    own = with_unsigned(plain)
    if row is None:
        return Row(own.build, check)
    return replace(row, build=lambda w, a: (row if a.floats else own).build(w, a), check=check)


_QUANTIZED: Mapping[Any, Row] = MappingProxyType(
    {
        target: replace(row, halves=lambda arguments: True)  # integers are the same in any precision
        for family in (products, pointwise, comparisons, reductions, resize, moves, indices)
        for target, row in family.ROWS.items()
    }
)
_ARITHMETIC = (
    *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar),
    *(aten.mul.Tensor, aten.mul.Scalar, aten.neg.default, aten.abs.default, aten._to_copy.default),
    *(aten.maximum.default, aten.minimum.default, *CLAMP_BOUNDS),
)
_QUOTIENTS = (
    *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar),
)
_REDUCTIONS = (aten.any.dims, aten.all.dims, aten.amax.default, aten.amin.default, aten.sum.dim_IntList)
_ARGMAX = "argmax of integers without a scale"
_PLAIN: Mapping[Any, Row] = MappingProxyType(
    {
        **{
            target: row
            for target, row in logic.ROWS.items()
            if target not in (aten.isnan.default, *comparisons.OF_TRUTHS)
        },
        **{target: plain_pointwise.ROWS[target] for target in _ARITHMETIC},
        **{target: division.ROWS[target] for target in _QUOTIENTS},
        **{target: plain_reductions.ROWS[target] for target in _REDUCTIONS},
        aten.embedding.default: plain_indices.ROWS[aten.embedding.default],
        aten.argmax.default: Row(plain_reductions.ROWS[aten.argmax.default].build, lambda a: _ARGMAX),
    }
)

OPERATORS = Table(
    "TOSA INT",
    MappingProxyType(
        {
            QUANTIZE: Row(_quantize, _check_range),
            DEQUANTIZE: Row(_dequantize, _check_range),
            **_QUANTIZED,
            **{
                target: _without_floats(target, row, _QUANTIZED.get(target)) for target, row in _PLAIN.items()
            },
        }
    ),
    lambda value, is_constant: None if is_constant and not value.dim() else unfit(value),
    LACKS,
)
