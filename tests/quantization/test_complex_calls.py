"""Test calls of complex numbers and Fourier transforms that are written in real ones for Arm's quantizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.complex_calls import write_complex_calls
from tests.marks import slow_but
from tests.quantization.rewriting import rewritten
from tests.small_networks import Net

DRAWN = torch.Generator().manual_seed(4)
X = torch.randn(3, 6, 8, generator=DRAWN)
ANGLES = torch.randn(6, 4, generator=DRAWN)
CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "both parts": lambda m, x: torch.fft.fftn(x, dim=(1, 2)).real - torch.fft.fft(x).imag,
    "filter": lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(m.weight), s=(6, 8)),
    "turned pairs": lambda m, x: torch.view_as_real(
        torch.view_as_complex(x.reshape(3, 6, 4, 2)) * m.turns
    ).flatten(2),
    "spectrogram": lambda m, x: torch.stft(x.flatten(1), 12, 5, window=m.window, return_complex=True).abs(),
    "filtered sound": lambda m, x: torch.istft(
        torch.stft(x.flatten(1), 12, 5, window=m.window, return_complex=True) * 0.7, 12, 5, window=m.window
    ),
}


def network(name: str) -> nn.Module:
    turns, window = torch.polar(torch.ones(6, 4), ANGLES), torch.hann_window(12)
    weight = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(5))
    return Net(CALLS[name], weight=nn.Parameter(weight), turns=turns, window=window).eval()


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_real_numbers_compute_the_same(name: str) -> None:
    net = network(name)
    model = rewritten(net, X, write_complex_calls)
    values = [node.meta["val"] for node in model.graph.nodes if node.op == "call_function"]
    assert values and not any(value.is_complex() for value in values)
    torch.testing.assert_close(model(X), net(X))


def test_a_complex_result_stays_beside_real_ones() -> None:
    net = Net(lambda m, x: (torch.fft.rfft(x), torch.fft.rfft(x).imag + 1))
    model = rewritten(net, X, write_complex_calls)
    torch.testing.assert_close(model(X), net(X))
    assert torch.ops.aten.linear.default in {node.target for node in model.graph.nodes}


@pytest.mark.parametrize("name", slow_but(CALLS, ["both parts", "spectrogram"]))
def test_a_fourier_transform_in_8_bits(name: str) -> None:
    quantized = dimorder.quantize(network(name), [X, 0.7 * X, X.flip(2)], target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (X,), target="tosa"))
    assert found.snr_db is not None and found.snr_db > 25
