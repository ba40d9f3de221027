"""Describe a row of the tables of random networks, and draw operands and attributes for most rows.
A draw may fail to fit: the caller runs it, and draws again if it raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_ELEMENTS = 3000
MAX_RANK = 6

Shape = tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Size:
    """An attribute: the size of the first operand in a dimension, whatever it is.

    >>> f"x.reshape({(Size(0), 6)})".format("x")
    'x.reshape((x.shape[0], 6))'
    """

    dim: int

    def __repr__(self) -> str:
        return f"{{0}}.shape[{self.dim}]"


@dataclass(frozen=True)
class Draw:
    """The choices of a row: the operand `x`, the shapes of all values so far, new or shared constants."""

    rng: random.Random
    x: str
    values: Mapping[str, Shape]
    constant: Callable[..., str]  # (shape, kind="normal", high=0) → the constant as an expression
    masks: Mapping[str, Shape] = field(default_factory=dict)  # truth values that the caller gives
    ids: Mapping[str, Shape] = field(default_factory=dict)  # whole numbers that the caller gives

    @property
    def shape(self) -> Shape:
        return self.values[self.x]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return self.rng.randrange(self.rank)

    def dims(self, least: int = 1) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(range(self.rank), self.rng.randint(least, self.rank))))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def like(self, fits: Callable[[Shape], bool]) -> str | None:
        """A value of a fitting shape, seldom `x` itself."""
        fitting = [name for name, shape in self.values.items() if fits(shape)]
        others = [name for name in fitting if name != self.x]
        return self.rng.choice(others or fitting) if fitting else None


Drawn = tuple[Sequence[str], Mapping[str, Any]]  # operands and attributes


@dataclass(frozen=True)
class Operator:
    """`source` is an expression of operands `{0}`, `{1}` … and named attributes, which may hold `{0}` in
    their turn. `ranks` are those of `{0}`; `captured` names the ATen operators that our capture makes of it
    (default: the row)."""

    source: str
    draw: Callable[[Draw], Drawn | None]
    ranks: range = range(1, MAX_RANK + 1)
    captured: tuple[str, ...] = ()


def plain(
    source: str, ranks: range = range(MAX_RANK + 1), captured: tuple[str, ...] = (), **choices: Any
) -> Operator:
    """One operand, and each attribute one of its choices."""

    def draw(d: Draw) -> Drawn:
        return [d.x], {name: d.rng.choice(among) for name, among in choices.items()}

    return Operator(source, draw, ranks, captured)


def along(source: str, captured: tuple[str, ...] = (), **choices: Any) -> Operator:
    """One operand and one of its dimensions, `dim`."""

    def draw(d: Draw) -> Drawn:
        chosen = {name: d.rng.choice(among) for name, among in choices.items()}
        return [d.x], {"dim": d.dim() - d.rank * d.chance(0.3), **chosen}

    return Operator(source, draw, captured=captured)


def over(source: str, captured: tuple[str, ...] = ()) -> Operator:
    """A reduction over `dims`."""
    return Operator(source, lambda d: ([d.x], {"dims": d.dims(), "keep": d.chance(0.5)}), captured=captured)


def binary(source: str, captured: tuple[str, ...] = ()) -> Operator:
    def draw(d: Draw) -> Drawn | None:
        pair = [d.x, broadcasting(d)]
        d.rng.shuffle(pair)
        return pair, {}

    return Operator(source, draw, range(MAX_RANK + 1), captured)


def broadcasting(d: Draw) -> str:
    """A value or a constant that broadcasts with `x`."""
    if d.chance(0.6):
        found = d.like(lambda shape: shape != () and broadcast(shape, d.shape) is not None)
        if found is not None and (found != d.x or d.chance(0.2)):
            return found
    shape = tuple(1 if d.chance(0.35) else size for size in d.shape)
    return d.constant(shape[d.rng.choice([0, 0, d.rng.randint(0, d.rank)]) :])


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape that two broadcast to, or None.

    >>> broadcast((2, 1, 5), (3, 1)), broadcast((2,), (3,))
    ((2, 3, 5), None)
    """
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        return None
    return tuple(max(pair) for pair in pairs)


def split_dim(d: Draw, least: int = 1) -> tuple[int, int]:
    """A dimension and a divisor of its size."""
    dim = d.dim()
    return dim, d.rng.choice([n for n in divisors(d.shape[dim]) if n >= least] or [1])


def per_dim(d: Draw, space: int, among: Sequence[int]) -> tuple[int, ...]:
    if d.chance(0.6):
        return (d.rng.choice(among),) * space
    return tuple(d.rng.choice(among) for _ in range(space))


def divisors(size: int) -> list[int]:
    """
    >>> divisors(6)
    [1, 2, 3, 6]
    """
    return [n for n in range(1, size + 1) if size % n == 0]


def without(shape: Shape, dim: int) -> Shape:
    """
    >>> without((2, 3, 5), 1)
    (2, 5)
    """
    return shape[:dim] + shape[dim + 1 :]
