"""Test networks whose parts are quantised by XNNPACKQuantizer and by Arm's quantizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from tests.marks import slow_but
from tests.targets.quantised import INT16, by_arm, by_xnnpack, by_xnnpack_per_tensor, quantised
from tests.zoo.network import seeded

pytest.importorskip("tosa_serializer")

By = Callable[[nn.Module, Tensor], nn.Module]
X = torch.randn(2, 3, 12, 14, generator=torch.Generator().manual_seed(1))


class First(nn.Module):
    """Convolutions and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        return y + F.relu6(self.depthwise(y))


class Second(nn.Module):
    """A convolution, a pool and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(8, 12, 3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(F.relu(self.conv(x)).mean((2, 3)))
        return scores


class Beside(nn.Module):
    """Two parts that read one input, whose results are joined and added."""

    def __init__(self, first: By, second: By) -> None:
        super().__init__()
        self.first, self.second = first(seeded(First, 0), X), second(seeded(First, 1), X)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, z = self.first(x), self.second(x)
        return quantised(torch.cat([y, z], 1).relu(), 0.021, -128), quantised(y + z, 0.033, -101)


def after(first: By, second: By) -> nn.Module:
    part = first(seeded(First, 0), X)
    return nn.Sequential(part, second(seeded(Second, 1), part(X)))


def assert_right(network: nn.Module, target: str, islands: set[str]) -> None:
    """Lower a network, whose results are PyTorch's but for a few integers that are off by one."""
    lowered = dimorder.lower(network, (X,), target=target, input_orders="NHWC")
    assert {island[0].operator for island in lowered.plan.float_islands} <= islands
    taken, given = lowered.contract.inputs, lowered.contract.outputs
    outputs = lowered.run(*(spec.quantized(X) for spec in taken))
    wanted = network(X)
    if isinstance(wanted, Tensor):
        outputs, wanted = (outputs,), (wanted,)
    for spec, got, expected in zip(given, outputs, wanted, strict=True):
        assert (spec.real(got) - expected).norm() <= 0.01 * expected.norm()


PAIRS: dict[str, tuple[By, By]] = {
    "XNNPACK's, then Arm's": (by_xnnpack, by_arm),
    "Arm's, then XNNPACK's": (by_arm, by_xnnpack),
    "one scale for a weight, then one per channel": (by_xnnpack_per_tensor, by_arm),
}


@pytest.mark.parametrize(
    ("pair", "target"),
    slow_but(
        product(PAIRS, ("xnnpack", "litert", "tosa")),
        [("XNNPACK's, then Arm's", "xnnpack")],
    ),
)
def test_one_quantiser_after_another(target: str, pair: str) -> None:
    assert_right(after(*PAIRS[pair]), target, {"aten.sum.dim_IntList"} if target == "xnnpack" else set())


@pytest.mark.parametrize("target", slow_but(["xnnpack", "litert", "tosa"], ["xnnpack"]))
def test_one_quantiser_beside_another(target: str) -> None:
    islands = set() if target == "tosa" else {"aten.relu", "aten.cat"}
    assert_right(Beside(by_xnnpack, by_arm), target, islands)


by_arm_in_16_bits = partial(by_arm, recipe="int16x8")


@pytest.mark.parametrize(
    ("first", "second"),
    slow_but(
        [(by_xnnpack, by_arm_in_16_bits), (by_arm_in_16_bits, by_xnnpack)], [(by_xnnpack, by_arm_in_16_bits)]
    ),
)
def test_activations_of_16_bits_beside_those_of_8(first: By, second: By) -> None:
    assert_right(after(first, second), "tosa", set())


class Widened(nn.Module):
    """A value of 8 bits, clamped, with a scale of 16 bits that is no multiple of the first."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardtanh(quantised(x, 0.0247, 5), -1.31, 1.87)
        return quantised(y, 0.000093, 0, INT16)


def test_a_clamped_value_of_8_bits_becomes_one_of_16() -> None:
    lowered = dimorder.lower(Widened(), (X,), target="tosa")
    (taken,), (given,) = lowered.contract.inputs, lowered.contract.outputs
    got = given.real(lowered.run(taken.quantized(X)))
    assert ((got - Widened()(X)) / 0.000093).abs().max() <= 1.01
