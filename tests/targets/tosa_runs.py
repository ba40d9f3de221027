"""Emit a network for TOSA, run the graph on the reference model, and compare with torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.target import TosaArtifact, emit
from tests.targets.cases import Net, contiguous_contract

TOLERANCE = 1e-5


def emitted(module: Net, inputs: tuple[Tensor, ...]) -> TosaArtifact:
    """The artifact of a physical program with a contiguous boundary."""
    contract = contiguous_contract(module, inputs)
    return emit(torch.export.export(module, inputs), contract)


def compare(module: Net, inputs: tuple[Tensor, ...]) -> TosaArtifact:
    """Emit, run, and hold every output's largest error against its largest value."""
    artifact = emitted(module, inputs)
    assert_close(artifact.run(list(inputs)), module(*inputs))
    return artifact


def compare_lowered(module: Net, inputs: tuple[Tensor, ...]) -> Lowered:
    """Lower, run, compare as above; the graph's TRANSPOSEs are the plan's conversions."""
    lowered = dimorder.lower(module, inputs, target="tosa")
    outputs = module(*inputs)
    assert_close(lowered.run(*inputs), outputs)
    planned, found = lowered.plan.conversions, inspect_tosa(lowered.artifact.data)
    assert found.transposes == len(planned)
    if all(
        x.element_size() == 4 for x in (*inputs, *pytree.tree_leaves(outputs))
    ):  # TOSA has 64-bit integers as INT32
        assert found.transpose_bytes == sum(conversion.bytes for conversion in planned)
    return lowered


def assert_close(actual: object, expected: object) -> None:
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        finite = e[e.isfinite()].abs().max() if e.is_floating_point() and e.isfinite().any() else 1.0
        torch.testing.assert_close(a, e, rtol=0, atol=TOLERANCE * max(1.0, float(finite)))
