"""Decides the order of the pipeline: capture, annotate, extract, solve, rewrite, verify, emit. The page to
read first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UnsupportedError, UsageError
from dimorder.files import write_whole
from dimorder.lowering import annotate as _annotate
from dimorder.lowering import rewrite as _physical
from dimorder.lowering.capture.captured import Captured, arguments, capture, eval_mode, operator_name, where
from dimorder.lowering.capture.fold import fold_constants
from dimorder.lowering.extract import UNITS, Extracted, extract
from dimorder.lowering.network_plan import NetworkPlan
from dimorder.lowering.operators.dialect import decompose
from dimorder.lowering.verify import Verified, differ, random_like, verify
from dimorder.planning.problem import InvalidChoice
from dimorder.planning.solve import solve
from dimorder.runtime.guard import OnMismatch, check, restore
from dimorder.runtime.program import Program
from dimorder.targets import find, target_for_suffix
from dimorder.targets.base import Artifact, Target
from dimorder.targets.listing import installed

Orders = (
    Any  # None, one order for all, or one per tensor; an order is "NHWC", a torch memory format or a DimOrder
)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Lowered:
    """A lowered network: its plan, its contract, the physical program it came from, and the target's
    artifact.

    `seconds` is per step.
    """

    plan: NetworkPlan
    physical: ExportedProgram
    artifact: Artifact
    program: Captured
    verified: Verified
    constant_bytes_added: int
    target: Target
    seconds: Mapping[str, float] = field(compare=False)

    @property
    def contract(self) -> Contract:
        return self.plan.contract

    @property
    def max_rel_error(self) -> float:
        return self.verified.max_rel_error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact, and what lies beside it: whole, or not at all.

        Raises `UsageError` for a name that has not the target's suffix, or that cannot be written.
        """
        self.target.check_name(Path(path))
        return write_whole(path, self.artifact.data, self.artifact.beside)

    def decomposed(self) -> ExportedProgram:
        """The physical program in ATen between permutes, for ExecuTorch's own partitioners.

        Round its convolutions such a partitioner puts permutes of its own, which cancel against these; the
        plan's conversions are what is left. Inputs and outputs are flat, and as the contract's boundary shows
        them, except that ExecuTorch makes each output contiguous.

        >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> program = lower(conv, (torch.randn(2, 3, 5, 7),)).decomposed()
        >>> [n.target._opname for n in program.graph.nodes if n.op == "call_function"]
        ['permute', 'clone', 'permute', 'conv2d', 'permute', 'permute', 'clone', 'relu']
        """
        return fold_constants(decompose(self.physical))

    def run(self, *args: Any, on_mismatch: OnMismatch = "adapt", **kwargs: Any) -> Any:
        """Run the artifact like the network, guarded by the contract; the result has its structure."""
        given = arguments(self.program.exported, args, kwargs)
        fed = []
        for value, example in zip(given, self.program.examples, strict=True):
            if isinstance(example, torch.Tensor):
                fed.append(value)
            elif (type(value), value) != (type(example), example):
                found = f"{value!r}, where the network was lowered for {example!r}"
                raise UsageError("the arguments", found, "lower it again for that value")
        guarded = check(self.contract, fed, on_mismatch)
        outputs = restore(self.contract, self.artifact.run(guarded.tensors), on_mismatch).tensors
        return pytree.tree_unflatten(list(outputs), self.program.out_spec)

    def to_dict(self) -> dict[str, Any]:
        """What `dimorder lower --json` writes; the keys are stable."""
        return {
            **self.plan.to_dict(),
            "constant_bytes_added": self.constant_bytes_added,
            "delegates": self.artifact.delegates,
            "outside": dict(self.artifact.outside),
            "verify": asdict(self.verified),
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }


def plan(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "torch",
    input_orders: Orders = None,
    output_orders: Orders = None,
    objective: str = "bytes",
    progress: Progress = lambda step: None,
) -> NetworkPlan:
    """The proven plan of a network for a target and a contract; nothing is emitted.

    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> found = plan(conv, (torch.randn(2, 3, 5, 7),), output_orders="NHWC")
    >>> found.cost, found.conversions[0].to_order
    ((840, 1), 'NHWC (0, 2, 3, 1)')
    """
    clock, lowering = _Clock(progress), find(target)
    with clock.step("capture"):
        program = capture(model, args, kwargs)
    return _plan(program, lowering, input_orders, output_orders, objective, clock)


def lower(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "torch",
    input_orders: Orders = None,
    output_orders: Orders = None,
    objective: str = "bytes",
    run_artifact: bool | None = None,
    progress: Progress = lambda step: None,
) -> Lowered:
    """Lower a network: from module to a verified artifact with a proven plan and its contract inside.

    `args` and `kwargs` are example inputs (shapes are static). `input_orders` and `output_orders` are what
    the contract promises, contiguous by default: one order for all, or one per tensor. `objective` is "bytes"
    moved by conversions, or their "count". The physical program is run and compared with the network before
    it is emitted, and the artifact after that, unless its runtime is slow (tosa) or `run_artifact` says
    otherwise. Raises a `DimorderError` that says what to do; a wrong program is never returned.

    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    >>> lowered = lower(conv, (torch.randn(2, 3, 5, 7),), input_orders="NHWC", output_orders="NHWC")
    >>> len(lowered.plan.conversions), lowered.max_rel_error < 1e-5
    (0, True)
    """
    clock, lowering = _Clock(progress), find(target)
    with clock.step("capture"):
        program = capture(model, args, kwargs)
    planned = _plan(program, lowering, input_orders, output_orders, objective, clock)
    contract = planned.contract
    with clock.step("rewrite"):
        physical = _physical.rewrite(planned.extracted, planned.layout_plan, contract)
    with clock.step("verify"):
        network, run = _flat(model, program), _at_boundary(physical.module(), contract)
        inputs, others = (random_like(program.example_inputs, seed) for seed in (0, 1))
        with torch.no_grad():
            wanted = network(*inputs)
            error = verify(run(*inputs), wanted, what=f"the physical program for {lowering.name}")
            # Integers stay those of the example: ids and masks are not to be made up.
            input_matters = not any(map(torch.is_floating_point, inputs)) or differ(network(*others), wanted)
    with clock.step("emit"), installed(lowering.name, lowering.install):
        artifact = lowering.emit(physical, contract)
    if run_artifact is None:
        run_artifact = lowering.runs_fast
    if run_artifact:
        with clock.step("run"), installed(lowering.name, lowering.install), torch.no_grad():
            got = _at_boundary(lambda *held: artifact.run(held), contract)(*inputs)
            error = max(error, verify(got, wanted, what=f"the {lowering.suffix} that was emitted"))
    added = max(0, _constant_bytes(physical) - program.constant_bytes)
    verified = Verified(error, run_artifact, input_matters)
    return Lowered(planned, physical, artifact, program, verified, added, lowering, clock.seconds)


def _plan(
    program: Captured,
    lowering: Target,
    input_orders: Orders,
    output_orders: Orders,
    objective: str,
    clock: _Clock,
) -> NetworkPlan:
    if objective not in UNITS:
        raise UsageError("objective", f"{objective!r}", f"choose one of {', '.join(UNITS)}")
    contract = Contract(
        _specs(program.input_names, program.inputs, input_orders, "input"),
        _specs([f"output{i}" for i in range(len(program.outputs))], program.outputs, output_orders, "output"),
    )
    with clock.step("annotate"):
        annotated = _annotate.annotate(
            program, lambda node: lowering.refuses(node) or _physical.refuses(node)
        )
    with clock.step("extract"):
        extracted = extract(
            annotated,
            [spec.dim_order for spec in contract.inputs],
            [spec.dim_order for spec in contract.outputs],
            objective=objective,
            forms=lowering.forms,
            max_rank=lowering.max_rank,
        )
    with clock.step("solve"):
        try:
            solved = solve(extracted.problem)
        except InvalidChoice as error:
            raise _beyond_rank(extracted, lowering) from error
    return NetworkPlan(lowering.name, contract, solved, extracted)


def load(
    path: str | os.PathLike[str], on_mismatch: OnMismatch = "adapt", *, target: str | Target | None = None
) -> Program:
    """A saved program, ready to be called, with its guard: any `.pte`, or a `.tosa` or `.pt2` of ours.

    `target` reads it, by default the one whose suffix it has. Raises `UsageError` where there is no such
    file, `ContractError` where it is damaged or cut off, `UnsupportedError` where the runtime is not
    installed or lacks what the program needs.

    >>> load("missing.tosa")
    Traceback (most recent call last):
    dimorder.errors.UsageError: loading missing.tosa
      found: missing.tosa: No such file or directory
      fix: give the path of a .tosa file
    """
    file = Path(path)
    found = target_for_suffix(file) if target is None else find(target)
    if found.load is None:
        fix = "run it with what it was lowered for"
        raise UnsupportedError(f"loading {file}", f"target {found.name} reads no file back", fix)
    with installed(found.name, found.install):
        contract, run = found.load(file)
    return Program(file, contract, run, on_mismatch, found.runtime or f"target {found.name}")


def _beyond_rank(extracted: Extracted, target: Target) -> UnsupportedError:
    """Why there is no plan: some values cannot be brought from the order they are made in to a wanted one."""
    stuck = [
        f"{operator_name(info.root)} ({where(info.root)})"
        if info.root.op == "call_function"
        else f"input {info.root.name!r}"
        for info, buffer in zip(extracted.buffers, extracted.problem.buffers, strict=True)
        if buffer.unreachable
    ]
    return UnsupportedError(
        " or ".join(stuck[:3]),
        f"its result is wanted in an order that takes a transpose of more than {target.max_rank} dimensions",
        "permute fewer dimensions at once, or choose another target",
    )


class _Clock:
    """Seconds per step, and a word of progress as each begins."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def _specs(
    names: Sequence[str], nodes: Sequence[torch.fx.Node], orders: Orders, kind: str
) -> tuple[TensorSpec, ...]:
    """The promise for each tensor. One order given for all is meant for the tensors of its rank; others are
    contiguous."""
    each = orders if isinstance(orders, (list, tuple)) else None
    if each is not None and len(each) != len(nodes):
        raise UsageError(
            f"{kind} orders", f"{len(each)} for {len(nodes)} {kind}s", f"give one for all, or one per {kind}"
        )
    specs = []
    for i, (name, node) in enumerate(zip(names, nodes, strict=True)):
        value = node.meta["val"]
        order = each[i] if each is not None else orders
        if order is None or (each is None and not _fits(order, value.dim())):
            dim_order = DimOrder.contiguous(value.dim())
        else:
            dim_order = DimOrder.parse(order, value.dim())
        specs.append(TensorSpec(name, tuple(int(s) for s in value.shape), str(value.dtype), dim_order))
    if (
        each is None
        and orders is not None
        and not any(_fits(orders, node.meta["val"].dim()) for node in nodes)
    ):
        shapes = ", ".join(str(spec.shape) for spec in specs)
        raise UsageError(
            f"{kind} orders", f"{orders} fits no {kind} of shape {shapes}", "give an order of the right rank"
        )
    return tuple(specs)


def _fits(order: Any, rank: int) -> bool:
    try:
        DimOrder.parse(order, rank)
    except UsageError:
        return False
    return True


def _at_boundary(module: Callable[..., Any], contract: Contract) -> Callable[..., list[torch.Tensor]]:
    """A physical program as a function of logical tensors."""

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        held = [_physical.at_boundary(x, spec) for x, spec in zip(inputs, contract.inputs, strict=True)]
        return list(restore(contract, list(module(*held)), "adapt").tensors)

    return run


def _flat(model: Any, program: Captured) -> Callable[..., list[torch.Tensor]]:
    """The network as a function of its flattened tensors: what the physical program is verified against."""
    reference = model if isinstance(model, torch.nn.Module) else program.exported.module()

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed = iter(inputs)
        leaves = [next(feed) if isinstance(x, torch.Tensor) else x for x in program.examples]
        args, kwargs = pytree.tree_unflatten(leaves, program.exported.call_spec.in_spec)
        with eval_mode(model):
            result = reference(*args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    return run


def _constant_bytes(program: ExportedProgram) -> int:
    return sum(t.numel() * t.element_size() for t in program.state_dict.values())
