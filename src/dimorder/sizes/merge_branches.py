"""Find the branch of a network that computes the same as its others, if the network decides by dynamic sizes.

`if gap > 0: x = F.pad(x, (0, gap))` decides nothing: a padding by 0 changes nothing. torch.export refuses it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.exported import own_module
from dimorder.sizes.assumptions import decisions_of
from dimorder.sizes.range_sizes import points_of, sizes_of
from dimorder.sizes.symbolic_program import Point, SymbolicProgram

_MOST_BRANCHES = 8  # the most that are exported
_MOST_POINTS = 10_000  # at which it is asked which branch the network takes
_MOST_COMPARED = 16  # of each branch
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class _SizeBranch:
    """A part of a network that it computes at some points.

    Attributes:
        program: Its program, or None if the branch is of one point.
        takes: Whether the network takes this branch at a point.
        deciding: The names of the dynamic sizes that decide it.
    """

    program: SymbolicProgram | None
    takes: Callable[[Point], bool]
    deciding: frozenset[str]


def merge_branches(
    first: SymbolicProgram,
    branch_at: Callable[[Point], SymbolicProgram | None],
    network: Callable[..., Any],
) -> SymbolicProgram | None:
    """Return a branch that computes at all points what the network does, of the most points, or None.

    1. The network is exported at a point of each branch, until each point of the ranges belongs to a branch.
       A branch has the points at which all holds that torch assumed of it.
    2. The program of a branch is compared with the network on random inputs, at points of each other branch.
       These are all its points, or the first, the last and some that chance chooses. The branches of many
       points come first.

    Args:
        first: the branch that the network takes at the sizes of its example.
        branch_at: returns the branch that the network takes at a point, or None if its program lacks one of
            the dynamic sizes. The point is then a branch of its own.
        network: the network.
    """
    branches = [_branch(first)]
    while True:
        deciding = frozenset[str]().union(*(branch.deciding for branch in branches))
        sizes = [sizes_of(s) if s.name in deciding else (first.middle[s.name],) for s in first.symbols]
        if math.prod(map(len, sizes)) > _MOST_POINTS:
            return None
        left, shares = list(points_of(first.symbols, sizes)), list[list[Point]]()
        for branch in branches:
            taken = [branch.takes(point) for point in left]
            shares.append(list(itertools.compress(left, taken)))
            left = [point for point, is_taken in zip(left, taken, strict=True) if not is_taken]
        if not left:
            break
        program = branch_at(left[0])
        branch = _SizeBranch(None, left[0].__eq__, frozenset()) if program is None else _branch(program)
        if len(branches) == _MOST_BRANCHES or not branch.takes(left[0]):
            return None
        branches.append(branch)
    for i in sorted(range(len(branches)), key=lambda i: -len(shares[i])):
        program = branches[i].program
        tried = (point for share in (*shares[:i], *shares[i + 1 :]) for point in _some(share))
        if program is not None and all(_is_right_at(program, point, network) for point in tried):
            return program
    return None


def _some(points: list[Point]) -> list[Point]:
    """Return points, or the first, the last and some others if there are many. Each run chooses the same."""
    if len(points) <= _MOST_COMPARED:
        return points
    return [points[0], points[-1], *random.Random(0).sample(points[1:-1], _MOST_COMPARED - 2)]


def _branch(program: SymbolicProgram) -> _SizeBranch:
    decisions = decisions_of(program)

    def takes(point: Point) -> bool:
        roots = program.roots_at(point)
        return all(is_so(*roots) for is_so in decisions)

    return _SizeBranch(program, takes, frozenset[str]().union(*decisions.values()))


def _is_right_at(program: SymbolicProgram, point: Point, network: Callable[..., Any]) -> bool:
    """Return whether a program computes what the network computes, on random inputs at a point."""
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(leaf.shape, generator=generator).to(leaf.dtype)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        else leaf
        for leaf in program.inputs_at(point)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, program.exported.call_spec.in_spec)
    try:
        wanted = pytree.tree_leaves(network(*args, **kwargs))
        with torch.no_grad():
            got = pytree.tree_leaves(own_module(program.exported)(*args, **kwargs))
    except Exception:  # the network, or an operator of the program, does not take them
        return False
    return len(got) == len(wanted) and all(map(_are_close, got, wanted))


def _are_close(got: Any, wanted: Any) -> bool:
    if not isinstance(wanted, torch.Tensor):
        return bool(got == wanted)
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    if not wanted.is_floating_point():
        return torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0.0
    return not (wanted.numel() and not finite.numel()) and torch.allclose(
        got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True
    )
