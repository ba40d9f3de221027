"""Define the choices between TOSA operators that compute the same integers.

Only an NPU's compiler knows what each of them costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Forms:
    """The operators that a graph is written in: for each flag, those if it is true; else those after "else".

    `multiplies_constants`: int8 constants are operands of MUL and ADD; else a depthwise convolution of one
    tap applies a per-channel constant. Ethos-U85 computes such a MUL or ADD along with other operators.

    `sums_windows`: depthwise convolutions with ones compute sums of neighbours; else REDUCE_SUM.

    `permutes_by_convolution`: a convolution with ones and zeros permutes channels; else TRANSPOSE.

    `cuts_convolutions`: each group of channels that is read together has a convolution of its own; else whole
    convolutions are sliced, concatenated and permuted.

    `fills_lanes`: the smaller operand is repeated if the last dimensions can then be merged; else broadcast.

    `resizes`: RESIZE computes each resize; else RESIZE only doubles elements, and depthwise convolutions
    compute other resizes, in phases. Ethos-U55 has no other RESIZE. Ties may round the other way.

    `long_strides`: any convolution may have a stride above 3; else only one that is neither padded nor
    depthwise. Padding then becomes a part of the image, and weights of other channels are 0. Ethos-U55 has no
    other.

    `repeats_both`: both operands of an operator may be repeated, each along other dimensions; else one is
    tiled where Vela ends the process, see `are_crossed`.

    `reverses_last`: REVERSE reverses any dimension; else the last one becomes the last but one, before one of
    size 1. Ethos-U55 reverses no last dimension.

    >>> [sum(vars(form).values()) for form in (Forms(), Forms().flipped("fills_lanes"))]
    [6, 7]
    """

    multiplies_constants: bool = True
    sums_windows: bool = True
    permutes_by_convolution: bool = False
    cuts_convolutions: bool = False
    fills_lanes: bool = False
    resizes: bool = True
    long_strides: bool = True
    repeats_both: bool = True
    reverses_last: bool = True

    def flipped(self, name: str) -> Forms:
        """Return the same form with one flag flipped."""
        return replace(self, **{name: not getattr(self, name)})


FORMS = tuple(field.name for field in fields(Forms))


def are_crossed(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether both operands are repeated, and the second one along the first dimension that differs.

    Vela 5.1.0 ends the process (SIGSEGV) for most such operands on an Ethos-U55 or U65.

    >>> are_crossed((1, 5, 6, 1), (1, 1, 1, 4)), are_crossed((1, 1, 1, 4), (1, 5, 6, 1))
    (True, False)
    """
    repeated = [(size == 1, to == 1) for size, to in zip(shape, other, strict=True) if size != to]
    return repeated[:1] == [(False, True)] and (True, False) in repeated
