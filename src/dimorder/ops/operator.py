"""Describe an ATen operator as one value: its spelling in others, or its relation and implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dimorder.graph.elements import MOVERS, Elements
from dimorder.graph.nodes import args_of, bound, tensor_arguments
from dimorder.ops.relation import Relate

aten = torch.ops.aten

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

    1. `spelling` alone: the normal form has other operators instead, which that function writes.
    2. `relate` and `implementations`: the normal form has the operator, as it is or as `spelling` writes it.

    `weights` names the arguments that are re-laid ahead of time if they are constants. These are not among
    the operands whose order matters. `fresh` says that results are new memory although torch's schema does
    not say so, as that of a composite operator.

    `plain` names the implementations that every target gets unless it lists others, at most one for each
    order. Any other implementation runs only on targets that list it. An operator's only implementation is
    plain.

    `elements` says what the operator does to elements. It is known already for operators that move them, and
    an operator with a spelling alone needs none.
    """

    names: tuple[Any, ...]
    relate: Relate | None = None
    implementations: tuple[Implementation, ...] = ()
    spelling: Spell | None = None
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
        if self.relate is None and self.spelling is None:
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


def spelling(function: Spell, *names: Any, fresh: bool = False) -> Operator:
    """Return an operator that the normal form does not have; `function` writes it in others."""
    return Operator(names, spelling=function, fresh=fresh)


def in_torchs_parts(target: Any) -> Operator:
    """Return an operator that torch itself writes in others, but not before the tracer has seen the call."""
    return spelling(lambda n, *args, **kwargs: n.parts(target, args, kwargs), target)


def ordered_operands(node: torch.fx.Node, weights: tuple[str, ...] = ()) -> list[torch.fx.Node]:
    """Return the operands in argument order, without those named in `weights` if all these are constants."""
    found = tensor_arguments(node)
    if not weights:
        return found
    given = bound(node.target, args_of(node), node.kwargs)
    skipped = [given[name] for name in weights]
    if any(isinstance(w, torch.fx.Node) and w.op != "get_attr" for w in skipped):
        return found
    return [n for n in found if n not in skipped]


def several(value: Any, count: int) -> list[int]:
    """Return one value per spatial dimension; a single value stands for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def filled(given: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    """Complete positional arguments with the defaults of the missing ones."""
    return [*given, *defaults[len(given) :]]
