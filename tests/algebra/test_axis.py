"""The laws of `Factors`, each a test named after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given

from dimorder.algebra.axis import Factors

PIECES = st.lists(st.sampled_from([2, 3, 4, 5]), min_size=1, max_size=5)


def merged(draw: st.DrawFn, pieces: Sequence[int]) -> list[int]:
    """A coarser cut of the same dimension: neighbouring pieces joined."""
    sizes = [pieces[0]]
    for piece in pieces[1:]:
        if draw(st.booleans()):
            sizes.append(piece)
        else:
            sizes[-1] *= piece
    return sizes


@st.composite
def compatible_cuts(draw: st.DrawFn, count: int) -> tuple[int, list[list[int]]]:
    pieces = draw(PIECES)
    return math.prod(pieces), [merged(draw, pieces) for _ in range(count)]


@st.composite
def two_cuts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two cuts of one size, which may conflict: the same pieces in two orders."""
    pieces = draw(PIECES)
    return merged(draw, pieces), merged(draw, draw(st.permutations(pieces)))


def boundaries(sizes: Sequence[int]) -> set[int]:
    return {math.prod(sizes[i:]) for i in range(len(sizes))}


@given(compatible_cuts(1))
def test_a_cut_gives_the_sizes_that_were_asked_for(case: tuple[int, list[list[int]]]) -> None:
    size, (cut,) = case
    factors = Factors()
    whole = factors.new(size)
    assert factors.cut(whole, cut)
    assert factors.sizes(whole) == tuple(cut)
    assert factors.pieces(whole, cut) == [(leaf,) for leaf in factors.leaves(whole)]


@given(compatible_cuts(3), st.permutations(range(3)))
def test_refinement_is_deterministic(case: tuple[int, list[list[int]]], order: list[int]) -> None:
    size, cuts = case
    found = []
    for turn in (range(3), order):
        factors = Factors()
        whole = factors.new(size)
        assert all(factors.cut(whole, cuts[i]) for i in turn)
        found.append(factors.sizes(whole))
    assert found[0] == found[1]
    assert boundaries(found[0]) == set.union(*(boundaries(cut) for cut in cuts))


@given(two_cuts())
def test_a_cut_is_refused_exactly_where_boundaries_do_not_divide_and_then_changes_nothing(
    cuts: tuple[list[int], list[int]],
) -> None:
    first, second = cuts
    factors = Factors()
    whole = factors.new(math.prod(first))
    assert factors.cut(whole, first)
    before = factors.leaves(whole)
    together = sorted(boundaries(first) | boundaries(second))
    divide = all(large % small == 0 for small, large in itertools.pairwise(together))
    assert factors.cut(whole, second) is divide
    if not divide:
        assert factors.leaves(whole) == before


@given(two_cuts())
def test_identified_factors_are_one(cuts: tuple[list[int], list[int]]) -> None:
    factors = Factors()
    a, b = (factors.new(math.prod(cut)) for cut in cuts)
    for factor, cut in zip((a, b), cuts, strict=True):
        assert factors.cut(factor, cut)
    before = factors.leaves(a), factors.leaves(b)
    if factors.identify(factors.leaves(a), factors.leaves(b)):
        assert factors.leaves(a) == factors.leaves(b)
    else:
        assert (factors.leaves(a), factors.leaves(b)) == before


@given(compatible_cuts(2))
def test_what_cuts_one_of_two_identified_factors_cuts_both(case: tuple[int, list[list[int]]]) -> None:
    size, (first, second) = case
    factors = Factors()
    a, b, c = (factors.new(size) for _ in range(3))
    assert factors.cut(a, first)
    assert factors.identify(factors.leaves(a), factors.leaves(b))
    assert factors.identify(factors.leaves(b), factors.leaves(c))
    assert factors.cut(c, second)
    assert factors.leaves(a) == factors.leaves(b) == factors.leaves(c)


@given(compatible_cuts(1))
def test_pieces_that_are_identified_with_factors_are_those(case: tuple[int, list[list[int]]]) -> None:
    size, (cut,) = case
    factors = Factors()
    whole, others = factors.new(size), [factors.new(piece) for piece in cut]
    assert factors.cut(whole, cut)
    pieces = factors.pieces(whole, cut)
    assert all(
        factors.identify(piece, factors.leaves(other)) for piece, other in zip(pieces, others, strict=True)
    )
    assert factors.leaves(whole) == tuple(leaf for other in others for leaf in factors.leaves(other))


def test_a_factor_of_size_1_has_no_pieces() -> None:
    factors = Factors()
    one, six = factors.new(1), factors.new(6)
    assert factors.leaves(one) == ()
    assert factors.cut(six, [1, 2, 1, 3]) and factors.sizes(six) == (2, 3)
    assert factors.pieces(six, [1, 2, 3])[0] == ()
