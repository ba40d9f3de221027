"""Compute in torch what XNNPACK's int8 kernels give; the runtime must agree bit for bit.

`ROUNDINGS` says how each family of kernels rounds (XNNPACK of ExecuTorch 1.5.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as functional
from executorch.backends.xnnpack.utils import xnnpack_constants
from torch import Tensor

from dimorder.graph.interpreter import GraphNode, interpret
from dimorder.graph.quantized import IntegerType, level_bounds
from dimorder.ops.dialect import OPS
from dimorder.targets.xnnpack.graph import XnnValue, constants_of
from dimorder.targets.xnnpack.integers import MOVES, PACKING
from dimorder.verification import arithmetic
from dimorder.verification import xnnpack_roundings as roundings
from dimorder.verification.differences import Differences
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.relative_error import error_in_float64
from dimorder.verification.verify_integers import require_near

_SUMS = PACKING | {"BatchMatrixMultiply"}  # the kinds that add up products
_Fields = Any  # of a node: an instance of a class of ExecuTorch's XNNPACK schema


@dataclass(frozen=True)
class _Int8Kernel:
    """A node with its operands, their types, the types of its result, and the scales of its weight."""

    kind: str
    fields: _Fields
    operands: Sequence[Tensor]
    types: Sequence[IntegerType | None]
    result: IntegerType
    scales: Tensor | None

    def compute(self, *operands: Tensor) -> Tensor:
        """Return the result for these operands, before it is rounded."""
        return _FLOAT[self.kind](self.fields, *operands)


@dataclass(frozen=True)
class XnnModel:
    """A graph of XNNPACK nodes as it was written.

    The attributes of `nodes` are ExecuTorch's own. `rounded` are the values that floats were rounded to, the
    values that are quantised dynamically, and the linears and convolutions of these. Each has the place in
    the network of its operator.
    """

    nodes: Sequence[GraphNode]
    values: Sequence[XnnValue]
    inputs: Sequence[int]
    outputs: Sequence[int]
    rounded: Mapping[int, str]

    def run(
        self, inputs: Sequence[Tensor], rounded: Sequence[Tensor], kept: Collection[int]
    ) -> Mapping[int, Any]:
        """Return the values `kept` for these inputs; the runtime gives `rounded` for those of that name.

        Raises `VerificationError` if one of these differs from the model's result for the values before it.
        """
        found, feed = (
            dict(zip(names, tensors, strict=True))
            for names, tensors in ((self.rounded, rounded), (self.inputs, inputs))
        )

        def compute(node: GraphNode, operands: Sequence[Any]) -> Any:
            index, first = node.output, operands[0]
            value = self.values[index]
            if value.nonbatch is not None:
                return roundings.DynamicIntegers.of(first, value.nonbatch)
            if isinstance(first, roundings.DynamicIntegers):
                return self._agreed_sum(node, operands, found[index])
            result = self._result(node, operands).to(value.dtype)
            return result if index not in found else self._agreed(node, operands, result, found[index])

        return interpret(self.nodes, {**constants_of(self.values), **feed}, kept, compute)

    def _agreed_sum(self, node: GraphNode, operands: Sequence[Any], found: Tensor) -> Tensor:
        """Return the runtime's result for a linear or convolution of dynamically quantised integers.

        It must be near the exact sum.
        """
        read, values, *bias = operands
        scales = self._scales(node).double()
        if scales.dim() < values.dim():
            scales = scales.reshape(-1, *[1] * (values.dim() - 1))
        weight = values * scales  # in float64
        fields, bounds = _fields_and_bounds(node)
        wanted = _FLOAT[node.kind](fields, read.values, weight, *(b.double() for b in bias)).clamp(*bounds)
        unsure = _FLOAT[node.kind](fields, read.unsure, weight.abs_())
        roundings.require_near_sum(found, wanted, unsure, self.rounded[node.output])
        return found.reshape(wanted.shape)

    def _agreed(self, node: GraphNode, operands: Sequence[Tensor], result: Tensor, found: Tensor) -> Tensor:
        """Return the runtime's result for what was computed in floats, if the model agrees.

        Integers that were rounded from floats may be off by one: `require_meant` counts these, for it knows
        how far roundings move them.
        """
        precision = str(result.dtype if result.is_floating_point() else torch.float32)
        what = f"{self.rounded[node.output]} in {precision.removeprefix('torch.')}"
        found = found.reshape(result.shape)
        if result.is_floating_point():
            require_near(found, result, what, self._half_sums(node, operands, result))
        else:
            Differences.between(result, found).require_few(what, are_counted=node.kind != "Convert")
        return found

    def _result(self, node: GraphNode, operands: Sequence[Tensor]) -> Tensor:
        sources, value = [self.values[i] for i in node.inputs], self.values[node.output]
        types, result = [source.integer_type for source in sources], value.integer_type
        fields, bounds = _fields_and_bounds(node)
        if node.kind == "Convert":
            return _convert(operands[0], types[0], result)
        read = [x.float() if of.half else x for of, x in zip(sources, operands, strict=True)]
        if result is None:
            return _FLOAT[node.kind](fields, *read).clamp(*bounds)
        scales = self._scales(node) if node.kind in PACKING else None
        kernel = _Int8Kernel(node.kind, fields, read, types, result, scales)
        return ROUNDINGS.get(node.kind, _table)(kernel).clamp(*level_bounds(*bounds, result))

    def _half_sums(self, node: GraphNode, operands: Sequence[Tensor], result: Tensor) -> float:
        """Return the relative error of a result whose sums are kept in float16; 0 for other results."""
        if result.dtype != torch.float16 or node.kind not in _SUMS:
            return 0.0
        fields, bounds = _fields_and_bounds(node)
        with HalfSums():
            summed = _FLOAT[node.kind](fields, *(x.half() for x in operands)).clamp(*bounds)
        return error_in_float64(summed, result.double())

    def _scales(self, node: GraphNode) -> Tensor:
        """Return the scales of a node's weight."""
        constant = self.values[node.inputs[1]].constant
        assert constant is not None and constant.scales is not None
        scales: Tensor = constant.scales.values
        return scales


def _fields_and_bounds(node: GraphNode) -> tuple[_Fields, tuple[float, float]]:
    bounds = node.attributes.output_min_max
    if bounds is None:
        return node.attributes.xnode_union, (-math.inf, math.inf)
    return node.attributes.xnode_union, (float(bounds.output_min), float(bounds.output_max))


# -- how each family rounds; the results are clamped afterwards ----------------------------------------------


def _convert(x: Tensor, of: IntegerType | None, result: IntegerType | None) -> Tensor:
    """Dequantise, or round what is over the scale and add the zero point, or both."""
    real = roundings.real(x, of)
    return real if result is None else roundings.quantized(real, result).clamp(result.low, result.high)


def _scaled_sum(k: _Int8Kernel) -> Tensor:
    first, second = k.types[:2]
    scales = k.scales if second is None else second.scale
    assert first is not None and scales is not None
    operands = [roundings.centred(x, of) for x, of in zip(k.operands, k.types, strict=True)]
    return roundings.scaled_sum(k.compute(*operands), first, scales, k.result)


def _scaled_mean(k: _Int8Kernel) -> Tensor:
    (x,), (of,) = k.operands, k.types
    assert of is not None
    return roundings.scaled_mean(x, of, (1, 2), k.result)


def _fixed_point_sum(k: _Int8Kernel) -> Tensor:
    types = [of for of in k.types if of is not None]
    return roundings.fixed_point_sum(k.compute, k.operands, types, k.result)


def _table(k: _Int8Kernel) -> Tensor:
    """Compute in float32, for each of 256 integers."""
    real = (roundings.real(x, of) for x, of in zip(k.operands, k.types, strict=True))
    return roundings.table(k.compute(*real), k.result)


def _chosen(k: _Int8Kernel) -> Tensor:
    """Move or choose integers as they are."""
    return k.compute(*(x.double() for x in k.operands))


# By the kind of node. Halves go to the even integer, unless a family says otherwise. Every other kind with
# int8 kernels is a table, and a Convert is `_convert`.
ROUNDINGS: Mapping[str, Callable[[_Int8Kernel], Tensor]] = MappingProxyType(
    {
        **dict.fromkeys((*PACKING, "Multiply", "BatchMatrixMultiply"), _scaled_sum),
        "GlobalAvgPooling2d": _scaled_mean,
        **dict.fromkeys(("Add", "Subtract"), _fixed_point_sum),
        **dict.fromkeys((*MOVES, "MaxPooling2d"), _chosen),
    }
)


# -- what each kind of node computes -------------------------------------------------------------------------


def _pads(f: _Fields) -> list[int]:
    return [f.padding_top, f.padding_bottom, f.padding_left, f.padding_right]


def _conv(f: _Fields, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    stride, dilation = (f.subsampling_height, f.subsampling_width), (f.dilation_height, f.dilation_width)
    return arithmetic.conv(x, weight, bias, stride, _pads(f), dilation, f.groups)


def _conv_transpose(f: _Fields, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    window = ([f.subsampling_height, f.subsampling_width], [f.padding_top, f.padding_left])
    added = ([f.adjustment_height, f.adjustment_width], [f.dilation_height, f.dilation_width])
    y: Tensor = OPS.conv_transpose2d_nhwc.default(x, weight, bias, *window, *added, f.groups)
    return y


def _max_pool(f: _Fields, x: Tensor) -> Tensor:
    kernel, stride = (f.pooling_height, f.pooling_width), (f.stride_height, f.stride_width)
    return arithmetic.max_pool(x, kernel, stride, _pads(f), (f.dilation_height, f.dilation_width))


def _avg_pool(f: _Fields, x: Tensor) -> Tensor:
    """Return the mean over the elements inside the input."""
    window = (f.pooling_height, f.pooling_width), (f.stride_height, f.stride_width), _pads(f)
    return arithmetic.sum_pool(x, *window) / arithmetic.sum_pool(torch.ones_like(x[:1, :, :, :1]), *window)


def _bilinear(f: _Fields, x: Tensor) -> Tensor:
    aligned = bool(f.flags & xnnpack_constants.XNN_FLAG_ALIGN_CORNERS)
    y: Tensor = OPS.upsample_bilinear2d_nhwc.default(x, [f.new_height, f.new_width], aligned, None, None)
    return y


def _slice(f: _Fields, x: Tensor) -> Tensor:
    """Return a box of a value, cut to its shape; a size of 0 stands for the whole dimension."""
    rest = [size - start for size, start in zip(x.shape, f.offsets, strict=True)]
    sizes = [min(size or most, most) for size, most in zip(f.sizes, rest, strict=True)]
    return arithmetic.cut(x, f.offsets, sizes)


def _product(f: _Fields, a: Tensor, b: Tensor) -> Tensor:
    transposed = bool(f.flags & xnnpack_constants.XNN_FLAG_TRANSPOSE_B)
    return a @ (b.transpose(-1, -2) if transposed else b)


# Operators without fields.
_ELEMENTWISE: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        **dict.fromkeys(("Clamp", "Copy"), lambda x: x),  # a node has its own bounds
        "Add": torch.add,
        "Subtract": torch.sub,
        "Multiply": torch.mul,
        "Div": torch.div,
        "Maximum": torch.maximum,
        "Minimum": torch.minimum,
        "PReLU": lambda x, slope: torch.where(x > 0, x, x * slope),
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Hardswish": functional.hardswish,
        "Gelu": functional.gelu,
        "Exp": torch.exp,
        "Abs": torch.abs,
        "Negate": torch.neg,
        "Floor": torch.floor,
        "Ceiling": torch.ceil,
        "Square": torch.square,
        "Sin": torch.sin,
        "Cos": torch.cos,
        "Log": torch.log,
        "SquareRoot": torch.sqrt,
        "ReciprocalSquareRoot": torch.rsqrt,
        "Softmax": lambda x: x.softmax(-1),
        "FullyConnected": functional.linear,
        "GlobalAvgPooling2d": lambda x: x.mean((1, 2), keepdim=True),
    }
)


def _without_fields(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda fields, *operands: function(*operands)


_FLOAT: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        **{kind: _without_fields(function) for kind, function in _ELEMENTWISE.items()},
        "Conv2d": _conv,
        "ConvTranspose2d": _conv_transpose,
        "DepthwiseConv2d": lambda f, x, w, b=None: _conv(f, x, w.permute(3, 1, 2, 0), b),
        "MaxPooling2d": _max_pool,
        "AvgPooling2d": _avg_pool,
        "StaticTranspose": lambda f, x: x.permute(f.perm),
        "StaticReshape": lambda f, x: x.reshape([size or -1 for size in f.new_shape]),
        "StaticSlice": _slice,
        **{f"Concatenate{i}": lambda f, *x: torch.cat(x, f.axis) for i in range(2, 6)},
        "ELU": lambda f, x: functional.elu(x, f.alpha),
        "LeakyReLU": lambda f, x: functional.leaky_relu(x, f.negative_slope),
        "BatchMatrixMultiply": _product,
        "StaticResizeBilinear2D": _bilinear,
        "StaticConstantPad": lambda f, x: arithmetic.pad(
            x, [*zip(f.pre_paddings, f.post_paddings, strict=True)], f.padding_value
        ),
    }
)
