"""What is left of a delegate once it is written."""

from __future__ import annotations

import gc

import pytest
import torch

pytest.importorskip("executorch")

from executorch.exir.lowered_backend_module import LoweredBackendModule

import dimorder


def test_delegates_and_their_weights_are_freed_with_the_lowered_network() -> None:
    before = _delegates()
    for _ in range(3):
        lowered = dimorder.lower(torch.nn.Linear(5, 7).eval(), (torch.randn(3, 5),), target="xnnpack")
        assert lowered.artifact.delegates == 1
    del lowered
    assert _delegates() <= before + 1  # PyTorch itself keeps the graph that was traced last


def _delegates() -> int:
    gc.collect()
    return sum(type(thing) is LoweredBackendModule for thing in gc.get_objects())
