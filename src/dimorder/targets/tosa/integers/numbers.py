"""Represent the program's floats in a graph of integers: as integers that stand for numbers.

A dequantised value stays the integers that it came from, with a number for each integer of their type. A
function of it, element by element, only changes these numbers, and writes no operator. A sum is wider
integers with scales. Both are written when they are quantised: by one RESCALE, CLAMP or TABLE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.quantized import IntegerType
from dimorder.physical.annotations import How
from dimorder.physical.integer_functions import dequantized_numbers, exact_type
from dimorder.targets.table import View
from dimorder.targets.tosa.integers.channel_pieces import Channels, IntegerGraph, cut_convolutions
from dimorder.targets.tosa.integers.forms import Forms, are_crossed
from dimorder.targets.tosa.integers.permutation import permute_channels
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

BITS = 28  # of a sum: RESCALE takes values below 2^(shift - 1), so that no result may reach 2^29
PLAIN = Forms()


@dataclass(frozen=True, eq=False)
class Lookup:
    """A function of one value: its integers, what they stand for, and `numbers[i - low]` for integer i."""

    integers: TosaValue
    of: IntegerType
    numbers: Tensor

    @staticmethod
    def dequantize(integers: TosaValue, of: IntegerType) -> Lookup:
        return Lookup(integers, of, dequantized_numbers(of))

    @cached_property
    def exact_type(self) -> IntegerType | None:
        """The type of integers that stand for the numbers exactly, or None."""
        return exact_type(self.of, self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    @property
    def most(self) -> float:
        """Return the largest magnitude."""
        return largest(self.numbers)

    def with_integers(self, integers: TosaValue) -> Lookup:
        return replace(self, integers=integers)


@dataclass(frozen=True, eq=False)
class Accumulator:
    """Integers of 32 or 48 bits, each of which stands for itself times a scale, clipped between two bounds.

    `scales` broadcast against the last dimensions. `limit` is the largest magnitude of the integers. `error`
    is the possible error of the numbers after a TABLE, which rounds and may interpolate.
    """

    integers: TosaValue
    scales: Tensor
    limit: int
    low: float = -math.inf
    high: float = math.inf
    error: float = 0.0

    def __post_init__(self) -> None:
        bits = 48 if self.integers.dtype == "INT48" else 32
        if self.limit >= 2 ** (bits - 1):
            found = f"integers up to {self.limit:.2e}, where TOSA adds in {bits} bits"
            raise UnsupportedError("a sum", found, "use fewer terms")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    @property
    def most(self) -> float:
        return min(self.limit * float(self.scales.max()), max(abs(self.low), abs(self.high)))

    def with_integers(self, integers: TosaValue) -> Accumulator:
        return replace(self, integers=integers)


def largest(numbers: Tensor) -> float:
    """Return the largest magnitude; refuse numbers that are not finite."""
    most = float(numbers.abs().max())
    if not math.isfinite(most):
        raise UnsupportedError("an operand", "a function that is not finite everywhere", "quantise it")
    return most


Numbers = Lookup | Accumulator
Operand = Lookup | Accumulator | Tensor  # a tensor is a constant


class IntegerWriter(TosaWriter):
    """A writer whose values may be numbers that integers stand for.

    Equal operators are written again. Vela makes a RESCALE a part of its reader, and so estimates fewer
    cycles (8 % for a vision transformer). Operators that nothing reads are omitted in the end.

    `shortcuts` maps the tensor of a sum to a function that writes it with fewer operators, for a type for
    which that is exact. `errors` are the quanta by which int16 tensors may be off the nearest integers.
    `sources` maps the key of a source to a function of it.
    `forms` are the chosen alternatives among operators that give the same integers.
    """

    def __init__(self, forms: Forms = PLAIN) -> None:
        super().__init__()
        self.forms = forms
        if not forms.long_strides:
            self.max_stride = 3
        self.reverses_last = forms.reverses_last
        self.shortcuts: dict[str, Callable[[Accumulator, IntegerType], TosaValue | None]] = {}
        self.errors: dict[str, float] = {}
        self.permuted: dict[str, Channels] = {}
        self.sources: dict[Hashable, View[Lookup]] = {}

    @property
    def function(self) -> Tensor | None:
        """The numbers of the call that is written, if it is a function of one value."""
        return None if self.annotation is None else self.annotation.function

    def follow(self) -> Lookup | None:
        """Return the call that is written as a function of its source, or None if it is none."""
        if self.function is None or self.annotation is None:
            return None
        source: Lookup = self.dense(self.sources[self.annotation.source])
        return replace(source, numbers=self.function)

    def constant(self, data: Tensor | np.ndarray[Any, Any], dtype: str | None = None) -> TosaValue:
        if dtype is None and isinstance(data, Tensor) and data.dtype == torch.uint8:
            data = data.detach().view(torch.int8)
        return super().constant(data, dtype)

    def finish(self) -> bytes:
        if self.forms.cuts_convolutions:
            nodes, outputs = self._needed(), frozenset(self._outputs)
            made = cut_convolutions(IntegerGraph(nodes, self._tensors, outputs, self.permuted, self._cut))
            self._nodes, self._tensors, self._cut = list(made.nodes), dict(made.tensors), dict(made.cut)
        return super().finish()

    def require_planned(self, value: Any) -> None:
        """Require that the call that was written is what its annotation says."""
        held = value.value if isinstance(value, View) else value
        how = None if self.annotation is None else self.annotation.how
        kinds: Mapping[How | None, Any] = {None: TosaValue, How.WIDE: (Accumulator, TosaValue)}
        if self.function is not None and self.function.dtype == torch.bool:
            kinds = {How.FUNCTION: TosaValue}
        found = f"a row gives {type(held).__name__}, where the plan has {how}"
        assert isinstance(held, kinds.get(how, Lookup)), found
        if isinstance(held, Lookup) and self.annotation is not None:
            self.sources.setdefault(self.annotation.source, value)

    def reshape(self, value: Any, shape: Sequence[int]) -> Any:
        if isinstance(value, TosaValue):
            return super().reshape(value, shape)
        if isinstance(value, Accumulator) and value.scales.numel() > 1:
            return _reshaped(self, value, shape)
        return value.with_integers(super().reshape(value.integers, shape))

    def _broadcast(self, kind: str, values: Sequence[TosaValue], shape: tuple[int, ...]) -> list[TosaValue]:
        taken = list(super()._broadcast(kind, values, shape))
        if not self.forms.repeats_both and len(taken) == 2 and are_crossed(taken[0].shape, taken[1].shape):
            out = np.broadcast_shapes(taken[0].shape, taken[1].shape)
            place = 0 if math.prod(taken[0].shape) < math.prod(taken[1].shape) else 1
            taken[place] = self.tiled(taken[place], out)
        return taken

    def dense(self, operand: Any) -> Any:
        if isinstance(operand, View) and operand.is_dense and not isinstance(operand.value, TosaValue):
            return self.reshape(operand.value, operand.shape)
        return self._as_integers(super().dense, operand)

    def transposed(self, view: Any) -> Any:
        return self._as_integers(self._moved, view)

    def _moved(self, view: View[TosaValue]) -> TosaValue:
        if self.forms.permutes_by_convolution and not view.is_dense and view not in self._transposed:
            made = permute_channels(self, view)
            if made is not None:
                self._transposed[view], channels = made
                self.permuted[made[0].tensor] = (view.value.tensor, channels)
        return super().transposed(view)

    def _as_integers(self, function: Any, operand: Any) -> Any:
        if not isinstance(operand, View) or isinstance(operand.value, TosaValue):
            return function(operand)
        held: Any = operand.value
        alone = isinstance(held, Accumulator) and (held.scales.numel() > 1 or held.integers.dtype == "INT48")
        if alone and not operand.is_dense:  # its scales are along a dimension, or only RESCALE reads it
            held = with_one_scale(self, held)
        return held.with_integers(function(View(held.integers, operand.order)))


def _reshaped(w: IntegerWriter, x: Accumulator, shape: Sequence[int]) -> Accumulator:
    """Reshape a sum.

    Keep its scales if they are along the last dimensions after it too, else use one scale.
    """
    differing = x.shape[len(x.shape) - x.scales.dim() :]
    count, kept = 1, len(shape)
    while count < math.prod(differing) and kept:
        kept -= 1
        count *= shape[kept]
    if count != math.prod(differing):
        return w.reshape(with_one_scale(w, x), shape)  # type: ignore[no-any-return]
    scales = x.scales.expand(differing).reshape(tuple(shape[kept:]))
    return replace(x, integers=TosaWriter.reshape(w, x.integers, shape), scales=scales)


def refusal(found: str) -> UnsupportedError:
    """Return the error for a row that cannot compute in integers. The emitter adds the operator."""
    return UnsupportedError("an operator", found, "quantise it")


def numbers(w: IntegerWriter, operand: Any) -> Numbers:
    """Return the numbers that an operand's integers stand for."""
    held = w.dense(operand)
    if isinstance(held, TosaValue):
        raise refusal(f"{held.dtype}, where quantised values are computed with")
    return held  # type: ignore[no-any-return]


# -- sums --------------------------------------------------------------------------------------------------


def with_one_scale(w: IntegerWriter, x: Accumulator) -> Accumulator:
    """Return the same with one scale, and with its bounds applied to the integers."""
    if x.integers.dtype == "INT48":
        x = shorten(w, x, 30)
    scale, limit, value = float(x.scales.max()), x.limit, x.integers
    if x.scales.numel() > 1:
        bits = max(limit, 1).bit_length()
        factors = (x.scales / scale * 2**BITS).round().to(torch.int32)
        value = times(w, value, w.constant(factors), bits)
        scale, limit = scale * 2.0 ** (bits - BITS), 2**BITS
    for kind, bound in (("MAXIMUM", x.low), ("MINIMUM", x.high)):
        if abs(bound) < limit * scale:
            value = w.elementwise(kind, value, round(bound / scale))
    most = max(abs(x.low), abs(x.high))
    limit = math.ceil(most / scale) if most < limit * scale else limit
    return Accumulator(value, torch.tensor(scale, dtype=torch.float64), max(limit, 1), error=x.error)


def shorten(w: IntegerWriter, x: Accumulator, bits: int) -> Accumulator:
    """Round to INT32 of so many bits, besides the sign. TOSA has no RESHAPE of INT48, so that comes after."""
    less = max(x.limit.bit_length() - bits, 0)
    if not less and x.integers.dtype == "INT32":
        return x
    integers = w.reshape(rescale(w, w.as_written(x.integers), [2.0**-less], "INT32"), x.shape)
    return replace(x, integers=integers, scales=x.scales * 2.0**less, limit=(x.limit >> less) + 1)


def times(w: IntegerWriter, x: TosaValue, y: TosaValue, shift: int) -> TosaValue:
    """Return x · y / 2**shift, rounded half up; the product has 64 bits."""
    return w.elementwise("MUL", x, y, extra=(w.number(shift, "INT8"),))
