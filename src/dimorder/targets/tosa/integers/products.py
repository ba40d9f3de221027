"""Write convolutions, linears and matmuls of int8, added up in int32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import IntegerType, Scaled, in_float32
from dimorder.ops.dialect import OPS as dimorder
from dimorder.physical.fuse_quantized import FoundKernel
from dimorder.targets.rows import constant_matrix
from dimorder.targets.table import Arguments, Row, whole
from dimorder.targets.tosa import reductions, spatial
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.integers.kernels import INTEGERS, unfit_weight, weighted
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import Accumulator, IntegerWriter
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter


def _product(write: Callable[..., TosaValue], name: str) -> Callable[..., Accumulator]:
    """Return the builder of a convolution; `name` is the weight's argument, with output channels first."""

    def build(w: W, a: Arguments) -> Accumulator:
        x, of = as_integers(w, w.dense(a.x))
        weight, scales, zero_point = _weight(getattr(a, name))
        scales = scales * in_float32(of.scale)
        bias = _bias(a.bias, scales)
        given = {name: weight, "bias": bias, "x": whole(x), "zero_points": (of.zero_point, zero_point)}
        call = changed(a, **given)
        limit = limit_of(weight.int() - zero_point, bias, of)
        if weight.dtype == torch.int16:
            return _of_16_bits(w, x, of, weight.flatten(1), scales, limit)
        is_depthwise = write is spatial.convolution and len(a.stride) == 2 and a.groups == x.shape[-1]
        if x.dtype != "INT16" or a.groups == 1 or is_depthwise:
            return Accumulator(write(w, call), scales, limit)
        less = max(limit.bit_length() - 30, 0)

        def write_group(x: TosaValue, rows: Tensor, bias: Tensor | None, shape: Sequence[int]) -> TosaValue:
            """Shorten the sums of a group, which have 48 bits: only RESCALE reads these, and CONCAT joins."""
            of_group = changed(call, x=whole(x), bias=bias, shape=tuple(shape), groups=1, **{name: rows})
            return rescale(w, write(w, of_group), [2.0**-less], "INT32")

        joined = w.in_groups(x, weight, call, write_group)
        return Accumulator(joined, scales * 2.0**less, (limit >> less) + 1)

    return build


def _convolution_kernel(a: Arguments, weight: Any) -> FoundKernel:
    """Require a weight of 8 bits, which TOSA's convolutions have, or one that is a matrix of a MATMUL."""
    if unfit_weight(weight) is None and weight.integers.values.dtype == torch.int16:
        plain = a.bias is None and a.groups == 1 and {*a.stride} == {1} and not any(a.padding)
        if not plain or math.prod(weight.shape[1:-1]) != 1:
            return "a weight of 16 bits, where TOSA's convolutions have 8"
    return weighted(weight)


def _weight(weight: Any) -> tuple[Tensor, Tensor, int]:
    """Return a constant weight's integers, their scales (one, or one per channel), and the zero point."""
    assert unfit_weight(weight) is None, "the plan has no such weight"
    held = weight.integers
    if held.scale is not None:
        return held.values, torch.tensor([held.scale], dtype=torch.float64), held.zero_point
    scales = held.along(0)
    assert scales is not None
    return held.values, scales.double(), held.zero_point


def _bias(bias: Tensor | None, scales: Tensor) -> Tensor | None:
    if bias is None:
        return None
    held = bias.integers.values if isinstance(bias, Scaled) else (bias.double() / scales).round()
    return held.clamp(-(2**31) + 1, 2**31 - 1).to(torch.int32)


def limit_of(weight: Tensor, bias: Tensor | None, of: IntegerType) -> int:
    """Return the largest magnitude of a sum, for any input."""
    sums = weight.to(torch.int64).abs().flatten(1).sum(1) * of.reach
    return int((sums if bias is None else sums + bias.abs()).max())


def _matmul(w: W, a: Arguments) -> Accumulator:
    left, right = a.self, a.other
    rows, columns = constant_matrix(left), constant_matrix(right)
    if columns is not None:
        x, of = as_integers(w, w.dense(left))
        weight, scales, zero_point = _weight(columns.t())
        scales, limit = scales * in_float32(of.scale), limit_of(weight.int() - zero_point, None, of)
        if weight.dtype == torch.int16:
            return _of_16_bits(w, x, of, weight, scales, limit)
        sums = reductions.linear(w, x, weight, None, (of.zero_point, zero_point))
        return Accumulator(sums, scales, limit)
    if rows is not None:
        return _weight_first(w, rows, *as_integers(w, w.dense(right)))
    (x, x_of), (y, y_of) = _matrices(w, left), _matrices(w, right)
    scale = torch.tensor(in_float32(x_of.scale) * in_float32(y_of.scale), dtype=torch.float64)
    limit = x.shape[-1] * x_of.reach * y_of.reach
    return _multiplied(w, x, y, (x_of.zero_point, y_of.zero_point), scale, limit)


def _of_16_bits(
    w: W, x: TosaValue, of: IntegerType, weight: Tensor, scales: Tensor, limit: int
) -> Accumulator:
    """Return x (…, I) times weight (O, I) of 16 bits, by a MATMUL: a CONV2D has weights of 8."""
    return _multiplied(w, x, w.constant(weight.t()), (of.zero_point, 0), scales, limit)


def _multiplied(
    w: W, x: TosaValue, y: TosaValue, zero_points: tuple[int, int], scales: Tensor, limit: int
) -> Accumulator:
    """Return a product of integers of one type; those of 16 bits have no zero points.

    Only RESCALE reads sums of 48 bits, and it has scales of the last dimension alone. So they get 32 bits.
    """
    if x.dtype != y.dtype:
        x = rescale(w, x, [1.0], "INT16", zero_point=zero_points[0])
        y = rescale(w, y, [1.0], "INT16", zero_point=zero_points[1])
        zero_points = 0, 0
    is_wide = x.dtype == "INT16"
    less = max(limit.bit_length() - 30, 0) if is_wide else 0

    def shorten(sums: TosaValue) -> TosaValue:
        return rescale(w, sums, [2.0**-less], "INT32") if is_wide else sums

    sums = reductions.matmul(w, x, y, zero_points, shorten)
    return Accumulator(sums, scales * 2.0**less, (limit >> less) + (less > 0))


def _matrices(w: W, operand: Any) -> tuple[TosaValue, IntegerType]:
    """Return the integers of matrices, which may be a batch of constants."""
    if not isinstance(operand, Scaled):
        return as_integers(w, w.dense(operand))
    of = operand.integers.type
    assert of is not None, "the plan has no such constants"
    return w.constant(operand.integers.values), of


def _weight_first(w: W, rows: Tensor, x: TosaValue, of: IntegerType) -> Accumulator:
    """Return W x, with one scale per row."""
    weight, scales, zero_point = _weight(rows)
    limit = limit_of(weight.int() - zero_point, None, of)
    if x.dtype == "INT16":
        weight, zero_point = (weight.int() - zero_point).to(torch.int16), 0
    scales = (scales * in_float32(of.scale))[:, None]
    return _multiplied(w, w.constant(weight), x, (zero_point, of.zero_point), scales, limit)


def _matmul_kernel(a: Arguments) -> FoundKernel:
    for constant, is_right in ((a.other, True), (a.self, False)):
        matrix = constant_matrix(constant)
        if matrix is not None:
            return weighted(matrix.t() if is_right else matrix)
        if isinstance(constant, Tensor):
            return _batch_kernel(constant)
    return INTEGERS


def _batch_kernel(matrices: Tensor) -> FoundKernel:
    if isinstance(matrices, Scaled) and matrices.integers.scale is not None:
        return INTEGERS
    return "a batch of constant matrices without one scale"


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(
            _product(spatial.convolution, "weight_ohwi"),
            spatial.check_convolution,
            kernel=lambda a: _convolution_kernel(a, a.weight_ohwi),
        ),
        dimorder.conv3d_ndhwc.default: Row(
            _product(spatial.convolution, "weight_odhwi"),
            spatial.check_convolution,
            kernel=lambda a: _convolution_kernel(a, a.weight_odhwi),
        ),
        dimorder.conv_transpose2d_nhwc.default: Row(
            _product(spatial.conv_transpose2d, "weight_ohwi"),
            spatial.check_transposed,
            kernel=lambda a: _convolution_kernel(a, a.weight_ohwi),
        ),
        aten.matmul.default: Row(_matmul, reductions.check_matmul, kernel=_matmul_kernel),
    }
)
