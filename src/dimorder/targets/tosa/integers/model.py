"""Compute a graph of integers by TOSA's arithmetic in torch.

Arm's reference model must give the same bits, and is much slower. Products are added up in float64, which
holds each of these sums exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from dimorder.errors import VerificationError

_Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class TosaNode:
    """One operator of a graph: the names of its operands and of its result."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: _Attributes
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TosaModel:
    """A graph as it was written; its inputs with their shapes.

    `rounded` maps each quantize node of the program to the tensor with its integers. `errors` are the quanta
    by which 16-bit tensors may be off besides rounding.
    """

    nodes: Sequence[TosaNode]
    constants: Mapping[str, Tensor]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Sequence[str]
    rounded: Mapping[str, str]
    errors: Mapping[str, float] = field(default_factory=dict)

    def run(
        self, inputs: Sequence[Tensor], exact: Mapping[str, tuple[Tensor, Tensor]] | None = None
    ) -> list[Tensor]:
        """Return the graph's outputs for its inputs, dense in the graph's own shapes.

        `exact` are a program's roundings (`exactly.roundings`). The graph's roundings are compared with them
        one by one, each computed from the program's own earlier ones. Raises `VerificationError` if an
        integer is farther from the number that was rounded than rounding explains.
        """
        held = {**self.constants, **dict(zip(self.inputs, inputs, strict=True))}
        asked: dict[str, list[str]] = {}
        for name in exact or {}:
            if name in self.rounded:
                asked.setdefault(self.rounded[name], []).append(name)
        last = {name: i for i, node in enumerate(self.nodes) for name in node.inputs}
        for i, node in enumerate(self.nodes):
            made = computed(node, [held[name] for name in node.inputs])
            for name in asked.get(node.output, ()):
                assert exact is not None
                made = agreed(made, *exact[name], name, self.errors.get(node.output, 0.0))
            held[node.output] = made
            for name in set(node.inputs):
                if last[name] == i and name not in self.outputs and name not in self.constants:
                    del held[name]
        return [held[name] for name in self.outputs]


HALF = 0.5 + 2**-6  # a quantum is rounded to the nearest; factors have 31 bits, sums 30, functions 16


def agreed(made: Tensor, real: Tensor, integers: Tensor, what: str, error: float = 0.0) -> Tensor:
    """Return the program's integers, if the graph's agree but for ties and numbers near a tie."""
    allowed = HALF + error
    held = made.view(integers.dtype) if made.dtype == torch.int8 else made
    off = float((held.double() - real.reshape(made.shape)).abs().max())
    if not off <= allowed:
        raise VerificationError(
            f"{what} in integers",
            f"an integer is {off:.3f} quanta from what it stands for, where rounding leaves {allowed:.3f}",
            "report this network: a row of target tosa is wrong",
        )
    return integers.view(made.dtype).reshape(made.shape)


def apply_scale(x: Tensor, multipliers: Tensor, shifts: Tensor) -> Tensor:
    """Return `x · multiplier / 2**shift` rounded half up, in int64."""
    shifts = shifts.to(torch.int64)
    return (x * multipliers + (1 << (shifts - 1))) >> shifts


def computed(node: TosaNode, operands: Sequence[Tensor]) -> Tensor:
    """Return the result of one operator."""
    with torch.no_grad():
        return _COMPUTE[node.kind](node, *operands).to(node.dtype).reshape(node.shape)


# -- linears, matmuls and convolutions ---------------------------------------------------------------------


def _space(x: Tensor) -> Tensor:
    """Move channels from the last dimension to the second."""
    return x.movedim(-1, 1)


def _padded(x: Tensor, zero: Tensor, pad: Sequence[int]) -> Tensor:
    """Subtract the zero point, and pad (N, C, *space) with zeros; negative padding crops."""
    sides = [side for d in reversed(range(len(pad) // 2)) for side in pad[2 * d : 2 * d + 2]]
    return functional.pad(_space(x.double() - zero.double()), sides)


def _conv(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    convolve: Callable[..., Tensor] = functional.conv2d if x.dim() == 4 else functional.conv3d
    a = n.attributes
    weight = _space(w.double() - w_zero.double())
    y = convolve(_padded(x, x_zero, a["pad"]), weight, bias.double(), a["stride"], 0, a["dilation"])
    return y.movedim(1, -1)


def _depthwise(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    height, width, channels, multiplier = w.shape
    weight = (w.double() - w_zero.double()).permute(2, 3, 0, 1)
    weight = weight.reshape(channels * multiplier, 1, height, width)
    a = n.attributes
    y = functional.conv2d(
        _padded(x, x_zero, a["pad"]), weight, bias.double(), a["stride"], 0, a["dilation"], channels
    )
    return y.movedim(1, -1)


def _transposed(n: TosaNode, x: Tensor, w: Tensor, bias: Tensor, x_zero: Tensor, w_zero: Tensor) -> Tensor:
    weight = (w.double() - w_zero.double()).permute(3, 0, 1, 2)
    y = functional.conv_transpose2d(
        _space(x.double() - x_zero.double()), weight, None, n.attributes["stride"]
    )
    top, bottom, left, right = n.attributes["out_pad"]
    y = functional.pad(y, (left, right, top, bottom)) + bias.double()[:, None, None]
    return y.movedim(1, -1)


def _matmul(n: TosaNode, x: Tensor, y: Tensor, x_zero: Tensor, y_zero: Tensor) -> Tensor:
    return (x.double() - x_zero.double()) @ (y.double() - y_zero.double())


# -- the rest ----------------------------------------------------------------------------------------------


def _rescale(
    n: TosaNode, x: Tensor, multipliers: Tensor, shifts: Tensor, zero: Tensor, to_zero: Tensor
) -> Tensor:
    wide = x.to(torch.int64) & 255 if n.attributes["input_unsigned"] else x.to(torch.int64)
    wide, most = wide - zero.to(torch.int64), 1 << (shifts.to(torch.int64) - 1)
    if n.attributes["scale32"]:
        _require(n, wide, -most, most - 1)
    y = apply_scale(wide, multipliers.to(torch.int64), shifts) + to_zero.to(torch.int64)
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
    product = x * y
    return product if not int(shift) else (product + (1 << (int(shift) - 1))) >> int(shift)


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


def _max_pool(n: TosaNode, x: Tensor) -> Tensor:
    a = n.attributes
    top, bottom, left, right = a["pad"]
    padded = functional.pad(_space(x.double()), (left, right, top, bottom), value=-math.inf)
    return functional.max_pool2d(padded, a["kernel"], a["stride"]).movedim(1, -1)


def _avg_pool(n: TosaNode, x: Tensor, zero: Tensor, to_zero: Tensor) -> Tensor:
    """Compute means of whole windows, by a reciprocal of 31 bits."""
    a, count = n.attributes, math.prod(n.attributes["kernel"])
    assert not any(a["pad"])
    centred = _space(x.double() - zero.double())
    sums = functional.avg_pool2d(centred, a["kernel"], a["stride"], divisor_override=1).movedim(1, -1)
    bits = (count - 1).bit_length()  # reciprocal_scale of the specification
    multiplier = ((2**30 + 1) << bits) // count
    y = apply_scale(sums.to(torch.int64), torch.tensor(multiplier), torch.tensor(30 + bits))
    limits = torch.iinfo(n.dtype)
    return (y + int(to_zero)).clamp(limits.min, limits.max)


def _pad(n: TosaNode, x: Tensor, amounts: Tensor, value: Tensor) -> Tensor:
    pairs = amounts.reshape(-1, 2).flip(0).flatten().tolist()
    return functional.pad(x.to(torch.int64), pairs, value=int(value))


def _slice(n: TosaNode, x: Tensor, starts: Tensor, sizes: Tensor) -> Tensor:
    for d, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        x = x.narrow(d, start, size)
    return x


def _gather(n: TosaNode, x: Tensor, indices: Tensor) -> Tensor:
    at = indices.to(torch.int64)[:, :, None].expand(-1, -1, x.shape[2])
    return x.gather(1, at)


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


_COMPUTE: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "CONV2D": _conv,
        "CONV3D": _conv,
        "DEPTHWISE_CONV2D": _depthwise,
        "TRANSPOSE_CONV2D": _transposed,
        "MATMUL": _matmul,
        "RESCALE": _rescale,
        "ADD": _elementwise(torch.add),
        "SUB": _elementwise(torch.sub),
        "MUL": _elementwise(_multiply),
        "MAXIMUM": _elementwise(torch.maximum),
        "MINIMUM": _elementwise(torch.minimum),
        "ABS": _elementwise(torch.abs),
        "CLZ": _leading_zeros,
        "LOGICAL_LEFT_SHIFT": _elementwise(torch.bitwise_left_shift),
        "ARITHMETIC_RIGHT_SHIFT": _shifted_right,
        "CLAMP": _clamp,
        "TABLE": _table,
        "REDUCE_SUM": lambda n, x: x.to(torch.int64).sum(n.attributes["axis"], keepdim=True),
        "REDUCE_MAX": lambda n, x: x.amax(n.attributes["axis"], keepdim=True),
        "REDUCE_MIN": lambda n, x: x.amin(n.attributes["axis"], keepdim=True),
        "ARGMAX": _argmax,
        "MAX_POOL2D": _max_pool,
        "AVG_POOL2D": _avg_pool,
        "CONCAT": lambda n, *x: torch.cat(x, n.attributes["axis"]),
        "SLICE": _slice,
        "PAD": _pad,
        "GATHER": _gather,
        "RESIZE": _resize,
        "TRANSPOSE": lambda n, x: x.permute(n.attributes["perms"]),
        "RESHAPE": lambda n, x, shape: x,
        "REVERSE": lambda n, x: x.flip(n.attributes["axis"]),
        "TILE": lambda n, x, multiples: x.repeat(multiples.tolist()),
        "IDENTITY": lambda n, x: x,
    }
)
