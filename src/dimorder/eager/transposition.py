"""Choose the kernel with which a CPU copies memory into another order, and run it.

`dimorder bench convert` measures the table for a family of CPUs. A copy that the table lacks runs in torch.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.algebra.dim_order import DimOrder
from dimorder.clock import Progress, report_each
from dimorder.cpu import family, torch_threads

TABLE = Path(__file__).with_name("conversion.json")
LIBRARY = Path(__file__).with_name("transpose.so")  # compiled by hatch_build.py
# Bytes per element → the type as which elements are moved, since they are not computed with.
CARRIERS: Mapping[int, torch.dtype] = MappingProxyType(
    {1: torch.uint8, 2: torch.int16, 4: torch.float32, 8: torch.float64}
)
# The table's grid, which includes the sizes of feature maps. A size counts as the largest grid size that it
# reaches.
SIZES = (2, 3, 4, 8, 16, 49, 196, 784, 3136)
LEAST_GAIN = 1.1  # the least gain over torch's own copy at which another way is chosen
LEAST_ELEMENTS = 1 << 14  # below it another way costs more than torch's copy
_THREAD_BYTES = 1 << 17  # a thread with less to copy costs more than it saves
_CACHED_BYTES = 1 << 18
_GRID_BYTES = 1 << 25  # a larger point of the grid is left out


@dataclass(frozen=True)
class Transposition:
    """Dense memory of `batch` blocks of `rows` × `columns` elements, each to be transposed."""

    batch: int
    rows: int
    columns: int

    @staticmethod
    def between(shape: Sequence[int], present: DimOrder, wanted: DimOrder) -> Transposition | None:
        """Return the transposition from one order to another; None if there is none, or nothing moves.

        >>> nchw, nhwc = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)
        >>> Transposition.between((2, 3, 5, 7), nhwc, nchw)
        Transposition(batch=2, rows=35, columns=3)
        >>> Transposition.between((2, 3, 5, 7), nchw, DimOrder(3, 2, 1, 0)) is None
        True
        """
        before, after = ([dim for dim in order if shape[dim] != 1] for order in (present, wanted))
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), len(before))
        batch, left, right = before[:same], before[same:], after[same:]
        if not left:
            return None
        cut = left.index(right[0])
        if left[cut:] + left[:cut] != right:
            return None
        sizes = (math.prod(shape[dim] for dim in dims) for dims in (batch, left[:cut], left[cut:]))
        return Transposition(*sizes)


@dataclass(frozen=True)
class ChosenWay:
    """A way of copying, and its transposition."""

    way: str
    moved: Transposition


def choose(
    shape: tuple[int, ...], itemsize: int, present: DimOrder, wanted: DimOrder, threads: int = 1
) -> ChosenWay | None:
    """Return the best way in the table; None if torch's own copy, which all threads share, is as good."""
    moved = Transposition.between(shape, present, wanted)
    if moved is None or itemsize not in CARRIERS or math.prod(shape) < LEAST_ELEMENTS:
        return None
    found = _table().get(str(itemsize), {}).get(f"{_floor(moved.rows)}x{_floor(moved.columns)}", {})
    gains = {
        way: gain * WAYS[way].threads_of(moved, threads) / threads
        for way, gain in found.items()
        if way in ways()
    }
    best = max(gains, key=gains.__getitem__, default="")
    return ChosenWay(best, moved) if best and gains[best] >= LEAST_GAIN else None


def fast_copy(tensor: Tensor, choice: ChosenWay, strides: Sequence[int]) -> Tensor:
    """Copy a dense plain CPU tensor into other strides, in the chosen way, without gradients.

    >>> x = torch.randn(1, 64, 56, 56)
    >>> y = fast_copy(x, ChosenWay("shuffle", Transposition(1, 64, 3136)), (200704, 1, 3584, 64))
    >>> torch.equal(x, y), y.stride()
    (True, (200704, 1, 3584, 64))
    """
    return WAYS[choice.way].run(tensor, choice.moved, strides)


def _by_tiles(tensor: Tensor, moved: Transposition, strides: Sequence[int]) -> Tensor:
    """Copy by transpose.c, which was compiled when dimorder was installed."""
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu")
    threads = max(1, min(torch.get_num_threads(), tensor.nbytes // _THREAD_BYTES))
    _library().dimorder_transpose(
        *(tensor.data_ptr(), result.data_ptr(), tensor.element_size()),
        *(moved.batch, moved.rows, moved.columns, threads),
    )
    return result


def _by_shuffle(tensor: Tensor, moved: Transposition, strides: Sequence[int]) -> Tensor:
    """Copy by a channel shuffle, with each block as the channels of one pixel; torch has SIMD for that."""
    size = moved.rows * moved.columns
    pixels = _as_carrier(tensor).as_strided((moved.batch, size, 1, 1), (size, 1, size, size))
    result = torch.native_channel_shuffle(pixels, moved.rows)
    return result.view(tensor.dtype).as_strided(tensor.shape, strides)


def _by_block(tensor: Tensor, moved: Transposition, strides: Sequence[int]) -> Tensor:
    """Copy block by block: torch tiles the copy of a transposed matrix, but only of a single one."""
    size = moved.rows * moved.columns
    blocks = _as_carrier(tensor).as_strided(
        (moved.batch, moved.rows, moved.columns), (size, moved.columns, 1)
    )
    result = blocks.new_empty((moved.batch, moved.columns, moved.rows))
    for source, target in zip(blocks, result, strict=True):
        target.copy_(source.t())
    return result.view(tensor.dtype).as_strided(tensor.shape, strides)


def _as_carrier(tensor: Tensor) -> Tensor:
    return tensor.view(CARRIERS[tensor.element_size()])


@dataclass(frozen=True)
class Way:
    """A way of transposing blocks into memory of other strides, and the number of threads that it can use."""

    run: Callable[[Tensor, Transposition, Sequence[int]], Tensor]
    threads_of: Callable[[Transposition, int], int]


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "tiles": Way(_by_tiles, lambda moved, threads: threads),
        "shuffle": Way(_by_shuffle, lambda moved, threads: min(moved.batch, threads)),
        "block": Way(_by_block, lambda moved, threads: 1),
    }
)


def ways() -> frozenset[str]:
    """Return the names in `WAYS` that this installation has: "tiles" needed a C compiler at installation.

    >>> ways() >= {"shuffle", "block"}
    True
    """
    return frozenset(WAYS) - (frozenset() if _library() else {"tiles"})


@functools.cache
def _library() -> Any:
    """Return the compiled transpose.c, or None if it was not compiled, or not for this machine."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.dimorder_transpose.restype = None
        library.dimorder_transpose.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int),
        ]
    except (OSError, AttributeError):
        return None
    return library


def measure(
    sizes: Sequence[int] = SIZES,
    progress: Progress = lambda step: None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Measure the table of this machine: element bytes → "rows x columns" → way → gain over torch's copy.

    The gains are with one thread. A cell holds the geometric mean of a way's gains at its corners. A way that
    does not gain at each corner is omitted, so that a tensor between them does not lose. Takes about a
    minute.
    """
    table = {}
    with torch_threads(1):
        for itemsize in report_each(CARRIERS, "measuring sizes of elements", progress):
            points = {(rows, columns): _gains(itemsize, rows, columns) for rows in sizes for columns in sizes}
            table[str(itemsize)] = _cells(points, sizes)
    return table


def _cells(
    points: Mapping[tuple[int, int], Mapping[str, float]], sizes: Sequence[int]
) -> dict[str, dict[str, float]]:
    after = dict(zip(sizes, (*sizes[1:], sizes[-1]), strict=True))
    cells = {}
    for rows, columns in points:
        corners = [points[r, c] for r in {rows, after[rows]} for c in {columns, after[columns]}]
        measured = [corner for corner in corners if corner]
        gains = {way: [corner[way] for corner in measured] for way in (measured or [{}])[0]}
        gaining = {
            way: round(statistics.geometric_mean(found), 2)
            for way, found in gains.items()
            if min(found) >= LEAST_GAIN
        }
        if gaining:
            cells[f"{rows}x{columns}"] = gaining
    return cells


def _gains(itemsize: int, rows: int, columns: int) -> dict[str, float]:
    """Return how much faster each way is than torch's copy at one point; empty for an omitted point."""
    nbytes = rows * columns * itemsize
    if nbytes > _GRID_BYTES or rows * columns < LEAST_ELEMENTS // 4:
        return {}
    # In the cache, and out of it, where new memory costs page faults.
    batches = {max(1, total // nbytes) for total in (_CACHED_BYTES, _GRID_BYTES // 4)}
    measured = [_time_ways(itemsize, Transposition(batch, rows, columns)) for batch in batches]
    return {way: min(gains[way] for gains in measured) for way in measured[0]}


def _time_ways(itemsize: int, moved: Transposition) -> dict[str, float]:
    shape = (moved.batch, moved.rows, moved.columns)
    tensor = torch.arange(math.prod(shape)).remainder(100).to(CARRIERS[itemsize]).view(shape)
    plain = tensor.transpose(1, 2)
    strides = (moved.rows * moved.columns, 1, moved.rows)
    runs: dict[str, Callable[[], Any]] = {"": plain.contiguous}
    runs |= {way: functools.partial(WAYS[way].run, tensor, moved, strides) for way in WAYS if way in ways()}
    times: dict[str, list[float]] = {way: [] for way in runs}
    for round_ in range(10):
        for way, run in runs.items():
            start = time.perf_counter()
            run()
            if round_:
                times[way].append(time.perf_counter() - start)
    torchs = times.pop("")
    return {
        way: statistics.median(a / b for a, b in zip(torchs, own, strict=True)) for way, own in times.items()
    }


@functools.cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Return this family's table or, if it was not measured, that of another family of its architecture."""
    tables: Mapping[str, Any] = json.loads(TABLE.read_text())
    alike = [name for name in tables if name.split()[0] == family().split()[0]]
    table: Mapping[str, Mapping[str, Mapping[str, float]]] = tables.get(
        family(), tables[alike[0]] if alike else {}
    )
    return table


def _floor(size: int) -> int:
    return max((s for s in SIZES if s <= size), default=0)
