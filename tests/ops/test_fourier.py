"""Test discrete Fourier transforms as linears: each against eager, and networks of them on targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dimorder
from dimorder.capture.captured import capture
from tests.ops.test_complex_numbers import TARGETS, TOLERANCE, Function, captured_error, relative_error

NORMS = ("backward", "ortho", "forward")


def signal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", ["", "2", "n"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_a_transform_computes_what_eager_computes(name: str, dims: str, norm: str) -> None:
    function = getattr(torch.fft, f"{name}{dims}")
    assert captured_error(lambda x: function(x, norm=norm), signal(3, 4, 7)) < 1e-6


@pytest.mark.parametrize("name", ["fft", "ifft", "irfft", "hfft"])
def test_a_transform_of_complex_numbers_computes_what_eager_computes(name: str) -> None:
    function = getattr(torch.fft, f"{name}2")
    assert captured_error(lambda x: function(torch.view_as_complex(x)), signal(3, 4, 7, 2)) < 1e-6


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "ihfft"])
@pytest.mark.parametrize("n", [4, 5, 11])
def test_a_signal_is_cut_or_padded_to_n(name: str, n: int) -> None:
    function = getattr(torch.fft, name)
    assert captured_error(lambda x: function(x, n, dim=1), signal(3, 7, 4)) < 1e-6


def test_a_long_transform_is_as_exact_as_eager() -> None:
    """The matrix has the angles of whole numbers modulo n, in float64."""
    x = signal(2, 1000)
    wide = torch.fft.rfft(x.to(torch.float64))
    program = capture(Function(torch.fft.rfft), (x,), in_pairs=True)
    assert relative_error(program.module(x), wide) < 2e-6


@pytest.mark.parametrize(
    "options",
    [
        {"hop_length": 3},
        {"win_length": 6, "normalized": True},
        {"center": False, "onesided": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_short_time_transform_is_a_convolution(batch: tuple[int, ...], options: dict[str, Any]) -> None:
    window = torch.hann_window(options.get("win_length", 10)) + 0.1

    def function(x: Tensor) -> Tensor:
        return torch.stft(x, 10, window=window, return_complex=True, **options)

    assert captured_error(function, signal(*batch, 47)) < 1e-6


@pytest.mark.parametrize(
    "options", [{"hop_length": 3}, {"win_length": 8, "normalized": True}, {"length": 29}], ids=str
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_inverse_short_time_transform_computes_what_eager_computes(
    batch: tuple[int, ...], options: dict[str, Any]
) -> None:
    window = torch.hann_window(options.get("win_length", 10)) + 0.1

    def function(x: Tensor) -> Tensor:
        return torch.istft(torch.view_as_complex(x), 10, window=window, **options)

    assert captured_error(function, signal(*batch, 6, 17, 2)) < 1e-6


# -- networks


class FourierMixing(torch.nn.Module):
    """FNet's block: mixing by transforms over channels and tokens, then a layer per token."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(channels), torch.nn.LayerNorm(channels)
        self.up, self.down = torch.nn.Linear(channels, 20), torch.nn.Linear(20, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))


class GlobalFilter(torch.nn.Module):
    """GFNet's filter: a weight per frequency of the image."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(signal(height, width // 2 + 1, channels, 2))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")


class SpectralConvolution(torch.nn.Module):
    """A layer of a Fourier neural operator: channels are mixed at low frequencies, and the rest is zero."""

    def __init__(self, inputs: int, outputs: int, modes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.view_as_complex(signal(inputs, outputs, modes, 2)))

    def forward(self, x: Tensor) -> Tensor:
        modes = self.weight.shape[-1]
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros(x.shape[0], self.weight.shape[1], spectrum.shape[-1], dtype=torch.complex64)
        kept[:, :, :modes] = torch.einsum("bix,iox->box", spectrum[:, :, :modes], self.weight)
        return torch.fft.irfft(kept, n=x.shape[-1])


class FourierUnit(torch.nn.Module):
    """A fast Fourier convolution's unit: both parts of a spectrum are channels of a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(2 * channels, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.view_as_real(torch.fft.rfftn(x, dim=(-2, -1), norm="ortho"))
        channels = spectrum.permute(0, 1, 4, 2, 3).flatten(1, 2)
        mixed = self.mix(channels).relu().unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2)
        spectrum = torch.view_as_complex(mixed.contiguous())
        return torch.fft.irfftn(spectrum, s=x.shape[-2:], dim=(-2, -1), norm="ortho")


class LogMel(torch.nn.Module):
    """A log-mel spectrogram of audio."""

    def __init__(self, size: int, bands: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("filters", signal(bands, size // 2 + 1).abs())

    def forward(self, x: Tensor) -> Tensor:
        size = self.window.shape[0]
        spectrum = torch.stft(x, size, size // 4, window=self.window, return_complex=True)
        return torch.log(self.filters @ spectrum.abs() ** 2 + 1e-3)


class Vocoder(torch.nn.Module):
    """The head of a vocoder: sizes and angles become audio."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        self.out = torch.nn.Conv1d(channels, size + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        sizes, angles = self.out(x).chunk(2, dim=1)
        size = self.window.shape[0]
        return torch.istft(torch.polar(sizes.exp(), angles), size, size // 4, window=self.window)


NETWORKS = {
    "fnet": (FourierMixing(12), (2, 7, 12)),
    "gfnet": (GlobalFilter(6, 8, 5), (2, 6, 8, 5)),
    "fno": (SpectralConvolution(3, 5, 4), (2, 3, 16)),
    "ffc": (FourierUnit(3), (2, 3, 6, 9)),
    "log-mel": (LogMel(32, 11), (2, 160)),
    "vocoder": (Vocoder(5, 16), (2, 5, 13)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_transforms_is_computed_by_the_target(name: str, target: str) -> None:
    network, shape = NETWORKS[name]
    x = signal(*shape)
    lowered = dimorder.lower(network.eval(), (x,), target=target)
    assert not lowered.plan.outside
    with torch.no_grad():
        assert relative_error(lowered.run(x), network(x)) < TOLERANCE


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_zero_stays_zero(target: str) -> None:
    """A step after a transform would make much of a rounded sine of half a turn."""

    class Steps(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            spectrum = torch.fft.rfft(x, dim=1)
            return spectrum.imag.ceil(), spectrum.real.ceil()

    x = torch.tensor([[3.0, 5.0, -3.0, -5.0], [7.0, 2.0, 7.0, 2.0]])
    lowered = dimorder.lower(Steps(), (x,), target=target)
    for got, wanted in zip(lowered.run(x), Steps()(x), strict=True):
        assert torch.equal(got, wanted)
