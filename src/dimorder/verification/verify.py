"""Check that a physical program is the network it was made from: the same numbers on random inputs.

Nothing is trusted that was not run. The error is relative to the largest value of each output. One trial is
on numbers of one magnitude, one on numbers of many magnitudes, with zeros among them.

Some networks cannot compute with normal numbers: the logarithm of a negative one, or the factor of a matrix
that has none. The first trial is then on numbers between 0 and 1, else near the examples.

If float32 itself is farther from float64 than the tolerance, the program may be as far from it as PyTorch is.
Half precision always is. A program in half precision is compared with the float64 of its network. It may be
twice as far from float64 as PyTorch's own half precision. The artifact may be as far as that network with
sums in float16 (`fp16_accumulation.py`).

A network that writes buffers is called several times in a row, and so is the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.capture.captured import Captured, eval_mode
from dimorder.capture.state import restart, restored
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph.exported import ProgramRun
from dimorder.layout.rewrite import at_boundary, from_boundary
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import Float64Run, FunctionalProgram, NoisyRun

TOLERANCE = 1e-4
FACTOR = 4  # times the network's own distance from float64: sums have other orders
MOST = 1e-2  # the largest error that rounding excuses
CALLS = 10  # in a row, for a network that writes buffers
# The same if half precision rounds each result.
HALF_FACTOR = 2
HALF_MOST = 0.25

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Inputs = tuple[torch.Tensor, ...]
Outputs = list[torch.Tensor]


@dataclass(frozen=True)
class Verified:
    """What runs on random inputs have shown.

    Attributes:
        max_rel_error: the largest relative error of any output, of the physical program and, if
            `artifact_ran`, of the artifact.
        eager_error: how far the network's own float32 is from float64, or its own half precision. It is
            measured only if an error is above the tolerance, else None.
        artifact_ran: whether the artifact was run.
        input_matters: whether other inputs give other outputs. If not, the other figures show little.
    """

    max_rel_error: float
    eager_error: float | None
    artifact_ran: bool
    input_matters: bool


class Trial:
    """A network's own outputs on random inputs; each stage of its lowering is compared with them.

    On steep inputs neighbours differ by up to six orders of magnitude, and a network may amplify a rounding.
    So the bound there is how far the network's outputs move when its inputs change by a millionth.

    If the network writes buffers, inputs and outputs are those of several calls in a row, one after another.

    Args:
        model: the network as it was passed to `capture`.
        program: the captured program.
        contract: what the program promises.

    Attributes:
        input_matters: whether other inputs give other outputs. Integers are not made up, for they may be ids
            or masks.
    """

    def __init__(self, model: Any, program: Captured, contract: Contract) -> None:
        self.contract, self.program = contract, program
        self.calls = CALLS if program.state else 1
        self.eager_error: float | None = None
        self.network = _flat(model, program, self.calls)
        self.examples = program.example_inputs * self.calls
        self.inputs, self.taken, self.wanted, others = self._computed()
        if isinstance(model, torch.nn.Module):
            self._require_all_told()
        self.input_matters = True
        if any(
            spec.scale or x.is_floating_point()
            for spec, x in zip(contract.inputs * self.calls, self.inputs, strict=True)
        ):
            told = self._outputs(others)
            self.input_matters = not isinstance(told, str) and differ(told, self.wanted)
        self.steep: dict[int, tuple[Inputs, Outputs, Outputs] | None] = {}

    def _computed(self) -> tuple[Inputs, Inputs, Outputs, Inputs]:
        """Return the first inputs for which the network computes numbers.

        Returns the inputs as the program takes them, the inputs as the network takes them, and the network's
        outputs. Last come other inputs of the same kind, as the network takes them.
        """
        why = ""
        for like in (random_like, uniform_like, near, copied):
            inputs, taken = self._drawn(like, seed=0)
            wanted = self._outputs(taken)
            why = wanted if isinstance(wanted, str) else _void(wanted)
            if not isinstance(wanted, str) and not why:
                return inputs, taken, wanted, self._drawn(like, seed=1)[1]
        fix = "give example inputs of which it makes numbers"
        raise UnsupportedError("the network on its example inputs", why, fix)

    def _require_all_told(self) -> None:
        """Check that the network keeps nothing between calls that the program cannot know.

        A second call on the same inputs would show it.
        """
        again = self._outputs(self.taken)
        if isinstance(again, str) or differ(again, self.wanted):
            raise UnsupportedError(
                "the network, called again on the same inputs",
                "other results than before: it keeps something that is no buffer",
                "register what it keeps: self.register_buffer(name, tensor)",
            )

    def _outputs(self, inputs: Sequence[torch.Tensor]) -> Outputs | str:
        """Return the network's outputs, or the error that it raises."""
        try:
            with torch.no_grad():
                return self.network(*inputs)
        except Exception as error:  # whatever a network says about inputs that it does not accept
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"

    def _drawn(self, like: Callable[..., Inputs], seed: int) -> tuple[Inputs, Inputs]:
        """Return inputs as the program takes them, and as the network does: integers may stand for floats."""
        specs = self.contract.inputs * self.calls
        takes_floats = _takes_floats(self.program.exported) * self.calls
        reals = [spec.real(x) for spec, x in zip(specs, self.examples, strict=True)]
        held = [spec.quantized(x) for spec, x in zip(specs, like(reals, seed), strict=True)]
        return tuple(held), tuple(
            spec.real(x) if takes_float else x
            for spec, x, takes_float in zip(specs, held, takes_floats, strict=True)
        )

    def compare(self, run: Run, what: str, model: Run | None = None, half_sums: bool = True) -> float:
        """Run a program on the trial's inputs, and return its relative error.

        Args:
            run: takes and returns tensors as the program's signature has them.
            what: the name of the program in errors.
            model: for numbers that are not floats; unused here.
            half_sums: whether the program may keep sums in float16.

        Raises:
            VerificationError: if an output is farther off than rounding explains.
        """
        got = self._logical(run, self.inputs)
        errors = relative_errors(got, self.wanted)
        for i in outputs_above(TOLERANCE, errors, self.wanted):
            self._require_as_exact(i, got[i], errors[i], what, half_sums)
        if any(map(torch.is_floating_point, self.inputs)):
            # A number that is rounded to either side of a step differs once.
            first = self._steep_faults(run, 2)
            if first and self._steep_faults(run, 3):
                found = f"{first[0]} on inputs of many magnitudes"
                raise VerificationError(what, found, "report this network: a rule, or the target, is wrong")
        return max(errors, default=0.0)

    def _require_as_exact(self, i: int, got: torch.Tensor, error: float, what: str, half_sums: bool) -> None:
        """Check that an output is no farther from float64 than the network's, within what rounding explains.

        Rounding is measured on the exported program, in float32 and float64. A network that is not the
        program exported from it is refused as well.
        """
        try:
            narrow, wide = self._twice
        except RuntimeError as reason:  # an operator that torch does not have in float64
            raise _wrong(what, self._named(i), error) from reason
        inexact = _error_in_float64(narrow[i], wide[i])
        factor, most = (HALF_FACTOR, HALF_MOST) if self._is_half else (FACTOR, MOST)
        floating = self.wanted[i].is_floating_point()
        allowed = factor * max(inexact, _rounding(self.wanted[i])) if floating else 0.0
        if allowed > most:
            whose = f"PyTorch's own {self.wanted[i].dtype}"
            raise self._nothing_shown(i, error, what, whose, inexact)
        if got.dtype != narrow[i].dtype:
            raise _wrong(what, self._named(i), error)
        eager = _error_in_float64(self.wanted[i], wide[i])
        found = max(eager, _error_in_float64(got, wide[i]))
        is_float16 = self._eps == torch.finfo(torch.float16).eps
        if half_sums and is_float16 and floating and eager <= allowed < found:
            inexact = _error_in_float64(self._summed_in_half[i], wide[i])
            allowed = factor * inexact
            if allowed > most:
                raise self._nothing_shown(i, error, what, "what keeps its sums in float16", inexact)
        if not found <= allowed:
            raise _wrong(what, self._named(i), error)
        self.eager_error = max(eager, self.eager_error or 0.0)

    def _nothing_shown(
        self, i: int, error: float, what: str, whose: str, inexact: float
    ) -> VerificationError:
        return VerificationError(
            what,
            f"{self._named(i)} differs from PyTorch's by {error:.2e} of its largest value, and "
            f"{whose} from float64 by {inexact:.2e}",
            "this network makes so much of a rounding that nothing can be shown: give it trained weights",
        )

    @cached_property
    def _eps(self) -> float:
        """Return the coarsest spacing of the floats about 1 that the network computes with."""
        values = (node.meta.get("val") for node in self.program.exported.graph.nodes)
        floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
        return max((torch.finfo(dtype).eps for dtype in floats), default=0.0)

    @property
    def _is_half(self) -> bool:
        return self._eps > torch.finfo(torch.float32).eps

    @cached_property
    def _twice(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        leaves = self._leaves(self.taken)
        return self._functional.run(leaves), self._functional.run(leaves, Float64Run)

    @cached_property
    def _summed_in_half(self) -> list[torch.Tensor]:
        program = self._functional
        with HalfSums():
            return program.run(self._leaves(self.taken))

    @cached_property
    def _functional(self) -> FunctionalProgram:
        return FunctionalProgram(self.program.exported)

    def _logical(self, run: Run, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        specs, got = self.contract.inputs, list[torch.Tensor]()
        if self.program.state:
            restart(run)
        for first in range(0, len(inputs), len(specs)):
            held = [
                at_boundary(*pair) for pair in zip(inputs[first : first + len(specs)], specs, strict=True)
            ]
            try:
                with torch.no_grad():
                    given = run(held)
            except RuntimeError as error:
                found = f"it does not run: {next(iter(str(error).splitlines()), '')}"
                raise VerificationError(
                    "what was made of the network", found, "report this network, or lower it for target torch"
                ) from error
            got += [from_boundary(*pair) for pair in zip(given, self.contract.outputs, strict=True)]
        return got

    def _steep_faults(self, run: Run, seed: int) -> list[str]:
        """Return the outputs that differ by more than a small change of the inputs explains.

        Outputs of integers are not compared.
        """
        if seed not in self.steep:
            inputs, taken = self._drawn(steep_like, seed)
            share = self._eps if self._is_half else 1e-6
            wanted, beside = map(self._outputs, (taken, changed(taken, share, seed)))
            self.steep[seed] = None
            if not isinstance(wanted, str) and not isinstance(beside, str):
                self.steep[seed] = (inputs, wanted, beside)
        steep = self.steep[seed]
        if steep is None:  # the network does not accept such inputs
            return []
        found = {}  # by output
        factor = 4 if self._is_half else 100
        for i, (g, w, c) in enumerate(zip(self._logical(run, steep[0]), *steep[1:], strict=True)):
            if w.is_floating_point():
                rounding, error = 4 * self._eps, _finite_error(g, w)
                if not error <= max(TOLERANCE, rounding, factor * _finite_error(c, w)):
                    found[i] = error
        noisy = self._noisy(seed) if found else []
        return [
            f"{self._named(i)} differs from PyTorch's by {error:.2e} of its largest value"
            for i, error in found.items()
            if not error <= factor * _finite_error(noisy[i], steep[1][i])
        ]

    def _named(self, i: int) -> str:
        call, output = divmod(i, len(self.contract.outputs))
        return f"output {output}" + (f" of call {call}" if self.calls > 1 else "")

    def _noisy(self, seed: int) -> list[torch.Tensor]:
        """Return the network's outputs on steep inputs if its operators rounded otherwise.

        Two values that tie may then differ.
        """
        return self._functional.run(self._leaves(self._drawn(steep_like, seed)[1]), NoisyRun)

    def _leaves(self, taken: Sequence[torch.Tensor]) -> list[Any]:
        """Return the exported program's arguments, call by call, with these tensors in place of its own."""
        feed = iter(taken)
        return [next(feed) if isinstance(x, torch.Tensor) else x for x in self.program.examples * self.calls]

    def compare_program(self, physical: ExportedProgram, what: str) -> float:
        """Run a physical program in torch, and return its relative error; see `compare`."""
        return self.compare(ProgramRun(physical), what, half_sums=False)


def random_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: standard normal if floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


def uniform_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: between 0 and 1 if floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.rand(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


def copied(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples themselves, whatever the seed."""
    return tuple(x.clone() for x in examples)


def near(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples, with each number changed by about a hundredth of itself."""
    return changed(examples, 1e-2, seed)


def steep_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: of either sign, from 1e-3 to 1e3, every eighth of them zero."""
    generator = torch.Generator().manual_seed(seed)

    def steep(x: torch.Tensor) -> torch.Tensor:
        magnitude = 10 ** (6 * torch.rand(x.shape, generator=generator) - 3)
        value = torch.randn(x.shape, generator=generator).sign() * magnitude
        return (value * (torch.rand(x.shape, generator=generator) > 1 / 8)).to(x.dtype)

    return tuple(steep(x) if x.is_floating_point() else x.clone() for x in examples)


def changed(inputs: Sequence[torch.Tensor], share: float, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs with each number changed by about this share of itself."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        (x * (1 + share * torch.randn(x.shape, generator=generator))).to(x.dtype)
        if x.is_floating_point()
        else x
        for x in inputs
    )


def _void(outputs: Outputs) -> str:
    """Return which output shows nothing because it is NaN throughout."""
    void = (i for i, output in enumerate(outputs) if output.numel() and output.isnan().all())
    return next((f"every element of output {i} is NaN" for i in void), "")


def _finite_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return `relative_error` over the elements that are finite in the network; 0 if there are none."""
    finite = torch.isfinite(wanted)
    return relative_error(got[finite], wanted[finite]) if finite.any() else 0.0


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return max |got − wanted| / max |wanted| over what is finite.

    It is infinite if shapes or types differ, or the elements that are not finite.

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
    tolerance: float | Sequence[float] = TOLERANCE,
) -> float:
    """Return the largest relative error of a program's outputs.

    Args:
        got: the program's outputs, as logical tensors.
        wanted: the network's outputs, as logical tensors.
        what: the name of the program in errors.
        tolerance: the tolerance of all outputs, or of each.

    Raises:
        VerificationError: if an error is above the tolerance. A wrong program is never returned.
    """
    errors = relative_errors(got, wanted)
    for i in outputs_above(tolerance, errors, wanted):
        raise _wrong(what, f"output {i}", errors[i])
    return max(errors, default=0.0)


def relative_errors(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[float]:
    """Return the `relative_error` of each output."""
    return [relative_error(*pair) for pair in zip(got, wanted, strict=True)]


def outputs_above(
    tolerance: float | Sequence[float], errors: Sequence[float], wanted: Sequence[torch.Tensor]
) -> list[int]:
    """Return the outputs with an error above the tolerance, and above the rounding to their type."""
    each = [tolerance] * len(wanted) if isinstance(tolerance, float) else tolerance
    allowed = [max(asked, _rounding(w)) for asked, w in zip(each, wanted, strict=True)]
    return [i for i, error in enumerate(errors) if not error <= allowed[i]]


def _rounding(output: torch.Tensor) -> float:
    """Return the relative error of an output that is exact except for the rounding to its type."""
    return torch.finfo(output.dtype).eps / 2 if output.is_floating_point() else 0.0


def _error_in_float64(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the `relative_error` against floats in float64; other types are compared as they are."""
    return relative_error(got.to(exact.dtype) if got.is_floating_point() else got, exact)


def _wrong(what: str, output: str, error: float) -> VerificationError:
    found = f"{output} differs from PyTorch's by {error:.2e} of its largest value"
    return VerificationError(what, found, "report this network: a rule, or the target, is wrong")


def differ(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return whether any output differs by more than the tolerance: a wrong order would show.

    >>> differ([torch.ones(3)], [torch.ones(3) + 1e-6])
    False
    """
    return any(not relative_error(a, b) <= TOLERANCE for a, b in zip(outputs, others, strict=True))


def _takes_floats(exported: ExportedProgram) -> list[bool]:
    """Return which of a program's tensors are floats."""
    nodes = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    values = [nodes.get(name) for name in exported.graph_signature.user_inputs if isinstance(name, str)]
    return [value.is_floating_point() for value in values if isinstance(value, torch.Tensor)]


def _flat(model: Any, program: Captured, calls: int) -> Callable[..., list[torch.Tensor]]:
    """Return the network as a function of its flattened tensors.

    The physical program is verified against it. A network that writes buffers is called several times in a
    row, and its buffers are restored afterwards.
    """
    reference = model if isinstance(model, torch.nn.Module) else program.exported.module()

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed, results = iter(inputs), list[torch.Tensor]()
        with eval_mode(model), restored(reference, program.state):
            for _ in range(calls):
                leaves = [next(feed) if isinstance(x, torch.Tensor) else x for x in program.examples]
                args, kwargs = pytree.tree_unflatten(leaves, program.exported.call_spec.in_spec)
                result = pytree.tree_leaves(reference(*args, **kwargs))
                tensors = [leaf for leaf in result if isinstance(leaf, torch.Tensor)]
                results += [tensor.clone() for tensor in tensors] if program.state else tensors
        return results

    return run
