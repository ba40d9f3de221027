"""Test that numbers that lie on a step decide alike in the network and in the integers of a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")

import dimorder
from tests.targets.quantised import Between

# Each has a step at a number that integers of a scale of 0.05, 0.1 or 0.2 stand for.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "greater": lambda x: (x > 0.2) * x,
    "sum greater": lambda x: (x + x.flip(1) > 0.2) * 1.0,
    "product greater": lambda x: (x * 3 - 1 > 0.8) * 1.0,
    "hardshrink": lambda x: F.hardshrink(x, 0.2),
    "threshold": lambda x: F.threshold(x, 0.2, -1.0),
    "floor": lambda x: (x / 0.2).floor() * 0.3,
    "round": lambda x: (x * 10).round() / 10,
    "fraction": lambda x: (x / 0.2).frac(),
    "remainder": lambda x: torch.fmod(x, 0.4),
}


@pytest.mark.parametrize("type_of_input", [(0.1, 0), (0.05, 3), (0.2, -5)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_on_a_step_is_no_fault(name: str, type_of_input: tuple[float, int]) -> None:
    class OnSteps(Between):
        SCALES = (type_of_input,)

    torch.manual_seed(0)
    network, x = OnSteps(FUNCTIONS[name], (0.0311, -7)), 2 * torch.randn(2, 6, 5, 7)
    lowered = dimorder.lower(network, (x,), target="xnnpack")
    off = (lowered(x)[0] - network(x)[0]).abs() > 0.032
    assert int(off.sum()) <= 4, "more than the numbers on a step"
