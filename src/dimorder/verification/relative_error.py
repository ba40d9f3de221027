"""Measure how far outputs are from the network's, relative to the largest value of each output."""

from __future__ import annotations

from collections.abc import Sequence

import torch

TOLERANCE = 1e-4


def finite_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
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


def differ(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Return whether any output differs by more than the tolerance: a wrong order would show.

    >>> differ([torch.ones(3)], [torch.ones(3) + 1e-6])
    False
    """
    return any(not relative_error(a, b) <= TOLERANCE for a, b in zip(outputs, others, strict=True))


def relative_errors(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[float]:
    """Return the `relative_error` of each output."""
    return [relative_error(*pair) for pair in zip(got, wanted, strict=True)]


def outputs_above(
    tolerance: float | Sequence[float], errors: Sequence[float], wanted: Sequence[torch.Tensor]
) -> list[int]:
    """Return the outputs with an error above the tolerance, and above the rounding to their type."""
    each = [tolerance] * len(wanted) if isinstance(tolerance, float) else tolerance
    allowed = [max(asked, rounding_error(w)) for asked, w in zip(each, wanted, strict=True)]
    return [i for i, error in enumerate(errors) if not error <= allowed[i]]


def rounding_error(output: torch.Tensor) -> float:
    """Return the relative error of an output that is exact except for the rounding to its type."""
    return torch.finfo(output.dtype).eps / 2 if output.is_floating_point() else 0.0


def error_in_float64(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the `relative_error` against floats in float64; other types are compared as they are."""
    return relative_error(got.to(exact.dtype) if got.is_floating_point() else got, exact)


def all_nan(outputs: Sequence[torch.Tensor]) -> str:
    """Return which output shows nothing because it is NaN throughout."""
    void = (i for i, output in enumerate(outputs) if output.numel() and output.isnan().all())
    return next((f"every element of output {i} is NaN" for i in void), "")
