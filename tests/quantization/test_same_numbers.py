"""Test that tools may not change what a network computes before it is quantised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.quantization import quantize
from dimorder.quantization.same_numbers import require_same

X = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))


def refuse(wanted: Tensor, got: Tensor, net: nn.Module | None = None) -> None:
    model = torch.export.export(net or nn.ReLU(), (X,)).module(check_guards=False)
    require_same(model, wanted, [got])


def test_other_numbers_are_a_change() -> None:
    refuse(X, X * 1.01)
    with pytest.raises(UnsupportedError, match=r"output 0 is off by 100% in float, on the first example"):
        refuse(X, X * 2)


def test_another_shape_is_a_change() -> None:
    told = r"output 0 becomes \(2, 1, 5\), where the network has \(2, 3, 5\)"
    with pytest.raises(UnsupportedError, match=told):
        refuse(X, X[:, :1])


def test_what_is_no_number_may_become_one() -> None:
    infinite = torch.tensor([1.0, -torch.inf, torch.nan])
    refuse(infinite, torch.tensor([1.01, -255.0, 0.0]))
    for wanted, got in ((infinite, torch.tensor([1.1, -255.0, 0.0])), (torch.ones(3), infinite)):
        with pytest.raises(UnsupportedError):
            refuse(wanted, got)


def test_a_rounding_may_exchange_what_is_selected() -> None:
    class Sorts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x.sort(-1).values
            return y

    refuse(X, X.flip(-1), Sorts())


def test_a_network_that_a_tool_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        """torchao folds the norm into the convolution, whose result is read without it too."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            assert self.norm.running_mean is not None
            self.norm.running_mean.normal_(3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(x)
            return torch.cat([self.norm(y), y], 1)

    def keep(model: Any) -> None:
        """Leave batch norms as they are."""

    monkeypatch.setattr(quantize, "separate_batch_norms", keep)
    with pytest.raises(UnsupportedError, match="a tool's output 0 is off by"):
        dimorder.quantize(Twice().eval(), [torch.randn(2, 3, 9, 7)])
