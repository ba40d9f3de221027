"""Run operators in ExecuTorch and compare with eager, to find those right, refused or silently wrong.

`probe` makes the table that is shipped. `sweep` makes the same comparison through any lowering, for a CI.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from dimorder.executorch.cases import Case, Together, cases
from dimorder.executorch.lowering_paths import (
    BACKENDS,
    Lower,
    PteRun,
    legal,
    lower_legally,
    read_calls,
    run_bare,
    run_guarded,
    stock,
)
from dimorder.runtime.kernels import (
    CONTIGUOUS,
    LOWER,
    VERDICTS,
    KernelCall,
    KernelTable,
    KernelVerdict,
    signature,
)

TOGETHER = 16  # calls in one program of `sweep`: lowering a program costs more than lowering a call
TOLERANCE = 1e-4  # of the largest value
_COPIES = ("dim_order_ops::", "aten::clone", "aten::_to_copy")

Route = Literal["stock", "legal"]  # ExecuTorch's own lowering and run time, or this package's


@dataclass(frozen=True)
class Outcome:
    """The result of one case: the verdict, why, and the calls that the lowered program makes.

    `verdict` is None if eager itself refuses the case, or if the lowered program calls nothing.
    """

    verdict: KernelVerdict | None
    why: str = ""
    calls: tuple[KernelCall, ...] = ()


def probe(
    backends: Sequence[str] = BACKENDS,
    chosen: Iterable[Case] | None = None,
    progress: Callable[[str], None] = lambda step: None,
    workers: int | None = None,
) -> KernelTable:
    """Measure the verdicts of the installed ExecuTorch, from stock lowering of every case.

    Each case runs in a worker process. A kernel that kills its process counts as refused. All cases take
    minutes per backend and core.

    Args:
        backends: the backends to probe.
        chosen: the cases, by default all of `cases()`.
        progress: is called with a line of text as the work goes on.
        workers: the number of processes, by default one per core.

    Returns:
        The table of verdicts.
    """
    chosen = list(cases() if chosen is None else chosen)
    groups = [(backend, (case,)) for backend in backends for case in chosen if _is_taken(backend, case)]
    return tabulate(outcomes(groups, "stock", progress, workers), backends)


def outcomes(
    groups: Sequence[tuple[str, Sequence[Case]]],
    path: Route = "legal",
    progress: Callable[[str], None] = lambda step: None,
    workers: int | None = None,
) -> Iterator[tuple[str, Case, Outcome]]:
    """Run groups of cases, each with its backend, in worker processes; return their outcomes in that order.

    `path` says how they are lowered and run. The cases of a group are one program (`grouped` makes such
    groups). A group that is not right is split, so that a fault always belongs to a single case.
    """
    with _Workers(path, workers or os.cpu_count() or 1) as pool:
        for done, (backend, found) in enumerate(pool.run(groups)):
            if done % 50 == 0:
                progress(f"{done} of {len(groups)} programs, {found[0][0]}")
            yield from ((backend, case, outcome) for case, outcome in found)


def grouped(chosen: Iterable[Case], size: int = TOGETHER) -> Iterator[tuple[Case, ...]]:
    """Return cases in groups of at most `size`, each with one shape; contiguous cases have their own groups.

    >>> [len(group) for group in grouped((case for case in cases("cat") if case.shape == "4"), 5)]
    [4, 5, 5, 2]
    """

    def kind(case: Case) -> tuple[str, bool]:
        return case.shape, case.order != "contiguous"

    for _, alike in itertools.groupby(sorted(chosen, key=kind), kind):
        rest = list(alike)
        yield from (tuple(rest[at : at + size]) for at in range(0, len(rest), size))


def tabulate(
    outcomes: Iterable[tuple[str, Case, Outcome]], backends: Sequence[str] = BACKENDS
) -> KernelTable:
    """Return the table of (backend, case, outcome) triples: for each signature its worst verdict."""
    from importlib import metadata

    rows: dict[str, dict[str, dict[str, KernelVerdict]]] = {
        backend: defaultdict(dict) for backend in backends
    }
    for backend, case, outcome in outcomes:
        for call in _subjects(case, backend, outcome):
            found = rows[backend][call.operator]
            key = f"{call.rank} {call.signature}"
            found[key] = worst(found.get(key, "right"), outcome.verdict or "right")
    frozen = {backend: MappingProxyType(dict(found)) for backend, found in rows.items()}
    return KernelTable(metadata.version("executorch"), MappingProxyType(frozen))


def worst(*verdicts: KernelVerdict) -> KernelVerdict:
    """Return the worst of some verdicts.

    >>> worst("right", "wrong", "refused")
    'wrong'
    """
    return max(verdicts, key=VERDICTS.index)


@dataclass(frozen=True)
class KernelFinding:
    """A case that a lowering gets wrong or refuses although eager accepts it."""

    case: Case
    verdict: KernelVerdict
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.case}: {self.why}"


def sweep(
    partitioner: Any,
    chosen: Iterable[Case] | None = None,
    progress: Callable[[str], None] = lambda step: None,
    *,
    lower: Callable[[ExportedProgram, Any], bytes] | None = None,
) -> list[KernelFinding]:
    """Run every case through a partitioner and compare with eager: the differential test for a delegate's CI.

    Cases are {operators} x {orders} x {ranks, sizes of 1}. A case that ExecuTorch refuses in contiguous order
    too is omitted, since it shows nothing about orders. The test runs in this process, through
    `dimorder.load`.

    Args:
        partitioner: the delegate's partitioner, or None for portable kernels.
        chosen: the cases, by default all of `cases()`.
        progress: is called with a line of text as the work goes on.
        lower: makes the .pte from an exported program and the partitioner. By default it uses `canonicalize`
            and `legalize`, as this package advises.

    Returns:
        The cases that are wrong or refused.
    """
    lower = lower or lower_legally

    def run(group: Sequence[Case]) -> Outcome:
        progress(str(group[0]))
        return attempt(group, lambda exported: lower(exported, partitioner), run_guarded)

    chosen = cases() if chosen is None else chosen
    found = [pair for group in grouped(chosen) for pair in _in_halves(group, run)]
    unsupported = {
        case.row for case, outcome in found if case.order == "contiguous" and outcome.verdict == "refused"
    }
    return [
        KernelFinding(case, outcome.verdict, outcome.why)
        for case, outcome in found
        if outcome.verdict in ("wrong", "refused") and case.row not in unsupported
    ]


def attempt(group: Sequence[Case], lowering: Lower, run: PteRun) -> Outcome:
    """Lower some cases as one program, run it on their inputs, and compare with eager."""
    module = Together(group)
    inputs = module.inputs
    try:
        with torch.no_grad():
            expected = _tensors(module(*inputs))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return Outcome(None, f"eager: {_in_short(error)}")
    calls: tuple[KernelCall, ...] = ()
    try:
        # Lowering and running may raise anything, and every error counts as a refusal.
        exported = torch.export.export(module, inputs, strict=False)
        data = lowering(exported)
        calls = tuple(read_calls(data))
        found = _tensors(run(data, inputs))
    except Exception as error:
        return Outcome("refused", f"{type(error).__name__}: {_in_short(error)}", calls)
    worst_error = disagreement(expected, found)
    return Outcome("wrong" if worst_error else "right", worst_error, calls)


def disagreement(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """Return how two lists of tensors differ, empty if they agree to `TOLERANCE` of the largest value."""
    if len(expected) != len(found):
        return f"{len(found)} results instead of {len(expected)}"
    for index, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {index}: {b.dtype} {tuple(b.shape)} instead of {a.dtype} {tuple(a.shape)}"
        if not a.numel():
            continue
        a, b = a.double(), b.double()
        finite = a.isfinite()
        scale = a[finite].abs().max().item() if finite.any() else 1.0
        if not torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-6), equal_nan=True):
            return f"result {index}: {(a - b)[finite].abs().max():.2g} off, on values up to {scale:.2g}"
    return ""


def _subjects(case: Case, backend: str, outcome: Outcome) -> Iterator[KernelCall]:
    """Return the calls that an outcome judges; a delegate's calls have the case's name.

    A right outcome judges all calls. Any other outcome judges the only suspect, if there is just one. A call
    in contiguous order is a suspect only in a contiguous case.
    """
    if outcome.verdict is None:
        return
    right, trusts = outcome.verdict == "right", case.order != "contiguous"
    suspects = [call for call in outcome.calls if right or not (trusts and _is_contiguous(call))]
    kernels = [call for call in suspects if call.operator and not call.operator.startswith(_COPIES)]
    delegates = [call for call in outcome.calls if call.delegate]
    if backend == "portable":
        subjects = kernels or [call for call in suspects if call.operator]
        if right or len({call.operator for call in subjects}) == 1:
            yield from subjects
    elif len(delegates) == 1 == len(outcome.calls):
        (call,) = delegates
        yield KernelCall(f"aten::{case.operator}", call.delegate, call.rank, call.signature)
    elif not outcome.calls and case.order == "contiguous":  # the delegate's compiler fails
        tensors = [*case.inputs(), *_tensors(case.module()(*case.inputs()))]
        pairs = [(tuple(tensor.shape), range(tensor.dim())) for tensor in tensors]
        yield KernelCall(f"aten::{case.operator}", backend, *signature(pairs))


def _is_contiguous(call: KernelCall) -> bool:
    return {*call.signature} <= {CONTIGUOUS, LOWER}


def _is_taken(backend: str, case: Case) -> bool:
    """Return whether the backend may take the operator, by its name."""
    if backend == "portable":
        return True
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    name, _, overload = case.operator.partition(".")
    names = {f"{name}{copy}.{overload or 'default'}" for copy in ("", "_copy")}
    return bool(names & {*XnnpackPartitioner().target_partitioner_configs})


def _in_halves(
    group: Sequence[Case], run: Callable[[Sequence[Case]], Outcome]
) -> Iterator[tuple[Case, Outcome]]:
    """Return the outcome of each case of a group: the group's own if it is right, else that of its halves."""
    outcome = run(group)
    if len(group) == 1 or outcome.verdict == "right":
        yield from ((case, outcome) for case in group)
        return
    for half in (group[: len(group) // 2], group[len(group) // 2 :]):
        yield from _in_halves(half, run)


class _Workers:
    """Processes that answer groups of cases with outcomes; one that dies is replaced."""

    def __init__(self, path: Route, count: int) -> None:
        self.idle = [_Worker(path) for _ in range(count)]

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.idle:
            worker.close()

    def run(
        self, groups: Sequence[tuple[str, Sequence[Case]]]
    ) -> Iterator[tuple[str, list[tuple[Case, Outcome]]]]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(self.idle)) as pool:
            yield from pool.map(self._one, groups)

    def _one(self, item: tuple[str, Sequence[Case]]) -> tuple[str, list[tuple[Case, Outcome]]]:
        backend, group = item
        worker = self.idle.pop()
        try:
            return backend, list(_in_halves(group, functools.partial(worker.run, backend)))
        finally:
            self.idle.append(worker)


class _Worker:
    """A process that answers groups with an outcome, a line of JSON each; started again when it dies."""

    def __init__(self, path: Route) -> None:
        self.path = path
        self.process: subprocess.Popen[str] | None = None

    def run(self, backend: str, group: Sequence[Case]) -> Outcome:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdin and self.process.stdout
        request = {"path": self.path, "backend": backend, "group": [asdict(case) for case in group]}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            self.process = None
            return Outcome("refused", f"the process died ({code})")
        data = json.loads(line)
        return Outcome(data["verdict"], data["why"], tuple(KernelCall(**call) for call in data["calls"]))

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin
            self.process.stdin.close()
            self.process.wait()


def _serve() -> None:
    """Run a worker's loop: read a group of cases per line, and write an outcome per line."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the runtime may log to stdout
    _list_composites_once()
    routes: dict[Route, tuple[Callable[[str], Lower], PteRun]] = {
        "stock": (stock, run_bare),
        "legal": (legal, run_guarded),
    }
    for line in sys.stdin:
        request = json.loads(line)
        lowering, run = routes[request["path"]]
        group = [Case(**case) for case in request["group"]]
        outcome = attempt(group, lowering(request["backend"]), run)
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()


def _list_composites_once() -> None:
    """Let torch list its composite operators once, instead of once per program.

    The listing is half of the time for lowering a program. torch repeats it because operators may be
    registered at any time; a worker registers none.
    """
    from torch.export import decomp_utils, exported_program

    for module in (decomp_utils, exported_program):
        name = "_collect_all_valid_cia_ops"
        setattr(module, name, functools.cache(getattr(module, name)))


def _tensors(result: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    _serve()
