"""Compute in torch what XNNPACK's int8 kernels give; the runtime must agree bit for bit.

`ROUNDINGS` says how each family of kernels rounds (XNNPACK of ExecuTorch 1.5.1), on x86 and on Arm alike.
tests/device/test_kernels.py runs every integer, and every pair of two, on emulated cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as functional
from executorch.backends.xnnpack.utils import xnnpack_constants
from torch import Tensor

from dimorder.errors import VerificationError
from dimorder.graph.integer_type import IntegerType
from dimorder.ops.dialect import OPS
from dimorder.targets.xnnpack.integers import MOVES, OPERANDS, PACKING, WEIGHTS
from dimorder.verification.float64_interpreter import Origin, require_close
from dimorder.verification.verify import TOLERANCE, verify

_Fields = Any  # of a node: an instance of a class of ExecuTorch's XNNPACK schema


class Rounding(Enum):
    """How a family of int8 kernels rounds its computed numbers to integers. Halves go to the even integer."""

    SCALED_SUM = "the sum of products in int32, times a float32 scale, rounded; then the zero point is added"
    SCALED_MEAN = (
        "the sum, times a float32 scale, plus an offset in float32 for the zero points; then rounded"
    )
    MULTIPLIERS = "each operand times an integer of 21 bits, added, shifted right; halves are rounded up"
    TABLE = "computed in float32, over the scale, plus the zero point; then rounded, for each of 256 integers"
    CONVERSION = "over the scale, rounded; then the zero point is added"
    NONE = "integers are moved or chosen as they are"


_SUM = 2e-6  # of the largest result: by how much one sum in float32 may differ from another


@dataclass(frozen=True)
class DynamicIntegers:
    """The numbers of XNNPACK's dynamically quantised integers, in float64, and the steps between them.

    The steps have size 1 in the dimensions that share one scale.
    """

    values: Tensor
    steps: Tensor

    @staticmethod
    def of(x: Tensor, nonbatch: int) -> DynamicIntegers:
        """Quantise as XNNPACK's quantization.h does, with one scale over the last `nonbatch` dimensions.

        The integers reach from the least number to the greatest one, and include 0.
        """
        dims = tuple(range(x.dim() - nonbatch, x.dim()))
        zero = torch.zeros(())
        least, most = x.amin(dims, keepdim=True).minimum(zero), x.amax(dims, keepdim=True).maximum(zero)
        scale = torch.where(least == most, torch.ones(()), 255 / (most - least))
        below, above = least * scale, most * scale
        nearer = (below - 128) + (above + 127) > 0
        zero_point = torch.where(nearer, -128 - below, 127 - above).clamp(-128, 127).round()
        integers = ((x * scale).round() + zero_point).clamp(-128, 127)
        steps = (1 / scale).double()
        return DynamicIntegers((integers - zero_point) * steps, steps)


@dataclass(frozen=True)
class XnnModel:
    """A graph of XNNPACK nodes as it was written.

    `nodes` have the schema's fields and the bounds of the result. `types` are the types of integer values,
    and `shapes` those of all values. `constants` are float32, or integers with the scales of their channels.
    `nonbatch` says how many dimensions of a dynamically quantised value share a scale. `rounded` are the
    values that floats were rounded to, the values that are quantised dynamically, and the linears and
    convolutions of these. Each has the place in the network of its operator. `halves` are the types of
    half-precision values.
    """

    nodes: Sequence[tuple[str, _Fields, tuple[float, float]]]
    shapes: Mapping[int, tuple[int, ...]]
    types: Mapping[int, IntegerType]
    constants: Mapping[int, Tensor]
    scales: Mapping[int, Tensor]
    nonbatch: Mapping[int, int]
    inputs: Sequence[int]
    outputs: Sequence[int]
    rounded: Mapping[int, str]
    halves: Mapping[int, torch.dtype]

    def dtype(self, index: int) -> torch.dtype:
        """Return the type of a value's elements."""
        return self.types[index].dtype if index in self.types else self.halves.get(index, torch.float32)

    def run(self, inputs: Sequence[Tensor], given: Sequence[Tensor]) -> Mapping[int, Any]:
        """Return each value for these inputs, where the runtime gives `given` for the values in `rounded`.

        Raises `VerificationError` if one of these differs from the model's result for the values before it.
        """
        held: dict[int, Any] = {
            **self.constants,
            **{i: x.reshape(self.shapes[i]) for i, x in zip(self.inputs, inputs, strict=True)},
        }
        found = dict(zip(self.rounded, given, strict=True))
        with torch.no_grad():
            for kind, fields, bounds in self.nodes:
                index = fields.output_id
                read = held[_reads_first(fields)]
                if index in self.nonbatch:
                    held[index] = DynamicIntegers.of(read, self.nonbatch[index])
                elif isinstance(read, DynamicIntegers):
                    held[index] = self._product(kind, fields, bounds, held, found[index])
                else:
                    made = self._node(kind, fields, bounds, held).to(self.dtype(index))
                    if index in found:
                        real = read if kind == "Convert" else None
                        made = self._agreed(made, found[index], index, real)
                    held[index] = made
        return held

    def _product(
        self, kind: str, fields: _Fields, bounds: tuple[float, float], held: Mapping[int, Any], found: Tensor
    ) -> Tensor:
        """Return the runtime's result for a linear or convolution of dynamically quantised integers.

        It must be near the exact sum. XNNPACK rounds one integer in a million differently from its formulas,
        so a quantum of one operand is allowed besides.
        """
        read, values, shape = held[fields.input1_id], held[fields.filter_id], self.shapes[fields.output_id]
        bias = [held[fields.bias_id].double()] if fields.bias_id in held else []
        scales = self.scales[fields.filter_id].double()
        if scales.dim() < values.dim():
            scales = scales.reshape(-1, *[1] * (values.dim() - 1))
        weight = values.double() * scales
        made = _FLOAT[kind](fields, shape, read.values, weight, *bias).clamp(*bounds)
        quantum = read.steps * weight.flatten(1).abs().amax(1)
        found = found.reshape(made.shape)
        if not bool(((found - made).abs() <= _SUM * made.abs().max() + quantum).all()):
            raise VerificationError(
                f"{self.rounded[fields.output_id]} of dynamically quantised integers",
                f"off by up to {float((found - made).abs().max()):.2e} of {float(made.abs().max()):.2e}",
                "report this network, and on which processor",
            )
        return found.reshape(shape)

    def _agreed(self, made: Tensor, found: Tensor, index: int, real: Tensor | None) -> Tensor:
        what = f"{self.rounded[index]} in float32"
        if made.is_floating_point():
            require_near(found.reshape(made.shape), made, what)
        else:
            origin = None if real is None else Origin(real.double() / self.types[index].scale)
            require_close(made, found.reshape(made.shape), what, origin)
        return found.reshape(made.shape)

    def _node(
        self, kind: str, fields: _Fields, bounds: tuple[float, float], held: Mapping[int, Any]
    ) -> Tensor:
        ids = [getattr(fields, n) for n in (*OPERANDS, *WEIGHTS) if getattr(fields, n, None) in held]
        result = self.types.get(fields.output_id)
        shape = self.shapes[fields.output_id]
        if kind == "Convert":
            return _converted(held[ids[0]], self.types.get(ids[0]), result)
        operands = [held[i].float() if i in self.halves else held[i] for i in ids]
        if result is None:
            return _FLOAT[kind](fields, shape, *operands).clamp(*bounds).reshape(shape)
        types = [self.types[i] for i in ids if i in self.types]
        lowest, highest = (
            round(min(max(bound / result.scale + result.zero_point, result.low), result.high))
            for bound in bounds
        )
        rounding = ROUNDINGS.get(kind, Rounding.TABLE)
        if kind in _EXACT:
            quanta = _EXACT[kind](fields, types, result, *operands)
        elif kind in PACKING:
            centred = [
                (operands[0].double() - types[0].zero_point),
                *(each.double() for each in operands[1:]),
            ]
            sums = _FLOAT[kind](fields, shape, *centred)
            quanta = _scaled(sums, types[0].scale * self.scales[ids[1]] / result.scale, result)
        elif rounding is Rounding.SCALED_MEAN:
            taps = math.prod(operands[0].shape[1:3])
            factor = torch.tensor(types[0].scale / (result.scale * taps), dtype=torch.float32)
            # XNNPACK's kernels scale the sum as it is, and subtract the zero points afterwards.
            offset = result.zero_point - taps * types[0].zero_point * factor
            quanta = (operands[0].double().sum((1, 2)).to(torch.float32) * factor + offset).round()
        elif rounding is Rounding.NONE:
            quanta = _FLOAT[kind](fields, shape, *(x.double() for x in operands))
        else:
            values = [_value(x, of) for x, of in zip(operands, types, strict=True)]
            quanta = _tabulated(_FLOAT[kind](fields, shape, *values), result)
        return quanta.clamp(lowest, highest).to(result.dtype).reshape(shape)


def require_near(found: Tensor, made: Tensor, what: str) -> None:
    """Refuse floats that differ from the recomputed ones by more than other roundings explain."""
    verify([found], [made], what=what, tolerance=max(TOLERANCE, torch.finfo(made.dtype).eps))


def _reads_first(fields: _Fields) -> int:
    """Return the first value that a node reads."""
    return next(int(getattr(fields, name)) for name in OPERANDS if hasattr(fields, name))


def _value(x: Tensor, of: IntegerType) -> Tensor:
    return (x.to(torch.float32) - of.zero_point) * of.scale


def _quantised(x: Tensor, of: IntegerType) -> Tensor:
    return (x.to(torch.float32) * _inverse(of)).round().add(of.zero_point).clamp(of.low, of.high)


def _inverse(of: IntegerType) -> Tensor:
    """Return one over a scale, both as float32."""
    return 1 / torch.tensor(of.scale, dtype=torch.float32)


def _tabulated(x: Tensor, of: IntegerType) -> Tensor:
    """Quantise as XNNPACK's tables of integers do: add the zero point, then round.

    With an odd zero point, halves are rounded to the other side.
    """
    return (x.to(torch.float32) * _inverse(of)).add(of.zero_point).round().clamp(of.low, of.high)


def _scaled(sums: Tensor, scale: Tensor, of: IntegerType) -> Tensor:
    return (
        (sums.to(torch.float32) * scale.to(torch.float32)).round().add(of.zero_point).clamp(of.low, of.high)
    )


def moved(kind: str, fields: _Fields, shape: Sequence[int], *operands: Tensor) -> Tensor:
    """Return the result of a node that moves elements."""
    return _FLOAT[kind](fields, shape, *operands).reshape(tuple(shape))


def _converted(x: Tensor, source: IntegerType | None, result: IntegerType | None) -> Tensor:
    real = x.float() if source is None else _value(x, source)
    if result is None:
        return real
    return _quantised(real, result).to(result.dtype)


def _added(sign: int) -> Callable[..., Tensor]:
    def add(fields: _Fields, types: Sequence[IntegerType], of: IntegerType, a: Tensor, b: Tensor) -> Tensor:
        scales = [torch.tensor(t.scale, dtype=torch.float32) / of.scale for t in types]
        shift = 20 - (math.frexp(max(float(s) for s in scales))[1] - 1)
        by = [int(torch.round(s.double() * 2**shift)) for s in scales]
        centred = [x.to(torch.int64) - t.zero_point for x, t in zip((a, b), types, strict=True)]
        total = by[0] * centred[0] + sign * by[1] * centred[1] + (1 << (shift - 1))
        return (total >> shift) + of.zero_point

    return add


def _multiplied(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def multiply(
        fields: _Fields, types: Sequence[IntegerType], of: IntegerType, a: Tensor, b: Tensor
    ) -> Tensor:
        centred = [x.double() - t.zero_point for x, t in zip((a, b), types, strict=True)]
        scale = torch.tensor(types[0].scale, dtype=torch.float32) * types[1].scale / of.scale
        return _scaled(product(fields, (), *centred), scale, of)

    return multiply


def _conv(f: _Fields, shape: Sequence[int], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    padding = [f.padding_top, f.padding_bottom, f.padding_left, f.padding_right]
    window = ([f.subsampling_height, f.subsampling_width], padding, [f.dilation_height, f.dilation_width])
    y: Tensor = OPS.conv2d_nhwc.default(x, weight, bias, *window, f.groups)
    return y


def _conv_transpose(
    f: _Fields, shape: Sequence[int], x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    window = ([f.subsampling_height, f.subsampling_width], [f.padding_top, f.padding_left])
    added = ([f.adjustment_height, f.adjustment_width], [f.dilation_height, f.dilation_width])
    y: Tensor = OPS.conv_transpose2d_nhwc.default(x, weight, bias, *window, *added, f.groups)
    return y


def _depthwise(fields: _Fields, shape: Sequence[int], x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    return _conv(fields, shape, x, weight.permute(3, 1, 2, 0), *bias)


def _max_pool(fields: _Fields, shape: Sequence[int], x: Tensor) -> Tensor:
    f = fields
    pads = (f.padding_left, f.padding_right, f.padding_top, f.padding_bottom)
    y = functional.max_pool2d(
        functional.pad(x.permute(0, 3, 1, 2), pads, value=-math.inf),
        (f.pooling_height, f.pooling_width),
        (f.stride_height, f.stride_width),
        0,
        (f.dilation_height, f.dilation_width),
    )
    return y.permute(0, 2, 3, 1)


def _cut(fields: _Fields, shape: Sequence[int], x: Tensor) -> Tensor:
    for dim, (start, size) in enumerate(zip(fields.offsets, fields.sizes, strict=True)):
        x = x.narrow(dim, start, size)
    return x


def _avg_pool(f: _Fields, shape: Sequence[int], x: Tensor) -> Tensor:
    """Return the mean over the elements inside the input."""
    pads = (f.padding_left, f.padding_right, f.padding_top, f.padding_bottom)
    window = ((f.pooling_height, f.pooling_width), (f.stride_height, f.stride_width))
    inside = functional.pad(torch.ones_like(x[:1, :, :, :1]).permute(0, 3, 1, 2), pads)
    summed = functional.avg_pool2d(functional.pad(x.permute(0, 3, 1, 2), pads), *window, divisor_override=1)
    y = summed / functional.avg_pool2d(inside, *window, divisor_override=1)
    return y.permute(0, 2, 3, 1)


def _bilinear(f: _Fields, shape: Sequence[int], x: Tensor) -> Tensor:
    aligned = bool(f.flags & xnnpack_constants.XNN_FLAG_ALIGN_CORNERS)
    y: Tensor = OPS.upsample_bilinear2d_nhwc.default(x, [f.new_height, f.new_width], aligned, None, None)
    return y


def _padded(f: _Fields, shape: Sequence[int], x: Tensor) -> Tensor:
    pads = zip(reversed(f.pre_paddings), reversed(f.post_paddings), strict=True)
    return functional.pad(x, [size for pair in pads for size in pair], value=f.padding_value)


def _product(f: _Fields, shape: Sequence[int], a: Tensor, b: Tensor) -> Tensor:
    transposed = bool(f.flags & xnnpack_constants.XNN_FLAG_TRANSPOSE_B)
    return a @ (b.transpose(-1, -2) if transposed else b)


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda fields, shape, *operands: function(*operands)


_FLOAT: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "Conv2d": _conv,
        "ConvTranspose2d": _conv_transpose,
        "DepthwiseConv2d": _depthwise,
        "FullyConnected": lambda f, s, x, w, b=None: functional.linear(x, w, b),
        "GlobalAvgPooling2d": lambda f, s, x: x.mean((1, 2)),
        "MaxPooling2d": _max_pool,
        "StaticTranspose": lambda f, s, x: x.permute(f.perm),
        "StaticReshape": lambda f, s, x: x,
        "StaticSlice": _cut,
        **{f"Concatenate{i}": lambda f, s, *x: torch.cat(x, f.axis) for i in range(2, 6)},
        "Copy": _elementwise(lambda x: x),
        "Clamp": _elementwise(lambda x: x),
        "Add": _elementwise(torch.add),
        "Subtract": _elementwise(torch.sub),
        "Multiply": _elementwise(torch.mul),
        "Div": _elementwise(torch.div),
        "Maximum": _elementwise(torch.maximum),
        "Minimum": _elementwise(torch.minimum),
        "PReLU": lambda f, s, x, slope: torch.where(x > 0, x, x * slope),
        "Sigmoid": _elementwise(torch.sigmoid),
        "Tanh": _elementwise(torch.tanh),
        "Hardswish": _elementwise(functional.hardswish),
        "Gelu": _elementwise(functional.gelu),
        "Exp": _elementwise(torch.exp),
        "Abs": _elementwise(torch.abs),
        "Negate": _elementwise(torch.neg),
        "Floor": _elementwise(torch.floor),
        "Ceiling": _elementwise(torch.ceil),
        "Square": _elementwise(torch.square),
        "Sin": _elementwise(torch.sin),
        "Cos": _elementwise(torch.cos),
        "Log": _elementwise(torch.log),
        "SquareRoot": _elementwise(torch.sqrt),
        "ReciprocalSquareRoot": _elementwise(torch.rsqrt),
        "ELU": lambda f, s, x: functional.elu(x, f.alpha),
        "LeakyReLU": lambda f, s, x: functional.leaky_relu(x, f.negative_slope),
        "BatchMatrixMultiply": _product,
        "AvgPooling2d": _avg_pool,
        "StaticResizeBilinear2D": _bilinear,
        "StaticConstantPad": _padded,
        "Softmax": _elementwise(lambda x: x.softmax(-1)),
    }
)
_MOVES = MOVES | {"MaxPooling2d"}
_EXACT: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "Add": _added(1),
        "Subtract": _added(-1),
        "Multiply": _multiplied(_FLOAT["Multiply"]),
        "BatchMatrixMultiply": _multiplied(_product),
    }
)
# By the kind of node. Every other kind with int8 kernels is a table.
ROUNDINGS: Mapping[str, Rounding] = MappingProxyType(
    {
        **dict.fromkeys((*PACKING, "Multiply", "BatchMatrixMultiply"), Rounding.SCALED_SUM),
        "GlobalAvgPooling2d": Rounding.SCALED_MEAN,
        **dict.fromkeys(("Add", "Subtract"), Rounding.MULTIPLIERS),
        "Convert": Rounding.CONVERSION,
        **dict.fromkeys(_MOVES, Rounding.NONE),
    }
)
