"""Write the integers of one LiteRT graph: types, clamps, constants, and conversions to and from floats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dimorder.graph.quantized import Integers, IntegerType, Scaled, level_bounds
from dimorder.physical.annotations import Annotation, How
from dimorder.targets.graph_writer import NamedValue, NamedWriter
from dimorder.targets.integer_kernels import TIMES_ONES
from dimorder.targets.litert import integers
from dimorder.targets.litert.flatbuffer import TfLiteTensor
from dimorder.targets.litert.integers import MOVES

F32 = torch.float32


@dataclass(frozen=True)
class LiteRtValue(NamedValue[torch.dtype]):
    """A tensor of a LiteRT graph, seen in some shape.

    Integers that stand for floats have `of`, and float32 as their `dtype`. They are dequantized for an
    operator that computes in floats.
    """

    of: IntegerType | None = None


class TfLiteIntegerWriter(NamedWriter[LiteRtValue, TfLiteTensor]):
    """A writer of operators that read and write integers.

    `in_integers` says how the next call computes in integers; it applies to the first operator that computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_integers: Annotation | None = None
        self._integers: dict[str, Integers] = {}  # by float constant: those that it is made of
        self._floats: dict[str, LiteRtValue] = {}  # by tensor of integers: what they stand for

    @abstractmethod
    def _stored(self, tensor: TfLiteTensor, made_of: Integers | None = None) -> LiteRtValue:
        """Return a constant, which is stored once."""

    @abstractmethod
    def _write(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        results: Sequence[tuple[Sequence[int], torch.dtype]],
        of: IntegerType | None,
        options: Mapping[str, Any],
    ) -> list[LiteRtValue]:
        """Write an operator; `of` is what the integers of its results stand for."""

    def floats(self, value: LiteRtValue) -> LiteRtValue:
        """Return the numbers that integers stand for, dequantized once; or floats as they are."""
        if value.of is None:
            return value
        if value.tensor not in self._floats:
            written = self.as_written(value)
            (real,) = self._write("DEQUANTIZE", [written], [(written.shape, F32)], None, {})
            self._floats[value.tensor] = real
        return self.reshape(self._floats[value.tensor], value.shape)

    def quantize(self, value: LiteRtValue, of: IntegerType) -> LiteRtValue:
        """Quantize floats, or integers once more.

        XNNPACK's QUANTIZE of int8 is sometimes off by 1. A product with ones is exact.
        """
        own = value.of
        if own is None or own.dtype != of.dtype:
            same = of if own is None else own.as_type(of.dtype)
            written = self.as_written(value)
            (made,) = self._write("QUANTIZE", [written], [(written.shape, F32)], same, {})
            return self.quantize(self.reshape(made, value.shape), of)
        if own == of:
            return value
        if of.dtype != torch.int8 or TIMES_ONES.unmet([own], of) is not None:
            return self.quantize(self.floats(value), of)
        return self.rescaled(value, of)

    def rescaled(self, value: LiteRtValue, of: IntegerType, act: int = 0, factor: float = 1) -> LiteRtValue:
        """Write integers as those of another type, times a factor, and with an activation."""
        numbers = torch.full((1,) * len(value.shape), float(factor))
        return self._product(value, numbers, value.shape, of, act)

    def _product(
        self, value: LiteRtValue, numbers: torch.Tensor, shape: Sequence[int], of: IntegerType, act: int = 0
    ) -> LiteRtValue:
        """Write a product of integers with a constant whose numbers are all the same."""
        constant = self._stored(integers.operand(numbers))
        options = {"fusedActivationFunction": act}
        return self._write("MUL", [value, constant], [(shape, F32)], of, options)[0]

    def clamp_integers(self, value: LiteRtValue, low: float, high: float) -> LiteRtValue:
        """Write a call that clamps integers to bounds that an activation has."""
        annotation, self.in_integers = self.in_integers, None
        assert annotation is not None and annotation.type is not None
        act = integers.activation(low, high, annotation.type)
        assert act is not None, (low, high)
        return self.rescaled(value, annotation.type, act)

    def _moved_type(self, kind: str, inputs: Sequence[LiteRtValue | None]) -> IntegerType | None:
        """Return the type of what an operator moves, if its operands are integers of one type."""
        moved = [value for value in inputs if value is not None and value.dtype == F32]
        types = {value.of for value in moved}
        return types.pop() if kind in MOVES and len(types) == 1 else None

    def _integer_op(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        shape: Sequence[int],
        options: Mapping[str, Any],
    ) -> LiteRtValue:
        """Write the operator of a call that computes in integers, with their types and its clamp."""
        annotation, self.in_integers = self.in_integers, None
        assert annotation is not None
        if annotation.how is How.DYNAMIC_KERNEL:
            return self._dynamic_op(kind, inputs, shape, options)
        assert annotation.type is not None
        of, (low, high) = annotation.type, (annotation.low, annotation.high)
        operands = self._integer_operands(kind, inputs, of)
        act = integers.activation(low, high, of)
        if kind in integers.CLAMPED:
            options = {**options, "fusedActivationFunction": act or 0}
        (made,) = self._write(kind, operands, [(shape, F32)], of, options)
        if act and kind not in integers.CLAMPED:
            return self.rescaled(made, of, act)
        return made if act is not None else self._clamped(made, low, high, of)

    def _dynamic_op(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        shape: Sequence[int],
        options: Mapping[str, Any],
    ) -> LiteRtValue:
        """Write an operator that quantizes each row of its operand as it runs. Its weight is integers."""
        x, weight, *bias = inputs
        assert kind == "FULLY_CONNECTED" and x is not None and weight is not None
        numbers = self.data(weight)
        assert isinstance(numbers, Scaled)
        operands = [self.floats(x), self._stored(integers.matrix(numbers.integers)), *bias]
        return self._write(kind, operands, [(shape, F32)], None, {**options, **integers.BY_ROWS})[0]

    def _clamped(self, value: LiteRtValue, low: float, high: float, of: IntegerType) -> LiteRtValue:
        """Clamp integers to bounds that no activation has."""
        for kind, bound, cuts in zip(
            ("MAXIMUM", "MINIMUM"), level_bounds(low, high, of), (of.low, of.high), strict=True
        ):
            if bound != cuts:
                number = self._stored(integers.constant(torch.tensor(bound), of))
                (value,) = self._write(kind, [value, number], [(value.shape, F32)], of, {})
        return value

    def _integer_operands(
        self, kind: str, inputs: Sequence[LiteRtValue | None], of: IntegerType
    ) -> list[LiteRtValue | None]:
        """Return operands as integers: constants are stored as such."""
        operands = [None if value is None else self._operand(value) for value in inputs]
        stored = integers.constant_operands(kind, operands, of)
        return [
            self._stored(stored[place]) if place in stored else value for place, value in enumerate(inputs)
        ]

    def _operand(self, value: LiteRtValue) -> IntegerType | torch.Tensor | None:
        """Return what integers stand for, or a constant of floats; None for sizes and the like."""
        if value.of is not None or value.dtype != F32:
            return value.of
        numbers = self.data(value)
        assert numbers is not None, f"{value} is neither integers nor a constant"
        return numbers

    def data(self, value: LiteRtValue) -> torch.Tensor | None:
        """Return the data of `value` if it is a constant, with the integers that it is made of."""
        made = self._integers.get(value.tensor)
        if made is None:
            return super().data(value)
        values, scales = (each.reshape(value.shape) for each in (made.values, made.scales))
        return Scaled.of(values, scales, made.zero_point)
