"""Look up sizes in torch's symbols: find the size of a network that has given values at several points."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy.functions import PythonMod
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from dimorder.capture.claims import holds
from dimorder.graph.dynamic_sizes import DynamicSize
from dimorder.graph.tracing import at_most
from dimorder.sizes.affine import Formula, fit_formula, fit_formulas, fit_quotient
from dimorder.sizes.by_floors import by_floors, has_floats
from dimorder.sizes.express_sizes import express, place_symbols, remainders_repeat_after

_MOST_COMPARED = 2**11  # sizes at which two expressions are compared


@dataclass(frozen=True)
class SizeTable:
    """The sizes of a network in torch's symbols, by their values at several points.

    Attributes:
        known: The sizes, by their values at the points.
        mode: The mode that makes tensors of such sizes without data.
        ranges: The ranges of the symbols, as an exported program has them.
        volumes: The products of sizes of one value, likewise. A view may join these dimensions.
    """

    known: Mapping[tuple[int, ...], SymInt]
    mode: FakeTensorMode
    ranges: Mapping[Any, Any]
    volumes: Mapping[tuple[int, ...], SymInt] = field(default_factory=dict)
    _tensors: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def count(self) -> int:
        """The number of points."""
        return len(next(iter(self.known)))

    def size(self, values: Sequence[int]) -> int | SymInt | None:
        """Return the size with these values at the points; None if no size of the network explains it."""
        if len(set(values)) == 1:
            return values[0]
        known = self._known(values)
        if known is not None:
            return known
        for formula in fit_formulas(values, list(self.known)):
            size: SymInt = formula(list(self.known.values()))
            hint = size.node.hint
            if hint is None or hint >= 0:  # else it is the size at these points alone
                return size
        return self._difference(values)

    def _known(self, values: Sequence[int]) -> SymInt | None:
        found = self.known.get(tuple(values))
        return self.volumes.get(tuple(values)) if found is None else found

    def _difference(self, values: Sequence[int]) -> SymInt | None:
        """Return the difference of two sizes that has these values at the points, or None."""
        for (more, whole), (less, part) in itertools.permutations(self.known.items(), 2):
            if [a - b for a, b in zip(more, less, strict=True)] == list(values):
                difference: SymInt = whole - part
                return difference
        return None

    def most(self, values: Sequence[int]) -> int:
        """Return the maximum of the size with these values at the points; `sys.maxsize` if it is unknown."""
        size = self.size(values)
        return sys.maxsize if size is None else at_most(size)

    def has_one_remainder(self, values: Sequence[int], divisor: int) -> bool:
        """Return whether the size with these values leaves one remainder by a divisor, at all sizes."""
        size = self.size(values)
        if divisor == 1 or isinstance(size, int):
            return True
        if size is None:
            return False
        remainder = PythonMod(size.node.expr, sympy.Integer(divisor))
        return holds(sympy.Eq(remainder, values[0] % divisor), self.ranges)

    def divides(self, values: Sequence[int], others: Sequence[int]) -> bool:
        """Return whether the size with these values divides another one at all sizes. A fixed one does."""
        size, whole = self.size(values), self.size(others)
        if isinstance(size, int):
            return True
        if size is None or not isinstance(whole, SymInt):
            return False
        dividend, divisor = whole.node.expr, size.node.expr
        is_whole: bool | None = (dividend / divisor).is_integer
        return bool(is_whole) or holds(sympy.Eq(PythonMod(dividend, divisor), 0), self.ranges)

    def formula(
        self, values: Sequence[int], others: Sequence[Sequence[int]]
    ) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function that computes a size from other sizes, as torch does: with floors.

        None if the size depends on anything else.

        Args:
            values: the size's values at the points.
            others: the values of each of the other sizes.
        """
        size = self.size(values)
        if not isinstance(size, SymInt):
            return None
        known = (self.known.get(tuple(each)) for each in others)
        floors = [None if each is None else by_floors(each.node.expr, self.ranges) for each in known]
        written = express(by_floors(size.node.expr, self.ranges), floors)
        if written is None or has_floats(written):
            return None
        places = {
            symbol: place
            for place, symbol in enumerate(place_symbols(len(others)))
            if symbol in written.free_symbols
        }

        def compute(sizes: Sequence[Any]) -> Any:
            found = {symbol: sizes[place] for symbol, place in places.items()}
            return sympy_interp(PythonReferenceAnalysis, found, written)

        return compute

    def fit(self, values: Sequence[int], others: Sequence[Sequence[int]]) -> Formula | None:
        """Return how a size is computed from other sizes, as `fit_formula` does.

        A formula that holds at the points alone is not returned, if the table knows what the size is.
        """
        size = self._known(values)
        if size is None:
            return fit_formula(values, others)
        known = {
            place: self.known[tuple(each)] for place, each in enumerate(others) if tuple(each) in self.known
        }
        symbols = size.node.expr.free_symbols
        places = [place for place, each in known.items() if each.node.expr.free_symbols <= symbols]
        for found in fit_formulas(values, [others[place] for place in places]):
            formula = replace(found, of=tuple(places[place] for place in found.of))
            other = formula(known)
            if isinstance(other, SymInt) and self._are_equal(size, other):
                return formula
        return None

    def quotient(self, values: Sequence[int], others: Sequence[Sequence[int]]) -> Formula | None:
        """Return how a size is computed from other sizes, as `fit_quotient` does.

        A formula that holds at the points alone is not returned, if the table knows all of these sizes.
        """
        size = self.known.get(tuple(values))
        if size is None:
            return fit_quotient(values, others)
        symbols = size.node.expr.free_symbols
        known = {place: self.known.get(tuple(each)) for place, each in enumerate(others)}
        places = [p for p, n in known.items() if n is None or n.node.expr.free_symbols <= symbols]
        formula = fit_quotient(values, [others[place] for place in places])
        if formula is None:
            return None
        formula = replace(formula, of=tuple(places[place] for place in formula.of))
        if any(known[place] is None for place in formula.of):
            return formula
        other = formula(known)
        return formula if isinstance(other, SymInt) and self._are_equal(size, other) else None

    def keep_distance(self, values: Sequence[int], others: Sequence[int]) -> bool:
        """Return whether two sizes at one distance at the points are so at all sizes, as far as is known.

        A size such as max(T - 8, 1) may have its distance from T at the points alone.
        """
        size, other = self.known.get(tuple(values)), self.known.get(tuple(others))
        if size is None or other is None:
            return True
        return self._are_equal(size, other + (values[0] - others[0]))

    def _are_equal(self, size: SymInt, other: SymInt) -> bool:
        """Return whether two sizes are equal: at the ends and in the middles of the ranges, unless proven.

        A run of sizes at each end has every remainder of the divisions, if these have few.
        """
        expressions = size.node.expr, other.node.expr
        if expressions[0] == expressions[1]:
            return True
        symbols = sorted(set().union(*(each.free_symbols for each in expressions)), key=str)
        run = remainders_repeat_after(expressions)
        run = run if run >= 2 and (2 * run + 1) ** len(symbols) <= _MOST_COMPARED else 2
        ends = [(int(self.ranges[symbol].lower), int(self.ranges[symbol].upper)) for symbol in symbols]
        known = (
            {size for step in range(run) for size in (low + step, high - step)} | {(low + high) // 2}
            for low, high in ends
        )
        within = [
            sorted(size for size in sizes if low <= size <= high)
            for sizes, (low, high) in zip(known, ends, strict=True)
        ]
        places = (
            dict(zip(symbols, map(sympy.Integer, place), strict=True)) for place in itertools.product(*within)
        )
        return all(len({each.xreplace(place) for each in expressions}) == 1 for place in places)

    def tensor(self, like: Tensor, shape: Sequence[int]) -> Tensor | None:
        """Return a tensor without data of a shape with dynamic sizes, or None if one is not known.

        Its type and the order of its strides are those of `like`, which has the shape at the first point.
        """
        key = tuple(shape), like.stride(), like.dtype, like.device
        if key not in self._tensors:
            known = [self.size(n.values) if isinstance(n, DynamicSize) else n for n in shape]
            sizes = [size for size in known if size is not None]
            if len(sizes) < len(known):
                return None
            environment = self.mode.shape_env
            assert environment is not None
            # Without this, torch fixes a size for which this tensor is empty at the example's sizes.
            with self.mode, environment.suppress_guards():
                self._tensors[key] = torch.empty_strided(
                    sizes, _strides(like, sizes), dtype=like.dtype, device=like.device
                )
        return self._tensors[key]

    def constant(self, tensor: Tensor) -> Tensor:
        """Return a constant without data."""
        return self.mode.from_tensor(tensor, static_shapes=True)


def _strides(like: Tensor, shape: Sequence[Any]) -> list[Any]:
    """Return the strides of a dense tensor with that shape, in the order of `like`.

    A dimension that is expanded keeps its stride of 0. A stride that is a size is the same object, of
    which torch reads the size then.
    """
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for d in sorted(_moving(like), key=lambda d: (like.stride(d), -d)):
        strides[d] = step
        step = shape[d] if isinstance(step, int) and step == 1 else step * shape[d]
    return strides


def _moving(like: Tensor) -> Iterator[int]:
    return (d for d in range(like.dim()) if like.stride(d) or like.shape[d] == 1)
