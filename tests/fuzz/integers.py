"""Check what must hold of a program of integers on inputs that `lower` has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dimorder.errors import VerificationError
from dimorder.graph.quantized import DEQUANTIZE
from dimorder.layout.rewrite import at_boundary
from dimorder.verification.differences import Differences
from dimorder.verification.numerics import Float64Run
from dimorder.verification.quantized_values import record_quantized
from dimorder.verification.verify_integers import differing
from tests.fuzz.outcome import Outcome, channels_last, promise_fault, type_fault

NEAR = 0.15  # of an output's own spread: what roundings may make of a small network
SHAKEN = 4  # times what a half quantum at each input changes


def integer_faults(module: nn.Module, fed: Sequence[Tensor], lowered: Any) -> Outcome | None:
    """`fed` are inputs as the network takes them."""
    contract = lowered.contract
    held = [
        spec.quantized(x) if x.is_floating_point() else x
        for spec, x in zip(contract.inputs, fed, strict=True)
    ]
    taken = [
        spec.real(x) if given.is_floating_point() else x
        for spec, x, given in zip(contract.inputs, held, fed, strict=True)
    ]
    got = lowered.run(*map(channels_last, held))
    with torch.no_grad():
        wanted = module(*taken)
        shaken = module(*map(_shaken, taken, contract.inputs))
    specs, steps = contract.outputs, _steps(lowered.program.module)
    for i, (g, w, s, spec, step) in enumerate(zip(got, wanted, shaken, specs, steps, strict=True)):
        fault = type_fault(i, g, tuple(w.shape), getattr(torch, spec.dtype)) or promise_fault(i, g, spec)
        if fault:
            return fault
        if w.dtype == torch.int64:
            continue  # positions: of elements that are a quantum apart, another may be the median
        off, allowed = (
            _far(_real(g, spec), _real(w, spec), step),
            NEAR + SHAKEN * _far(_real(s, spec), _real(w, spec)),
        )
        if not off <= allowed:
            return Outcome(
                "wrong integers: unnoticed",
                f"output {i} is off by {off:.2f} of its spread, {allowed:.2f} allowed",
            )
    fault = _unlike_model(got, held, lowered)
    if contract.symbols:  # its normal form is that of one point
        return fault
    return fault or _unlike_network(taken, held, lowered)


def _unlike_model(got: Sequence[Tensor], held: Sequence[Tensor], lowered: Any) -> Outcome | None:
    """The program gives what its integer kernels are defined to give."""
    if lowered.artifact.reference_run is None:
        return None
    contract = lowered.contract
    made = lowered.artifact.reference_run(
        [at_boundary(*each) for each in zip(held, contract.inputs, strict=True)]
    )
    for i, (g, m, spec) in enumerate(zip(got, made, contract.outputs, strict=True)):
        off = differing(g, spec.from_boundary(m).reshape(g.shape))
        if off:
            return Outcome("wrong bits: unnoticed", f"{off} of {g.numel()} elements of output {i}")
    return None


def _unlike_network(taken: Sequence[Tensor], held: Sequence[Tensor], lowered: Any) -> Outcome | None:
    """The normal form has the network's integers, but for a few by a quantum."""
    program = lowered.program
    wanted = record_quantized(program.exported, taken, program.module).values
    try:
        run = Float64Run(program.module, wanted)
        run.run(*held)
        Differences.together(run.differences.values()).require_few("the normal form")
    except VerificationError as error:
        return Outcome("wrong normal form: unnoticed", str(error))
    return None


def _shaken(x: Tensor, spec: Any) -> Tensor:
    """An input of which each number is moved by half a hundredth of the largest one."""
    if not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(5)
    return x + (torch.rand(x.shape, generator=generator) - 0.5) * 0.01 * x.abs().max()


def _real(x: Tensor, spec: Any) -> Tensor:
    real: Tensor = spec.real(x) if not x.is_floating_point() else x
    return real.double()


def _steps(module: nn.Module) -> list[float]:
    """The quantum of each result; none of what is not quantised."""
    (results,) = module.graph.output_node().args
    return [float(node.args[1]) if node.target is DEQUANTIZE else 0.0 for node in results]


def _far(got: Tensor, wanted: Tensor, step: float = 0.0) -> float:
    """The root mean square of the difference beyond one step, of the spread of what is wanted."""
    spread = float(wanted.std()) if wanted.numel() > 1 else 0.0
    beyond = ((got - wanted).abs() - 1.01 * step).clamp(min=0.0)
    return float((beyond**2).mean().sqrt()) / max(spread, 0.05 * float(wanted.abs().max()), 1e-9)
