"""Emit a network for XNNPACK, run the file, and compare with torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

pytest.importorskip("executorch")

import dimorder
from dimorder.executorch import conversions_in
from dimorder.lowered import Lowered
from dimorder.targets.xnnpack import run
from dimorder.targets.xnnpack.artifact import Pte
from dimorder.targets.xnnpack.emit import emit
from tests.targets.cases import Net, r

TOLERANCE = 2e-6


def emitted(module: Net, inputs: tuple[Tensor, ...]) -> Pte:
    return emit(torch.export.export(module, inputs))


def compare(module: Net, inputs: tuple[Tensor, ...]) -> Pte:
    """Emit, run, and hold every output's largest error against its largest value."""
    result = emitted(module, inputs)
    assert_close(run(result.data, list(inputs)), module(*inputs))
    return result


def compare_lowered(module: Net, inputs: tuple[Tensor, ...], **promised: object) -> Lowered:
    """Lower, run, compare as above; the file's conversions are the plan's."""
    lowered = dimorder.lower(module, inputs, target="xnnpack", **promised)
    assert_close(lowered.run(*inputs), module(*inputs))
    planned, found = lowered.plan.conversions, conversions_in(lowered.artifact.data)
    assert (found.conversion_count, found.bytes) == (len(planned), sum(c.bytes for c in planned))
    return lowered


def assert_close(actual: object, expected: object) -> None:
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        torch.testing.assert_close(a, e, rtol=0, atol=TOLERANCE * max(1.0, float(e.double().abs().max())))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def to_nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def to_nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


PICTURE = r(3, 2, 7, 9)
