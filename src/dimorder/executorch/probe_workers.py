"""Run cases in worker processes, so that a kernel that kills its process counts as refused."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from dimorder.executorch.attempt import Outcome, attempt, attempt_in_halves
from dimorder.executorch.cases import Case
from dimorder.executorch.lowering_paths import (
    Lower,
    PteRun,
    legal,
    run_bare,
    run_guarded,
    stock,
)
from dimorder.runtime.kernels import (
    KernelCall,
)

Route = Literal["stock", "legal"]  # ExecuTorch's own lowering and run time, or this package's


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
        from concurrent.futures import ThreadPoolExecutor

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
    """Let torch list its composite operators once, instead of once per program.

    The listing is half of the time for lowering a program. torch repeats it because operators may be
    registered at any time; a worker registers none.
    """
    from torch.export import decomp_utils, exported_program

    for module in (decomp_utils, exported_program):
        name = "_collect_all_valid_cia_ops"
        setattr(module, name, functools.cache(getattr(module, name)))


if __name__ == "__main__":
    _serve()
