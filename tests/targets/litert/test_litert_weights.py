"""Test weights of 4 bits, whose linears quantise rows as they run, and weights that alone are quantised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from ai_edge_litert.schema_py_generated import Model, TensorType
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig
from torchao.quantization.granularity import Granularity, PerAxis, PerGroup

from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.ops.dialect import OPS
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.flatbuffer import TfLiteTensor
from dimorder.targets.litert.integers import scales_by_element
from dimorder.targets.litert.runtime import KERNELS, LiteRtProgram
from tests.targets.quantised import by_torchao

SUM = 2e-6  # of the largest result: what float32 rounds
X = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(1))


def linear(inputs: int = 96) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(inputs)
        return nn.Linear(inputs, 7).eval()


def in_4_bits(net: nn.Module, granularity: Granularity) -> nn.Module:
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=granularity, weight_scale_dtype=torch.float32
    )
    return by_torchao(net, config)


def weight_of(artifact: Any) -> TfLiteTensor:
    """The only constant of int8 in a file."""
    graph = artifact.exact.written.graph
    (weight,) = (each for each in graph.stored.values() if each.dtype == torch.int8)
    return weight  # type: ignore[no-any-return]


@pytest.mark.parametrize(("granularity", "group"), [(PerAxis(0), None), (PerGroup(32), 32)])
def test_weights_of_4_bits_lie_two_in_a_byte(granularity: Granularity, group: int | None) -> None:
    net = in_4_bits(linear(), granularity)
    lowered = dimorder.lower(net, (X,), target="litert")
    assert (lowered.artifact.delegates, lowered.artifact.outside, lowered.plan.float_islands) == (1, {}, ())
    weight = weight_of(lowered.artifact)
    assert weight.data is not None and weight.content is not None and weight.scales is not None
    assert (weight.content.nbytes, weight.scales.group) == (7 * 96 // 2, group)
    numbers = torch.from_numpy(weight.data) * scales_by_element(weight)
    torch.testing.assert_close(numbers, net.weight.dequantize(), rtol=2**-8 if group else 0, atol=0)
    rows = OPS.fake_quantize_dynamic(X, [X.dim() - 1], -128, 127, 1e-38, "balanced").double()
    wanted = F.linear(rows, numbers.double(), net.bias.detach().double())
    assert (lowered.run(X) - wanted).abs().max() <= SUM * wanted.abs().max()


@pytest.mark.parametrize(("granularity", "misread"), [(PerAxis(0), "builtin"), (PerGroup(32), "reference")])
def test_litert_has_kernels_that_misread_weights_of_4_bits(granularity: Granularity, misread: str) -> None:
    """The reference kernels are run before a file is returned, unless it has groups."""
    net = in_4_bits(linear(), granularity)
    lowered = dimorder.lower(net, (X,), target="litert")
    assert bool(lowered.artifact.other_runs) == (misread != "reference")
    wanted, errors = net(X), {}
    for kernels in KERNELS:
        (got,) = LiteRtProgram(lowered.artifact.data, lowered.contract, kernels)([X])
        errors[kernels] = float(((got - wanted).norm() / wanted.norm()).detach())
    assert errors.pop(misread) > 0.1 and max(errors.values()) < 0.01


def test_an_odd_number_of_inputs_takes_a_byte_for_each_weight() -> None:
    lowered = dimorder.lower(in_4_bits(linear(95), PerAxis(0)), (X[..., :95],), target="litert")
    weight = weight_of(lowered.artifact)
    assert weight.content is not None and weight.content.nbytes == 7 * 95
    assert (lowered.artifact.delegates, lowered.artifact.outside, lowered.plan.float_islands) == (1, {}, ())


def test_groups_whose_scales_float16_lacks_are_floats() -> None:
    net = linear()
    net.weight = nn.Parameter(net.weight.detach() * 1e-4)
    lowered = dimorder.lower(in_4_bits(net, PerGroup(32)), (X,), target="litert")
    reason = "scales of groups that float16 has not, in which a .tflite stores them"
    assert [told for _, told in lowered.plan.float_islands] == [reason]


class Filtered(nn.Module):
    """A convolution whose weight alone is quantised."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.integers = torch.randint(-127, 128, (8, 6, 3, 3), generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(8, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(8, dtype=torch.int64)
        return F.conv2d(x, DEQUANTIZE_CHANNELS(self.integers, self.scales, zeros, 0, -127, 127, torch.int8))


WEIGHTS_ALONE = {
    "linear, 8 bits": (by_torchao(linear(), IntxWeightOnlyConfig(weight_dtype=torch.int8)), X, 7 * 96),
    "linear, 4 bits": (
        by_torchao(linear(), IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0))),
        X,
        7 * 96,
    ),
    "convolution": (Filtered(), X.reshape(1, 6, 15, 16), 8 * 6 * 9),
}


def constants(data: bytes) -> list[tuple[int, int]]:
    """The type and the bytes of each tensor of a file."""
    model = Model.GetRootAs(data)
    graph = model.Subgraphs(0)
    tensors = map(graph.Tensors, range(graph.TensorsLength()))
    return [(each.Type(), model.Buffers(each.Buffer()).DataLength()) for each in tensors]


@pytest.mark.parametrize("name", WEIGHTS_ALONE)
def test_weights_that_alone_are_quantised_take_a_byte_each(name: str) -> None:
    net, x, count = WEIGHTS_ALONE[name]
    lowered = dimorder.lower(net, (x,), target="litert")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert operators(lowered.artifact.data)["DEQUANTIZE"] == 1
    stored = constants(lowered.artifact.data)
    assert (TensorType.INT8, count) in stored and (TensorType.FLOAT32, 4 * count) not in stored
    for kernels in KERNELS:
        (got,) = LiteRtProgram(lowered.artifact.data, lowered.contract, kernels)([x])
        torch.testing.assert_close(got, net(x), rtol=0, atol=1e-5)
