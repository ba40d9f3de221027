"""Change the scale of quantised values by RESCALE, whose real factors are integers and shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dimorder.errors import UsageError
from dimorder.targets.tosa.writer import TosaValue, TosaWriter
from dimorder.verification.arithmetic import shift_right

SHORT = 15  # bits of a factor for 48-bit integers
SHIFTS = range(2, 63)  # RESCALE, spec 1.0: 2 <= shift <= 62


def multiplier(factor: float, bits: int = 31) -> tuple[int, int]:
    """Return a positive factor as (multiplier, shift): `multiplier / 2**shift`, right to `bits` bits.

    Raises `UsageError` for a factor out of the range of TOSA's shifts.

    >>> multiplier(0.75), multiplier(2**-20)
    ((1610612736, 31), (1073741824, 50))
    """
    mantissa, exponent = math.frexp(factor)
    integer = round(mantissa * 2**bits)
    if integer == 2**bits:  # rounded up to the next power of two
        integer, exponent = 2 ** (bits - 1), exponent + 1
    if not factor > 0 or bits - exponent not in SHIFTS:
        limits = f"2^{bits - SHIFTS[-1]} and 2^{bits - SHIFTS[0]}"
        raise UsageError("RESCALE", f"the factor {factor}", f"choose scales whose ratio is between {limits}")
    return integer, bits - exponent


def relative_error(dtype: str, factors: Tensor) -> float:
    """Return the relative error of RESCALE for integers of a type, whose factors have limited bits.

    >>> relative_error("INT48", torch.tensor([0.75])), relative_error("INT48", torch.tensor([1 / 3])) < 2**-15
    (0.0, True)
    """
    if dtype != "INT48":
        return 0.0
    pairs = [(multiplier(factor, SHORT), factor) for factor in factors.flatten().tolist()]
    return max(float(abs(integer / 2**shift / factor - 1)) for (integer, shift), factor in pairs)


def fits(factor: float) -> bool:
    """Return whether RESCALE has that factor.

    >>> fits(0.75), fits(-1.0), fits(2.0**40), fits(math.inf)
    (True, False, False, False)
    """
    return (
        0 < factor < math.inf
        and 31 - math.frexp(factor)[1] in SHIFTS
        and 30 - math.frexp(factor)[1] in SHIFTS
    )


def rescale_integers(
    x: Tensor, factors: Sequence[float], zero_point: int = 0, to_zero_point: int = 0
) -> Tensor:
    """Return RESCALE of integers, in int64, before it clips them.

    >>> rescale_integers(torch.tensor([-3, -1, 1, 3]), [0.5])
    tensor([-1,  0,  1,  2])
    """
    pairs = torch.tensor([multiplier(factor) for factor in factors])
    return shift_right((x.to(torch.int64) - zero_point) * pairs[:, 0], pairs[:, 1]) + to_zero_point


def rescale(
    w: TosaWriter,
    x: TosaValue,
    factors: Sequence[float],
    dtype: str,
    *,
    zero_point: int = 0,
    to_zero_point: int = 0,
    unsigned: bool = False,
    to_unsigned: bool = False,
) -> TosaValue:
    """Return `(x - zero_point) * factor`, rounded half up, `+ to_zero_point`, clipped to `dtype`.

    All are integers.

    One factor is for all of `x`, or one per channel, which is the last dimension. Unsigned integers are in
    INT8 too, and have no zero point here. Factors for INT48 have 15 bits.
    """
    wide = x.dtype == "INT48"
    pairs = [multiplier(factor, SHORT if wide else 31) for factor in factors]
    operands = [
        w.constant(np.array([integer for integer, _ in pairs]), "INT16" if wide else "INT32"),
        w.constant(np.array([shift for _, shift in pairs]), "INT8"),
        w.number(zero_point, x.dtype),
        w.number(to_zero_point, dtype),
    ]
    return w.op(
        "RESCALE",
        [x, *operands],
        x.shape,
        dtype,
        scale32=not wide,
        rounding_mode="SINGLE_ROUND",
        per_channel=len(pairs) > 1,
        input_unsigned=unsigned,
        output_unsigned=to_unsigned,
    )
