"""Emit a network for LiteRT, run the file by each of its kernels, and compare with torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.ops import OPERATORS
from dimorder.targets.litert.runtime import KERNELS, NO_REFERENCE, LiteRtProgram
from dimorder.targets.litert.target import TfLite, emit
from tests.targets.cases import Net, contiguous_contract
from tests.targets.tosa_runs import assert_close


def emitted(module: Net, inputs: tuple[Tensor, ...]) -> TfLite:
    """The artifact of a physical program with a contiguous boundary."""
    contract = contiguous_contract(module, inputs)
    return emit(torch.export.export(module, inputs), contract, OPERATORS, "xnnpack")


def compare(module: Net, inputs: tuple[Tensor, ...]) -> TfLite:
    """Emit, run by each of LiteRT's kernels, and hold outputs' errors against their largest values."""
    artifact = emitted(module, inputs)
    _assert_right(artifact, inputs, module(*inputs))
    return artifact


def compare_lowered(module: Net, inputs: tuple[Tensor, ...]) -> Lowered:
    """Lower, run, compare as above; the file's TRANSPOSEs are the plan's conversions."""
    lowered = dimorder.lower(module, inputs, target="litert")
    expected = module(*inputs)
    assert_close(lowered.run(*inputs), expected)
    assert operators(lowered.artifact.data)["TRANSPOSE"] == len(lowered.plan.conversions)
    assert isinstance(lowered.artifact, TfLite)
    _assert_right(lowered.artifact, inputs, expected)
    return lowered


def _assert_right(artifact: TfLite, inputs: tuple[Tensor, ...], expected: object) -> None:
    for kernels in KERNELS:
        if kernels != "reference" or not NO_REFERENCE & set(operators(artifact.data)):
            program = LiteRtProgram(artifact.data, artifact.contract, kernels)
            got, wanted = program(list(inputs)), pytree.tree_leaves(expected)
            if kernels != "xnnpack":  # arithmetic of LiteRT's own kernels has no infinities
                got, wanted = [*map(_finite, got)], [*map(_finite, wanted)]
            assert_close(got, wanted)


def _finite(x: Tensor) -> Tensor:
    most = torch.finfo(torch.float32).max
    return x.clamp(-most, most) if x.is_floating_point() else x
