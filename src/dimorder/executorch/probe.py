"""Decides what is right, refused or silently wrong: runs operators in ExecuTorch and compares with eager.

`probe` makes the table that is shipped; `sweep` is the same comparison through any lowering, for a CI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.executorch.cases import Case, cases
from dimorder.runtime.kernels import VERDICTS, KernelCall, KernelTable, Verdict, kernel_calls

BACKENDS = ("portable", "xnnpack")
TOLERANCE = 1e-4  # of the largest value
_COPIES = ("dim_order_ops::", "aten::clone", "aten::_to_copy")

Lowering = Callable[[ExportedProgram], bytes]


@dataclass(frozen=True)
class Outcome:
    """What became of one case: the verdict, why, and the calls that the lowered program makes.

    `verdict` is None where eager itself refuses the case, or nothing of it is left to call.
    """

    verdict: Verdict | None
    why: str = ""
    calls: tuple[KernelCall, ...] = ()


def probe(
    backends: Sequence[str] = BACKENDS,
    chosen: Iterable[Case] | None = None,
    progress: Callable[[str], None] = lambda step: None,
    workers: int | None = None,
) -> KernelTable:
    """The table of verdicts of the ExecuTorch that is installed, from stock lowering of every case.

    Each case runs in a worker process: a kernel may take its process down, which counts as refused.
    The whole takes minutes per backend and core.
    """
    chosen = list(cases() if chosen is None else chosen)
    todo = [(backend, case) for backend in backends for case in chosen if _is_taken(backend, case)]
    return tabulate(_in_workers(todo, workers or os.cpu_count() or 1, progress), backends)


def tabulate(
    outcomes: Iterable[tuple[str, Case, Outcome]], backends: Sequence[str] = BACKENDS
) -> KernelTable:
    """The table that (backend, case, outcome) triples amount to: for each signature its worst verdict."""
    from importlib import metadata

    rows: dict[str, dict[str, dict[str, Verdict]]] = {backend: defaultdict(dict) for backend in backends}
    for backend, case, outcome in outcomes:
        for call in _subjects(case, backend, outcome):
            found = rows[backend][call.operator]
            key = f"{call.rank} {call.signature}"
            found[key] = worst(found.get(key, "right"), outcome.verdict or "right")
    frozen = {backend: MappingProxyType(dict(found)) for backend, found in rows.items()}
    return KernelTable(metadata.version("executorch"), MappingProxyType(frozen))


def worst(*verdicts: Verdict) -> Verdict:
    """The worst of some verdicts.

    >>> worst("right", "wrong", "refused")
    'wrong'
    """
    return max(verdicts, key=VERDICTS.index)


@dataclass(frozen=True)
class Finding:
    """A case that a lowering gets wrong or refuses although eager accepts it."""

    case: Case
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.case}: {self.why}"


def sweep(
    partitioner: Any,
    chosen: Iterable[Case] | None = None,
    progress: Callable[[str], None] = lambda step: None,
    *,
    lower: Callable[[ExportedProgram, Any], bytes] | None = None,
) -> list[Finding]:
    """The differential test for a delegate's CI: every case through a partitioner, against eager.

    Cases are {operators} x {orders} x {ranks, sizes of 1}, all of `cases()` unless `chosen`; those that
    ExecuTorch refuses in contiguous order too say nothing about orders and are left out. `lower` makes the
    .pte of an exported program and the partitioner (None: portable kernels), by default with
    `canonicalise` and `legalise` as this package advises. Runs in this process, through `dimorder.load`.
    """
    lower = lower or lower_legally
    findings = []
    unsupported: set[tuple[str, str, str]] = set()
    for case in cases() if chosen is None else chosen:
        progress(str(case))
        outcome = attempt(case, lambda exported: lower(exported, partitioner), run_guarded)
        row = (case.operator, case.call, case.shape)
        if outcome.verdict == "refused" and case.order == "contiguous":
            unsupported.add(row)
        elif outcome.verdict in ("wrong", "refused") and row not in unsupported:
            findings.append(Finding(case, outcome.verdict, outcome.why))
    return findings


def lower_legally(exported: ExportedProgram, partitioner: Any = None) -> bytes:
    """A .pte of a program: canonicalised, and legalised where no guarded partitioner does that."""
    from dimorder.executorch.legal import legalise
    from dimorder.executorch.passes import canonicalise

    program = canonicalise(exported)
    return lower_quickly(program, [partitioner] if partitioner else [], [] if partitioner else [legalise])


def run_guarded(data: bytes, inputs: Sequence[torch.Tensor]) -> Any:
    """A program run as `dimorder.load` runs it."""
    import tempfile

    from dimorder.runtime.program import load

    with tempfile.NamedTemporaryFile(suffix=".pte") as file:
        file.write(data)
        file.flush()
        return load(file.name).run(*inputs)


def attempt(case: Case, lowering: Lowering, run: Callable[[bytes, Sequence[torch.Tensor]], Any]) -> Outcome:
    """Lower one case, run it on its own inputs, and compare with eager."""
    module, inputs = case.module(), case.inputs()
    try:
        with torch.no_grad():
            expected = _tensors(module(*inputs))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return Outcome(None, f"eager: {_first_line(error)}")
    calls: tuple[KernelCall, ...] = ()
    try:
        # Of lowering and running anything may come out, and all of it is a refusal.
        exported = torch.export.export(module, inputs, strict=False)
        data = lowering(exported)
        calls = tuple(read_calls(data))
        found = _tensors(run(data, inputs))
    except Exception as error:
        return Outcome("refused", f"{type(error).__name__}: {_first_line(error)}", calls)
    worst_error = disagreement(expected, found)
    return Outcome("wrong" if worst_error else "right", worst_error, calls)


def disagreement(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str:
    """How two lists of tensors differ, empty where they agree to `TOLERANCE` of the largest value."""
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


def stock(backend: str) -> Lowering:
    """Lowering as ExecuTorch does it, for a backend of `BACKENDS`."""

    def lowering(exported: ExportedProgram) -> bytes:
        return lower_quickly(exported, _partitioners(backend))

    return lowering


def run_bare(data: bytes, inputs: Sequence[torch.Tensor]) -> Any:
    """A program run by ExecuTorch's Python runtime, without any guard."""
    from executorch.extension.pybindings import _C

    program = _C._load_program_from_buffer(data)
    return program.load_method("forward")([x.detach() for x in inputs])


def read_calls(data: bytes) -> list[KernelCall]:
    from executorch.exir._serialize._program import deserialize_pte_binary

    return kernel_calls(deserialize_pte_binary(data).program)


def lower_quickly(
    exported: ExportedProgram, partitioners: Sequence[Any] = (), passes: Sequence[Any] = ()
) -> bytes:
    """`to_edge_transform_and_lower(...).to_executorch()`, without the decompositions that have nothing to do.

    Those take nine tenths of the time of a single operator's lowering.
    """
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
    from executorch.exir.program._program import _default_decomposition_table, _generate_edge_program

    config = EdgeCompileConfig(_check_ir_validity=False)
    operators = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    table = _default_decomposition_table()
    final = all(
        isinstance(operator, torch._ops.OpOverload)
        and operator not in table
        and not operator._schema.is_mutable
        and not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        for operator in operators
        if operator.__module__ != "_operator"
    )
    if not final:
        edge = to_edge_transform_and_lower(
            exported, partitioner=list(partitioners), transform_passes=list(passes), compile_config=config
        )
        return bytes(edge.to_executorch().buffer)
    for partitioner in partitioners:
        exported = partitioner.transform_for_pre_decomposition(exported)
    edge = EdgeProgramManager({"forward": _generate_edge_program(config, exported)}, None, config)
    if passes:
        edge = edge.transform(list(passes))
    for partitioner in partitioners:
        edge = edge.to_backend({"forward": partitioner})
    return bytes(edge.to_executorch().buffer)


def _partitioners(backend: str) -> list[Any]:
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]


def _subjects(case: Case, backend: str, outcome: Outcome) -> Iterator[KernelCall]:
    """The calls that an outcome says something about: one kernel, or one delegate under the case's name."""
    if outcome.verdict is None:
        return
    kernels = [call for call in outcome.calls if call.operator]
    delegates = [call for call in outcome.calls if call.delegate]
    if backend == "portable":
        subjects = [call for call in kernels if not call.operator.startswith(_COPIES)] or kernels
        if len({call.operator for call in subjects}) == 1:
            yield from subjects
    elif len(delegates) == 1 and not kernels:
        (call,) = delegates
        yield KernelCall(f"aten::{case.operator}", call.delegate, call.rank, call.signature)


def _is_taken(backend: str, case: Case) -> bool:
    """Whether the backend has anything to do with the operator, by its name."""
    if backend == "portable":
        return True
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    name, _, overload = case.operator.partition(".")
    names = {f"{name}{copy}.{overload or 'default'}" for copy in ("", "_copy")}
    return bool(names & {*XnnpackPartitioner().target_partitioner_configs})


def _in_workers(
    todo: Sequence[tuple[str, Case]], workers: int, progress: Callable[[str], None]
) -> Iterator[tuple[str, Case, Outcome]]:
    """The outcomes, in the order of `todo`; a worker that dies is replaced."""
    from concurrent.futures import ThreadPoolExecutor

    idle = [_Worker() for _ in range(workers)]

    def run(item: tuple[str, Case]) -> tuple[str, Case, Outcome]:
        worker = idle.pop()
        outcome = worker.run(*item)
        idle.append(worker)
        return (*item, outcome)

    try:
        with ThreadPoolExecutor(workers) as pool:
            for done, result in enumerate(pool.map(run, todo)):
                if done % 50 == 0:
                    progress(f"{done} of {len(todo)} calls, {result[1]}")
                yield result
    finally:
        for worker in idle:
            worker.close()


class _Worker:
    """A process that answers cases with outcomes, a line of JSON each; started again when it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, backend: str, case: Case) -> Outcome:
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
        try:
            self.process.stdin.write(json.dumps({"backend": backend, **asdict(case)}) + "\n")
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
    """A worker's life: a case per line in, an outcome per line out."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the runtime logs where it likes
    for line in sys.stdin:
        request = json.loads(line)
        backend = request.pop("backend")
        outcome = attempt(Case(**request), stock(backend), run_bare)
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()


def _tensors(result: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


if __name__ == "__main__":
    _serve()
