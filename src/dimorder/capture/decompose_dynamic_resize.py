"""Decompose resizes and mean pools of dynamic sizes, and slices from their end: targets need fixed sizes.

1. A pixel shuffle becomes a transposed convolution.
2. A slice of the last element resizes the dimension to a few elements, and takes the last of these.
3. A resize of a single element repeats it.
4. Everything else becomes one matmul per dimension, whose matrix each call computes from the sizes. A row of
   this matrix has the weight of each element along that dimension in one element of the result. Half
   precision is resized in float32 and rounded once, as torch does.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node, map_arg
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import ToFloat

from dimorder.capture.functionalize import calls_ahead, write_apart
from dimorder.capture.infinite_values import infinite_values
from dimorder.capture.proven_contiguity import proven_contiguity
from dimorder.capture.resize_matrices import (
    Matrix,
    antialiased_cubic,
    antialiased_linear,
    cubic,
    last_of,
    linear,
    near,
    nearest,
    nearest_exact,
    windows,
)
from dimorder.graph.tracing import FLOATS, at_most, quotient
from dimorder.ops.table import OPERATORS

aten = torch.ops.aten


@dataclass(frozen=True)
class ResizeLimits:
    """The resizes that a target computes to fixed sizes alone.

    Attributes:
        resizes: The resizes that need fixed sizes.
        repeats: The dynamic sizes that a nearest resize by whole factors may have. It only repeats elements.
        last_steps: Whether the end of a slice needs a fixed size.
    """

    resizes: Collection[Any]
    repeats: int = 1
    last_steps: bool = True


def decompose_dynamic_resize(
    exported: ExportedProgram, limits: ResizeLimits | None = None, taken: Collection[int] = ()
) -> ExportedProgram:
    """Write resizes to dynamic sizes, and steps from the end of a dynamic size, in other operators.

    A matmul spreads infinities as NaN, so operators that may read infinities stay. Steps of what is computed
    from sizes alone stay too. No new fixed size equals one of `taken`, the values of dynamic sizes at which
    the program is planned.

    Args:
        exported: the program with dynamic sizes.
        limits: what the target resizes itself; by default it is given fixed sizes alone.
        taken: the sizes that no new size may equal.

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.interpolate(x, scale_factor=2.0)
    >>> height, width = (16 * torch.export.Dim(name, min=1, max=4) for name in "HW")
    >>> x = torch.ones(2, 3, 32, 48)
    >>> exported = torch.export.export(Twice(), (x,), dynamic_shapes=({2: height, 3: width},))
    >>> program = decompose_dynamic_resize(exported)
    >>> [node.target for node in program.graph.nodes].count(torch.ops.aten.matmul.default)
    2
    """
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    if any(isinstance(node.meta.get("val"), torch.SymFloat) for node in nodes):
        return exported  # torch cannot trace a float that becomes a size again
    limits = limits or ResizeLimits(RESIZES)
    infinite, touched = infinite_values(exported)
    ahead = calls_ahead(exported, exported.graph, OPERATORS)
    steps = [n for n in nodes if limits.last_steps and n.target in _STEPS and n not in ahead]
    several = next(count for i in itertools.count() if (count := 2**i + 1) not in taken)
    asks = {target: partial(_RESIZES[target][0], limits) for target in limits.resizes}
    ways = (
        (
            {target: _where(ask, _RESIZES[target][1]) for target, ask in asks.items()},
            [n for n in nodes if n.target in asks and asks[n.target](*_read(n))],
        ),
        (_steps(several), [n for n in steps if _is_of_end(*_read(n))]),
    )
    table: dict[Any, Any] = {}
    for rewritten, found in ways:
        if found and not any(n in (infinite if _is_one_of_rows(n) else touched) for n in found):
            table |= rewritten
    if not table:
        return exported
    with proven_contiguity():
        decomposed: ExportedProgram = write_apart(exported).run_decompositions(table)
    return decomposed


def _where(asks: Callable[..., bool], write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that calls `write` if `asks` says so, and else keeps the call."""
    return lambda *args: write(*args) if asks(*args) else NotImplemented


def _read(node: Node) -> tuple[Any, ...]:
    """Return what a call reads: tensors and sizes without data."""
    read: tuple[Any, ...] = map_arg(node.args, lambda each: each.meta["val"])
    return read


def _has_symbols(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


# -- resizes


def _by_matmul(x: Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None, own: bool) -> bool:
    """Return whether a resize to dynamic sizes becomes matmuls: not a target's `own`, not too large."""
    if own or x.dtype not in FLOATS or any(not factor.is_integer() for factor in factors or ()):
        return False
    pairs = list(zip(x.shape[2:], _new(x, size, factors), strict=True))
    sizes = list(itertools.chain(*pairs))
    return (
        _has_symbols(sizes)
        and not any(map(_is_rounded, sizes))
        and all(at_most(old) * at_most(new) <= _LARGEST for old, new in pairs)
    )


def _new(x: Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None) -> Sequence[Any]:
    return size or [old * int(factor) for old, factor in zip(x.shape[2:], factors or (), strict=True)]


def _is_rounded(size: Any) -> bool:
    """Return whether a size is computed through a float."""
    return isinstance(size, torch.SymInt) and size.node.expr.has(ToFloat)


def _asks_nearest(limits: ResizeLimits, x: Tensor, size: Any, factors: Any) -> bool:
    """Return whether a nearest resize becomes matmuls: a target repeats along few dynamic sizes itself."""
    symbols = sum(isinstance(size, torch.SymInt) for size in (x.shape[0], *x.shape[2:]))
    return _by_matmul(x, size, factors, own=_repeats(x, size, factors) and symbols <= limits.repeats)


def _asks_exact(limits: ResizeLimits, x: Tensor, size: Any, factors: Any) -> bool:
    """Return whether an exact resize becomes a nearest one, or matmuls."""
    return _by_matmul(x, size, factors, own=False)


def _repeats(x: Tensor, size: Any, factors: Any) -> bool:
    """Return whether a nearest resize repeats each element as often."""
    return all(times.is_Integer for times in map(quotient, _new(x, size, factors), x.shape[2:]))


def _asks_linear(limits: ResizeLimits, x: Tensor, size: Any, aligned: bool, factors: Any) -> bool:
    return _by_matmul(x, size, factors, own=not _has_symbols(_new(x, size, factors)))


def _asks_cubic(limits: ResizeLimits, x: Tensor, size: Any, aligned: bool, factors: Any) -> bool:
    return _by_matmul(x, size, factors, own=False)


def _asks_antialiased(limits: ResizeLimits, x: Tensor, size: Any, aligned: bool, factors: Any) -> bool:
    return not aligned and _by_matmul(x, size, factors, own=False)


def _asks_shuffle(limits: ResizeLimits, x: Tensor, factor: int) -> bool:
    return _has_symbols(x.shape[2:]) and x.dim() == 4 and x.dtype in FLOATS


def _resized(x: Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None, matrix: Matrix) -> Any:
    given: Sequence[float | None] = factors or [None] * (x.dim() - 2)
    sizes = _new(x, size, factors)
    if all(isinstance(old, int) and old == 1 for old in x.shape[2:]):
        return x.expand(-1, -1, *sizes)
    steps = zip(x.shape[2:], sizes, given, strict=True)
    return _multiplied(x, [matrix(old, new, factor, x.dim()) for old, new, factor in steps])


def _multiplied(x: Tensor, matrices: Sequence[Tensor | None]) -> Tensor:
    """Multiply each dimension after the channels by a matrix, if there is one for it."""
    y, last = _cast(x, torch.float32).movedim(1, -1), x.dim() - 2
    for d, matrix in enumerate(matrices):
        if matrix is not None:
            y = torch.matmul(matrix, y.transpose(d + 1, last)).transpose(d + 1, last)
    return _cast(y.movedim(-1, 1), x.dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _nearest(x: Tensor, size: Any, factors: Any) -> Any:
    return _resized(x, size, factors, nearest)


def _nearest_exact(x: Tensor, size: Any, factors: Any) -> Any:
    if _repeats(x, size, factors):
        return NEAREST[x.dim() - 3](x, size, factors)
    return _resized(x, size, factors, nearest_exact)


def _interpolated(matrix: Callable[[bool], Matrix]) -> Callable[..., Any]:
    """Return the writer of a resize that mixes neighbours by such a matrix, which may be aligned."""
    return lambda x, size, aligned, factors: _resized(x, size, factors, matrix(aligned))


# -- adaptive pools


def _asks_pool(limits: ResizeLimits, x: Tensor, size: Sequence[Any]) -> bool:
    """Return whether the windows of a pool are even at some sizes alone, or differ between sizes."""
    pairs = list(zip(x.shape[-len(size) :], size, strict=True))
    fits = x.dtype in FLOATS and all(_is_even(*pair) or isinstance(pair[1], int) for pair in pairs)
    uneven = [pair for pair in pairs if not _is_even(*pair)]
    return fits and bool(uneven) and all(at_most(old) * new <= _LARGEST for old, new in uneven)


def _is_even(old: Any, new: Any) -> bool:
    """Return whether a dimension is cut into equal windows at every size, or is of a fixed size."""
    return isinstance(old, int) or statically_known_true(old % new == 0)


def _pooled(x: Tensor, size: Sequence[Any]) -> Any:
    if x.dim() == len(size) + 1:
        return _pooled(x.unsqueeze(0), size).squeeze(0)
    pairs = list(zip(x.shape[2:], size, strict=True))
    y = _multiplied(x, [None if _is_even(*pair) else windows(*pair, x.dim()) for pair in pairs])
    left = any(_is_even(old, new) and not statically_known_true(old == new) for old, new in pairs)
    return MEAN_POOLS[len(size) - 1](y, size) if left else y


def _shuffled(x: Tensor, factor: int) -> Any:
    """Write a pixel shuffle as a transposed convolution, whose taps are channels in a row."""
    taps = factor * factor
    groups = x.shape[1] // taps
    weight = torch.eye(taps, dtype=x.dtype).view(taps, 1, factor, factor).repeat(groups, 1, 1, 1)
    return aten.conv_transpose2d.input(x, weight, None, [factor] * 2, [0, 0], [0, 0], groups)


# -- last steps


def _is_of_end(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> bool:
    """Return whether a slice has the last steps of a dynamic size, and at most `_FEW` of them."""
    counts = isinstance(start, int) and -_FEW <= start < 0 and step == 1
    ends = end is None or (isinstance(end, int) and (end >= sys.maxsize or (counts and start < end < 0)))
    floats = x.dtype in FLOATS and x.dim() > 1
    return floats and counts and ends and isinstance(x.shape[dim], torch.SymInt)


def _is_one_of_rows(node: Node) -> bool:
    """Return whether a node takes only the last step, which a resize reads without the others."""
    read: Any = node.args[0]
    return node.target in _STEPS and bool(node.args[2] == -1 and read.meta["val"].dim() <= 3)


def _steps(several: int) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of last steps; steps are resized to `several`, 2ⁿ + 1: the last is exact."""

    def last_steps(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        if not _is_of_end(x, dim, start, end, step):
            return NotImplemented
        count = -start if end is None or end >= 0 else end - start
        if start == -1 and x.dim() <= 3:
            rows = x.movedim(dim, -1)
            rows = rows.view(*[1] * (3 - x.dim()), *rows.shape)
            resized = aten.upsample_linear1d.vec(rows, [several], True, None)
            return resized.view(*resized.shape[3 - x.dim() :])[..., several - 1 :].movedim(-1, dim)
        places = last_of(x.shape[dim]) + (torch.arange(count) + 1 + start)
        steps = near(places, x.shape[dim], x.dim())
        return torch.matmul(_cast(steps, x.dtype), x.movedim(dim, -2)).movedim(-2, dim)

    def last_step(x: Tensor, dim: int, index: Any) -> Any:
        if not _is_of_end(x, dim, index):
            return NotImplemented
        return last_steps(x, dim, index, index + 1 or None).squeeze(dim)

    return {aten.slice.Tensor: last_steps, aten.select.int: last_step}


_STEPS = (aten.slice.Tensor, aten.select.int)
_FEW = 8  # the most steps that a matmul takes: over all steps, it costs as much as one with as many channels
CUBIC = aten.upsample_bicubic2d.vec
ANTIALIASED = (aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec)
MEAN_POOLS = (
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
)
_LARGEST = 1 << 20  # the most elements of a matrix
NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
NEAREST_EXACT = (
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
)
_LINEAR = (aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)
# For each resize: which of its calls are written in other operators, and how.
_RESIZES: Mapping[Any, tuple[Callable[..., bool], Callable[..., Any]]] = MappingProxyType(
    {
        **dict.fromkeys(NEAREST, (_asks_nearest, _nearest)),
        **dict.fromkeys(NEAREST_EXACT, (_asks_exact, _nearest_exact)),
        **dict.fromkeys(_LINEAR, (_asks_linear, _interpolated(linear))),
        CUBIC: (_asks_cubic, _interpolated(cubic)),
        ANTIALIASED[0]: (_asks_antialiased, _interpolated(lambda aligned: antialiased_linear)),
        ANTIALIASED[1]: (_asks_antialiased, _interpolated(lambda aligned: antialiased_cubic)),
        aten.pixel_shuffle.default: (_asks_shuffle, _shuffled),
        **dict.fromkeys(MEAN_POOLS, (_asks_pool, _pooled)),
    }
)
RESIZES = frozenset(_RESIZES)
