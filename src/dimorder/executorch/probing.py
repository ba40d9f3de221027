"""Run operators in ExecuTorch and compare with eager: they are right, refused or silently wrong.

`probe` makes the table that is shipped. `sweep` makes the same comparison with any lowering, for a CI.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import executorch.exir  # noqa: F401  what is probed; without it this module is of no use
from torch.export import ExportedProgram

from dimorder.clock import Progress, StepPart
from dimorder.executorch.attempt import Outcome, Route, Workers, attempt, attempt_in_halves
from dimorder.executorch.cases import Case, cases
from dimorder.executorch.lowering_paths import BACKENDS, lower_legally, run_guarded
from dimorder.graph.nodes import tensors_in
from dimorder.runtime.kernels import (
    CONTIGUOUS,
    LOWER,
    VERDICTS,
    KernelCall,
    KernelTable,
    KernelVerdict,
    executorch_version,
    signature,
)

TOGETHER = 16  # calls in one program of `sweep`: lowering a program costs more than lowering a call
_COPIES = ("dim_order_ops::", "aten::clone", "aten::_to_copy")


def probe(
    backends: Sequence[str] = BACKENDS,
    chosen: Iterable[Case] | None = None,
    progress: Progress = lambda step: None,
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

    >>> dict(probe(("portable",), itertools.islice(cases("abs"), 1), workers=1).rows["portable"])
    {'aten::abs.out': {'3 CC': 'right'}}
    """
    chosen = list(cases() if chosen is None else chosen)
    groups = [(backend, (case,)) for backend in backends for case in chosen if _may_take(backend, case)]
    return tabulate(outcomes(groups, "stock", progress, workers), backends)


def outcomes(
    groups: Sequence[tuple[str, Sequence[Case]]],
    path: Route = "legal",
    progress: Progress = lambda step: None,
    workers: int | None = None,
) -> Iterator[tuple[str, Case, Outcome]]:
    """Run groups of cases, each with its backend, in worker processes; return their outcomes in that order.

    The cases of a group are one program. A group that is not right is split, until a fault is of one case.
    """
    with Workers(path, workers or os.cpu_count() or 1) as pool:
        for done, (backend, found) in enumerate(pool.run(groups)):
            progress(StepPart("probing kernels", done, len(groups)))
            yield from ((backend, case, outcome) for case, outcome in found)


def group_cases(chosen: Iterable[Case], size: int = TOGETHER) -> Iterator[tuple[Case, ...]]:
    """Return cases in groups of at most `size`, each with one shape; contiguous cases have their own groups.

    >>> [len(group) for group in group_cases((case for case in cases("cat") if case.shape == "4"), 5)]
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
    rows: dict[str, dict[str, dict[str, KernelVerdict]]] = {each: defaultdict(dict) for each in backends}
    for backend, case, outcome in outcomes:
        for call in _subjects(case, backend, outcome):
            found = rows[backend][call.operator]
            key = f"{call.rank} {call.signature}"
            found[key] = max(found.get(key, "right"), outcome.verdict or "right", key=VERDICTS.index)
    frozen = {backend: MappingProxyType(dict(found)) for backend, found in rows.items()}
    return KernelTable(executorch_version(), MappingProxyType(frozen))


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
    progress: Progress = lambda step: None,
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

    >>> sweep(None, itertools.islice(cases("abs"), 2))
    []
    """
    lower = lower or lower_legally

    def run(group: Sequence[Case]) -> Outcome:
        progress(str(group[0]))
        return attempt(group, lambda exported: lower(exported, partitioner), run_guarded)

    chosen = cases() if chosen is None else chosen
    found = [pair for group in group_cases(chosen) for pair in attempt_in_halves(group, run)]
    unsupported = {
        case.row for case, outcome in found if case.order == "contiguous" and outcome.verdict == "refused"
    }
    return [
        KernelFinding(case, outcome.verdict, outcome.why)
        for case, outcome in found
        if outcome.verdict in ("wrong", "refused") and case.row not in unsupported
    ]


def _subjects(case: Case, backend: str, outcome: Outcome) -> Iterator[KernelCall]:
    """Return the calls that an outcome judges; a delegate's calls have the case's name.

    A right outcome judges all calls. Any other outcome judges the only suspect, if there is just one. A call
    in contiguous order is a suspect only in a contiguous case.
    """
    if outcome.verdict is None:
        return
    right, trusts = outcome.verdict == "right", case.order != "contiguous"
    suspects = [
        call for call in outcome.calls if right or not (trusts and {*call.signature} <= {CONTIGUOUS, LOWER})
    ]
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
        tensors = [*case.inputs(), *tensors_in(case.module()(*case.inputs()))]
        pairs = [(tuple(tensor.shape), range(tensor.dim())) for tensor in tensors]
        yield KernelCall(f"aten::{case.operator}", backend, *signature(pairs))


def _may_take(backend: str, case: Case) -> bool:
    """Return whether the backend may take the operator, by its name."""
    if backend == "portable":
        return True
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    name, _, overload = case.operator.partition(".")
    names = {f"{name}{copy}.{overload or 'default'}" for copy in ("", "_copy")}
    return bool(names & {*XnnpackPartitioner().target_partitioner_configs})
