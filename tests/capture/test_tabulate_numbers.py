"""Numbers that a network computes from its dynamic sizes, and that scale or shift floats."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import dimorder
from tests.marks import require_runtime

_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "power": lambda x: x * x.shape[1] ** -0.5,
    "share": lambda x: x * (1 / x.shape[1]),
    "quotient": lambda x: x / x.shape[1],
    "square over root": lambda x: x * x.shape[1] ** 2 / x.shape[1] ** 0.5,
    "difference": lambda x: x.shape[1] ** 0.5 - x,
    "pole": lambda x: x + 1 / (x.shape[1] - 33),
    "pixels": lambda x: x / (x.shape[1] * x.shape[2]) ** 0.5,
}


class _Scaled(torch.nn.Module):
    def __init__(self, scale: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.scale = torch.nn.Conv2d(6, 10, 3, padding=1), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.scale(x).permute(0, 3, 1, 2)).relu()


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
@pytest.mark.parametrize("name", _NUMBERS)
def test_numbers_of_sizes_are_right_at_all_sizes(name: str, target: str) -> None:
    require_runtime(target)
    model, sizes = _Scaled(_NUMBERS[name]).eval(), {1: Dim("H", min=2, max=40), 2: Dim("W", min=3, max=20)}
    lowered = dimorder.lower(model, (torch.randn(2, 7, 9, 6),), target=target, dynamic_shapes=(sizes,))
    for height, width in ((2, 3), (11, 4), (40, 20), (6, 19)):
        x = torch.randn(2, height, width, 6)
        with torch.no_grad():
            torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_quotient_by_a_size_is_in_the_delegate() -> None:
    require_runtime("xnnpack")
    model = _Scaled(_NUMBERS["quotient"]).eval()
    sizes = ({1: Dim("H", min=2, max=40)},)
    lowered = dimorder.lower(model, (torch.randn(2, 7, 9, 6),), target="xnnpack", dynamic_shapes=sizes)
    assert lowered.artifact.delegates == 1


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_sizes_may_begin_at_one_and_be_multiples(target: str, step: int) -> None:
    require_runtime(target)
    model, count = _Scaled(_NUMBERS["power"]).eval(), Dim("B", min=1, max=9)
    height = count if step == 1 else 4 * count
    lowered = dimorder.lower(model, (torch.randn(2, 8, 9, 6),), target=target, dynamic_shapes=({1: height},))
    for size in (1, 9, 3):
        x = torch.randn(2, size * step, 9, 6)
        with torch.no_grad():
            torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)


def test_numbers_of_sizes_may_be_written_in_place() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y *= x.shape[1] ** -0.5
        return y.div_(x.shape[1])

    model, sizes = _Scaled(scaled).eval(), ({1: Dim("H", min=2, max=40)},)
    lowered = dimorder.lower(model, (torch.randn(2, 7, 9, 6),), dynamic_shapes=sizes)
    x = torch.randn(2, 11, 9, 6)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)
