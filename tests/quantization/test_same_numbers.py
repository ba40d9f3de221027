"""Test that tools may not change what a network computes before it is quantised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

pytest.importorskip("executorch")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.quantization import quantize
from dimorder.quantization.same_numbers import SameNumbers, require_same, results_of

X = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))


class Passes:
    """A quantizer whose pass writes each call of one operator as another."""

    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new = old, new

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        for node in model.graph.find_nodes(op="call_function", target=self.old):
            node.target = self.new
        model.recompile()
        return model


class Returns(nn.Module):
    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("y", y)

    def forward(self, x: Tensor) -> Any:
        return self.y.clone()


def exported(net: nn.Module) -> GraphModule:
    model: GraphModule = torch.export.export(net, (X,)).module(check_guards=False)
    return model


def transform(net: nn.Module, old: Any, new: Any, x: Tensor = X) -> None:
    SameNumbers(Passes(old, new), [[x]]).transform_for_annotation(exported(net))


def test_a_pass_that_changes_numbers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Passes\n  found: its passes change .* output 0 is off by"):
        transform(nn.Sigmoid(), torch.ops.aten.sigmoid.default, torch.ops.aten.tanh.default)


def test_a_pass_that_keeps_numbers_is_not() -> None:
    transform(nn.ReLU(), torch.ops.aten.relu.default, torch.ops.aten.relu.default)


def test_an_example_that_the_network_does_not_take_is_explained_later() -> None:
    transform(nn.Linear(5, 7), torch.ops.aten.linear.default, torch.ops.aten.linear.default, X[..., :4])


def test_another_shape_is_a_change() -> None:
    told = r"output 0 becomes \(2, 1, 5\), where the network has \(2, 3, 5\)"
    with pytest.raises(UnsupportedError, match=told):
        require_same(exported(Returns(X[:, :1])), [[X]], [X], "a tool")


def test_what_is_no_number_may_become_one() -> None:
    infinite = torch.tensor([1.0, -torch.inf, torch.nan])
    require_same(exported(Returns(torch.tensor([1.01, -255.0, 0.0]))), [[X]], [infinite], "a tool")
    for wanted, got in ((infinite, torch.tensor([1.1, -255.0, 0.0])), (torch.ones(3), infinite)):
        with pytest.raises(UnsupportedError):
            require_same(exported(Returns(got)), [[X]], [wanted], "a tool")


def test_a_rounding_may_exchange_what_is_selected() -> None:
    class Sorts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x.sort(-1).values
            return y

    model = exported(Sorts())
    (y,) = results_of(model, [[X]]) or ()
    require_same(model, [[X]], [y.flip(-1)], "a tool")


def test_a_network_that_torchao_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(UnsupportedError, match="torchao\n  found: its passes change the network: output 0"):
        dimorder.quantize(Twice().eval(), [torch.randn(2, 3, 9, 7)])
