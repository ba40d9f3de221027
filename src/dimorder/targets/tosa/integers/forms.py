"""Name the alternatives between operators that give the same integers.

Only an NPU's compiler knows their cost.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Forms:
    """The form in which a graph is written: for each flag, the operators if true, else those after "else".

    `multiplies_constants`: int8 constants are operands of MUL and ADD, which Ethos-U85 computes on the way;
    else a per-channel constant makes a depthwise convolution of one tap.

    `sums_windows`: sums of neighbours are depthwise convolutions with ones; else REDUCE_SUM.

    `permutes_by_convolution`: a permutation of channels is a convolution with ones and zeros; else TRANSPOSE.

    `fills_lanes`: the smaller operand is repeated if the last dimensions can then be merged; else broadcast.

    >>> [sum(vars(form).values()) for form in (Forms(), Forms().flipped("fills_lanes"))]
    [2, 3]
    """

    multiplies_constants: bool = True
    sums_windows: bool = True
    permutes_by_convolution: bool = False
    fills_lanes: bool = False

    def flipped(self, name: str) -> Forms:
        """Return the same form with one flag flipped."""
        return replace(self, **{name: not getattr(self, name)})


FORMS = tuple(field.name for field in fields(Forms))
