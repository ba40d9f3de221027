"""Lower cases as one program, run it, and compare its results with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dimorder.executorch.cases import Case, Together
from dimorder.executorch.lowering_paths import (
    Lower,
    PteRun,
    read_calls,
)
from dimorder.graph.nodes import tensors_in
from dimorder.runtime.kernels import (
    KernelCall,
    KernelVerdict,
)

TOLERANCE = 1e-4  # of the largest value


@dataclass(frozen=True)
class Outcome:
    """The result of one case: the verdict, why, and the calls that the lowered program makes.

    `verdict` is None if eager itself refuses the case, or if the lowered program calls nothing.
    """

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
        if not torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-6), equal_nan=True):
            return f"result {index}: {(a - b)[finite].abs().max():.2g} off, on values up to {scale:.2g}"
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
