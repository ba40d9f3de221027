"""Decides whether a physical program is the network it was made from: same numbers on random inputs.

Nothing is trusted that was not run; the error is relative to the largest value of each output. One trial is
on numbers of one magnitude, one on numbers of many, with zeros among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.contract import Contract
from dimorder.errors import VerificationError
from dimorder.lowering.capture.captured import Captured, eval_mode
from dimorder.lowering.rewrite import at_boundary, from_boundary

TOLERANCE = 1e-4

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class Verified:
    """What runs on random inputs have shown.

    `max_rel_error` is the largest of any output, of the physical program and, where `artifact_ran`, of what
    was emitted. Where other inputs give the same outputs, so that `input_matters` is false, it shows little.
    """

    max_rel_error: float
    artifact_ran: bool
    input_matters: bool


class Trial:
    """A network's own outputs on random inputs: each stage of its lowering is compared with them.

    On steep inputs, in which neighbours differ by up to six orders of magnitude, a network may amplify what a
    rounding changes. So what counts there is how far it is from itself when its inputs change by a millionth.

    `model` is the network as it was given to `capture`, `program` what that made of it. `input_matters` says
    whether other inputs give other outputs; integers are not to be made up, for they may be ids or masks.
    """

    def __init__(self, model: Any, program: Captured, contract: Contract) -> None:
        self.contract = contract
        self.network, self.examples = _flat(model, program), program.example_inputs
        self.inputs, self.taken = self._drawn(program)
        with torch.no_grad():
            self.wanted = self.network(*self.taken)
            self.input_matters = True
            if any(
                spec.scale or x.is_floating_point()
                for spec, x in zip(contract.inputs, self.inputs, strict=True)
            ):
                self.input_matters = differ(self.network(*self._drawn(program, seed=1)[1]), self.wanted)
        self.steep: dict[int, tuple[Sequence[torch.Tensor], ...]] = {}

    def _drawn(self, program: Captured, seed: int = 0) -> tuple[tuple[torch.Tensor, ...], ...]:
        """Random inputs as the program takes them, and as the network does: integers may stand for floats."""
        specs = self.contract.inputs
        reals = [spec.real(x) for spec, x in zip(specs, self.examples, strict=True)]
        held = [spec.quantised(x) for spec, x in zip(specs, random_like(reals, seed), strict=True)]
        return tuple(held), tuple(
            spec.real(x) if takes_float else x
            for spec, x, takes_float in zip(specs, held, _takes_floats(program.exported), strict=True)
        )

    def compare(self, run: Run, what: str, model: Run | None = None) -> float:
        """The relative error of `run`, which takes and gives tensors as the program's signature holds them.

        `model` is for numbers that are no floats. Raises as `verify` does.
        """
        error = verify(self._logical(run, self.inputs), self.wanted, what=what)
        if any(map(torch.is_floating_point, self.inputs)):
            # A number that is rounded to either side of a step differs once.
            first = self._steep_faults(run, 2)
            if first and self._steep_faults(run, 3):
                found = f"{first[0]} on inputs of many magnitudes"
                raise VerificationError(what, found, "report this network: a rule, or the target, is wrong")
        return error

    def _logical(self, run: Run, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        held = [at_boundary(*pair) for pair in zip(inputs, self.contract.inputs, strict=True)]
        with torch.no_grad():
            got = run(held)
        return [from_boundary(*pair) for pair in zip(got, self.contract.outputs, strict=True)]

    def _steep_faults(self, run: Run, seed: int) -> list[str]:
        """The outputs that differ by more than a small change of the inputs explains; whole numbers may."""
        if seed not in self.steep:
            inputs = steep_like(self.examples, seed)
            with torch.no_grad():
                self.steep[seed] = (
                    inputs,
                    self.network(*inputs),
                    self.network(*slightly_changed(inputs, seed)),
                )
        fed, wanted, changed = self.steep[seed]
        faults = []
        for i, (g, w, c) in enumerate(zip(self._logical(run, fed), wanted, changed, strict=True)):
            if w.is_floating_point():
                rounding, error = 4 * torch.finfo(w.dtype).eps, _finite_error(g, w)
                if not error <= max(TOLERANCE, rounding, 100 * _finite_error(c, w)):
                    faults.append(f"output {i} differs from PyTorch's by {error:.2e} of its largest value")
        return faults

    def compare_program(self, physical: ExportedProgram, what: str) -> float:
        """The relative error of a physical program, run in torch; see `compare`."""
        module = physical.module(check_guards=False)
        return self.compare(lambda held: module(*held), what)


def random_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Inputs of the examples' shapes: standard normal where floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


def steep_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Inputs of the examples' shapes: of either sign, from 1e-3 to 1e3, every eighth of them zero."""
    generator = torch.Generator().manual_seed(seed)

    def steep(x: torch.Tensor) -> torch.Tensor:
        magnitude = 10 ** (6 * torch.rand(x.shape, generator=generator) - 3)
        value = torch.randn(x.shape, generator=generator).sign() * magnitude
        return (value * (torch.rand(x.shape, generator=generator) > 1 / 8)).to(x.dtype)

    return tuple(steep(x) if x.is_floating_point() else x.clone() for x in examples)


def slightly_changed(inputs: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Each number by about a millionth of itself."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        (x * (1 + 1e-6 * torch.randn(x.shape, generator=generator))).to(x.dtype)
        if x.is_floating_point()
        else x
        for x in inputs
    )


def _finite_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """`relative_error` over what the network makes finite numbers of; where it makes none, 0."""
    finite = torch.isfinite(wanted)
    return relative_error(got[finite], wanted[finite]) if finite.any() else 0.0


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """max |got − wanted| / max |wanted| over what is finite; infinite where shapes, types or the rest differ.

    >>> relative_error(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return float("inf")
    if wanted.numel() == 0:
        return 0.0
    exact = torch.complex128 if wanted.is_complex() or got.is_complex() else torch.float64
    got, wanted = got.detach().to(exact), wanted.detach().to(exact)
    finite = torch.isfinite(wanted)
    if not finite.all() or not torch.isfinite(got).all():
        if not finite.any():
            return 0.0 if torch.equal(got, wanted) else float("inf")  # all NaN shows nothing
        alike = torch.equal(finite, torch.isfinite(got))
        if not (alike and torch.allclose(got[~finite], wanted[~finite], equal_nan=True)):
            return float("inf")
        got, wanted = got[finite], wanted[finite]
    difference = (got - wanted).abs().max().item()
    scale = wanted.abs().max().item()
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def verify(
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    *,
    what: str,
    tolerance: float = TOLERANCE,
) -> float:
    """The largest relative error of a program's outputs `got` against the network's, `wanted`; both logical.

    Raises `VerificationError` above the tolerance: a wrong program is never handed out.
    """
    errors = [relative_error(g, w) for g, w in zip(got, wanted, strict=True)]
    for i, (error, output) in enumerate(zip(errors, wanted, strict=True)):
        # Half precision rounds by more than the tolerance: another sequence of sums differs by some of that.
        rounding = 4 * torch.finfo(output.dtype).eps if output.is_floating_point() else 0.0
        if not error <= max(tolerance, rounding):
            raise VerificationError(
                what,
                f"output {i} differs from PyTorch's by {error:.2e} of its largest value",
                "report this network: a rule, or the target, is wrong",
            )
    return max(errors, default=0.0)


def differ(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether any output is another one by more than the tolerance: a wrong order would show.

    >>> differ([torch.ones(3)], [torch.ones(3) + 1e-6])
    False
    """
    return any(not relative_error(a, b) <= TOLERANCE for a, b in zip(outputs, others, strict=True))


def _takes_floats(exported: ExportedProgram) -> list[bool]:
    """Which of a program's tensors are floats."""
    nodes = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    values = [nodes.get(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)]
    return [value.is_floating_point() for value in values if isinstance(value, torch.Tensor)]


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
