"""Relate axes of operands and results by labels; a token is one axis of a label, or a whole label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

Dims = tuple[tuple[tuple[str, int], ...], ...]  # per dimension: its labels, outer first, with their sizes
AxisOrder = tuple[int, ...]  # a buffer's axes, slowest first
Token = tuple[str, int]  # a shared axis of a label, or (label, -1) for a label whose axes stay together


@dataclass(frozen=True)
class Relation:
    """The relation between the axes of an operator's operands and results.

    `reads` and `writes` give the labels of each dimension of each tensor. A dimension has no label if its
    size is 1 or the operand broadcasts along it. A label is one of three kinds:

    1. shared (the default): its axes are the same wherever it occurs, in the same relative order on every
       tensor;
    2. in `blocks`: every tensor has its own axes there, which lie adjacent and in logical order;
    3. in `absorbed`: every tensor has its own axes there, adjacent and in any order, because a constant
       weight is re-laid to match.

    `forms` are the orders of the operator's implementations, one for each (see `Implementation`).
    """

    kind: str
    reads: tuple[Dims, ...]
    writes: tuple[Dims, ...]
    forms: tuple[str, ...] = ("*",)
    blocks: frozenset[str] = frozenset()
    absorbed: frozenset[str] = frozenset()
    reason: str = ""  # why an operator is opaque

    @property
    def is_view(self) -> bool:
        return self.kind == "relabel" and not self.blocks

    def as_block(self, *labels: str) -> Relation:
        """Return the relation with adjacent labels joined into one block, or with one label as a block."""
        joined = "+".join(labels)

        def join(dims: Dims) -> Dims:
            return tuple(
                tuple(_merge([(joined if name in labels else name, size) for name, size in dim]))
                for dim in dims
            )

        forms = tuple(
            " ".join(dict.fromkeys(joined if name in labels else name for name in form.split()))
            for form in self.forms
        )
        return replace(
            self,
            reads=tuple(map(join, self.reads)),
            writes=tuple(map(join, self.writes)),
            forms=forms,
            blocks=self.blocks - {*labels} | {joined},
            absorbed=self.absorbed - {*labels},
        )


def _merge(labels: list[tuple[str, int]]) -> list[tuple[str, int]]:
    merged: list[tuple[str, int]] = []
    for name, size in labels:
        if merged and merged[-1][0] == name:
            merged[-1] = (name, merged[-1][1] * size)
        else:
            merged.append((name, size))
    return merged


Relate: TypeAlias = "Callable[[torch.fx.Node], Relation | str]"  # a string says why a call is opaque


# -- relations that several families have


def dims_of(labels: Iterable[tuple[str, int]]) -> Dims:
    """Return one label per dimension, and none if the size is 1."""
    return tuple(((name, int(size)),) if size != 1 else () for name, size in labels)


def broadcast_dims(shape: Sequence[int], out: Sequence[int]) -> Dims:
    """Return the label `d.D` for each dimension D of `out` along which a tensor does not broadcast."""
    added = len(out) - len(shape)
    return dims_of((f"d.{added + d}", size if size == out[added + d] else 1) for d, size in enumerate(shape))


def relate_cut(shapes: Iterable[Sequence[int]], out: Sequence[int], inner: Mapping[int, int]) -> Relation:
    """Relate tensors that are cut: a cut dimension D has an outer block `cut.D` and a shared piece `d.D`.

    `inner` has the size of the piece of each cut dimension.
    """

    def dims(shape: Sequence[int]) -> Dims:
        pieces = (
            [(f"cut.{d}", size // inner[d]), (f"d.{d}", inner[d])] if d in inner else [(f"d.{d}", size)]
            for d, size in enumerate(shape)
        )
        return tuple(tuple(piece for piece in each if piece[1] != 1) for each in pieces)

    blocks = frozenset(f"cut.{dim}" for dim in inner)
    return Relation("indexed", tuple(map(dims, shapes)), (dims(out),), blocks=blocks)


def in_index_order(relate: Relate, name: str) -> Relate:
    """Return the rule of an operator that walks the dimensions of the label `name` in index order."""

    def related(node: torch.fx.Node) -> Relation | str:
        relation = relate(node)
        if isinstance(relation, str):
            return relation
        labels = {label for dims in relation.reads for dim in dims for label, _ in dim}
        blocks = frozenset(label for label in labels if is_named((label, 0), name))
        return replace(relation, kind="indexed", blocks=blocks)

    return related


# -- tokens


@dataclass(frozen=True)
class AxedTensor:
    """One tensor as one operator sees it: the sizes of its axes, and the axes of each label.

    `sizes` and `dims` are in logical order, and axes of size 1 do not exist. `dims` says which dimension each
    axis belongs to, and `spatial` has the dimensions that a convolution, a pool or a resize moves along.
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    labels: dict[str, tuple[int, ...]]
    spatial: frozenset[int] = frozenset()


def token_axes(tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    """Return the tokens of one tensor under a relation, with the positions of their axes in logical order."""
    tokens: dict[Token, AxisOrder] = {}
    for label, axes in tensor.labels.items():
        if label in relation.blocks or label in relation.absorbed:
            if axes:
                tokens[label, -1] = axes
        else:
            tokens.update({(label, j): (axis,) for j, axis in enumerate(axes)})
    return tokens


def is_named(token: Token, name: str) -> bool:
    """Return whether a token belongs to the label `name` or to a label `name.…`."""
    return any(part == name or part.startswith(f"{name}.") for part in token[0].split("+"))
