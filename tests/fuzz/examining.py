"""Lower a random network, and check what must hold of the result."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import DimorderError, UnsupportedError, UsageError, VerificationError
from dimorder.layout.capabilities import Capabilities
from dimorder.ops.quantization import is_quantized
from dimorder.ops.table import IMPLEMENTATIONS
from dimorder.targets.base import Artifact, Target, TargetRuntime
from tests.fuzz.description import STANDS_FOR, TOLERANCE, Case, is_sound, relative_error
from tests.fuzz.integers import integer_faults
from tests.fuzz.outcome import Outcome, channels_last, promise_fault, type_fault


@dataclass(frozen=True)
class Physical(Artifact):
    """The artifact of target "physical": the physical program as it is, which takes a third of the time."""

    module: Callable[..., Any]
    data: bytes = b""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(self.module(*inputs))


def refusing(target: str, names: Sequence[str] = ()) -> Target:
    """The target of that name, without the physical operators that these ATen operators are made of."""
    from dimorder.targets import find

    lowered_for = STANDS_FOR.get(target, target)
    if lowered_for == "torch":
        found = find("torch")
        if target == "physical":
            found = replace(
                found,
                emit=lambda program, contract: Physical(program.module()),
                runtime=TargetRuntime(most_operations=0),
            )
        return replace(
            found,
            capabilities=Capabilities(
                lambda call, constants: _refused(call, names), lambda call: None, (IMPLEMENTATIONS,)
            ),
        )
    if not names:
        return find(lowered_for)
    module = importlib.import_module(f"dimorder.targets.{lowered_for}.target")
    rows = importlib.import_module(f"dimorder.targets.{lowered_for}.ops").OPERATORS.rows
    left_out = [row._opname for row in rows if row._opname not in MOVES and _is_made_of(row, names)]
    return module.target(module.OPERATORS.without(*left_out))


MOVES = ("view", "permute", "clone")  # which every target has


def _refused(call: torch.fx.Node, names: Sequence[str]) -> str | None:
    return f"{call.target} is refused by the fuzzer" if _is_made_of(call.target, names) else None


def _is_made_of(physical: Any, names: Sequence[str]) -> bool:
    """Whether an implementation of one of these ATen operators is, in some way, this physical operator."""
    return is_named(getattr(physical, "_opname", ""), names)


def is_named(physical: str, names: Sequence[str]) -> bool:
    stem = physical.removesuffix("_nhwc").removesuffix("_ndhwc")
    return stem in names or (stem.startswith("conv") and "convolution" in names)


def conversions_in_file(lowered: Any) -> int | None:
    """How many conversions the emitted file holds; None where nobody can tell."""
    if lowered.plan.target == "tosa":
        from dimorder.targets.tosa.graph import inspect_tosa

        return inspect_tosa(lowered.artifact.data).transposes
    if lowered.plan.target == "litert":
        from dimorder.targets.litert.file import operators

        return operators(lowered.artifact.data)["TRANSPOSE"]
    if lowered.plan.target == "xnnpack":
        from dimorder.executorch import conversions_in

        return conversions_in(lowered.artifact.data).conversion_count
    return None


def examine(case: Case, target: str) -> Outcome:
    """Lower a case for a target, and say what is wrong with what comes back."""
    start = time.perf_counter()
    outcome = _examined(case, target)
    return replace(outcome, seconds=time.perf_counter() - start)


def _examined(case: Case, target: str) -> Outcome:
    try:
        with _quiet():
            module = network(case)
            lowered = _lowered(case, module, target)
            outcome = _faults(case, module, lowered)
            is_in_cpp = target == "constants" and not outcome.is_fault
            return _faults_in_cpp(case, module, lowered) or outcome if is_in_cpp else outcome
    except (UnsupportedError, UsageError) as error:
        return _refusal(error)
    except VerificationError as error:
        # On larger inputs than the case's own; or of places whose values are nearly equal; or of a comparison
        # of equal numbers, where PyTorch's own float32 is as far from float64.
        is_chosen = case.is_half or "with other roundings" in error.found
        if is_chosen and "nothing can be shown" in error.fix:
            return _refusal(error)
        if "cross a step" in error.fix and "from float64 by" in error.found:
            return Outcome("refused", str(error))
        return Outcome(f"wrong numbers: {error.where}", str(error))
    except Exception as error:
        return _crash(error)


def _lowered(case: Case, module: nn.Module, target: str) -> Any:
    inputs, outputs = case.orders()
    return dimorder.lower(
        module,
        case.args,
        target=refusing(target, case.refused),
        input_orders=inputs,
        output_orders=outputs,
        input_types=case.types[0],
        output_types=case.types[1],
        objective=case.objective,
        dynamic_shapes=case.dynamic_shapes,
    )


def network(case: Case) -> nn.Module:
    """A case's network as it is lowered: quantised, if it is to be.

    Raises `UnsupportedError` where torch's tools do not quantise it.
    """
    module = case.module()
    if case.quantizer in ("", "by_hand"):
        return module
    from tests.targets import quantised

    try:
        made: nn.Module = getattr(quantised, case.quantizer)(module, *case.args)
        with torch.no_grad():
            made(*case.args)
    except Exception as error:
        found = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '').split(':')[0]}"
        raise UnsupportedError(f"quantising {case.quantizer}", found, "give it another network") from error
    return made


def _faults(case: Case, module: nn.Module, lowered: Any) -> Outcome:
    from tests.layout.index_checker import check

    plan = lowered.plan
    if faults := plan.check():
        return Outcome("plan fault", "\n".join(faults))
    if not plan.certificate.optimal:
        return Outcome("not optimal", str(plan))
    # The checker goes once through a program of fixed sizes, and does not know what the last call left.
    is_checked = not (case.writes or case.ranges)
    if is_checked and (faults := check(plan.extracted, plan.layout_plan, plan.contract)):
        return Outcome("index fault", "\n".join(faults))
    again = case.with_other_values(50)  # than those that `lower` compared
    outcome = (
        _integer_faults(module, lowered, again) if case.quantizer else _number_faults(module, lowered, again)
    )
    # What a branch converts is not planned.
    is_planned = all(step.operator != "cond" for step in case.steps)
    return outcome or (_conversion_faults(lowered) if is_planned else None) or Outcome("right")


def _integer_faults(module: nn.Module, lowered: Any, again: Case) -> Outcome | None:
    return next(filter(None, (integer_faults(module, call.args, lowered) for call in again.calls)), None)


def _faults_in_cpp(case: Case, module: nn.Module, lowered: Any) -> Outcome | None:
    """Run the file by dimorder-run, which poisons what ExecuTorch frees, and return the fault or None."""
    from tests.device import emulation

    if emulation.missing(emulation.HOST):
        return None
    inputs = _fresh_inputs(case)
    with torch.no_grad():
        wanted = module(*inputs)
    fed = dict(zip((spec.name for spec in lowered.contract.inputs), inputs, strict=True))
    with tempfile.TemporaryDirectory(prefix="dimorder-") as folder:
        path = lowered.save(Path(folder, "program.pte"))
        options = ("--loader", "poison")
        done = emulation.run(path, fed, lowered.contract, Path(folder), options=options)
    if done.code:
        return Outcome(f"C++ ended with {done.code}", done.error)
    for i, (g, w) in enumerate(zip(done.outputs, wanted, strict=True)):
        if not relative_error(g, w) <= TOLERANCE:
            return Outcome("wrong numbers: in C++", f"output {i} differs by {relative_error(g, w):.1e}")
    return None


def _fresh_inputs(case: Case) -> tuple[Tensor, ...]:
    """Inputs that `lower` has not compared, and for which float32 is exact enough."""
    others = (case.with_other_values(by) for by in range(50, 60))
    return next((each for each in others if is_sound(each)), case).args


def _number_faults(module: nn.Module, lowered: Any, again: Case) -> Outcome | None:
    """Compare calls in a row, in strides that the contract may not promise."""
    network = copy.deepcopy(module)
    if again.writes:
        lowered.reset()
    for number, call in enumerate(again.calls):
        with torch.no_grad():
            wanted = network(*call.args)
        got = lowered.run(*map(channels_last, call.args))
        for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
            if fault := type_fault(i, g, w.shape, w.dtype):
                return fault
            if not relative_error(g, w) <= again.tolerance and is_sound(again):
                found = f"output {i} of call {number} differs by {relative_error(g, w):.1e}"
                return Outcome("wrong numbers: unnoticed", found)
            if fault := promise_fault(i, g, lowered.contract.outputs[i]):
                return fault
    return None


def _conversion_faults(lowered: Any) -> Outcome | None:
    found, plan = conversions_in_file(lowered), lowered.plan
    if found is not None and found != len(plan.conversions):
        is_fewer = found < len(plan.conversions)
        if plan.target == "litert" and is_fewer and is_quantized(lowered.program.module):
            return None  # integers and what they stand for are one tensor of a .tflite, converted once
        more = "more" if found > len(plan.conversions) else "fewer"
        return Outcome(
            f"{more} conversions in the file", f"{found} in the file, {len(plan.conversions)} in\n{plan}"
        )
    return None


def _refusal(error: DimorderError) -> Outcome:
    """A refusal is clear if it says where, what was found, and something that the user can do."""
    unclear = not (error.where and error.found and error.fix) or "report" in error.fix
    unclear |= "because: )" in error.found
    return Outcome(f"unclear refusal: {error.where}" if unclear else "refused", str(error))


def _crash(error: Exception) -> Outcome:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dimorder/" in f.filename]
    last = frames[-1] if frames else None
    place = f"{Path(last.filename).name}:{last.name}" if last else "outside dimorder"
    said = re.sub(r"\d+", "n", str(error).splitlines()[0] if str(error) else "")[:70]
    return Outcome(f"{type(error).__name__} in {place}: {said}", "".join(traceback.format_exception(error)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
