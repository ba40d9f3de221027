"""Linears whose rows are quantised as the program runs: what LiteRT computes, and what stays in floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8DynamicActivationIntxWeightConfig
from torchao.quantization.granularity import PerGroup

from dimorder.ops.dialect import OPS
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.runtime import KERNELS, LiteRtProgram
from tests.targets.quantised import by_torchao, by_xnnpack_dynamically, round_all_rows_alike
from tests.zoo.network import perturb

SUM = 2e-6  # of the largest result: what float32 rounds


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def seeded(make: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(args))
        return make(*args, **kwargs).eval()


class Mixer(nn.Module):
    """Linears with and without bias, of rows and of a transposed value, around a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 36), nn.Linear(5, 7)
        self.norm, self.last = nn.LayerNorm(36), nn.Linear(36, 11, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.last(self.norm(self.second(y.transpose(1, 2)).transpose(1, 2)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 24), (3, 5, 24), (2, 4, 3, 24)])
def test_all_kernels_round_each_row(shape: tuple[int, ...], bias: bool) -> None:
    net, x = seeded(nn.Linear, 24, 7, bias=bias), drawn(*shape)
    made = dimorder.lower(by_xnnpack_dynamically(net, x), (x,), target="litert")
    assert (made.artifact.delegates, made.artifact.outside, made.plan.float_islands) == (1, {}, ())
    scales = net.weight.detach().abs().amax(1, keepdim=True) / 127
    weight = ((net.weight.detach() / scales).round().clamp(-127, 127) * scales).double()
    rows = OPS.fake_quantize_dynamic(x, [x.dim() - 1], -128, 127, 1e-38, "balanced").double()
    wanted = F.linear(rows, weight, net.bias.detach().double() if bias else None)
    for kernels in KERNELS:
        (got,) = LiteRtProgram(made.artifact.data, made.contract, kernels)([x])
        assert (got - wanted).abs().max() <= SUM * wanted.abs().max(), kernels


def test_a_recipe_leaves_weights_of_a_byte_and_its_network(tmp_path: Path) -> None:
    net, x = perturb(seeded(Mixer)), drawn(3, 5, 24)
    made = dimorder.quantize(net, [x], "int8-dynamic", target="litert")
    path = dimorder.lower(made, target="litert").save(tmp_path / "net.tflite")
    assert operators(path.read_bytes())["FULLY_CONNECTED"] == 3
    program = dimorder.load(path)
    wanted = net(x)
    assert (program(x) - wanted).norm() <= 0.03 * wanted.norm()


def test_torchaos_weights_of_minus_128_are_checked_by_xnnpack_alone() -> None:
    """LiteRT's own kernels read -128 wrongly where they quantise rows."""
    net, x = seeded(nn.Linear, 64, 96), drawn(3, 5, 64)
    made = dimorder.lower(by_torchao(net, Int8DynamicActivationInt8WeightConfig()), (x,), target="litert")
    assert made.artifact.other_runs == {}
    (wrong,) = LiteRtProgram(made.artifact.data, made.contract, "reference")([x])
    right = made.run(x)
    assert (right - net(x)).norm() <= 0.03 * net(x).norm() < (wrong - net(x)).norm()


ISLANDS: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "4 bits": (
        lambda: by_torchao(
            seeded(nn.Linear, 64, 7),
            Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16)),
        ),
        drawn(5, 64),
        "a weight with a scale for every 16 inputs, where XNNPACK takes multiples of 32",
    ),
    "convolution": (
        lambda: by_xnnpack_dynamically(seeded(nn.Conv2d, 3, 8, 3), drawn(2, 3, 9, 11)),
        drawn(2, 3, 9, 11),
        "no kernel of it that quantises dynamically",
    ),
}


@pytest.mark.parametrize("name", ISLANDS)
def test_what_quantises_no_rows_is_an_island_of_floats(name: str) -> None:
    make, x, reason = ISLANDS[name]
    network = make()
    made = dimorder.lower(network, (x,), target="litert")
    assert reason in {told for _, told in made.plan.float_islands}
    wanted = network(x)
    assert (made.run(x) - wanted).norm() <= 0.02 * wanted.norm()


def test_rows_that_are_rounded_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(5, 24) * torch.tensor([1.0, 2, 3, 4, 50]).reshape(5, 1)
    quantised = by_xnnpack_dynamically(seeded(nn.Linear, 24, 7), x)
    round_all_rows_alike(monkeypatch)
    with pytest.raises(VerificationError, match="of dynamically quantised integers"):
        dimorder.lower(quantised, (x,), target="litert")
