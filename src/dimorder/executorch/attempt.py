"""Lower cases as one program, run it, and compare with eager: in this process, or in worker processes.

A kernel that kills its worker process counts as refused.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from dimorder.executorch.cases import Case, Together
from dimorder.executorch.lowering_paths import Lower, PteRun, legal, read_calls, run_bare, run_guarded, stock
from dimorder.graph.nodes import tensors_in
from dimorder.runtime.kernels import KernelCall, KernelVerdict

TOLERANCE = 1e-4  # of the largest value
Route = Literal["stock", "legal"]  # ExecuTorch's own lowering and run time, or this package's


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case, why, and the lowered calls; None if eager refuses it or nothing is called."""

    verdict: KernelVerdict | None
    why: str = ""
    calls: tuple[KernelCall, ...] = ()


def attempt(group: Sequence[Case], lowering: Lower, run: PteRun) -> Outcome:
    """Lower some cases as one program, run it on their inputs, and compare with eager."""
    module = Together(group)
    inputs = module.inputs
    try:
        with torch.no_grad():
            expected = tensors_in(module(*inputs))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return Outcome(None, f"eager: {_in_short(error)}")
    calls: tuple[KernelCall, ...] = ()
    try:
        # Lowering and running may raise anything, and every error counts as a refusal.
        exported = torch.export.export(module, inputs, strict=False)
        data = lowering(exported)
        calls = tuple(read_calls(data))
        found = tensors_in(run(data, inputs))
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
        wrong = ~torch.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-6), equal_nan=True)
        if wrong[finite].any():
            return f"result {index}: {(a - b)[finite].abs().max():.2g} off, on values up to {scale:.2g}"
        if wrong.any():
            return f"result {index}: another value where inf or NaN is expected"
    return ""


def attempt_in_halves(
    group: Sequence[Case], run: Callable[[Sequence[Case]], Outcome]
) -> Iterator[tuple[Case, Outcome]]:
    """Return the outcome of each case of a group: the group's own if it is right, else that of its halves."""
    outcome = run(group)
    if len(group) == 1 or outcome.verdict == "right":
        yield from ((case, outcome) for case in group)
        return
    for half in (group[: len(group) // 2], group[len(group) // 2 :]):
        yield from attempt_in_halves(half, run)


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class Workers:
    """Processes that answer groups of cases with outcomes; one that dies is replaced."""

    def __init__(self, path: Route, count: int) -> None:
        self.idle = [_Worker(path) for _ in range(count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.idle:
            worker.close()

    def run(
        self, groups: Sequence[tuple[str, Sequence[Case]]]
    ) -> Iterator[tuple[str, list[tuple[Case, Outcome]]]]:
        with ThreadPoolExecutor(len(self.idle)) as pool:
            yield from pool.map(self._one, groups)

    def _one(self, item: tuple[str, Sequence[Case]]) -> tuple[str, list[tuple[Case, Outcome]]]:
        backend, group = item
        worker = self.idle.pop()
        try:
            return backend, list(attempt_in_halves(group, functools.partial(worker.run, backend)))
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
    """Let torch list its composite operators once, not for each program, of which it is half the time."""
    from torch.export import decomp_utils, exported_program

    for module in (decomp_utils, exported_program):
        name = "_collect_all_valid_cia_ops"
        setattr(module, name, functools.cache(getattr(module, name)))


if __name__ == "__main__":
    _serve()
