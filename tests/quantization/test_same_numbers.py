"""Test that passes of another quantizer may not change what a network computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

pytest.importorskip("torchao")

from dimorder.errors import UnsupportedError
from dimorder.quantization.same_numbers import SameNumbers, changed

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


def transform(net: nn.Module, old: Any, new: Any, x: torch.Tensor = X) -> None:
    model = torch.export.export(net, (X,)).module(check_guards=False)
    SameNumbers(Passes(old, new), [[x]]).transform_for_annotation(model)


def test_a_pass_that_changes_numbers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Passes\n  found: its passes change .* output 0 is off by"):
        transform(nn.Sigmoid(), torch.ops.aten.sigmoid.default, torch.ops.aten.tanh.default)


def test_a_pass_that_keeps_numbers_is_not() -> None:
    transform(nn.ReLU(), torch.ops.aten.relu.default, torch.ops.aten.relu.default)


def test_an_example_that_the_network_does_not_take_is_explained_later() -> None:
    transform(nn.Linear(5, 7), torch.ops.aten.linear.default, torch.ops.aten.linear.default, X[..., :4])


def test_another_shape_is_a_change() -> None:
    told = "its passes change the network: output 0 becomes (2, 1, 5), where the network has (2, 3, 5)"
    assert changed([X], [X[:, :1]]) == told


def test_what_is_no_number_may_become_one() -> None:
    infinite = torch.tensor([1.0, -torch.inf, torch.nan])
    assert changed([infinite], [torch.tensor([1.01, -255.0, 0.0])]) is None
    assert changed([infinite], [torch.tensor([1.1, -255.0, 0.0])]) is not None
    assert changed([torch.ones(3)], [infinite]) is not None
