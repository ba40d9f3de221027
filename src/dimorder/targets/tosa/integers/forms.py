"""Decides between operators that give the same integers, of which only an NPU's compiler knows the cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Forms:
    """How a graph is written; what is behind "else" where the name is not so.

    `multiplies_constants`: int8 constants are operands of MUL and ADD, which Ethos-U85 computes on the way;
    else a constant of each channel makes a depthwise convolution of one tap.
    `sums_windows`: sums of neighbours are depthwise convolutions with ones; else REDUCE_SUM.
    `permutes_by_products`: channels that change places among themselves are a convolution with ones and
    zeros; else TRANSPOSE.
    `cuts_phases`: transposed convolutions are a convolution for each row of a step; else TRANSPOSE_CONV2D.
    `fills_lanes`: the smaller operand is repeated where the last dimensions can then be one; else broadcast.

    >>> [sum(vars(form).values()) for form in (Forms(), Forms().flipped("cuts_phases"))]
    [2, 3]
    """

    multiplies_constants: bool = True
    sums_windows: bool = True
    permutes_by_products: bool = False
    cuts_phases: bool = False
    fills_lanes: bool = False

    def flipped(self, name: str) -> Forms:
        """The same but for one form."""
        return replace(self, **{name: not getattr(self, name)})


FORMS = tuple(field.name for field in fields(Forms))
