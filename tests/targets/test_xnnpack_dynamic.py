"""Dynamically quantised networks on target xnnpack: products of integers, whose scales the program finds.

`lower` holds each product of the file to XNNPACK's arithmetic (`targets/xnnpack/model.py`), and the whole to
the network. Here both are computed anew: XNNPACK's rounding by rows, and what the network's own step allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError
from dimorder.lowered import Lowered

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    MappingType,
)
from torchao.quantization.granularity import PerAxis, PerGroup

from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.ops.dialect import OPS, dynamic_type
from dimorder.verification import xnnpack_roundings
from tests.targets.quantised import by_torchao, by_xnnpack_dynamically, round_all_rows_alike

SUM = 2e-6  # relative to the largest result: what float32 rounds
LEVELS = (-128, 127)
Product = Callable[[Tensor, Tensor], Tensor]


def r(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def seeded(make: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(args))
        return make(*args, **kwargs).eval()


def by_channel(weight: Tensor, dim: int = 0) -> Tensor:
    """A weight as PT2E rounds it: to 127 steps on either side, of each output channel."""
    others = [d for d in range(weight.dim()) if d != dim]
    steps = weight.detach().abs().amax(others, keepdim=True) / 127
    return (weight.detach() / steps).round().clamp(-127, 127) * steps


def by_rows(x: Tensor, dims: int) -> Tensor:
    """Round as XNNPACK does: by one asymmetric scale over the last dimensions."""
    return OPS.fake_quantize_dynamic(x, list(range(x.dim() - dims, x.dim())), *LEVELS, 1e-38, "balanced")


def lowered(net: nn.Module, *inputs: Tensor, **options: Any) -> Lowered:
    made = dimorder.lower(net, inputs, target="xnnpack", **options)
    assert (made.artifact.delegates, made.artifact.outside) == (1, {})
    return made


def near(got: Tensor, wanted: Tensor) -> bool:
    return bool((got - wanted).abs().max() <= SUM * wanted.abs().max())


def within_a_step(got: Tensor, network: Tensor, x: Tensor, weight: Tensor, product: Product) -> bool:
    """Return whether each result is as near to the network's as two roundings of its operands explain. One
    rounds by the network's one step for all of `x`, the other by XNNPACK's step, which is no larger."""
    step, _ = dynamic_type(x, list(range(x.dim())), *LEVELS, 2**-12, "asymmetric")
    allowed = 2 * product(step.expand(x.shape), weight.abs())
    assert ((got - network).abs() > 0).any(), "the same by chance shows nothing"
    return bool(((got - network).abs() <= allowed).all())


# -- linear layers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 13), (3, 5, 13), (2, 4, 3, 13)])
def test_a_linear_layer_rounds_each_row(shape: tuple[int, ...], bias: bool, datatypes: Counter[str]) -> None:
    net, x = seeded(nn.Linear, 13, 7, bias=bias), r(*shape)
    quantised = by_xnnpack_dynamically(net, x)
    made = lowered(quantised, x)
    assert (datatypes["qdint8"], datatypes["qcint8"], made.plan.float_islands) == (1, 1, ())
    weight, got = by_channel(net.weight), made.run(x)
    added = net.bias.detach().double() if bias else None
    assert near(got, F.linear(by_rows(x, 1).double(), weight.double(), added).float())
    assert within_a_step(got, quantised(x), x, weight, F.linear)


def test_symmetric_rows_have_the_models_zero_points() -> None:
    """Their zero point lies at a half, so that the last bit of the scale decides it."""
    x = r(4096, 1).abs() * torch.tensor([1.0, -1.0, 0.3])
    net = nn.Linear(3, 3, bias=False).eval()
    nn.init.eye_(net.weight)
    got = lowered(by_xnnpack_dynamically(net, x), x).run(x).double()
    wanted = xnnpack_roundings.DynamicIntegers.of(x, 1).values
    assert wanted[:, 0].div(x[:, 0]).unique().numel() > 1, "only one zero point"
    assert ((got - wanted).abs() <= SUM * wanted.abs()).all()


def test_a_norm_of_two_features_makes_symmetric_rows() -> None:
    net, x = nn.Sequential(nn.LayerNorm(2), seeded(nn.Linear, 2, 7)).eval(), r(64, 2)
    assert lowered(by_xnnpack_dynamically(net, x), x).artifact.delegates == 1


INT4, INT8 = (
    partial(Int8DynamicActivationIntxWeightConfig, weight_dtype=t) for t in (torch.int4, torch.int8)
)


@pytest.mark.parametrize("inputs", [34, 33])
def test_four_bits_for_each_output(inputs: int, datatypes: Counter[str]) -> None:
    """By tokens, as XNNPACK has it: the same numbers. Its kernels of 4 bits are wrong for 33 inputs."""
    net, x = seeded(nn.Linear, inputs, 11), r(3, 5, inputs)
    quantised = by_torchao(net, INT4(weight_granularity=PerAxis(0)))
    made = lowered(quantised, x)
    assert datatypes["qdint8"] == datatypes["qcint8" if inputs % 2 else "qcint4"] == 1
    assert near(made.run(x), quantised(x)) and made.plan.float_islands == ()


def test_four_bits_for_groups_of_inputs(datatypes: Counter[str]) -> None:
    """XNNPACK has the scales of groups as bfloat16: off by a 512th at most."""
    net, x = seeded(nn.Linear, 96, 11, bias=False), r(3, 5, 96)
    quantised = by_torchao(net, INT4(weight_granularity=PerGroup(32)))
    made = lowered(quantised, x)
    assert (datatypes["qdint8"], datatypes["qbint4"], made.plan.float_islands) == (1, 1, ())
    held = quantised.weight
    scales = held.scale.to(torch.bfloat16).float().repeat_interleave(32, 1)
    assert near(made.run(x), F.linear(by_rows(x, 1), held.qdata * scales))
    off = (made.run(x) - quantised(x)).abs()
    assert bool((off <= F.linear(x.abs(), held.dequantize().abs()) / 512 + 1e-3).all()) and off.max() > 0


@pytest.mark.parametrize("shape", [(5, 64), (3, 5, 64)])
def test_products_of_integers(shape: tuple[int, ...], datatypes: Counter[str]) -> None:
    """torchao computes this one in integers itself, by a symmetric scale for each token."""
    net, x = seeded(nn.Linear, 64, 11), r(*shape)
    quantised = by_torchao(net, Int8DynamicActivationInt8WeightConfig())
    made = lowered(quantised, x)
    assert (datatypes["qdint8"], datatypes["qcint8"], made.plan.float_islands) == (1, 1, ())
    steps, _ = dynamic_type(x, [x.dim() - 1], *LEVELS, 1e-38, "symmetric")
    allowed = 2 * F.linear(steps.expand(x.shape), quantised.weight.dequantize().abs())
    assert bool(((made.run(x) - quantised(x)).abs() <= allowed).all())


# -- convolutions


class Convolved(nn.Module):
    """A convolution, and what leaves its order to choose."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).mean((2, 3))


CONVOLUTIONS = {
    "plain": lambda: seeded(nn.Conv2d, 6, 10, 3, padding=1),
    "without bias": lambda: seeded(nn.Conv2d, 6, 10, 3, bias=False),
    "grouped": lambda: seeded(nn.Conv2d, 6, 10, 3, stride=2, dilation=2, groups=2),
    "transposed": lambda: seeded(nn.ConvTranspose2d, 6, 10, 3, stride=2, output_padding=1),
}


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_rounds_each_image(name: str, order: str, datatypes: Counter[str]) -> None:
    net, x = Convolved(CONVOLUTIONS[name]()), r(2, 6, 9, 11)
    made = lowered(by_xnnpack_dynamically(net, x), x, input_orders=order)
    assert len(made.plan.conversions) == (order == "NCHW")
    assert (datatypes["qdint8"], datatypes["qcint8"], made.plan.float_islands) == (1, 1, ())
    layer = CONVOLUTIONS[name]()
    layer.weight.data = by_channel(layer.weight, dim=int(name == "transposed"))
    with torch.no_grad():
        assert near(made.run(x), layer.double()(by_rows(x, 3).double()).mean((2, 3)).float())


def test_a_convolution_is_within_a_step_of_the_network() -> None:
    net, x = seeded(nn.Conv2d, 6, 10, 3), r(3, 6, 9, 11) * torch.tensor([0.1, 1, 7]).reshape(3, 1, 1, 1)
    quantised = by_xnnpack_dynamically(net, x)
    got, weight = lowered(quantised, x).run(x), by_channel(net.weight)
    assert within_a_step(got, quantised(x), x, weight, F.conv2d)


class Rounded(nn.Module):
    """A product of what is quantised dynamically over `dims`, with a weight of integers, after a move."""

    def __init__(self, dims: list[int], weight: Tensor, product: Product, move: Any, **how: Any) -> None:
        super().__init__()
        self.dims, self.product, self.move = dims, product, move
        self.how = {"zero_point": 0, "dim": 0, "levels": LEVELS, **how}
        steps = weight.abs().amax([d for d in range(weight.dim()) if d != self.how["dim"]]) / 127
        shape = [-1 if d == self.how["dim"] else 1 for d in range(weight.dim())]
        self.register_buffer("integers", (weight / steps.reshape(shape)).round().to(torch.int8))
        self.register_buffer("steps", steps)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.full_like(self.steps, self.how["zero_point"], dtype=torch.int64)
        weight = DEQUANTIZE_CHANNELS(self.integers, self.steps, zeros, self.how["dim"], -128, 127, torch.int8)
        rounded = OPS.fake_quantize_dynamic(x, self.dims, *self.how["levels"], 1e-9, "asymmetric")
        return self.product(self.move(rounded), weight)


same: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
MOVES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "reshape": (lambda x: x.reshape(10, 13), 13),
    "slice": (lambda x: x[:, 1:, 2:9], 7),
    "permute": (lambda x: x.permute(1, 0, 2), 13),
    "side by side with itself": (lambda x: torch.cat([x, x.flip(0)], 1), 13),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_in_between_move_the_floats(name: str, datatypes: Counter[str]) -> None:
    move, width = MOVES[name]
    net, x = Rounded([2], r(7, width), F.linear, move), r(2, 5, 13)
    assert lowered(net, x).plan.float_islands == ()
    assert (datatypes["qdint8"], datatypes["qcint8"]) == (1, 1)


# -- what XNNPACK does not quantise: a float island, with the reason

ISLANDS: dict[str, tuple[nn.Module, Tensor, str]] = {
    "depthwise": (
        Rounded([0, 1, 2, 3], r(6, 1, 3, 3), partial(F.conv2d, groups=6), same),
        r(2, 6, 9, 11),
        "no kernel of it that quantises dynamically",
    ),
    "zero point": (
        Rounded([1], r(7, 13), F.linear, same, zero_point=3),
        r(5, 13),
        "a weight with the zero point 3",
    ),
    "scales of inputs": (
        Rounded([1], r(7, 13), F.linear, same, dim=1),
        r(5, 13),
        "a weight with scales along another dimension than its output channels",
    ),
    "tokens of columns": (
        Rounded([0], r(7, 13), F.linear, same),
        r(5, 13),
        "several scales within what XNNPACK quantises by one",
    ),
    "tokens side by side": (
        Rounded([1], r(7, 26), F.linear, lambda x: x.reshape(3, 26)),
        r(6, 13),
        "several scales within what XNNPACK quantises by one",
    ),
    "groups of 16": (
        by_torchao(seeded(nn.Linear, 96, 11), INT4(weight_granularity=PerGroup(16))),
        r(3, 5, 96),
        "a weight with a scale for every 16 inputs, where XNNPACK takes multiples of 32",
    ),
    "groups of 8 bits": (
        by_torchao(seeded(nn.Linear, 96, 11), INT8(weight_granularity=PerGroup(32))),
        r(3, 5, 96),
        "a weight of 8 bits with a scale for every 32 inputs, which XNNPACK has for 4 bits",
    ),
    "several zero points": (
        by_torchao(
            seeded(nn.Linear, 64, 11),
            INT4(weight_granularity=PerAxis(0), weight_mapping_type=MappingType.ASYMMETRIC),
        ),
        r(3, 5, 64),
        "a weight that is not quantised, or by several zero points",
    ),
}


@pytest.mark.parametrize("name", ISLANDS)
def test_the_rest_is_a_float_island(name: str, datatypes: Counter[str]) -> None:
    net, x, reason = ISLANDS[name]
    made = lowered(net, x)
    assert [told for _, told in made.plan.float_islands] == [reason]
    assert dimorder.plan(net, (x,), target="xnnpack").float_islands == made.plan.float_islands
    assert datatypes["qdint8"] == 0 and reason in str(made.plan)


def test_more_than_8_bits_are_refused() -> None:
    net = Rounded([1], r(7, 13), F.linear, same, levels=(-512, 511))
    with pytest.raises(dimorder.DimorderError, match="integers from -512 to 511, found dynamically"):
        lowered(net, r(5, 13))


# -- the checks


def test_a_product_that_rounds_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if XNNPACK's rows were others, or its zero points."""
    x = r(5, 13) * torch.tensor([1.0, 2, 3, 4, 50]).reshape(5, 1)
    quantised = by_xnnpack_dynamically(seeded(nn.Linear, 13, 7), x)
    round_all_rows_alike(monkeypatch)
    with pytest.raises(VerificationError, match="of dynamically quantised integers"):
        lowered(quantised, x)


def test_a_program_beyond_the_networks_own_step_is_refused() -> None:
    from dimorder.verification.verify_integers import trial_of

    x = r(5, 13)
    quantised = by_xnnpack_dynamically(seeded(nn.Linear, 13, 7), x)
    made = lowered(quantised, x)
    trial = trial_of(quantised, made.program, made.contract)
    assert trial.compare(made.artifact.run, "the file") < 0.02
    with pytest.raises(VerificationError, match="half a step of what is quantised dynamically"):
        trial.compare(lambda held: [y * 1.1 for y in made.artifact.run(held)], "the file")
