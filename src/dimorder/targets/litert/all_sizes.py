"""Merge the graphs of a network at several points into one LiteRT graph for all sizes.

The graphs differ in numbers alone. LiteRT derives the shapes of most values. A size that an operator reads as
a constant is derived by LiteRT too, or computed from the shapes of earlier values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from dimorder.graph.dynamic_sizes import DynamicSize, is_fixed
from dimorder.sizes.merge_specializations import broadcast_row
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.litert.flatbuffer import TfLiteGraph, TfLiteNode, TfLiteTensor
from dimorder.targets.litert.size_operators import SizeOperators, UnknownSizeError

_TensorNames = tuple[str, ...]  # those of one value in each of the graphs

_INFERRED = -1  # in the shape of a RESHAPE: what the other sizes leave for it
# The operators whose operands broadcast.
_BROADCASTS = frozenset(
    [
        *("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "POW", "SELECT_V2", "FLOOR_MOD", "FLOOR_DIV"),
        *("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"),
        *("LOGICAL_AND", "LOGICAL_OR"),
    ]
)


class NotForAllSizesError(Exception):
    """An operator that cannot be written for all sizes. `origin` is that of its `TfLiteNode`."""

    def __init__(self, origin: str, found: str) -> None:
        super().__init__(found)
        self.origin, self.found = origin, found


def merge_graphs(graphs: Sequence[TfLiteGraph], table: SizeTable | None = None) -> TfLiteGraph:
    """Return one graph for all sizes, from graphs at the points of a table of sizes.

    There is no table for a dry run of one operator, which may need sizes that none of its operands has.

    Raises `NotForAllSizesError` for the first operator that cannot be written for all sizes.
    """
    merger = _GraphMerger(graphs, table)
    for row in zip(*(graph.nodes for graph in graphs), strict=False):
        try:
            merger.add(row)
        except (UnknownSizeError, _DifferenceError) as error:
            raise NotForAllSizesError(row[0].origin, str(error)) from error
    fewest, most = (pick(graphs, key=lambda graph: len(graph.nodes)).nodes for pick in (min, max))
    if len(fewest) < len(most):
        more = most[len(fewest)]
        raise NotForAllSizesError(more.origin, f"a {more.kind} that some sizes need and others do not")
    return replace(graphs[0], tensors=merger.tensors, nodes=merger.nodes)


def varying_sizes(sizes: Sequence[Sequence[int]], points: int) -> list[set[int]]:
    """Return the sizes that count as dynamic at each point, from the size of each dimension at all points.

    A fixed size that a dynamic one has at some point counts as dynamic at all. So the graphs decide alike.

    >>> varying_sizes([(5, 3, 4), (4, 4, 4), (7, 7, 7)], 3) == [{5, 4}, {3, 4}, {4}]
    True
    """
    dynamic = [each for each in sizes if len(set(each)) > 1]
    met = {size for each in dynamic for size in each}
    shared = {each[0] for each in sizes if len(set(each)) == 1} & met
    return [{each[point] for each in dynamic} | shared for point in range(points)]


class _DifferenceError(Exception):
    """Graphs that differ in more than sizes that LiteRT derives or computes."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}, which depends on a dynamic size")


def _require_equal(values: Sequence[Any], what: str) -> None:
    if any(value != values[0] for value in values):
        raise _DifferenceError(f"{what}: {' or '.join(dict.fromkeys(map(str, values)))}")


class _GraphMerger:
    """The one graph under construction. Its computed values have the names of the first graph's."""

    def __init__(self, graphs: Sequence[TfLiteGraph], table: SizeTable | None) -> None:
        self.graphs = graphs
        self.tensors: dict[str, TfLiteTensor] = {}
        self.nodes: list[TfLiteNode] = []
        self.sizes = SizeOperators(self.tensors, self.nodes, table)
        self.computed = set[_TensorNames]()
        # By constant: its content, of size 1 wherever it only repeats.
        self.rows: dict[_TensorNames, str] = {}
        for names in zip(*(graph.inputs.values() for graph in graphs), strict=True):
            self._add_value(names)
            self.sizes.add_input(names[0])

    def add(self, row: Sequence[TfLiteNode]) -> None:
        """Add an operator, given in each graph."""
        first = row[0]
        _require_equal([node.kind for node in row], "an operator")
        _require_equal([len(node.inputs) for node in row], f"the operands of {first.kind}")
        for outputs in zip(*(node.outputs for node in row), strict=True):
            self._add_value(outputs)
        operands = [self._known(names) for names in zip(*(node.inputs for node in row), strict=True)]
        numbers = [self._numbers(names) for names in operands]
        kind, options = first.kind, first.options
        inputs: list[str | None]
        form = None if all(map(is_fixed, numbers[1:])) else _FORMS.get(first.kind)
        if form is not None:
            assert operands[0] is not None
            kind, sizes, options = form(self.sizes, self._shape(operands[0]), numbers[1:])
            inputs = [self._operand(operands[0], first, operands), *sizes]
        else:
            for name in options:
                _require_equal([node.options.get(name) for node in row], f"{name} of {kind}")
            inputs = [None if names is None else self._operand(names, first, operands) for names in operands]
        self.nodes.append(replace(first, kind=kind, inputs=tuple(inputs), options=options))
        for name in first.outputs:
            self.sizes.add(name)

    def _add_value(self, names: _TensorNames) -> None:
        self.tensors[names[0]] = replace(self._each(names)[0], shape=self._shape(names))
        self.computed.add(names)

    def _known(self, names: tuple[str | None, ...]) -> _TensorNames | None:
        _require_equal([name is None for name in names], "an operand")
        return tuple(name for name in names if name is not None) or None

    def _each(self, names: _TensorNames) -> list[TfLiteTensor]:
        tensors = [graph.tensors[name] for graph, name in zip(self.graphs, names, strict=True)]
        if any(tensor.scales != tensors[0].scales for tensor in tensors):
            raise _DifferenceError("the scale of integers")
        return tensors

    def _shape(self, names: _TensorNames) -> tuple[int, ...]:
        shapes = [tensor.shape for tensor in self._each(names)]
        _require_equal(list(map(len, shapes)), "the number of dimensions")
        return tuple(map(DynamicSize.of, zip(*shapes, strict=True)))

    def _data(self, names: _TensorNames) -> list[np.ndarray[Any, Any]]:
        """Return a constant in each graph; nothing for what is computed."""
        found = [tensor.data for tensor in self._each(names)]
        _require_equal([data is None for data in found], "an operand")
        return [data for data in found if data is not None]

    def _numbers(self, names: _TensorNames | None) -> list[int]:
        """Return the whole numbers of a constant that may depend on sizes: integers, or one float."""
        data = [] if names is None or self._each(names)[0].scales is not None else self._data(names)
        if not data or len({each.shape for each in data}) > 1 or data[0].dtype.kind == "b":
            return []
        if data[0].dtype.kind == "f" and not (data[0].size == 1 and all(float(n).is_integer() for n in data)):
            return []
        columns = zip(*(each.reshape(-1).tolist() for each in data), strict=True)
        return [DynamicSize.of(column) for column in columns]

    def _operand(self, names: _TensorNames, node: TfLiteNode, operands: Sequence[_TensorNames | None]) -> str:
        """Return what an operator reads."""
        data = self._data(names)
        if not data:
            if names not in self.computed:
                raise _DifferenceError(f"an operand of {node.kind}")
            return names[0]
        like, numbers, shape = self._each(names)[0], self._numbers(names), self._shape(names)
        if not is_fixed(numbers):
            return self.sizes.like(like, numbers)
        row = self._row(names, like, data)
        if is_fixed(shape) or self._broadcasts(shape, node, operands):
            return row
        counts = [
            1 if own == size else size for own, size in zip(self.tensors[row].shape, shape, strict=True)
        ]
        return self.sizes.op("TILE", [row, self.sizes.vector(counts)], shape, like.dtype)

    def _row(self, names: _TensorNames, like: TfLiteTensor, data: Sequence[np.ndarray[Any, Any]]) -> str:
        """Return a constant that differs between the graphs in sizes alone: of size 1 where it repeats."""
        if names not in self.rows:
            row = broadcast_row(list(map(torch.from_numpy, data)))
            if row is None:
                raise _DifferenceError("a constant")
            self.rows[names] = self.sizes.tensor(replace(like, shape=tuple(row.shape), data=row.numpy()))
        return self.rows[names]

    def _broadcasts(
        self, shape: Sequence[int], node: TfLiteNode, operands: Sequence[_TensorNames | None]
    ) -> bool:
        """Return whether a computed operand has each dynamic size along which a constant repeats."""
        if node.kind not in _BROADCASTS:
            return False
        others = [self._shape(names) for names in operands if names is not None and names in self.computed]
        places = [d - len(shape) for d, size in enumerate(shape) if isinstance(size, DynamicSize)]
        return all(any(-d <= len(other) and other[d] == shape[d] for other in others) for d in places)


# -- forms: the kind of an operator, its operands after the first, and its options --

_Form = Callable[
    [SizeOperators, tuple[int, ...], Sequence[Sequence[int]]], tuple[str, list[str], Mapping[str, Any]]
]


def _reshape(
    sizes: SizeOperators, x: tuple[int, ...], numbers: Sequence[Sequence[int]]
) -> tuple[str, list[str], Mapping[str, Any]]:
    """Leave one size to LiteRT, preferably one that no earlier value has."""
    (shape,) = numbers
    dynamic = [place for place, size in enumerate(shape) if isinstance(size, DynamicSize)]
    left = next((place for place in dynamic if not sizes.has(shape[place])), dynamic[0])
    return "RESHAPE", [sizes.vector([_INFERRED if i == left else n for i, n in enumerate(shape)])], {}


def _slice(
    sizes: SizeOperators, x: tuple[int, ...], numbers: Sequence[Sequence[int]]
) -> tuple[str, list[str], Mapping[str, Any]]:
    starts, lengths = numbers
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    return _strided_slice(sizes, x, [starts, ends, [1] * len(x)])


def _strided_slice(
    sizes: SizeOperators, x: tuple[int, ...], numbers: Sequence[Sequence[int]]
) -> tuple[str, list[str], Mapping[str, Any]]:
    """Count from the end of a dimension what lies at the same distance from it at all sizes.

    LiteRT takes no -1 as the length of a SLICE whose result has a shape.
    """
    starts, ends, steps = numbers
    whole = sum(1 << d for d, (end, size) in enumerate(zip(ends, x, strict=True)) if end == size)
    first = [_from_end(sizes, start, size) for start, size in zip(starts, x, strict=True)]
    last = [0 if end == size else _from_end(sizes, end, size) for end, size in zip(ends, x, strict=True)]
    return "STRIDED_SLICE", [sizes.vector(each) for each in (first, last, steps)], {"endMask": whole}


def _from_end(sizes: SizeOperators, place: int, size: int) -> int:
    distance = size - place
    if not isinstance(place, DynamicSize) or isinstance(distance, DynamicSize):
        return place
    return -distance if sizes.keep_distance(place, size) else place


_FORMS: Mapping[str, _Form] = MappingProxyType(
    {"RESHAPE": _reshape, "SLICE": _slice, "STRIDED_SLICE": _strided_slice}
)
