"""Define the choices between TOSA operators that compute the same integers.

Only an NPU's compiler knows what each of them costs.
"""

from __future__ import annotations

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

    >>> [sum(vars(form).values()) for form in (Forms(), Forms().flipped("fills_lanes"))]
    [4, 5]
    """

    multiplies_constants: bool = True
    sums_windows: bool = True
    permutes_by_convolution: bool = False
    cuts_convolutions: bool = False
    fills_lanes: bool = False
    resizes: bool = True
    long_strides: bool = True

    def flipped(self, name: str) -> Forms:
        """Return the same form with one flag flipped."""
        return replace(self, **{name: not getattr(self, name)})


FORMS = tuple(field.name for field in fields(Forms))
