"""Time a network beside other runtimes: build each program, check it against eager, and run them in turn.

A program with wrong numbers gets no times.
"""

from __future__ import annotations

import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dimorder.clock import Progress, StepPart
from dimorder.cpu import describe_machine, machine, require_threads, torch_threads
from dimorder.errors import DimorderError, UnsupportedError, UsageError, install_of, installed
from dimorder.latency.limit import least_seconds, measure_limit
from dimorder.latency.peak import peak_bytes
from dimorder.latency.profile import OperatorTime, profile
from dimorder.latency.runtimes import PEERS, Given, Runtime, ours
from dimorder.latency.timing import Invocation, interleaved, ratio
from dimorder.targets import find
from dimorder.targets.xnnpack.times import KernelTime
from dimorder.text import columns, shape_text
from dimorder.verification.relative_error import relative_errors

T = TypeVar("T")
ROUNDS = 30
_SHOWN = 20  # operators
_NAMED = 3  # kernels
_PACKAGES = Path(torch.__file__).parents[1]  # its path on a machine has no meaning for readers
TOLERANCE = 1e-3  # of an output's largest value: runtimes round at other points, some to fewer bits


@dataclass(frozen=True)
class Timed:
    """A network in one runtime: the milliseconds of each round, or why there are none."""

    name: str
    title: str
    ms: tuple[float, ...] = ()
    kernels: tuple[KernelTime, ...] | None = None
    seconds: float | None = None
    file_bytes: int | None = None
    peak_bytes: int | None = None
    max_rel_error: float | None = None
    error: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.ms) if self.ms else None

    @property
    def is_ours(self) -> bool:
        return self.name not in PEERS

    @property
    def predicted_ms(self) -> float | None:
        return None if self.kernels is None else sum(each.ms for each in self.kernels)


@dataclass(frozen=True)
class Bench:
    """A network in several runtimes, the first of which is ours; limit and operators are optional."""

    network: str
    inputs: tuple[tuple[int, ...], ...]
    rows: tuple[Timed, ...]
    threads: int
    environment: Mapping[str, object]
    limit_ms: float | None = None
    operators: tuple[OperatorTime, ...] | None = None

    @property
    def run(self) -> str:
        """How it was run, in words."""
        rounds = max((len(row.ms) for row in self.rows), default=0)
        return f"{rounds} rounds in turn, {self.threads} thread{'s' * (self.threads != 1)}"

    def ratio(self, row: Timed) -> tuple[float, float, float] | None:
        """Return our time over that of a row, with the interval of 95 %; None if one was not timed."""
        first = self.rows[0]
        return ratio(first.ms, row.ms) if first.ms and row.ms and row is not first else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder bench --json`; the keys are stable."""
        return {
            "network": self.network,
            "inputs": [list(shape) for shape in self.inputs],
            "threads": self.threads,
            "environment": dict(self.environment),
            "limit_ms": self.limit_ms,
            "operators": None if self.operators is None else [each.to_dict() for each in self.operators],
            "runtimes": [
                {
                    **vars(row),
                    "median_ms": row.median,
                    "ratio": self.ratio(row),
                    "foretold_ms": row.predicted_ms,
                    "kernels": None if row.kernels is None else [each.to_dict() for each in row.kernels],
                }
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        shapes = ", ".join(shape_text(shape, "x") for shape in self.inputs)
        head = ("", "ms", "ours / this (95 %)", "made in", "file", "memory", "error")
        return "\n".join(
            [
                f"{self.network}  {shapes}  {self.run}",
                *columns([head, *map(self.cells, self.rows)], numbers=True),
                *(f"{row.title}: {row.error}" for row in self.rows if row.error),
                *self._predicted_lines(),
                *self._limit_lines(),
                *self._operator_lines(),
                describe_machine(self.environment),
            ]
        )

    def _predicted_lines(self) -> list[str]:
        lines = []
        for row in self.rows:
            if row.median is not None and row.predicted_ms:
                most = [f"{each.count} x {each.name} {each.ms:,.3f}" for each in (row.kernels or ())[:_NAMED]]
                lines += [
                    f"{row.title} takes {row.median / row.predicted_ms:.2f} of the "
                    f"{row.predicted_ms:,.3f} ms that the table of times predicts, of which {', '.join(most)}"
                ]
        return lines

    def _limit_lines(self) -> list[str]:
        if self.limit_ms is None:
            return []
        ours = self.rows[0].median
        times = "" if ours is None else f", {ours / self.limit_ms:.2f} times as much is {self.rows[0].title}"
        return [f"the machine's limit is {self.limit_ms:,.3f} ms{times}"]

    def _operator_lines(self) -> list[str]:
        if self.operators is None:
            return []
        ms, shown = sum(each.ms for each in self.operators), self.operators[:_SHOWN]
        title = f"operators one by one, {ms:,.3f} ms in all, by the time above the limit"
        lines = [
            f"{each.ms:9,.3f}  {each.limit_ms:8,.3f}  {each.count:4}  {each.place}, "
            + shape_text(each.shape, "x")
            for each in shown
        ]
        left = len(self.operators) - len(shown)
        more = [f"  and {left} more, in --json"] if left else []
        return [title, "       ms  at least  runs  operator, and its result", *lines, *more]

    def cells(self, row: Timed) -> tuple[str, ...]:
        """Return a row as texts: its title, ms, ratio, seconds, file, memory and error."""
        found = self.ratio(row)

        def megabytes(count: int | None) -> str:
            return "" if count is None else f"{count / 1e6:,.1f} MB"

        return (
            row.title,
            "fails" if row.median is None else f"{row.median:,.3f}",
            "" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})",
            "" if row.seconds is None else f"{row.seconds:,.1f} s",
            megabytes(row.file_bytes),
            megabytes(row.peak_bytes),
            "" if row.max_rel_error is None else f"{row.max_rel_error:.0e}",
        )


def measure(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    targets: Sequence[str] = ("xnnpack",),
    against: Sequence[str] | None = None,
    rounds: int = ROUNDS,
    threads: int | None = None,
    limit: bool = False,
    operators: bool = False,
    progress: Progress = lambda step: None,
) -> Bench:
    """Time a network lowered to `targets` and in the runtimes `against` (by default all that are installed).

    The programs run in turn, in a random sequence for each of `rounds`, with the same number of threads.
    Each timed call comes after a pause and calls that are not timed. A program that fails, or is wrong by
    more than 1e-3 of an output's largest value, has an error in place of times. `limit` asks for the time
    that no program of this network can beat, and `operators` for that of each operator for XNNPACK.

    >>> conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    >>> found = measure(conv, (torch.randn(1, 3, 9, 11),), targets=("torch",), against=("eager",), rounds=5)
    >>> [(row.title, len(row.ms)) for row in found.rows]
    [('dimorder, torch', 5), ('PyTorch', 5)]
    """
    if rounds < 5:
        raise UsageError(f"{rounds} rounds", "too few to tell noise from a difference", "give 5 or more")
    if not targets:
        raise UsageError("the targets", "none", "give one at least: it is what others are compared with")
    chosen = [*map(ours, dict.fromkeys(targets)), *_peers(against)]
    for each in targets:
        _require_runtime(each.partition(":")[0])
    threads = torch.get_num_threads() if threads is None else threads
    require_threads(threads)
    given = Given(model, tuple(args), dict(kwargs or {}), threads)
    with torch_threads(threads):
        environment, limit_ms, profiled = machine(("torch",)), None, None
        if limit or operators:
            progress("measuring the machine's limit")
            found = measure_limit(threads)
            limit_ms = 1e3 * least_seconds(found, model, given.args, given.kwargs)
        if operators:
            progress("lowering for the profile")
            from dimorder.api import lower

            lowered = lower(model, given.args, given.kwargs, target="xnnpack")
            profiled = tuple(profile(lowered.physical, found, rounds, progress))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            rows, calls = _prepare_all(chosen, given, Path(folder), progress)
            for name, times in interleaved(calls, rounds, progress=progress).items():
                rows[name]["ms"] = tuple(round(each, 4) for each in times)
    return Bench(
        type(model).__name__,
        tuple(tuple(x.shape) for x in given.tensors),
        tuple(Timed(each.name, each.title, **rows[each.name]) for each in chosen),
        threads,
        environment,
        limit_ms,
        profiled,
    )


def _require_runtime(name: str) -> None:
    """Raise `UsageError` for a target whose programs have no runtime here, or one too slow to be timed."""
    target = find(name)
    if target.files.load is None or target.runtime.most_operations < math.inf:
        found = (
            "a reference model runs its files" if target.files.load else "its files do not run on this CPU"
        )
        fix = "choose a target whose files a CPU runs, such as xnnpack"
        raise UsageError(f"target {name}", f"{found}, so a time would say nothing", fix)


def _peers(names: Sequence[str] | None) -> list[Runtime]:
    if names is None:
        return [each for each in PEERS.values() if not each.missing]
    for name in names:
        if name not in PEERS:
            raise UsageError("runtime", f"no runtime {name!r}", f"choose among {', '.join(PEERS)}")
        if PEERS[name].missing:
            found = f"not all that it needs is installed: {', '.join(PEERS[name].missing)}"
            raise UnsupportedError(f"runtime {name}", found, PEERS[name].install)
    return [PEERS[name] for name in dict.fromkeys(names)]


def _prepare_all(
    chosen: Sequence[Runtime], given: Given, folder: Path, progress: Progress
) -> tuple[dict[str, dict[str, Any]], dict[str, Invocation]]:
    """Return the facts about each runtime's program before timing, and the programs that can be timed."""
    with given.restored():
        wanted = [x.clone() for x in PEERS["eager"].open(given, folder)()]
    inputs = folder / "inputs"
    torch.save(given.tensors, inputs)
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Invocation] = {}
    for done, each in enumerate(chosen):
        progress(StepPart(f"preparing {each.title}", done, len(chosen)))
        row = rows[each.name] = {}
        path = folder / f"{each.name}{each.suffix}"
        try:
            with given.restored():
                (call, row["kernels"]), row["seconds"] = _time(partial(_prepare, each, given, path))
                errors = relative_errors(call(), wanted)
            worst = max(errors, default=0.0)
            if worst == math.inf:
                row["error"] = "other shapes or types than PyTorch's, or other NaN and infinities"
                continue
            row["max_rel_error"] = worst
            if not worst <= TOLERANCE:
                row["error"] = f"wrong by {worst:.1e} of an output's largest value"
                continue
            if each.write:
                row["file_bytes"] = path.stat().st_size
                with suppress(DimorderError):  # fails on other systems than Linux
                    row["peak_bytes"] = peak_bytes(each.name, path, inputs, given.threads)
            calls[each.name] = call
        except Exception as error:  # any error of a runtime goes into its row
            if isinstance(error, UnsupportedError) and isinstance(error.__cause__, ImportError):
                raise  # a package of a target is missing: this error says what installs it
            said = str(error).replace(f"{_PACKAGES}/", "")
            row["error"] = f"{type(error).__name__}: {' '.join(said.split())[:300]}"
    return rows, calls


def _prepare(chosen: Runtime, given: Given, path: Path) -> tuple[Invocation, tuple[KernelTime, ...] | None]:
    kernels = chosen.write(given, path) if chosen.write else None
    return chosen.open(given, path), kernels


def _time(make: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    return make(), time.perf_counter() - start


def require_charts() -> None:
    """Raise `UnsupportedError` if matplotlib is not installed."""
    with installed("a chart", install_of("peers")):
        import matplotlib.figure  # noqa: F401


def png(bench: Bench) -> bytes:
    """Return the medians as a bar chart; `require_charts` says whether that is possible here."""
    from matplotlib.figure import Figure

    timed = sorted((row for row in bench.rows if row.ms), key=lambda row: -(row.median or 0.0))
    figure = Figure(figsize=(8, 0.8 + 0.45 * len(timed)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        [row.title for row in timed],
        [row.median or 0.0 for row in timed],
        color=["#2b6cb0" if row.is_ours else "#a0aec0" for row in timed],
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel(f"ms, medians of {bench.run}")
    axes.set_title(bench.network)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()
