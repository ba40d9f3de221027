"""Round as XNNPACK's int8 kernels do (`qs8`), in torch, bit for bit; ExecuTorch and LiteRT both run them.

They round alike on x86 and on Arm. tests/device/test_kernels.py runs every integer, and every pair of two, on
emulated cores. The results are not clamped to the range of the integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dimorder.errors import VerificationError
from dimorder.graph.quantized import IntegerType
from dimorder.verification.arithmetic import offset_then_round, round_then_offset, shift_right

_SUM = 2e-6  # of the largest result: by how much one sum in float32 may differ from another
_NEAR_HALF = 1e-4  # float32's error is below that for numbers up to 255


@dataclass(frozen=True)
class DynamicIntegers:
    """The numbers of XNNPACK's dynamically quantised integers, in float64.

    `unsure` is the step between numbers, or 0 for a number that was not rounded from near a half. XNNPACK
    rounds halves to even, but away from zero on Arm cores with dot products, as LiteRT's own kernels do.
    """

    values: Tensor
    unsure: Tensor

    @staticmethod
    def of(x: Tensor, nonbatch: int) -> DynamicIntegers:
        """Quantise as XNNPACK's quantization.h does, with one scale over the last `nonbatch` dimensions.

        The integers reach from the least number to the greatest one, and include 0. All is float32. The scale
        is a quotient: PyTorch's `255 / x` multiplies by the reciprocal, which may be another number.
        """
        dims = tuple(range(x.dim() - nonbatch, x.dim()))
        zero = torch.zeros(())
        least, most = x.amin(dims, keepdim=True).minimum(zero), x.amax(dims, keepdim=True).maximum(zero)
        scale = torch.where(least == most, torch.ones(()), torch.tensor(255.0) / (most - least))
        below, above = least * scale, most * scale
        nearer = (below - 128) + (above + 127) > 0
        zero_point = torch.where(nearer, -128 - below, 127 - above).clamp(-128, 127).round()
        scaled = x * scale
        integers = (scaled.round() + zero_point).clamp(-128, 127)
        steps = (1 / scale).double()
        near_half = ((scaled - scaled.floor()) - 0.5).abs() < _NEAR_HALF
        return DynamicIntegers((integers - zero_point) * steps, near_half * steps)


def require_near_sum(found: Tensor, wanted: Tensor, unsure: Tensor, what: str) -> None:
    """Check sums of products with dynamically quantized integers, of which each is `unsure` by so much.

    Raises:
        VerificationError: if a sum is farther off.
    """
    off = (found.reshape(wanted.shape) - wanted).abs()
    if not bool((off <= _SUM * wanted.abs().max() + unsure).all()):
        raise VerificationError(
            f"{what} of dynamically quantised integers",
            f"off by up to {float(off.max()):.2e} of {float(wanted.abs().max()):.2e}",
            "report this network, and on which processor",
        )


def real(x: Tensor, of: IntegerType | None) -> Tensor:
    """Return the numbers that integers stand for, in float32. Floats stay as they are."""
    return x.float() if of is None else (x.float() - of.zero_point) * of.scale


def centred(x: Tensor, of: IntegerType | None) -> Tensor:
    """Return integers less their zero point, in float64."""
    return x.double() if of is None else x.double() - of.zero_point


def quantized(x: Tensor, result: IntegerType) -> Tensor:
    """Return floats over the scale, rounded, plus the zero point."""
    return round_then_offset(x * _inverse(result), result.zero_point)


def scaled_sum(total: Tensor, first: IntegerType, scales: Tensor | float, result: IntegerType) -> Tensor:
    """Round a sum of products in int32 times a float32 scale, and add the zero point.

    `scales` are those of the second operand: one, or one per output channel.
    """
    second = torch.as_tensor(scales, dtype=torch.float32)
    scale = (first.scale * second / result.scale).to(torch.float32)
    return round_then_offset(total.to(torch.float32) * scale, result.zero_point)


def scaled_mean(x: Tensor, of: IntegerType, dims: Sequence[int], result: IntegerType) -> Tensor:
    """Round the sum over dimensions times a float32 scale, plus an offset in float32 for the zero points.

    XNNPACK's kernels scale the sum as it is, and subtract the zero points afterwards. `dims` keep size 1.
    The scale is a product of two quotients, each of which is rounded to float32 (microparams-init.c).
    """
    taps = math.prod(x.shape[d] for d in dims)
    factor = torch.tensor(of.scale) / result.scale * torch.tensor(1.0 / taps)
    offset = result.zero_point - taps * of.zero_point * factor
    return offset_then_round(x.double().sum(tuple(dims), keepdim=True).to(torch.float32) * factor, offset)


def fixed_point_sum(
    add: Callable[..., Tensor],
    operands: Sequence[Tensor],
    types: Sequence[IntegerType],
    result: IntegerType,
) -> Tensor:
    """Add each operand times an integer of 21 bits, and shift right. Halves are rounded up.

    `add` adds or subtracts.
    """
    scales = [torch.tensor(of.scale, dtype=torch.float32) / result.scale for of in types]
    shift = 20 - (math.frexp(max(float(s) for s in scales))[1] - 1)
    factors = [torch.round(s.double() * 2**shift) for s in scales]
    terms = [factor * centred(x, of) for factor, x, of in zip(factors, operands, types, strict=True)]
    return shift_right(add(*terms).to(torch.int64), shift) + result.zero_point


def table(y: Tensor, result: IntegerType) -> Tensor:
    """Return what a table has for a function's results: over the scale, plus the zero point, rounded."""
    return offset_then_round(y.to(torch.float32) * _inverse(result), result.zero_point)


def _inverse(of: IntegerType) -> Tensor:
    """Return one over a scale, both as float32."""
    return 1 / torch.tensor(of.scale, dtype=torch.float32)
