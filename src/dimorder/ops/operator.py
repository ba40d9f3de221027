"""Describe an ATen operator as one value.

An `Operator` says how it is written in other operators, or how it relates the axes of its operands and
results. Its implementations say which physical operators may run it, in which orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from dimorder.graph.elements import MOVERS, Elements
from dimorder.graph.nodes import args_of, bound, tensor_arguments

aten = torch.ops.aten

Dims = tuple[tuple[tuple[str, int], ...], ...]  # per dimension: its labels, outer first, with their sizes


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
        kept = {name for name in self.blocks | self.absorbed if name not in labels}
        return replace(
            self,
            reads=tuple(map(join, self.reads)),
            writes=tuple(map(join, self.writes)),
            forms=forms,
            blocks=frozenset(self.blocks & kept | {joined}),
            absorbed=frozenset(self.absorbed & kept),
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
Spell = Callable[..., Any]  # (tracer, arguments …) → the value, written in other operators


@dataclass(frozen=True)
class Implementation:
    """One way to run an operator on physical tensors.

    `form` is the order that it takes: labels of the relation from slowest to fastest. A name stands for
    itself and for all labels `name.…`. `*` stands for all labels that the form does not name, in any order.

    `lower` appends the operator to the physical program. Besides views, permutes and copies it only uses the
    operators of `physical`. `applies` says which calls the implementation can run.
    """

    name: str
    form: str
    lower: Callable[[Any], None]  # takes a `call.Call`
    physical: tuple[Any, ...]
    applies: Callable[[torch.fx.Node], bool] = lambda node: True


@dataclass(frozen=True)
class Operator:
    """All knowledge about overloads of an ATen operator that take the same arguments.

    1. `spelt` alone: the normal form has other operators instead, which that function writes.
    2. `relate` and `implementations`: the normal form has the operator, as it is or as `spelt` normalizes it.

    `weights` names the arguments that are re-laid ahead of time if they are constants. These are not among
    the operands whose order matters. `fresh` says that results are new memory although torch's schema does
    not say so, as that of a composite operator.

    `plain` names the implementations that every target gets unless it lists others, at most one for each
    order. Any other implementation runs only on targets that list it. An operator's only implementation is
    plain.

    `elements` says what the operator does to elements. It is known already for operators that move them, and
    an operator that is always spelt needs none.
    """

    names: tuple[Any, ...]
    relate: Relate | None = None
    implementations: tuple[Implementation, ...] = ()
    spelt: Spell | None = None
    weights: tuple[str, ...] = ()
    fresh: bool = False
    plain: tuple[str, ...] = ()
    elements: Elements = Elements.UNKNOWN

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("an operator without a name")
        elements = {MOVERS.get(name, self.elements) for name in self.names}
        if len(elements) > 1 or self.elements not in (Elements.UNKNOWN, *elements):
            raise ValueError(f"{self.names[0]}: it does different things to elements")
        object.__setattr__(self, "elements", elements.pop())
        if (self.relate is None) != (not self.implementations):
            raise ValueError(f"{self.names[0]}: a rule and its implementations come together")
        if self.relate is not None and self.elements is Elements.UNKNOWN:
            raise ValueError(f"{self.names[0]}: nothing says what it does to elements")
        if self.relate is None and self.spelt is None:
            raise ValueError(f"{self.names[0]}: neither a spelling nor a rule")
        if len({i.name for i in self.implementations}) < len(self.implementations):
            raise ValueError(f"{self.names[0]}: two implementations of one name")
        forms = [i.form for i in self.implementations if i.name in self.plain]
        if len(forms) < len(self.plain) or len(set(forms)) < len(forms):
            raise ValueError(f"{self.names[0]}: a plain implementation is unknown, or two are in one order")
        if len(self.implementations) > 1 and not self.plain:
            raise ValueError(f"{self.names[0]}: no plain implementation among several")

    @property
    def physical(self) -> frozenset[Any]:
        """The physical operators that its implementations use."""
        return frozenset(p for i in self.implementations for p in i.physical)


def spelt(function: Spell, *names: Any, fresh: bool = False) -> Operator:
    """Return an operator that the normal form does not have; `function` writes it in others."""
    return Operator(names, spelt=function, fresh=fresh)


# -- calls of the captured program


def ordered_operands(node: torch.fx.Node, weights: tuple[str, ...] = ()) -> list[torch.fx.Node]:
    """Return the tensor operands whose order matters, in argument order.

    Operands named in `weights` are left out if all of them are constants.
    """
    found = tensor_arguments(node)
    if not weights:
        return found
    given = bound(node.target, args_of(node), node.kwargs)
    skipped = [given[name] for name in weights]
    if any(isinstance(w, torch.fx.Node) and w.op != "get_attr" for w in skipped):
        return found
    return [n for n in found if n not in skipped]


# -- labels of dimensions, for relations


def dims_of(labels: Iterable[tuple[str, int]]) -> Dims:
    """Return one label per dimension, and none if the size is 1."""
    return tuple(((name, int(size)),) if size != 1 else () for name, size in labels)


def dims_with_cut(shape: Sequence[int], inner: dict[int, int]) -> Dims:
    """Return dims in which each cut dimension D has an outer block `cut.D` and a shared piece `d.D`.

    Args:
        shape: The sizes of the dimensions.
        inner: The size of the shared piece of each cut dimension.
    """
    dims = []
    for d, size in enumerate(shape):
        pieces = [(f"cut.{d}", size // inner[d]), (f"d.{d}", inner[d])] if d in inner else [(f"d.{d}", size)]
        dims.append(tuple(piece for piece in pieces if piece[1] != 1))
    return tuple(dims)


def several(value: Any, count: int) -> list[int]:
    """Return one value per spatial dimension; a single value stands for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def filled(given: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    """Complete positional arguments with the defaults of the missing ones."""
    return [*given, *defaults[len(given) :]]
