"""Test networks that read and replace tensors by their `.data`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import errors


class Masked(nn.Conv2d):
    """Masks its weight as an autoregressive network does, and writes into the `.data` of other tensors."""

    def __init__(self, is_written: bool) -> None:
        super().__init__(3, 4, 3, padding=1)
        self.is_written = is_written
        self.register_buffer("mask", torch.ones_like(self.weight))
        self.mask[..., 1, 1:], self.mask[..., 2, :] = 0, 0
        self.table = nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_written:
            self.weight.data *= self.mask
        else:
            self.weight.data = self.weight.data * self.mask
        y = super().forward(x)
        padded = y.new_zeros(y.shape[0], 5, *y.shape[2:])
        padded.data[:, 1:].copy_(y * self.table.data.exp())
        other = y * 2
        other.data = y.data.abs()
        self.calls.data = self.calls + 1
        return padded.sin() + other.sum(1, keepdim=True) * self.calls


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("target", slow_but(["torch", "xnnpack"], ["torch"]))
def test_data_attributes_are_traced(target: str, is_written: bool) -> None:
    require_runtime(target)
    module = Masked(is_written).eval()
    dims = ({0: Dim("N", min=1, max=3), 2: Dim("H", min=2, max=9)},)
    lowered = dimorder.lower(module, (torch.randn(2, 3, 4, 5),), target=target, dynamic_shapes=dims)
    for pictures, rows in ((1, 2), (3, 9)):
        assert max(errors(lowered, module, torch.randn(pictures, 3, rows, 5))) <= 1e-5


class Fading(Masked):
    """Makes its weight smaller in each call."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data * 0.9
        return self._conv_forward(x, self.weight, self.bias)


def test_a_weight_that_changes_from_call_to_call_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="called again on the same inputs"):
        dimorder.lower(Fading(False), (torch.randn(2, 3, 4, 5),))


class Checked(nn.Module):
    """Raises an error about elements."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.data.abs()
        if y.isnan().any():
            raise ValueError("not a number")
        return y + x


def test_an_error_about_elements_is_left_out_beside_data_attributes() -> None:
    module = Checked()
    lowered = dimorder.lower(module, (torch.randn(2, 5, 7),))
    assert max(errors(lowered, module, torch.randn(2, 5, 7))) <= 1e-5


class Reparametrized(nn.Module):
    """Computes the weight of a convolution in each call, by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.used = nn.Conv1d(5, 4, 3), nn.Conv1d(5, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.weight = self.own.weight.data.clone().detach() * 2
        self.used.weight.data = self.weight.contiguous()
        y: Tensor = self.used(x)
        return y


def test_a_weight_that_is_computed_from_another_is_traced() -> None:
    module, dims = Reparametrized(), ({0: Dim("N", min=1, max=5)},)
    lowered = dimorder.lower(module, (torch.randn(2, 5, 7),), dynamic_shapes=dims)
    assert max(errors(lowered, module, torch.randn(3, 5, 7))) <= 1e-5
