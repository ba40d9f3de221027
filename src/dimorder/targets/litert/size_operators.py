"""Write numbers that depend on dynamic sizes as LiteRT operators: from the shapes of a graph's values.

LiteRT computes SHAPE, STRIDED_SLICE, CONCATENATION, MUL and SUM of sizes while it allocates tensors, so that
every tensor has its size before the graph runs. It computes other operators of sizes in each run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from dimorder.graph.dynamic_sizes import DynamicSize
from dimorder.sizes.affine import fit_formula
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.litert.flatbuffer import TfLiteNode, TfLiteTensor

I32 = torch.int32
_OUT_TYPE = 2  # int32 in the schema's TensorType


class UnknownSizeError(Exception):
    """A number that does not follow from the sizes of earlier values."""


class SizeOperators:
    """Adds operators of sizes to a list of nodes, each once.

    `table` has the sizes and numbers of the network. It is None for a dry run: numbers are constants, for
    they may be sizes of values that are not there.
    """

    def __init__(
        self, tensors: dict[str, TfLiteTensor], nodes: list[TfLiteNode], table: SizeTable | None
    ) -> None:
        self.tensors, self.nodes, self.table = tensors, nodes, table
        self._sources: dict[tuple[int, ...], tuple[str, int]] = {}  # by values: a dimension that has them
        self._inputs: list[tuple[int, ...]] = []
        self._written: dict[tuple[object, ...], str] = {}

    def add_input(self, name: str) -> None:
        """Add an input of the graph, whose sizes are read before those of other values."""
        self.add(name)
        self._inputs = list(self._sources)

    def add(self, name: str) -> None:
        """Add a value, from whose sizes numbers may be computed from now on."""
        for dim, size in enumerate(self.tensors[name].shape):
            if isinstance(size, DynamicSize):
                self._sources.setdefault(size.values, (name, dim))

    def constant(self, numbers: Sequence[int]) -> str:
        """Return a constant of int32 in one dimension."""
        key = ("constant", *numbers)
        if key not in self._written:
            data = np.array(numbers, np.int32)
            self._written[key] = self.tensor(TfLiteTensor(data.shape, I32, data))
        return self._written[key]

    def tensor(self, tensor: TfLiteTensor) -> str:
        """Add a tensor, and return its name."""
        name = next(
            each for i in itertools.count(len(self.tensors)) if (each := f"size.{i}") not in self.tensors
        )
        self.tensors[name] = tensor
        return name

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: torch.dtype = I32,
        **options: object,
    ) -> str:
        """Write an operator once, and return its result."""
        key = (kind, *inputs, *shape, dtype, *options.values())
        if key not in self._written:
            self._written[key] = self.tensor(TfLiteTensor(tuple(shape), dtype))
            self.nodes.append(TfLiteNode(kind, tuple(inputs), (self._written[key],), options))
        return self._written[key]

    def vector(self, numbers: Sequence[int]) -> str:
        """Return these numbers in one dimension. Raises `UnknownSizeError`."""
        if self.table is None:
            return self.constant(list(map(int, numbers)))
        runs = itertools.groupby(numbers, lambda number: isinstance(number, DynamicSize))
        parts = list[str]()
        for is_dynamic, run in runs:
            parts += [self._number(each) for each in run] if is_dynamic else [self.constant(list(run))]
        return parts[0] if len(parts) == 1 else self.op("CONCATENATION", parts, (len(numbers),), axis=0)

    def has(self, number: int) -> bool:
        """Return whether an earlier value has this size."""
        return isinstance(number, DynamicSize) and number.values in self._sources

    def keep_distance(self, one: int, other: int) -> bool:
        """Return whether two numbers at one distance at the points are known to be so at all sizes."""
        if self.table is None or not isinstance(one, DynamicSize) or not isinstance(other, DynamicSize):
            return True
        return self.table.keep_distance(one.values, other.values)

    def like(self, constant: TfLiteTensor, numbers: Sequence[int]) -> str:
        """Return these numbers in the shape and the type of a constant. Raises `UnknownSizeError`."""
        shape = constant.shape
        value = self.vector(numbers) if shape else self._scalar(numbers[0])
        if len(shape) > 1:
            value = self.op("RESHAPE", [value, self.constant(shape)], shape)
        return value if constant.dtype == I32 else self.op("CAST", [value], shape, constant.dtype)

    def _scalar(self, number: int) -> str:
        """Return a number without dimensions."""
        ends = [self.constant([end]) for end in (0, 1, 1)]
        return self.op("STRIDED_SLICE", [self.vector([number]), *ends], (), shrinkAxisMask=1)

    def _number(self, number: int) -> str:
        assert isinstance(number, DynamicSize)
        compute, columns = self._formula(number.values)
        result: _SizeNumber = compute(_SizeReads(self, [self._sources[column] for column in columns]))
        return result.name

    def _formula(self, values: tuple[int, ...]) -> tuple[Callable[[Any], Any], list[tuple[int, ...]]]:
        """Return how a number is computed from sizes, and these: without a division if possible."""
        known = (self._inputs, list(self._sources))
        fit = fit_formula if self.table is None else self.table.fit
        found = [(formula, each) for each in known if (formula := fit(values, each)) is not None]
        whole = [each for each in found if each[0].divisor == 1]
        if whole:
            return whole[0]
        exact = None if self.table is None else self.table.formula(values, known[1])
        if exact is not None:
            return exact, known[1]
        if found:
            return found[0]
        number = " | ".join(map(str, values))
        raise UnknownSizeError(
            f"the number {number}, which depends on a dynamic size in a way that we cannot express"
        )

    def _size(self, name: str, dim: int) -> str:
        rank = len(self.tensors[name].shape)
        shape = self.op("SHAPE", [name], (rank,), outType=_OUT_TYPE)
        ends = [self.constant([end]) for end in (dim, dim + 1, 1)]
        return self.op("STRIDED_SLICE", [shape, *ends], (1,))


@dataclass(frozen=True)
class _SizeNumber:
    """A whole number in one dimension. Arithmetic with it writes operators."""

    writer: SizeOperators
    name: str

    def _op(self, kind: str, *inputs: str, **options: object) -> _SizeNumber:
        return _SizeNumber(self.writer, self.writer.op(kind, inputs, (1,), I32, **options))

    def _named(self, other: _SizeNumber | int) -> str:
        return other.name if isinstance(other, _SizeNumber) else self.writer.constant([int(other)])

    def __add__(self, other: _SizeNumber | int) -> _SizeNumber:
        pair = self.writer.op("CONCATENATION", [self.name, self._named(other)], (2,), axis=0)
        return self._op("SUM", pair, self.writer.constant([0]), keepDims=True)

    def __mul__(self, other: _SizeNumber | int) -> _SizeNumber:
        return self._op("MUL", self.name, self._named(other))

    def __floordiv__(self, other: _SizeNumber | int) -> _SizeNumber:
        return self._op("FLOOR_DIV", self.name, self._named(other))

    def __mod__(self, other: _SizeNumber | int) -> _SizeNumber:
        return self + (self // other) * other * -1

    __radd__, __rmul__ = __add__, __mul__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> _SizeNumber:
        """Write torch.sym_max or torch.sym_min."""
        number: _SizeNumber = next(each for each in args if isinstance(each, cls))
        return number._op(_CHOICES[function], *map(number._named, args))


_CHOICES: Mapping[Any, str] = MappingProxyType({torch.sym_max: "MAXIMUM", torch.sym_min: "MINIMUM"})


@dataclass(frozen=True)
class _SizeReads:
    """Sizes of dimensions; each is read when it is used."""

    writer: SizeOperators
    sources: Sequence[tuple[str, int]]

    def __getitem__(self, place: int) -> _SizeNumber:
        return _SizeNumber(self.writer, self.writer._size(*self.sources[place]))
