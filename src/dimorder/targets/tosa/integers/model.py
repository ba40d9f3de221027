"""Compute a graph of integers by TOSA's arithmetic in torch.

Arm's reference model must give the same bits, and is much slower. TOSA rounds only when it shifts a product
of two integers to the right, and rounds halves up (`arithmetic.shift_right`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.errors import VerificationError
from dimorder.graph.interpreter import GraphNode, interpret
from dimorder.ops.dialect import OPS
from dimorder.verification.arithmetic import conv, cut, max_pool, pad, pad_window, shift_right, sum_pool


@dataclass(frozen=True)
class TosaNode(GraphNode):
    """One operator of a graph: its operands and its result by the names of their tensors."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TosaModel:
    """A graph as it was written; its inputs with their shapes.

    `rounded` maps each quantize node of the program to the tensor with its integers. `errors` are the quanta
    by which 16-bit tensors may be off besides rounding. `cut` maps a tensor to channels of one in `rounded`,
    which it has in place of that one.
    """

    nodes: Sequence[TosaNode]
    constants: Mapping[str, Tensor]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Sequence[str]
    rounded: Mapping[str, str]
    errors: Mapping[str, float] = field(default_factory=dict)
    cut: Mapping[str, tuple[str, Tensor]] = field(default_factory=dict)

    def run(
        self, inputs: Sequence[Tensor], roundings: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})
    ) -> list[Tensor]:
        """Return the graph's outputs for its inputs, dense in the graph's own shapes.

        The graph's roundings are compared with a program's (`RoundingsRun`) one by one, each computed from
        the program's own earlier ones. Raises `VerificationError` if an integer is farther from the
        number that was rounded than rounding explains.
        """
        names: dict[str, list[str]] = {}  # by tensor: the program's nodes with these integers
        for name in roundings:
            if name in self.rounded:
                names.setdefault(self.rounded[name], []).append(name)

        def compute(node: TosaNode, operands: Sequence[Tensor]) -> Tensor:
            result = COMPUTE[node.kind](node, *operands).to(node.dtype).reshape(node.shape)
            whole, channels = self.cut.get(node.output, (node.output, None))
            for name in names.get(whole, ()):
                real, integers = roundings[name]
                if channels is not None:
                    real, integers = (_channels(each, node.shape, channels) for each in (real, integers))
                result = _agreed(result, real, integers, name, self.errors.get(whole, 0.0))
            return result

        values = {**self.constants, **dict(zip(self.inputs, inputs, strict=True))}
        held = interpret(self.nodes, values, {*self.outputs}, compute)
        return [held[name] for name in self.outputs]


def _channels(x: Tensor, shape: Sequence[int], channels: Tensor) -> Tensor:
    """Return some elements of the last dimension of a tensor whose other dimensions are those of `shape`."""
    return x.reshape(*shape[:-1], -1)[..., channels]


HALF = 0.5 + 2**-6  # a quantum is rounded to the nearest; factors have 31 bits, sums 30, functions 16


def _agreed(result: Tensor, real: Tensor, integers: Tensor, what: str, error: float) -> Tensor:
    """Return the program's integers, if the graph's agree but for ties and numbers near a tie."""
    allowed = HALF + error
    held = result.view(integers.dtype) if result.dtype == torch.int8 else result
    off = float((held.double() - real.reshape(held.shape)).abs().max())
    if not off <= allowed:
        raise VerificationError(
            f"{what} in integers",
            f"an integer is {off:.3f} quanta from what it stands for, where rounding leaves {allowed:.3f}",
            "report this network: a row of target tosa is wrong",
        )
    return integers.view(result.dtype).reshape(result.shape)


# -- linears, matmuls and convolutions ---------------------------------------------------------------------


def _centred(x: Tensor, zero: Tensor) -> Tensor:
    return x.double() - zero.double()


def _conv(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    a = n.attributes
    weight = _centred(w, w_zero)
    return conv(_centred(x, x_zero), weight, bias.double(), a["stride"], a["pad"], a["dilation"])


def _depthwise(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    a, (*taps, channels, multiplier) = n.attributes, w.shape
    weight = _centred(w, w_zero).permute(2, 3, 0, 1).reshape(channels * multiplier, *taps, 1)
    return conv(_centred(x, x_zero), weight, bias.double(), a["stride"], a["pad"], a["dilation"], channels)


def _transposed(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    window = n.attributes["stride"], (0, 0), (0, 0), (1, 1)
    y = OPS.conv_transpose2d_nhwc.default(_centred(x, x_zero), _centred(w, w_zero), None, *window, 1)
    return pad_window(y, n.attributes["out_pad"]) + bias.double()


# -- the rest ----------------------------------------------------------------------------------------------


def _rescale(
    n: TosaNode, x: Tensor, multipliers: Tensor, shifts: Tensor, zero: Tensor, to_zero: Tensor
) -> Tensor:
    wide = x.to(torch.int64) & 255 if n.attributes["input_unsigned"] else x.to(torch.int64)
    wide, most = wide - zero.to(torch.int64), 1 << (shifts.to(torch.int64) - 1)
    if n.attributes["scale32"]:
        _require(n, wide, -most, most - 1)
    y = shift_right(wide * multipliers.to(torch.int64), shifts.to(torch.int64)) + to_zero.to(torch.int64)
    if n.attributes["output_unsigned"]:
        return y.clamp(0, 255).to(torch.uint8).view(torch.int8)
    limits = torch.iinfo(n.dtype)
    if n.dtype == torch.int32 or not n.attributes["scale32"]:
        _require(n, y, -(2**31), 2**31 - 1)
    return y.clamp(limits.min, limits.max)


def _require(n: TosaNode, values: Tensor, low: Any, high: Any) -> None:
    """Refuse values outside these limits, for which the specification defines no result."""
    if not bool(((values >= low) & (values <= high)).all()):
        found = f"a {n.kind} of integers beyond what TOSA defines it for"
        raise VerificationError(n.output, found, "report this network: a row of target tosa is wrong")


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes in int64; TOSA leaves an overflow of int32 undefined."""

    def compute(n: TosaNode, *operands: Tensor) -> Tensor:
        y = function(*(x.to(torch.int64) for x in operands))
        limits = torch.iinfo(n.dtype)
        _require(n, y, limits.min, limits.max)
        return y

    return compute


def _multiply(x: Tensor, y: Tensor, shift: Tensor) -> Tensor:
    return shift_right(x * y, int(shift)) if int(shift) else x * y


def _clamp(n: TosaNode, x: Tensor) -> Tensor:
    low, high = (
        int.from_bytes(bytes(n.attributes[name]), "little", signed=True) for name in ("min_val", "max_val")
    )
    return x.clamp(low, high)


def _table(n: TosaNode, x: Tensor, table: Tensor) -> Tensor:
    if x.dtype == torch.int8:
        return table[x.to(torch.int64) + 128]
    _require(n, table.to(torch.int64).diff(), -(2**15), 2**15 - 1)
    return interpolated(x, table)


def interpolated(x: Tensor, table: Tensor) -> Tensor:
    """Return the result of a TABLE of 513 entries for int16, in int64: 128 times the interpolated number.

    >>> interpolated(torch.tensor([-32768, 64]), torch.arange(513, dtype=torch.int16))
    tensor([    0, 32832])
    """
    index, rest = (x.to(torch.int64) >> 7) + 256, x.to(torch.int64) & 127
    below, above = table[index].to(torch.int64), table[index + 1].to(torch.int64)
    return below * 128 + (above - below) * rest


def _leading_zeros(n: TosaNode, x: Tensor) -> Tensor:
    assert bool((x >= 0).all())
    bits = torch.arange(31)
    return 32 - (x.to(torch.int64)[..., None] >> bits > 0).sum(-1)


def _shifted_right(n: TosaNode, x: Tensor, by: Tensor) -> Tensor:
    x, by = x.to(torch.int64), by.to(torch.int64)
    half = torch.where(by > 0, 1 << (by - 1).clamp(min=0), 0) if n.attributes["round"] else 0
    return (x + half) >> by


def _avg_pool(n: TosaNode, x: Tensor, zero: Tensor, to_zero: Tensor) -> Tensor:
    """Compute means of whole windows, by a reciprocal of 31 bits."""
    a, count = n.attributes, math.prod(n.attributes["kernel"])
    assert not any(a["pad"])
    sums = sum_pool(_centred(x, zero), a["kernel"], a["stride"], a["pad"]).to(torch.int64)
    bits = (count - 1).bit_length()  # reciprocal_scale of the specification
    y = shift_right(sums * (((2**30 + 1) << bits) // count), 30 + bits)
    limits = torch.iinfo(n.dtype)
    return (y + int(to_zero)).clamp(limits.min, limits.max)


def _gather(n: TosaNode, x: Tensor, indices: Tensor) -> Tensor:
    return x.gather(1, _places(indices, x))


def _scatter(n: TosaNode, x: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    return x.scatter(1, _places(indices, x), values)


def _places(indices: Tensor, x: Tensor) -> Tensor:
    """Return the row of each element of the rows at these indices."""
    return indices.to(torch.int64)[:, :, None].expand(-1, -1, x.shape[2])


def _resize(n: TosaNode, x: Tensor, scale: Tensor, offset: Tensor, border: Tensor) -> Tensor:
    """Resize each dimension separately.

    An element is the nearest one, or two with weights that sum to the numerator.
    """
    (y_n, y_d, x_n, x_d), offsets = scale.tolist(), offset.tolist()
    x = x.to(torch.int64)
    for dim, numerator, denominator, begin in ((1, y_n, y_d, offsets[0]), (2, x_n, x_d, offsets[1])):
        at, last = torch.arange(n.shape[dim]) * denominator + begin, x.shape[dim] - 1
        whole = torch.div(at, numerator, rounding_mode="floor")
        rest = at - whole * numerator
        if n.attributes["mode"] == "NEAREST":
            x = x.index_select(dim, (whole + (2 * rest >= numerator)).clamp(0, last))
        else:
            along = rest.reshape([-1 if d == dim else 1 for d in range(4)])
            below, above = (x.index_select(dim, each.clamp(0, last)) for each in (whole, whole + 1))
            x = below * (numerator - along) + above * along
    return x


def _argmax(n: TosaNode, x: Tensor) -> Tensor:
    """Return the index of the first of the largest elements."""
    axis = n.attributes["axis"]
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    index = torch.arange(x.shape[axis]).reshape(shape)
    return torch.where(x == x.amax(axis, keepdim=True), index, x.shape[axis]).amin(axis)


COMPUTE: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "CONV2D": _conv,
        "CONV3D": _conv,
        "DEPTHWISE_CONV2D": _depthwise,
        "TRANSPOSE_CONV2D": _transposed,
        "MATMUL": lambda n, x, y, x_zero, y_zero: _centred(x, x_zero) @ _centred(y, y_zero),
        "RESCALE": _rescale,
        "ADD": _elementwise(torch.add),
        "SUB": _elementwise(torch.sub),
        "MUL": _elementwise(_multiply),
        "INTDIV": _elementwise(lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        "MAXIMUM": _elementwise(torch.maximum),
        "MINIMUM": _elementwise(torch.minimum),
        "ABS": _elementwise(torch.abs),
        "NEGATE": _elementwise(lambda x, zero, to_zero: to_zero - (x - zero)),
        "CLZ": _leading_zeros,
        "LOGICAL_LEFT_SHIFT": lambda n, x, by: x.to(torch.int64) << by.to(torch.int64),  # without lost bits
        "ARITHMETIC_RIGHT_SHIFT": _shifted_right,
        "EQUAL": lambda n, x, y: x == y,
        "GREATER": lambda n, x, y: x > y,
        "GREATER_EQUAL": lambda n, x, y: x >= y,
        "LOGICAL_AND": lambda n, x, y: x & y,
        "BITWISE_AND": lambda n, x, y: x & y,
        "LOGICAL_OR": lambda n, x, y: x | y,
        "BITWISE_OR": lambda n, x, y: x | y,
        "LOGICAL_XOR": lambda n, x, y: x ^ y,
        "BITWISE_XOR": lambda n, x, y: x ^ y,
        "LOGICAL_NOT": lambda n, x: ~x,
        "BITWISE_NOT": lambda n, x: ~x,
        "SELECT": lambda n, choice, x, y: torch.where(choice, x, y),
        "CAST": lambda n, x: x,  # a truth value is 0 or 1, and any other number than 0 is true
        "CLAMP": _clamp,
        "TABLE": _table,
        "REDUCE_SUM": lambda n, x: x.to(torch.int64).sum(n.attributes["axis"], keepdim=True),
        "REDUCE_ANY": lambda n, x: x.any(n.attributes["axis"], keepdim=True),
        "REDUCE_ALL": lambda n, x: x.all(n.attributes["axis"], keepdim=True),
        "REDUCE_MAX": lambda n, x: x.amax(n.attributes["axis"], keepdim=True),
        "REDUCE_MIN": lambda n, x: x.amin(n.attributes["axis"], keepdim=True),
        "ARGMAX": _argmax,
        "MAX_POOL2D": lambda n, x: max_pool(
            x.double(), *(n.attributes[a] for a in ("kernel", "stride", "pad"))
        ),
        "AVG_POOL2D": _avg_pool,
        "CONCAT": lambda n, *x: torch.cat(x, n.attributes["axis"]),
        "SLICE": lambda n, x, starts, sizes: cut(x, starts.tolist(), sizes.tolist()),
        "PAD": lambda n, x, pads, value: pad(x.long(), pads.reshape(-1, 2).tolist(), int(value)),
        "GATHER": _gather,
        "SCATTER": _scatter,
        "RESIZE": _resize,
        "TRANSPOSE": lambda n, x: x.permute(n.attributes["perms"]),
        "RESHAPE": lambda n, x, shape: x,
        "REVERSE": lambda n, x: x.flip(n.attributes["axis"]),
        "TILE": lambda n, x, multiples: x.repeat(multiples.tolist()),
        "IDENTITY": lambda n, x: x,
    }
)
