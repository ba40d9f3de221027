"""Find the outcome of a case on a target: right, outside, refused, crashed or wrong."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import operator
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dimorder
from dimorder.capture.calls import call_leaves
from dimorder.errors import DimorderError, StageError, VerificationError
from dimorder.graph.pairs import real_views
from dimorder.verification.relative_error import relative_error
from tests.suite.cases import Case, named

TARGETS = ("torch", "xnnpack", "litert", "tosa")
STOCK = "stock"  # ExecuTorch's own lowering for XNNPACK
IN_CPP = "cpp"  # target xnnpack, run by dimorder-run from a file whose freed memory is poisoned
TOLERANCE = 1e-4
LIMIT_S = 300

RIGHT, OUTSIDE, REFUSED, CRASHED, WRONG = KINDS = ("right", "outside", "refused", "crashed", "wrong")
SKIPPED = "skipped"  # eager PyTorch refuses it
MOVES = (torch.ops.aten.view.default, torch.ops.aten.permute.default, torch.ops.aten.clone.default)


@dataclass(frozen=True)
class Became:
    """The outcome of a case: one of `KINDS`, why, the operators outside, and the number of delegates.
    `operators` is the number of operators in the physical program, without moves of memory."""

    kind: str
    why: str = ""
    outside: tuple[tuple[str, str], ...] = ()  # each with its reason; of stock, without
    delegates: int = 0
    operators: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}


def examine(case: Case, target: str) -> Became:
    """Lower a case and run it on its own inputs; whatever is raised has its kind."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            module, inputs = case.make()
            try:
                with torch.no_grad():
                    wanted = _tensors(module(*pytree.tree_map(_copied, inputs)))
            except Exception as error:
                return Became(SKIPPED, _told(error))
            return _WAYS.get(target, _ours)(module, inputs, wanted, target)
        except (StageError, VerificationError) as error:
            return Became(WRONG if isinstance(error, VerificationError) else CRASHED, _told(error))
        except DimorderError as error:
            return Became(REFUSED, _told(error))
        except Exception as error:
            return Became(CRASHED, f"{type(error).__name__}: {_told(error)}"[:500])


def _ours(module: torch.nn.Module, inputs: Any, wanted: Sequence[torch.Tensor], target: str) -> Became:
    lowered = dimorder.lower(module, inputs, target=target, run_artifact=False)
    outside = tuple(dict.fromkeys((place.operator, why) for place, why in lowered.plan.outside))
    got = _tensors(lowered.run(*pytree.tree_map(_copied, inputs)))
    found = disagreement(got, real_views(wanted, lowered.program.in_pairs))
    kind = WRONG if found else OUTSIDE if outside else RIGHT
    called = [node.target for node in lowered.physical.graph.nodes if node.op == "call_function"]
    computing = sum(name not in MOVES and name is not operator.getitem for name in called)
    return Became(kind, found, outside, lowered.artifact.delegates, computing)


def _stock(module: torch.nn.Module, inputs: Any, wanted: Sequence[torch.Tensor], _: str) -> Became:
    from executorch.exir._serialize._program import deserialize_pte_binary

    from dimorder.executorch.lowering_paths import read_calls, run_bare, stock

    data = stock("xnnpack")(torch.export.export(module, inputs))
    plan = deserialize_pte_binary(data).program.execution_plan[0]
    called = (call.operator for call in read_calls(data) if call.operator)  # a delegate has no name
    outside = tuple((name, "") for name in dict.fromkeys(called))
    got = _tensors(run_bare(data, _tensors(inputs)))
    found = disagreement(got, wanted)
    kind = WRONG if found else OUTSIDE if outside else RIGHT
    return Became(kind, found, outside, len(plan.delegates))


def _in_cpp(module: torch.nn.Module, inputs: Any, wanted: Sequence[torch.Tensor], _: str) -> Became:
    from tests.device import emulation

    lowered = dimorder.lower(module, inputs, target="xnnpack")
    given = call_leaves(lowered.program.exported, inputs, {})
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    fed = dict(zip((spec.name for spec in lowered.contract.inputs), tensors, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = lowered.save(Path(folder, "program.pte"))
        options = ("--loader", "poison")
        done = emulation.run(path, fed, lowered.contract, Path(folder), options=options)
    if done.code < 0:
        return Became(CRASHED, f"dimorder-run ended with {done.code}")
    if done.code:
        return Became(WRONG, done.error)
    wanted = real_views(wanted, lowered.program.in_pairs)
    found = disagreement(_tensors(lowered.program.result(done.outputs)), wanted)
    return Became(WRONG if found else RIGHT, found)


_WAYS = {STOCK: _stock, IN_CPP: _in_cpp}


def disagreement(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
    """How results differ from eager's; empty where they do not."""
    if len(got) != len(wanted):
        return f"{len(got)} results instead of {len(wanted)}"
    for i, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            return f"output {i}: {mine.dtype} {tuple(mine.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
        odd = ~torch.isfinite(theirs)
        if odd.all():  # nothing is left to scale an error by
            if not torch.allclose(mine, theirs, equal_nan=True):
                return f"output {i}: other infinities or NaN"
            continue
        error = relative_error(mine, theirs)
        if not error <= TOLERANCE:
            return f"output {i}: relative error {error:.2e}"
    return ""


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _told(error: Exception) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines() if line.strip())


# -- many cases, in a process that may die of one


def examine_all(
    cases: Iterable[Case], targets: Sequence[str], limit_s: int = LIMIT_S
) -> Iterator[tuple[Case, str, Became, float]]:
    """Yield the outcome of each case on each target, with the seconds it took. A native crash is a crash of
    that case alone, and so is a case that takes more than `limit_s`. The other process is no fork of this
    one, for a fork waits forever for the threads of a runtime that this one has used."""
    todo = [(case, target) for case in cases for target in targets]
    done = 0
    while done < len(todo):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        rest = [(case.source, str(case), target) for case, target in todo[done:]]
        process = context.Process(target=_serve, args=(rest, theirs, limit_s), daemon=True)
        process.start()
        theirs.close()
        while done < len(todo):
            start = time.perf_counter()
            try:
                became = ours.recv()
            except EOFError:
                process.join()
                how = f"the process ended with {process.exitcode}"
                if process.exitcode == -signal.SIGALRM:
                    how = f"no result within {limit_s} s"
                became = Became(CRASHED, how)
                yield *todo[done], became, time.perf_counter() - start
                done += 1
                break
            yield *todo[done], became, time.perf_counter() - start
            done += 1
        process.join()


def _serve(todo: Sequence[tuple[str, str, str]], pipe: Any, limit_s: int) -> None:
    send: Callable[[Became], None] = pipe.send
    for source, name, target in todo:
        signal.alarm(limit_s)
        send(examine(named(source, name), target))
    signal.alarm(0)
