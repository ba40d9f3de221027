"""Cut convolutions so that each group of channels is written where it is read.

Networks that shuffle channels cut, join and permute the results of convolutions, and an NPU copies elements
for each of these moves. But several convolutions may compute the channels, in any order. So the channels that
are read together become a convolution of their own, and one CONCAT joins them for each reader.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dimorder.targets.tosa.dtypes import TORCH
from dimorder.targets.tosa.flatbuffer import FlatTensor
from dimorder.targets.tosa.integers.model import COMPUTE, TosaNode
from dimorder.targets.tosa.writer import MAX_OPERANDS

LANES = 8  # output channels that an Ethos-U computes side by side
WASTE = 1.5  # times the channels, with those that fill the lanes of each piece

Channels = tuple[str, Tensor]  # a tensor, and some of its last dimension's elements in a new sequence

_MOVES = ("CONCAT", "RESHAPE", "SLICE", "TRANSPOSE")
_OF_EACH = ("RESCALE", "CLAMP", "TABLE")  # each element is computed from one
_BY_CHANNEL = ("DEPTHWISE_CONV2D", *_OF_EACH)
# The dimension of the output channels in the first two constants: weights and biases, or factors and shifts.
_CHANNELS = {"CONV2D": (0, 0), "DEPTHWISE_CONV2D": (2, 0), "RESCALE": (0, 0)}


@dataclass(frozen=True)
class IntegerGraph:
    """The operators of a graph in sequence, and its tensors.

    `permuted` maps a tensor to the one whose channels it permutes. `cut` maps a tensor to the channels that
    it has of a tensor in the graph as it was first.
    """

    nodes: Sequence[TosaNode]
    tensors: Mapping[str, FlatTensor]
    outputs: frozenset[str]
    permuted: Mapping[str, Channels]
    cut: Mapping[str, Channels]

    @cached_property
    def _writers(self) -> Mapping[str, TosaNode]:
        return {node.output: node for node in self.nodes}

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[TosaNode]]:
        found: dict[str, list[TosaNode]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return found

    def is_constant(self, name: str) -> bool:
        return self.tensors[name].data is not None

    def constant(self, name: str) -> Tensor:
        data = self.tensors[name].data
        assert data is not None
        return torch.from_numpy(data)

    # -- moves ---------------------------------------------------------------------------------------------

    @cached_property
    def moved_from(self) -> Mapping[str, Sequence[str]]:
        """The tensors whose elements others only move, by these others."""
        found = {
            node.output: [name for name in node.inputs if not self.is_constant(name)]
            for node in self.nodes
            if node.kind in _MOVES
        }
        return found | {
            name: [source] for name, (source, _) in self.permuted.items() if name in self._writers
        }

    def copies(self, moved: Sequence[str]) -> bool:
        """Return whether an NPU copies elements for these moves: it reads a slice alone where it is."""
        kinds = {self._writers[name].kind for name in moved if name not in self.permuted}
        return (
            "TRANSPOSE" in kinds
            or {"SLICE", "CONCAT"} <= kinds
            or any(name in self.permuted for name in moved)
        )

    def computing_readers(self, name: str) -> list[TosaNode]:
        """Return the operators that read a tensor and are no moves."""
        readers = self._readers.get(name, ())
        return [node for node in readers if node.output not in self.moved_from and not self._permutes(node)]

    def _permutes(self, node: TosaNode) -> bool:
        """Return whether an operator is the convolution of a permutation, which a RESCALE ends."""
        return any(after.output in self.permuted for after in self._readers.get(node.output, ()))

    def places(self, name: str, known: dict[str, Tensor]) -> Tensor:
        """Return the place of each element of a moved tensor. `known` has those of what it is moved from."""
        if name in known:
            return known[name]
        if name in self.permuted:
            source, channels = self.permuted[name]
            known[name] = self.places(source, known).reshape(self.tensors[name].shape)[..., channels]
        else:
            node = self._writers[name]
            operands = [
                self.constant(each) if self.is_constant(each) else self.places(each, known)
                for each in node.inputs
            ]
            known[name] = COMPUTE[node.kind](node, *operands).reshape(node.shape)
        return known[name]

    def concatenated(self, name: str) -> str:
        """Return the concatenation that a moved tensor is a part of, or what it is moved from."""
        while name in self.moved_from and self._writers[name].kind != "CONCAT":
            name = self.moved_from[name][0]
        return name

    # -- operators with weights ----------------------------------------------------------------------------

    def takes_any_order(self, name: str) -> bool:
        """Return whether the constants of all readers of a tensor can be permuted with its channels."""
        if name in self.outputs or len(self.tensors[name].shape) != 4:
            return False
        return all(
            node.inputs[0] == name
            and all(map(self.is_constant, node.inputs[1:]))
            and (
                node.kind == "CONV2D"
                or (
                    node.kind in _BY_CHANNEL
                    and node.shape[3] == self.tensors[name].shape[3]
                    and self.takes_any_order(node.output)
                )
            )
            for node in self._readers.get(name, ())
        )

    def convolution(self, name: str) -> list[TosaNode]:
        """Return the convolution that computes a tensor and the operators after it, or nothing."""
        found: list[TosaNode] = []
        while name in self._writers and self._writers[name].kind in ("CONV2D", *_OF_EACH):
            found.insert(0, self._writers[name])
            if found[0].kind == "CONV2D":
                return found
            name = found[0].inputs[0]
            if len(self._readers[name]) > 1 or name in self.outputs:
                return []
        return []


@dataclass(frozen=True, eq=False)
class Piece:
    """Channels of a convolution's result, and their places among the channels of a tensor that is read."""

    source: str
    channels: Tensor
    places: Tensor


def cut_convolutions(graph: IntegerGraph) -> IntegerGraph:
    """Return the graph with convolutions cut where moves connect them to their readers.

    The moves are still there, but no output needs them.
    """
    pieces: dict[str, list[Piece]] = {}
    for entering, leaving in _connected(graph):
        pieces |= _pieces(graph, entering, leaving)
    return _Rewriting(graph, pieces).result() if pieces else graph


# -- which channels are read where -------------------------------------------------------------------------


def _connected(graph: IntegerGraph) -> Iterator[tuple[list[str], list[str]]]:
    """Return the tensors that enter moves, and those that leave them, for each group that moves connect."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for output, sources in graph.moved_from.items():
        for source in sources:
            parent[root(source)] = root(output)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in list(parent):
        groups[root(name)].append(name)
    for group in groups.values():
        moved = [name for name in group if name in graph.moved_from]
        if graph.copies(moved):
            leaving = [name for name in moved if name in graph.outputs or graph.computing_readers(name)]
            yield [name for name in group if name not in graph.moved_from], leaving


def _pieces(graph: IntegerGraph, entering: Sequence[str], leaving: Sequence[str]) -> dict[str, list[Piece]]:
    """Return the pieces of each tensor that leaves the moves, or nothing if a condition is not met.

    Only moves may read the convolutions' results, and each channel only once. All readers must take their
    channels in any order.
    """
    for name in entering:
        if name in graph.outputs or not graph.convolution(name) or graph.computing_readers(name):
            return {}
    if not all(map(graph.takes_any_order, leaving)):
        return {}
    known, begin = {}, 0
    for name in entering:
        shape = graph.tensors[name].shape
        known[name] = torch.arange(begin, begin + math.prod(shape)).reshape(shape)
        begin += math.prod(shape)
    sources = {name: known[name].flatten(0, 2) for name in entering}
    found, read = {}, torch.zeros(begin, dtype=torch.bool)
    for name in leaving:
        columns = graph.places(name, known).flatten(0, 2)
        found[name] = [
            piece for source in entering if (piece := _piece(source, sources[source], columns)) is not None
        ]
        once = columns[0].unique()
        if sum(len(piece.places) for piece in found[name]) != columns.shape[1] or bool(read[once].any()):
            return {}
        if len(once) != columns.shape[1] or len(found[name]) > MAX_OPERANDS:
            return {}
        read[once] = True
    counts = [len(piece.channels) for pieces in found.values() for piece in pieces]
    computed = sum(math.ceil(count / LANES) * LANES for count in counts)
    return found if computed <= WASTE * sum(counts) else {}


def _piece(name: str, source: Tensor, columns: Tensor) -> Piece | None:
    """Return which columns are those of a source, in the sequence of the source, or None."""
    begin, count = int(source[0, 0]), source.shape[1]
    if source.shape[0] != columns.shape[0]:
        return None
    places = ((columns[0] >= begin) & (columns[0] < begin + count)).nonzero().flatten()
    channels, sequence = (columns[0, places] - begin).sort()
    places = places[sequence]
    if not len(places) or not torch.equal(columns[:, places], source[:, channels]):
        return None
    return Piece(name, channels, places)


# -- the graph with the pieces -----------------------------------------------------------------------------


class _Rewriting:
    """Writes the operators of a graph again, in their sequence."""

    def __init__(self, graph: IntegerGraph, pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._graph, self._pieces = graph, pieces
        self._of: dict[str, list[Piece]] = defaultdict(list)
        for each in pieces.values():
            for piece in each:
                self._of[piece.source].append(piece)
        self._nodes: list[TosaNode] = []
        self._tensors, self._cut = dict(graph.tensors), dict(graph.cut)
        self._joined: dict[str, str] = {}  # by tensor: the one that has its channels in another order
        self._orders: dict[str, Tensor] = {}  # by tensor: its channels as they were, in their new sequence
        self._written: dict[Piece, str] = {}

    def result(self) -> IntegerGraph:
        graph = self._graph
        replaced = {node.output for name in self._of for node in graph.convolution(name)}
        for node in graph.nodes:
            for name in node.inputs:
                if name in self._pieces and name not in self._joined:
                    self._join(name)
            if node.output not in replaced:
                self._nodes.append(self._reordered(node))
            for piece in self._of.get(node.output, ()):
                self._written[piece] = self._convolution(piece)
        return replace(graph, nodes=self._nodes, tensors=self._tensors, cut=self._cut)

    def _join(self, name: str) -> None:
        """Join the pieces of a tensor."""
        pieces, old = self._pieces[name], self._graph.tensors[name]
        parts = tuple(self._written[piece] for piece in pieces)
        self._orders[name] = torch.cat([piece.places for piece in pieces])
        self._joined[name] = parts[0]
        if len(parts) > 1:
            like = self._graph.concatenated(name)
            self._joined[name] = joined = self._tensor(like, FlatTensor(old.shape, old.dtype))
            self._nodes.append(TosaNode("CONCAT", parts, joined, {"axis": 3}, TORCH[old.dtype], old.shape))

    def _reordered(self, node: TosaNode) -> TosaNode:
        """Return an operator that reads its channels in their new sequence."""
        order = self._orders.get(node.inputs[0])
        if order is None:
            return node
        if node.kind != "CONV2D":
            self._orders[node.output], self._cut[node.output] = order, (node.output, order)
        inputs = self._operands(node, None if node.kind == "CONV2D" else order)
        return replace(node, inputs=(self._joined.get(node.inputs[0], node.inputs[0]), *inputs))

    def _convolution(self, piece: Piece) -> str:
        """Write a convolution of some channels, and the operators after it."""
        chain = self._graph.convolution(piece.source)
        name: str = self._joined.get(chain[0].inputs[0], chain[0].inputs[0])
        for node in chain:
            shape = (*node.shape[:3], len(piece.channels))
            inputs = (name, *self._operands(node, piece.channels))
            name = self._tensor(node.output, FlatTensor(shape, self._tensors[node.output].dtype))
            self._nodes.append(replace(node, inputs=inputs, output=name, shape=shape))
            self._cut[name] = (node.output, piece.channels)
        return name

    def _operands(self, node: TosaNode, channels: Tensor | None) -> list[str]:
        """Return the constants of an operator, for the sequence of its input and some output channels."""
        order = self._orders.get(node.inputs[0]) if node.kind == "CONV2D" else None
        made = []
        for place, name in enumerate(node.inputs[1:]):
            held = numbers = self._graph.constant(name)
            if order is not None and place == 0:
                numbers = numbers[..., order]
            if channels is not None and place < 2 and node.kind in _CHANNELS and numbers.numel() > 1:
                numbers = numbers.index_select(_CHANNELS[node.kind][place], channels)
            made.append(name if numbers is held else self._constant(name, numbers))
        return made

    def _constant(self, like: str, numbers: Tensor) -> str:
        return self._tensor(
            like, FlatTensor(tuple(numbers.shape), self._tensors[like].dtype, numbers.numpy())
        )

    def _tensor(self, like: str, tensor: FlatTensor) -> str:
        name = f"{like.rsplit('.', 1)[0]}.{len(self._tensors)}"
        self._tensors[name] = tensor
        return name
