"""Define the conditions under which XNNPACK's int8 kernels compute the operators of a quantized program.

ExecuTorch and LiteRT both run them, so targets xnnpack and litert share the conditions.

XNNPACK checks some of these conditions when it makes a runtime. Under the others its kernels are exact: they
give the integers that are quantized next. The rows of the physical operators name their kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dimorder.graph.quantized import Integers, IntegerType, Scaled
from dimorder.physical.fuse_quantized import IntegerKernel

OTHERWISE = "XNNPACK's int8 kernel rounds otherwise than what is quantised next"
_Condition: TypeAlias = "Callable[[Sequence[IntegerType], IntegerType], str | None]"
_UNIT = 64  # a power of 2, so that a scale times it is exact; large, so that sums of it have fine multipliers


# -- constants -----------------------------------------------------------------------------------------------


def integers_of(constant: Any) -> Integers | None:
    """Return the integers that a constant is made of, if it is a constant and made of integers."""
    return constant.integers if isinstance(constant, Scaled) else None


def operand_integers(numbers: Tensor, integers: Integers | None) -> Integers | None:
    """Return the int8 with one scale by which a kernel reads a constant operand, or None.

    `integers` are those that its numbers are made of. Numbers that are all one number or its negative are
    exact integers too.
    """
    if integers is None:
        magnitude = float(numbers.abs().max())
        if not 0 < magnitude < math.inf or not bool((numbers.abs() == magnitude).all()):
            return None
        values = (numbers.sign() * _UNIT).to(torch.int8)
        return Integers(values, torch.tensor(magnitude / _UNIT).expand(values.shape))
    return integers if integers.values.dtype == torch.int8 and integers.scale is not None else None


def operand_type(constant: Tensor) -> IntegerType | None:
    """Return what the integers of a constant operand stand for, or None if no kernel reads it."""
    if not constant.is_floating_point():
        return None
    integers = operand_integers(constant, integers_of(constant))
    return None if integers is None else integers.type


def _unfit_weight(integers: Integers | None) -> str | None:
    """Return why a constant, with its output channels first, cannot be the weight or bias of a kernel."""
    if integers is None:
        return "a weight that is not int8 with one scale per output channel and one zero point"
    if integers.zero_point:
        return f"a weight with the zero point {integers.zero_point}"
    if integers.along(0) is None:
        groups = None if integers.group_size() in (None, 1) else unfit_4_bits(integers)
        return groups or "a weight with scales along another dimension than its output channels"
    return None


def unfit_4_bits(integers: Integers | None) -> str | None:
    """Return why a constant cannot be a matrix of 4-bit integers."""
    size = None if integers is None else integers.group_size()
    if integers is None or size is None or integers.zero_point:
        return "a weight that is not quantised by rows"
    if size % 32 and size != integers.values.shape[1]:
        return f"a weight with a scale for every {size} inputs, where XNNPACK takes multiples of 32"
    if integers.values.shape[1] % 2:
        return "an odd number of inputs, of which XNNPACK's products with 4 bits are off by 3e-3"
    least, most = torch.aminmax(integers.values)
    if least < -8 or most > 7:
        return f"a weight of 8 bits with a scale for every {size} inputs, which XNNPACK has for 4 bits"
    return None


_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def unfit_quantize(a: Any, runtime: str, recipe: str = "") -> str | None:
    """Return why a quantize or dequantize is not one of 8 bits, or None. `recipe` says what makes these."""
    low, high, read = a.quant_min, a.quant_max, a.input.meta["val"].dtype
    if (low, high) != _RANGES.get(a.dtype if read.is_floating_point else read):
        return f"integers from {low} to {high}; {runtime} has those of 8 bits{recipe}"
    if not torch.finfo(torch.float32).tiny <= a.scale < math.inf:
        return f"the scale {a.scale:g}; {runtime} has positive ones{recipe}"
    return (
        None if low <= a.zero_point <= high else f"the zero point {a.zero_point}, outside of {low} to {high}"
    )


def unfit_dynamic(a: Any) -> str | None:
    """Return why a dynamic quantize cannot be one of 256 levels, whose steps are not larger, or None."""
    if a.high - a.low > 255:
        return f"integers from {a.low} to {a.high}, found dynamically; XNNPACK has those of 8 bits"
    return None


# -- kernels -------------------------------------------------------------------------------------------------


def _kernel(unmet: _Condition = lambda operands, result: None, **more: Any) -> IntegerKernel:
    """Return the kernel with this condition, for signed integers."""

    def unmet_of_signed(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
        if any(of.dtype == torch.uint8 for of in (*operands, result)):
            return "unsigned integers, which only the boundary has"
        return unmet(operands, result)

    return IntegerKernel(unmet_of_signed, **more)


def _ratio(low: float, high: float) -> _Condition:
    """Require that every ratio of an operand's scale to the result's is in [low, high)."""

    def unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
        for ratio in (of.scale / result.scale for of in operands):
            if not low <= ratio < high:
                return f"a ratio of scales of {ratio:g}, outside of {low:g} to {high:g}"
        return None

    return unmet


def _product(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
    ratio = math.prod(of.scale for of in operands) / result.scale
    return None if 2**-16 <= ratio < 2**8 else f"a ratio of scales of {ratio:g}, outside of 2^-16 to 2^8"


def _matrices(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
    zero_point = operands[1].zero_point
    return f"a right matrix with the zero point {zero_point}" if zero_point else _product(operands, result)


def _times_ones(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
    return _product((*operands, IntegerType(torch.int8, 1 / _UNIT, 0)), result)


def _same(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
    return None if {*operands} == {result} else "operands and a result of different scales"


FUNCTION, CHOICE, SELECTION = _kernel(), _kernel(chooses=True), _kernel(_same)
TIMES, TIMES_ONES = _kernel(_product, clamps=True), _kernel(_times_ones, clamps=True)
MATRICES = _kernel(_matrices)
# XNNPACK adds up halves and integers in memory as large as the result. When sizes change, it may plan that
# memory for fewer elements than the result has later, and then writes past its end (static-reduce.c).
MEAN = _kernel(
    _ratio(2**-8, 2**8),
    of_dynamic_size="a mean of a dynamic number of results, for which XNNPACK may plan too little memory",
)
PLUS = _kernel(_ratio(2**-10, 2**8), clamps=True)


def weighted(
    weight: Any,
    bias: Any,
    names: tuple[str, ...],
    nonbatch: int | None = None,
    *,
    in_4_bits: bool = False,
) -> IntegerKernel:
    """Return the kernel of sums of products with a constant weight, whose first dimension is its outputs.

    Args:
        weight: the weight.
        bias: the bias, or None.
        names: the names of both among the arguments of the call.
        nonbatch: the number of last dimensions that the kernel quantises dynamically by one scale. None means
            that it quantises nothing.
        in_4_bits: whether a weight that is read with dynamically quantised values may have groups of 4 bits.
    """
    integers = integers_of(weight)

    def unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
        reason = _unfit_weight(integers)
        if reason is None and bias is not None:
            reason = _unfit_weight(integers_of(bias))
        if reason is not None or integers is None:
            return reason
        ratio = operands[0].scale / result.scale
        ends = [float(scale) * ratio for scale in torch.aminmax(integers.scales)]
        fits = all(2**-32 <= end < 256 for end in ends)
        return None if fits else f"a ratio of scales of {ends[0]:g}, outside of {2**-32:g} to 256"

    def unmet_dynamic(tokens: Tensor) -> str | None:
        if nonbatch is None:
            return "no kernel of it that quantises dynamically"
        rows = tokens.flatten(-nonbatch)
        if not bool((rows == rows[..., :1]).all()):
            return "several scales within what XNNPACK quantises by one"
        takes_groups = in_4_bits and nonbatch == 1
        if takes_groups and unfit_4_bits(integers) is None:
            return None
        if integers is None:
            return "a weight that is not quantised, or by several zero points"
        return _unfit_weight(integers)

    return _kernel(unmet, weights=names, clamps=True, unmet_dynamic=unmet_dynamic)
