"""Name how a target computes the calls of a quantized program."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from torch import Tensor
from torch.fx import Node

from dimorder.graph.quantized import IntegerType
from dimorder.physical.integer_functions import dequantized_numbers, exact_type


class How(Enum):
    """How a target computes a call of a quantized program."""

    DEQUANTIZED = "dequantized"
    FUNCTION = "a number for each integer of one value"
    WIDE = "in wider integers"
    TOKENS = "floats that a reader may quantize dynamically"
    KERNEL = "in integers"
    IN_KERNEL = "by the kernel before"
    DYNAMIC_KERNEL = "in dynamically quantized integers"
    ISLAND = "in floats"
    IN_ISLAND = "in floats, by the call before"


@dataclass(frozen=True, eq=False)
class Annotation:
    """The way in which a target computes a call.

    Attributes:
        how: The kind of computation: in integers, in floats, or together with another call.
        type: The integers that a value is dequantized from, or that a kernel writes. For a function, those of
            the value that it is a function of.
        low: The lower bound of a kernel's result.
        high: The upper bound.
        tokens: The token of each element that a reader may quantize dynamically.
        reason: Why a call is a float island.
        function: The result for each integer of `type`, from the lowest on, of a function of one value.
        reach: The first and the last integer of `type` that the value has, if that is known. They are counted
            from the lowest of the type on.
        source: The value that it is a function of, as `position_key` names values.
        origin: The value as a function of an earlier source, from which `type` integers were rounded.
    """

    how: How
    type: IntegerType | None = None
    low: float = -math.inf
    high: float = math.inf
    tokens: Tensor | None = None
    reason: str = ""
    function: Tensor | None = None
    reach: tuple[int, int] | None = None
    source: Hashable = None
    origin: Annotation | None = None

    @property
    def numbers(self) -> Tensor | None:
        """The number that each integer of `type` becomes, if the call is a function of one value."""
        if self.how is not How.DEQUANTIZED or self.type is None:
            return self.function
        return dequantized_numbers(self.type)

    @cached_property
    def exact_type(self) -> IntegerType | None:
        """The type of integers that stand for the numbers of a function exactly, or None."""
        if self.function is None or self.type is None:
            return self.type if self.how is How.DEQUANTIZED else None
        return exact_type(self.type, self.function) if self.function.is_floating_point() else None

    @property
    def is_clamped(self) -> bool:
        return (self.low, self.high) != (-math.inf, math.inf)

    def __str__(self) -> str:
        of, text = self.type, self.how.value
        if of is not None:
            dtype = str(of.dtype).removeprefix("torch.")
            text += f": {dtype}, scale {of.scale:g}, zero point {of.zero_point}"
        if self.is_clamped:
            text += f", clamped to [{self.low:g}, {self.high:g}]"
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True)
class FusedProgram:
    """The annotations of the calls of a quantized program, in the program's sequence.

    A call without an annotation computes no floats, runs outside the target, or is in a part of the program
    without integers.
    """

    annotations: Mapping[Node, Annotation] = field(default_factory=dict)

    def how(self, node: Node | None) -> How | None:
        """Return how a call is computed, or None if it has no annotation."""
        return None if node is None or node not in self.annotations else self.annotations[node].how

    @property
    def float_islands(self) -> dict[Node, str]:
        """The calls in float32, with the reasons."""
        return {node: each.reason for node, each in self.annotations.items() if each.how is How.ISLAND}

    def __str__(self) -> str:
        width = max((len(node.name) for node in self.annotations), default=0)
        return "\n".join(f"{node.name:{width}}  {each}" for node, each in self.annotations.items())
