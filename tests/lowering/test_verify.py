"""What is the same and what is not, and that a wrong program is never handed out."""

from __future__ import annotations

import math

import pytest
import torch

from dimorder.errors import VerificationError
from dimorder.lowering.capture.captured import capture
from dimorder.lowering.promise import promise
from dimorder.lowering.verify import Trial, relative_error, verify

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("got", "wanted", "error"),
    [
        ([1.0, 2.5, 3.0], [1.0, 2.0, 4.0], 0.25),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1e-9], [0.0, 0.0], INF),
        ([1.0, NAN, 3.0], [1.0, NAN, 4.0], 0.25),
        ([1.0, NAN, 4.0], [1.0, 2.0, 4.0], INF),
        ([1.0, 2.0, 4.0], [1.0, NAN, 4.0], INF),
        ([1.0, -INF], [1.0, -INF], 0.0),
        ([1.0, INF], [1.0, -INF], INF),
        ([INF, INF], [INF, INF], 0.0),
        ([NAN, NAN], [NAN, NAN], INF),
        ([1 + 1j, 4.0], [1 + 2j, 4.0], 0.25),
        ([1, 2, 8], [1, 4, 8], 0.25),
        ([], [], 0.0),
    ],
)
def test_relative_error(got: list[complex], wanted: list[complex], error: float) -> None:
    assert relative_error(torch.tensor(got), torch.tensor(wanted)) == error


def test_another_shape_is_never_the_same() -> None:
    assert relative_error(torch.ones(2, 3), torch.ones(3, 2)) == INF


def test_a_wrong_program_is_refused_with_its_output() -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(VerificationError) as caught:
        verify([x, x + 0.5], [x, x], what="the program", tolerance=0.1)
    assert "output 1 differs from PyTorch's by 2.50e-01" in str(caught.value)
    assert str(caught.value).startswith("the program\n")


class Clamped(torch.nn.Module):
    """What no standard normal input reaches."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, max=self.bound)


def trial(network: torch.nn.Module) -> Trial:
    x = torch.randn(30, 50)
    program = capture(network, (x,))
    return Trial(network, program, promise(program, None, None, None))


def test_a_fault_among_large_numbers_is_found() -> None:
    with pytest.raises(VerificationError, match="on inputs of many magnitudes"):
        trial(Clamped(math.inf)).compare(lambda held: [torch.clamp(held[0], max=50.0)], "the program")


class Waves(torch.nn.Module):
    """Of large numbers, whose last digits decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * 10)


def test_what_a_network_amplifies_itself_is_no_fault() -> None:
    network = Waves()
    trial(network).compare(lambda held: [network.double()(held[0].double()).float()], "the program")


def test_another_type_is_never_the_same() -> None:
    assert relative_error(torch.tensor([True]), torch.tensor([1.0])) == INF


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_may_differ_by_its_rounding(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0], dtype=dtype)
    assert verify([x * (1 + torch.finfo(dtype).eps)], [x], what="it") > 0
    with pytest.raises(VerificationError):
        verify([x * 1.1], [x], what="it")
