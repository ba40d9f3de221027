"""How much faster: 1-D networks by `to_channels_last`, and conversions by `convert`.

python -m benchmarks.eager [--only networks|conversions] [--repeats 15] [--out eager.json]

Every figure is the median of ratios of runs in turn, so that a machine's mood cancels.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from benchmarks import record
from dimorder.cpu import describe_machine, machine
from dimorder.eager.channels_last import to_channels_last
from dimorder.eager.conversion import convert

LEAST_ROUND_S = 0.002
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
SHAPES = (
    *((1, 64, 56, 56), (1, 256, 56, 56), (8, 64, 56, 56), (8, 256, 28, 28), (1, 3, 224, 224)),
    *((8, 3, 224, 224), (1, 512, 14, 14), (4, 1024, 7, 7), (16, 32, 112, 112), (1, 96, 112, 112)),
)


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions, weight-normed, and a residual; no `contiguous`: it loses the order."""

    def __init__(self, inputs: int, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.past = (kernel - 1) * dilation
        for name, width in (("conv1", inputs), ("conv2", channels)):
            conv = nn.Conv1d(width, channels, kernel, padding=self.past, dilation=dilation)
            setattr(self, name, weight_norm(conv))
        self.shortcut = nn.Conv1d(inputs, channels, 1) if inputs != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x)[:, :, : -self.past])
        y = F.relu(self.conv2(y)[:, :, : -self.past])
        return F.relu(y + self.shortcut(x))


def temporal(inputs: int, channels: int, kernel: int, levels: int) -> nn.Module:
    """The TCN of Bai, Kolter and Koltun (arXiv 1803.01271)."""
    widths = [inputs, *[channels] * levels]
    blocks = [TemporalBlock(widths[i], widths[i + 1], kernel, 2**i) for i in range(levels)]
    return nn.Sequential(*blocks)


def tcn() -> tuple[nn.Module, Tensor]:
    """As its authors have it for sequential MNIST, and their batch."""
    return temporal(1, 25, 7, 8), torch.randn(64, 1, 784)


def tcn_of_words() -> tuple[nn.Module, Tensor]:
    """As its authors have it for words of the Penn Treebank: wide, so that arithmetic sets the pace."""
    return temporal(600, 600, 3, 4), torch.randn(16, 600, 80)


class Separator(nn.Module):
    """A block of Conv-TasNet (arXiv 1809.07454): pointwise, dilated depthwise and pointwise convolutions."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(channels, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden)),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            *(nn.PReLU(), nn.GroupNorm(1, hidden), nn.Conv1d(hidden, channels, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def tasnet() -> tuple[nn.Module, Tensor]:
    """One repeat of Conv-TasNet's separation network, on the frames of 3 s at 8 kHz."""
    return nn.Sequential(*(Separator(128, 512, 2**level) for level in range(8))), torch.randn(1, 128, 3000)


def separable() -> tuple[nn.Module, Tensor]:
    """Depthwise kernels of 31 and pointwise ones, as a Conformer's convolution modules have them."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv1d(256, 256, 31, padding=15, groups=256), nn.BatchNorm1d(256), nn.SiLU()]
        layers += [nn.Conv1d(256, 256, 1)]
    return nn.Sequential(*layers), torch.randn(4, 256, 400)


class Normed(nn.Module):
    """Layer-norm over the channels of (N, C, L), as wav2vec2 has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def wav2vec2() -> tuple[nn.Module, Tensor]:
    """The feature encoder of wav2vec2: seven convolutions of 512 channels, layer-norm and gelu after each; on
    10 s of sound at 16 kHz."""
    layers: list[nn.Module] = []
    channels = 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        layers += [nn.Conv1d(channels, 512, kernel, stride), Normed(512), nn.GELU()]
        channels = 512
    return nn.Sequential(*layers), torch.randn(1, 1, 160000)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "TCN": tcn,
    "TCN of words": tcn_of_words,
    "Conv-TasNet separation": tasnet,
    "depthwise-separable k31": separable,
    "wav2vec2 encoder": wav2vec2,
}


def ratio(slow: Callable[[], object], fast: Callable[[], object], repeats: int) -> float:
    """Median of time(slow) / time(fast), run in turn, the first round left out; what is short, some times in
    a round. Each goes first in half of the rounds: what runs after another finds other memory free."""
    calls = math.ceil(LEAST_ROUND_S / timeit.timeit(slow, number=2) * 2)
    ratios = []
    for round_ in range(repeats + 1):
        runs = (slow, fast) if round_ % 2 else (fast, slow)
        times = {run: timeit.timeit(run, number=calls) for run in runs}
        ratios.append(times[slow] / times[fast])
    return statistics.median(ratios[1:])


def networks(repeats: int) -> dict[str, float]:
    found = {}
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        plain, x = make()
        plain.eval()
        fast = to_channels_last(copy.deepcopy(plain))
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-3, atol=1e-4)
        found[name] = ratio(lambda run=plain, x=x: run(x), lambda run=fast, x=x: run(x), repeats)
        print(f"{name:28} {found[name]:5.2f}×")
    return found


def conversions(repeats: int) -> dict[str, float]:
    found = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            row = (torch.randn(shape) * 50).to(dtype)
            last = row.contiguous(memory_format=torch.channels_last)
            size = f"{row.nbytes / 1e6:.1f} MB"
            for way, x, order, by_torch in (
                ("NHWC→NCHW", last, "NCHW", torch.contiguous_format),
                ("NCHW→NHWC", row, "NHWC", torch.channels_last),
            ):
                assert torch.equal(convert(x, order), x)
                name = f"{way} {str(dtype)[6:]} {'x'.join(map(str, shape))} {size}"
                found[name] = ratio(
                    lambda x=x, by_torch=by_torch: x.contiguous(memory_format=by_torch),
                    lambda x=x, order=order: convert(x, order),
                    max(repeats, 15),
                )
                print(f"{name:52} {found[name]:5.2f}×")
    print(f"least of all {min(found.values()):.2f}×")
    return found


PARTS = {"networks": networks, "conversions": conversions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(describe_machine(machine(("torch",))))
    result: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for name, part in PARTS.items():
            if options.only in (None, name):
                result[name] = part(options.repeats)
    if options.out:
        record.write(options.out, "eager", ("torch",), **result)


if __name__ == "__main__":
    main()
