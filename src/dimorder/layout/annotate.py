"""Find the axes of every value, by solving all operators' relations over one store of factors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from dimorder.algebra.axis import Factors
from dimorder.capture.captured import Captured
from dimorder.graph.nodes import is_getitem, results
from dimorder.ops.relation import AxedTensor, Dims, Relation, is_named
from dimorder.ops.table import opaque, operands, relate

Labels = tuple[str, ...]
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Annotated:
    """A program with the relation of each call, and the axes of the call's operands and results."""

    program: Captured
    relations: dict[torch.fx.Node, Relation]
    reads: dict[torch.fx.Node, tuple[AxedTensor, ...]]  # aligned with `table.operands(call)`
    writes: dict[torch.fx.Node, tuple[AxedTensor, ...]]
    blocked: dict[torch.fx.Node, tuple[Labels, ...]]  # labels that became a block because cuts conflict
    state: dict[torch.fx.Node, AxedTensor]  # of each buffer of the state, before and after a call

    @property
    def calls(self) -> list[torch.fx.Node]:
        return list(self.relations)


def annotate(
    program: Captured,
    outside: Mapping[torch.fx.Node, str] = _NOTHING,
    blocks: Mapping[str, Sequence[Labels]] = _NOTHING,
) -> Annotated:
    """Return a program with axes for every value.

    Args:
        program: the program.
        outside: the calls that stay row-major, with their reasons.
        blocks: labels that are joined into blocks, by the name of the call.
    """
    calls = [n for n in program.nodes if n.op == "call_function" and not is_getitem(n)]
    relations = {n: opaque(n, outside[n]) if n in outside else relate(n) for n in calls}
    return _Solver(program, relations, blocks).solve()


def annotate_points(
    programs: Sequence[Captured], outside: Sequence[Mapping[torch.fx.Node, str]] | None = None
) -> list[Annotated]:
    """Return one network with axes at several sizes. Cuts that conflict at one of them count at all.

    Dynamic sizes may divide one another by chance: 12 columns consist of 2 · 3, and 20 do not of 3 · 5.
    """
    known = outside or [_NOTHING] * len(programs)
    blocks: dict[str, tuple[Labels, ...]] = {}
    while True:
        found = [annotate(*each, blocks) for each in zip(programs, known, strict=True)]
        blocked = [{call.name: labels for call, labels in each.blocked.items()} for each in found]
        if all(each == blocked[0] for each in blocked):
            return found
        for call, labels in itertools.chain(*(each.items() for each in blocked)):
            blocks[call] = tuple(dict.fromkeys((*blocks.get(call, ()), *labels)))


def results_of(call: torch.fx.Node) -> list[torch.fx.Node | None]:
    """Return the nodes that stand for a call's results; None for a result that nobody uses."""
    if not isinstance(call.meta["val"], (list, tuple)):
        return [call]
    picked = {user.args[1]: user for user in call.users if is_getitem(user)}
    return [picked.get(i) for i in range(len(call.meta["val"]))]


class _Solver:
    """Factors of every computed value, and of every *use* of a constant (constants are re-laid per use)."""

    def __init__(
        self,
        program: Captured,
        relations: dict[torch.fx.Node, Relation],
        blocks: Mapping[str, Sequence[Labels]],
    ) -> None:
        self.program = program
        self.relations = relations
        self.factors = Factors()
        self.dims: dict[torch.fx.Node, list[int]] = {}
        self.tensors: dict[torch.fx.Node, tuple[list[list[int]], list[list[int]]]] = {}
        self.blocked: dict[torch.fx.Node, list[Labels]] = {}
        self.spatial: set[int] = set()  # axes
        for call in relations:
            for labels in blocks.get(call.name, ()):
                self._block(call, *labels)
        found = [node for node, _ in program.carried]
        for node in (*found, *program.inputs):
            self.dims[node] = self._new(node.meta["val"])
        for call in relations:
            reads = [self._new(n.meta["val"]) if n.op == "get_attr" else self.dims[n] for n in operands(call)]
            writes = [self._new(value) for value in results(call)]
            for result, dims in zip(results_of(call), writes, strict=True):
                if result is not None:
                    self.dims[result] = dims
            self.tensors[call] = (reads, writes)

    def solve(self) -> Annotated:
        """Identify whole dimensions first, which cannot conflict, then calls, the most frequent cut first."""
        cuts = {call: _cuts(relation) for call, relation in self.relations.items()}
        self._carry()
        for call in self.relations:
            if not cuts[call]:
                self._identify(call)
        frequency = Counter(cuts.values())
        cutting = (call for call in self.relations if cuts[call])
        for call in sorted(cutting, key=lambda call: (-frequency[cuts[call]], cuts[call])):
            self._cut(call)
            self._identify(call)
        self.spatial = {
            axis
            for call in self.relations
            for factors, dims in self._sides(call)
            for label, axes in self._pieces(factors, dims)
            if is_named((label, -1), "s")
            for axis in axes
        }
        reads, writes = {}, {}
        for call, relation in self.relations.items():
            sides = zip(self.tensors[call], (relation.reads, relation.writes), strict=True)
            reads[call], writes[call] = (
                tuple(self._tensor(factors, dims) for factors, dims in zip(side, rel, strict=True))
                for side, rel in sides
            )
        state = {node: self._axes(self.dims[node]) for node, _ in self.program.carried}
        blocked = {c: tuple(b) for c, b in self.blocked.items()}
        return Annotated(self.program, self.relations, reads, writes, blocked, state)

    def _carry(self) -> None:
        """Give what a call leaves in the state the axes of what the next call finds there."""
        for found, left in self.program.carried:
            for mine, other in zip(self.dims[found], self.dims.get(left, ()), strict=left in self.dims):
                same = self.factors.identify(self.factors.leaves(mine), self.factors.leaves(other))
                assert same, "dimensions that are not cut"

    def _new(self, value: torch.Tensor) -> list[int]:
        return [self.factors.new(int(size)) for size in value.shape]

    def _sides(self, call: torch.fx.Node) -> Iterator[tuple[list[int], Dims]]:
        reads, writes = self.tensors[call]
        relation = self.relations[call]
        yield from zip([*reads, *writes], [*relation.reads, *relation.writes], strict=True)

    def _cut(self, call: torch.fx.Node) -> None:
        """Cut each dimension where its labels meet; labels whose cut conflicts are joined into a block."""
        for factors, dims in self._sides(call):
            for factor, pieces in zip(factors, dims, strict=True):
                if len(pieces) > 1 and not self.factors.cut(factor, [size for _, size in pieces]):
                    self._block(call, *(name for name, _ in pieces))
                    return self._cut(call)

    def _identify(self, call: torch.fx.Node) -> None:
        """Identify a shared label's axes wherever it occurs; a label whose cuts conflict becomes a block."""
        relation = self.relations[call]
        first: dict[str, tuple[int, ...]] = {}
        for factors, dims in self._sides(call):
            for name, leaves in self._labels(factors, dims).items():
                if name in relation.blocks or name in relation.absorbed:
                    continue
                if name in first and not self.factors.identify(first[name], leaves):
                    self._block(call, name)
                    return self._identify(call)
                first.setdefault(name, leaves)

    def _block(self, call: torch.fx.Node, *labels: str) -> None:
        self.relations[call] = self.relations[call].as_block(*labels)
        self.blocked.setdefault(call, []).append(labels)

    def _labels(self, factors: list[int], dims: Dims) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for name, leaves in self._pieces(factors, dims):
            found[name] = found.get(name, ()) + leaves
        return found

    def _pieces(self, factors: list[int], dims: Dims) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield each label of each dimension with its axes there."""
        for factor, labels in zip(factors, dims, strict=True):
            groups = self.factors.pieces(factor, [size for _, size in labels])
            yield from zip((name for name, _ in labels), groups, strict=True)

    def _axes(self, factors: list[int]) -> AxedTensor:
        leaves = [self.factors.leaves(factor) for factor in factors]
        sizes = tuple(self.factors.size(leaf) for group in leaves for leaf in group)
        spatial = frozenset(d for d, group in enumerate(leaves) if not self.spatial.isdisjoint(group))
        return AxedTensor(sizes, tuple(d for d, group in enumerate(leaves) for _ in group), {}, spatial)

    def _tensor(self, factors: list[int], dims: Dims) -> AxedTensor:
        tensor, places = self._axes(factors), itertools.count()
        labels: dict[str, tuple[int, ...]] = {}
        for name, leaves in self._pieces(factors, dims):
            labels[name] = (*labels.get(name, ()), *itertools.islice(places, len(leaves)))
        assert next(places) == len(tensor.sizes), "every axis has a label"
        return replace(tensor, labels=labels)


def _cuts(relation: Relation) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the pieces of each dimension that a relation cuts."""
    dims = (dim for dims in (*relation.reads, *relation.writes) for dim in dims if len(dim) > 1)
    return tuple(sorted({tuple(size for _, size in dim) for dim in dims}))
