"""Decides whether a physical program is the network it was made from: same numbers on random inputs.

Nothing is trusted that was not run; the error is relative to the largest value of each output.
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
from dimorder.lowering import exactly
from dimorder.lowering.capture.captured import Captured, eval_mode
from dimorder.lowering.exactly import Differences
from dimorder.lowering.rewrite import at_boundary, from_boundary

TOLERANCE = 1e-4
QUANTA = 1  # by which an integer may differ from the one that the network has, computed from the same values
OFF = 1e-3  # the share of them that may

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Verified:
    """What runs on random inputs have shown.

    `max_rel_error` is the largest of any output, of the physical program and, where `artifact_ran`, of what
    was emitted. `quanta` are what the integers of a quantised network differ by, each computed from the
    network's own. Where other inputs give the same outputs, so that `input_matters` is false, they show
    little.
    """

    max_rel_error: float
    artifact_ran: bool
    input_matters: bool
    quanta: Differences | None = None


class Trial:
    """A network's own outputs on random inputs: each stage of its lowering is compared with them.

    `model` is the network as it was given to `capture`, `program` what that made of it. `input_matters` says
    whether other inputs give other outputs; integers are not to be made up, for they may be ids or masks.
    """

    def __init__(self, model: Any, program: Captured, contract: Contract) -> None:
        self.program, self.contract = program, contract
        self.inputs = random_like(program.example_inputs)
        network, others = _flat(model, program), random_like(program.example_inputs, seed=1)
        with torch.no_grad():
            self.wanted = network(*self.inputs)
            self.input_matters = True
            if any(map(torch.is_floating_point, self.inputs)):
                self.input_matters = differ(network(*others), self.wanted)
        self.quanta = self._quanta() if exactly.is_quantised(program.module) else None

    def compare(self, run: Run, what: str, exact: Run | None = None) -> float:
        """The relative error of `run`, which takes and gives tensors as the program's signature holds them.

        With `exact`, which takes and gives the same, both must give the same bits. Raises as `verify` does.
        """
        specs = self.contract.inputs
        held = [at_boundary(tensor, spec) for tensor, spec in zip(self.inputs, specs, strict=True)]
        with torch.no_grad():
            got = run(held)
            if exact is not None:
                _require_equal(got, exact(held), what)
        logical = [from_boundary(*pair) for pair in zip(got, self.contract.outputs, strict=True)]
        tolerance = float("inf") if self.quanta else TOLERANCE
        return verify(logical, self.wanted, what=what, tolerance=tolerance)

    def compare_program(self, physical: ExportedProgram, what: str) -> float:
        """The relative error of a physical program, run in torch; see `compare`.

        A quantised one is compared in float64 with the captured network, whose integers it must have.
        """
        module = physical.module(check_guards=False)
        if self.quanta:
            specs = self.contract.inputs
            held = [at_boundary(tensor, spec) for tensor, spec in zip(self.inputs, specs, strict=True)]
            got, _ = exactly.run(module, held)
            wanted, _ = exactly.run(self.program.module, self.inputs)
            logical = [from_boundary(*pair) for pair in zip(got, self.contract.outputs, strict=True)]
            verify(logical, wanted, what=what, tolerance=_SAME)
        return self.compare(lambda held: module(*held), what)

    def _quanta(self) -> Differences:
        """By what the captured form's integers differ from the network's, each computed from these."""
        _, found = exactly.run(
            self.program.module, self.inputs, exactly.recorded(self.program.exported, self.inputs)
        )
        if found.most > QUANTA or found.share > OFF:
            raise VerificationError(
                "the normal form of a quantised network",
                f"integers differ from the network's by up to {found.most}, {found.share:.1e} of them at all",
                "report this network: a rule is wrong",
            )
        return found


_SAME = 1e-9  # of two sums in float64 of the same terms


def _require_equal(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], what: str) -> None:
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if not torch.equal(g, w.reshape(g.shape)):
            off = int((g != w.reshape(g.shape)).sum())
            raise VerificationError(
                what,
                f"{off} of {g.numel()} elements of output {i} are not what its integer kernels should give",
                "report this network, and on which processor",
            )


def random_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Inputs of the examples' shapes: standard normal where floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


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
