"""Test networks of int8 and half precision: parts of either, and half precision between integers."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.lowered import Lowered
from tests.marks import slow_but
from tests.targets.quantised import INT8, by_arm, by_torchao, by_xnnpack, by_xnnpack_dynamically, quantised
from tests.zoo.network import seeded

X = torch.randn(2, 3, 12, 14, generator=torch.Generator().manual_seed(1))
FLOATS = ["torch", "xnnpack", "litert"]


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(self.depthwise(F.relu(self.first(x))))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(8, 7, 3), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(F.silu(self.conv(x)).mean((2, 3)))
        return scores


class Block(nn.Module):
    """Attention over pixels, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*self.project(y).chunk(3, -1)) + F.layer_norm(y, (8,))
        return mixed.transpose(1, 2).reshape(x.shape)


class Mixed(nn.Module):
    """An int8 backbone, and an int8 head after a block of half precision, or a head of half precision."""

    def __init__(self, dtype: torch.dtype, has_block: bool) -> None:
        super().__init__()
        self.dtype, self.backbone = dtype, by_xnnpack(seeded(Backbone), X)
        features = self.backbone(X)
        self.block = seeded(Block).to(dtype) if has_block else None
        self.head = by_xnnpack(seeded(Head), features) if has_block else seeded(Head).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.backbone(x).to(self.dtype)
        scores: Tensor = self.head(y if self.block is None else self.block(y).float())
        return scores


def lower(network: nn.Module, x: Tensor, target: str) -> Lowered:
    """Lower a network; its results are PyTorch's, but for a few integers that are off by one."""
    lowered = dimorder.lower(network, (x,), target=target, input_orders="NHWC" if x.dim() == 4 else None)
    got, wanted = lowered.run(x), network(x)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert (got.double() - wanted.double()).norm() <= 0.015 * wanted.double().norm()
    return lowered


@pytest.mark.parametrize(
    ("target", "has_block"),
    slow_but(product(FLOATS, (False, True)), [("litert", False), ("xnnpack", True)]),
)
def test_float16_beside_int8(target: str, has_block: bool) -> None:
    lowered = lower(Mixed(torch.float16, has_block), X, target)
    if target != "torch":
        islands = {island[0].operator for island in lowered.plan.float_islands}
        assert islands.isdisjoint({"aten.relu", "dimorder.depthwise_conv2d_nhwc"})  # of the backbone


@pytest.mark.parametrize("has_block", slow_but([False, True], [False]))
def test_bfloat16_beside_int8(has_block: bool) -> None:
    lower(Mixed(torch.bfloat16, has_block), X, "xnnpack")


@pytest.mark.parametrize("target", slow_but(FLOATS, ["xnnpack"]))
def test_a_network_of_float16_that_is_quantised_computes_in_integers(target: str) -> None:
    network = by_xnnpack(nn.Sequential(seeded(Backbone), seeded(Head)).half(), X.half())
    lowered = lower(network, X.half(), target)
    islands = {island[0].operator for island in lowered.plan.float_islands}
    assert islands <= {"aten.silu", "aten.mean.dim"}


@pytest.mark.parametrize(
    ("target", "dtype"),
    slow_but(
        [("tosa", torch.float16), ("tosa", torch.bfloat16), ("ethos-u85-256", torch.float16)],
        [("tosa", torch.float16)],
    ),
)
def test_a_target_of_integers_takes_those_of_a_network_of_half_precision(
    target: str, dtype: torch.dtype
) -> None:
    pytest.importorskip("tosa_serializer")
    if target != "tosa":
        pytest.importorskip("ethosu")
    x = X.to(dtype)
    network = by_arm(nn.Sequential(seeded(Backbone), seeded(Head)).to(dtype), x)
    lowered = dimorder.lower(network, (x,), target=target)
    (taken,), (given,) = lowered.contract.inputs, lowered.contract.outputs
    assert (taken.dtype, given.dtype) == ("int8", "int8")
    if target != "tosa":  # no Ethos-U runs here
        return
    got, wanted = given.real(lowered.run(taken.quantized(x.float()))), network(x)
    assert (got - wanted).norm() <= 0.015 * wanted.double().norm()


class Casts(nn.Module):
    """Functions, a sum, moves and a pool of integers, in float16."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = quantised(x, 0.0247, 5).half(), quantised(y, 0.0313, -17).half()
        joined = torch.cat([a, b.permute(0, 1, 2, 3)], 2).float().mean((1, 3))
        pooled = F.max_pool2d(a, 2).float()
        return (
            quantised(F.gelu(a).float(), 0.02, -100),
            quantised((a + 2 * b).float(), 0.05, 3),
            quantised(joined, 0.011, 4),
            quantised(pooled, 0.0247, 5),
        )


@pytest.mark.parametrize("target", [*FLOATS, "tosa"])
def test_float16_between_integers(target: str) -> None:
    if target == "tosa":
        pytest.importorskip("tosa_serializer")
    y = X.flip(3) * 1.3
    lowered = dimorder.lower(Casts(), (X, y), target=target)
    specs = lowered.contract.inputs, lowered.contract.outputs
    taken = [spec.quantized(x) for spec, x in zip(specs[0], (X, y), strict=True)]
    got = [spec.real(value) for spec, value in zip(specs[1], lowered.run(*taken), strict=True)]
    for value, wanted, scale in zip(got, Casts()(X, y), (0.02, 0.05, 0.011, 0.0247), strict=True):
        quanta = ((value - wanted) / scale).round().abs()
        assert quanta.max() <= 1 and (quanta > 0).sum() <= 2 + 0.02 * quanta.numel()


class GivesHalves(nn.Module):
    """Sums and products of dequantized float16, which a function of float16 reads too."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        def halves(x: Tensor, scale: float, zero_point: int) -> Tensor:
            of = (scale, zero_point, *INT8)
            return DEQUANTIZE(QUANTIZE(x, *of), *of, out_dtype=torch.float16)

        a, b = halves(x, 0.0247, 5), halves(x.flip(2), 0.0313, -17)
        total = a + b
        return halves(total, 0.05, 3), halves(a * b, 0.04, 1), total.exp()


@pytest.mark.parametrize("target", FLOATS)
def test_a_sum_of_float16_is_read_as_it_is_and_quantised(target: str) -> None:
    lowered = dimorder.lower(GivesHalves(), (X.half(),), target=target)
    for got, wanted in zip(lowered.run(X.half()), GivesHalves()(X.half()), strict=True):
        assert got.dtype == torch.float16
        assert (got.double() - wanted.double()).norm() <= 0.01 * wanted.double().norm()


@pytest.mark.parametrize(
    ("by", "target"),
    slow_but(product(["PT2E", "torchao"], FLOATS), [("PT2E", "litert"), ("torchao", "xnnpack")]),
)
def test_float16_that_is_quantised_dynamically(target: str, by: str) -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(14, 11), nn.ReLU(), nn.Linear(11, 5))).half()
    x = X[0].half()
    if by == "PT2E":
        network = by_xnnpack_dynamically(net, x)
    else:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig

        network = by_torchao(net, Int8DynamicActivationInt8WeightConfig())
    lowered = lower(network, x, target)
    assert target == "torch" or lowered.plan.float_islands == ()


def test_a_block_of_float16_is_refused_by_a_target_of_integers() -> None:
    pytest.importorskip("tosa_serializer")
    said = r"in block.project\)\n  found: a weight that is not quantised"
    with pytest.raises(dimorder.DimorderError, match=said):
        dimorder.lower(Mixed(torch.float16, has_block=True), (X,), target="tosa")
