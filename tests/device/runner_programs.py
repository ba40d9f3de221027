"""The programs that `dimorder-run` is tested on, and what a run of it ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.cli import main
from tests.zoo import perturb, stateful

PIXELS = (8, 10)  # height and width


class Heard(nn.Module):
    """A picture and a sound, each through weights of its own, and both together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.dense = nn.Linear(9, 5)

    def forward(self, image: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(image).relu()
        return features, self.dense(sound) + features.mean((2, 3))


class Scale(nn.Module):
    """Every element of its own by one weight, which shows where each one lay."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 4.0, dtype=dtype).reshape(3, 1, 1) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.weight


class Next(nn.Module):
    """The next integer."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@dataclass(frozen=True)
class Ran:
    """The exit code of a run of `dimorder-run`, and what it printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def lower(path: Path, network: nn.Module, *args: Tensor, **options: Any) -> None:
    if not isinstance(network, Scale | stateful.Counter):
        perturb(network)
    dimorder.lower(network.eval(), args, target="xnnpack", **options).save(path)


def told_by_python(capfd: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", *words]) == 0
    return capfd.readouterr().out


def refused(ran: Ran, code: int) -> str:
    """The three lines that a run ends with, after what ExecuTorch logs as errors."""
    lines = [line for line in ran.err.splitlines() if not line.startswith("E executorch:")]
    assert ran.code == code and len(lines) == 3, ran
    assert lines[1].startswith("  found: ") and lines[2].startswith("  fix: ")
    return ran.err


TWO = ("two.pte", "--input", "sound=sound.npy", "--input", "image.npy")
