"""Test that a run in float64 reads constants without a rounding, and computes complex numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torchao")

from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis

import dimorder
from dimorder.capture.captured import capture
from dimorder.graph.quantized import Scaled
from dimorder.verification.numerics import Float64Run, FunctionalProgram


class Words(nn.Module):
    """Words of a table, and a linear."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.table = nn.Linear(64, 37), nn.Embedding(41, 64)
        by_row = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
        quantize_(self.table, by_row, lambda module, name: isinstance(module, nn.Embedding))

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids))


IDS = torch.tensor([[3, 40, 0, 7, 7]])


def test_a_table_of_integers_is_read_in_float64() -> None:
    captured = capture(Words(0).table, (IDS,))
    (table,) = captured.module.buffers()
    assert isinstance(table, Scaled)
    exact = table.in_float64[IDS]
    assert not torch.equal(exact, captured.module(IDS)[0].double()), "the same by chance shows nothing"
    assert torch.equal(Float64Run(captured.module).tensors(IDS)[0], exact)


@pytest.mark.parametrize("seed", range(3, 6))
def test_halves_in_a_table_of_integers_are_rounded_alike(seed: int) -> None:
    """A linear quantises each row anew. If its integers span 170, each step is 1.5 of the new ones."""
    network = Words(seed).eval()
    quantize_(network, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8))
    sizes = ({1: torch.export.Dim("L", min=1, max=12)},)
    assert dimorder.lower(network, (IDS,), dynamic_shapes=sizes).max_rel_error < 0.01


class Turned(nn.Module):
    """Turns pairs of numbers by constant angles, as Llama 4 does."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(15.0).reshape(5, 3) / 7
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        pairs = torch.view_as_complex(x.float().reshape(2, 5, 3, 2))
        return torch.view_as_real(pairs * turns).flatten(2).to(x.dtype)


def test_complex_numbers_are_computed_in_float64() -> None:
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0)).half()
    (turned,) = FunctionalProgram(torch.export.export(Turned(), (x,))).run((x,), Float64Run)
    assert turned.dtype == torch.float64
    angles = torch.arange(15.0).reshape(5, 3).div(7).double()
    turns = torch.polar(torch.ones_like(angles), angles)
    exact = torch.view_as_complex(x.double().reshape(2, 5, 3, 2)) * turns
    torch.testing.assert_close(turned, torch.view_as_real(exact).flatten(2), rtol=0, atol=1e-6)
