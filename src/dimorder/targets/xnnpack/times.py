"""Predict how long XNNPACK's kernels take on a family of CPUs, from a table of measured ones.

Kernels between the measured ones are fitted. `dimorder bench ops` measures the table, times.json, per family
of CPUs. Its unit is the nanosecond, its type float32.
"""

from __future__ import annotations

import functools
import heapq
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dimorder.targets.xnnpack.kernels import KernelRun

TABLE = Path(__file__).with_name("times.json")
_NEAREST = 4  # the number of measured kernels that a kernel between them is fitted to
_SAME = 1e-6  # of the logarithms of two sizes


@dataclass(frozen=True)
class Times:
    """The measurements on one family of CPUs: kernels, each with its nanoseconds, on so many `threads`.

    `flops` and `bandwidth` are operations and bytes in a nanosecond. `start` is the time of a node that does
    next to nothing, in nanoseconds. These three give the least time of a kernel. The factor between that and
    the measured time is fitted.
    """

    family: str
    threads: int
    flops: float
    bandwidth: float
    start: float
    measured: tuple[tuple[KernelRun, float], ...]

    def least(self, kernel: KernelRun) -> float:
        """Return the nanoseconds of a kernel that uses the machine as well as possible."""
        return self.start + max(kernel.flops / self.flops, kernel.moved / self.bandwidth)

    def of(self, kernel: KernelRun) -> float:
        """Return the nanoseconds of a kernel, from the nearest measured ones of its name.

        >>> def moving(elements):
        ...     return KernelRun("Abs", (elements,), 0, 8 * elements)
        >>> times = Times("", 1, 1.0, 8.0, 0.0, ((moving(100), 200.0), (moving(10000), 40000.0)))
        >>> [round(times.of(moving(count))) for count in (100, 1000, 10000, 20000)]
        [200, 2828, 40000, 79072]
        """
        place = _place(kernel)
        near = heapq.nsmallest(
            _NEAREST, ((math.dist(place, at), slower) for at, slower in self._slower.get(kernel.name, ()))
        )
        if not near:
            return self.least(kernel)
        if near[0][0] < _SAME:
            return self.least(kernel) * math.exp(near[0][1])
        weights = [1 / distance**2 for distance, _ in near]
        fitted = sum(weight * slower for weight, (_, slower) in zip(weights, near, strict=True))
        return self.least(kernel) * math.exp(fitted / sum(weights))

    @functools.cached_property
    def _slower(self) -> Mapping[str, Sequence[tuple[tuple[float, ...], float]]]:
        """By name, each measured kernel's place and the logarithm of its factor over the least time."""
        found: dict[str, list[tuple[tuple[float, ...], float]]] = {}
        for kernel, ns in self.measured:
            found.setdefault(kernel.name, []).append((_place(kernel), math.log(ns / self.least(kernel))))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the table's content for one family."""
        by_name: dict[str, list[Any]] = {}
        for kernel, ns in self.measured:
            row = [*kernel.sizes, kernel.flops, kernel.moved, round(ns)]
            by_name.setdefault(kernel.name, []).append(row)
        rates = {name: round(getattr(self, name), 3) for name in ("flops", "bandwidth", "start")}
        return {"threads": self.threads, **rates, "kernels": by_name}

    @staticmethod
    def from_dict(family: str, told: Mapping[str, Any]) -> Times:
        measured = (
            (KernelRun(name, tuple(sizes), flops, moved), float(ns))
            for name, rows in told["kernels"].items()
            for *sizes, flops, moved, ns in rows
        )
        numbers = told["flops"], told["bandwidth"], told["start"]
        return Times(family, told["threads"], *numbers, tuple(measured))


def _place(kernel: KernelRun) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in kernel.sizes)


@dataclass(frozen=True)
class KernelTime:
    """The kernels of one name: their number, their milliseconds by a table of times, and the least.

    `Times.least` defines the last.
    """

    name: str
    count: int
    ms: float
    least_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder bench --json`; the keys are stable."""
        told = {"name": self.name, "count": self.count}
        return {**told, "ms": round(self.ms, 5), "least_ms": round(self.least_ms, 5)}


@functools.cache
def measured_times() -> Mapping[str, Times]:
    """Return the table, by family of CPUs (see `cpu.family`)."""
    told = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    return {family: Times.from_dict(family, each) for family, each in told.items()}


def total(times: Times, kernels: Iterable[KernelRun]) -> float:
    """Return the nanoseconds of kernels that run one after the other."""
    return sum(times.of(kernel) for kernel in kernels)


def by_name(times: Times, kernels: Iterable[KernelRun]) -> tuple[KernelTime, ...]:
    """Return the kernels of a program by their names, the slowest first."""
    named: dict[str, list[KernelRun]] = {}
    for kernel in kernels:
        named.setdefault(kernel.name, []).append(kernel)
    found = (
        KernelTime(name, len(each), total(times, each) / 1e6, sum(map(times.least, each)) / 1e6)
        for name, each in named.items()
    )
    return tuple(sorted(found, key=lambda each: -each.ms))
