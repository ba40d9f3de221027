"""Test that a target whose rule for a step is wrong is refused, also where PyTorch's side is not clear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("ai_edge_litert")

import dimorder
from dimorder.errors import VerificationError
from dimorder.targets.litert.ops import OPERATORS
from dimorder.targets.litert.target import target
from dimorder.targets.table import Row
from tests.small_networks import Net

aten = torch.ops.aten


WRONG: dict[str, tuple[Callable[..., Tensor], Any, Row]] = {
    "above, as at least": (
        lambda m, x: (x.relu() > 0).float() * 7,
        aten.gt.Scalar,
        OPERATORS.rows[aten.ge.Scalar],
    ),
    "at least, as above": (
        lambda m, x: (x.relu() >= 0).float() * 7,
        aten.ge.Scalar,
        OPERATORS.rows[aten.gt.Scalar],
    ),
    "above 0, beside the lowest number": (
        lambda m, x: (torch.where(x > 2, torch.finfo(torch.float32).min, x) <= 0.5).float(),
        aten.le.Scalar,
        OPERATORS.rows[aten.ge.Scalar],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_of_a_step_is_refused(name: str) -> None:
    network, operator, row = WRONG[name]
    wrong = replace(OPERATORS, rows=MappingProxyType({**OPERATORS.rows, operator: row}))
    x = torch.randn(2, 6, 7, generator=torch.Generator().manual_seed(1))
    dimorder.lower(Net(network), (x,), target=target(OPERATORS))
    with pytest.raises(VerificationError):
        dimorder.lower(Net(network), (x,), target=target(wrong))


def test_a_step_that_is_written_twice_is_followed() -> None:
    def steps(m: torch.nn.Module, x: Tensor) -> Tensor:
        y = x.softmax(1)
        return (y * 3000).floor() / 3000 * 5 + (y * 3000).floor()

    x = torch.randn(2, 61, 7, generator=torch.Generator().manual_seed(1))
    assert dimorder.lower(Net(steps), (x,), target="litert").max_rel_error < 1e-4
