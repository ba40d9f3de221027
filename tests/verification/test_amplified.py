"""Programs are also compared on inputs of many magnitudes, and on examples that are unlike normal numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dimorder.errors import VerificationError
from tests.verification.test_verify import trial_on


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - 4e5


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(3, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x * x).clamp(max=2.0)


def wrong_above(x: Tensor, bound: float) -> list[Tensor]:
    return [torch.where(x > bound, x * 1.01, x) - 4e5]


def test_a_program_is_compared_on_examples_beyond_what_is_drawn() -> None:
    trial = trial_on(Shifted(), 4e5 + 1e3 * torch.randn(7, 30))
    assert trial.compare(lambda held: [held[0] - 4e5], "the program") == 0
    with pytest.raises(VerificationError, match="on the example inputs"):
        trial.compare(lambda held: wrong_above(held[0], 1e5), "the program")


def test_examples_that_are_normal_numbers_are_not_compared_again() -> None:
    trial = trial_on(Shifted(), torch.randn(7, 30))
    assert trial.compare(lambda held: wrong_above(held[0], 1e5), "the program") == 0


@pytest.mark.parametrize("level", [0.0, 1.0, 255.0])
def test_examples_of_one_level_may_be_rounded_otherwise(level: float) -> None:
    network = Normed().eval()
    trial = trial_on(network, torch.full((2, 3, 5, 7), level))

    def other(held: list[Tensor]) -> list[Tensor]:
        return [network(held[0] * (1 + 1e-7))]

    assert trial.compare(other, "the program") < 1e-4


def test_an_infinity_of_float16_may_become_nan_in_a_runtime() -> None:
    trial = trial_on(Cubed(), torch.randn(9, 31).half())

    def drops(held: list[Tensor]) -> list[Tensor]:
        cubes = held[0] * held[0] * held[0]
        return [torch.where(cubes.isinf(), torch.nan, cubes.clamp(max=2.0))]

    assert trial.compare(drops, "the program") < 1e-3
    with pytest.raises(VerificationError, match="on inputs of many magnitudes"):
        trial.compare(lambda held: [drops(held)[0].clamp(min=-1e3)], "the program")
