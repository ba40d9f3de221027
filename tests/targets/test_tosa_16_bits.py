"""Test activations of 16 bits and weights of 8 on target tosa. Each graph gives the bits of Arm's reference
model. It is as near to the exact numbers as factors of 15 bits and interpolated tables allow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from tests.marks import slow_but
from tests.small_networks import Net
from tests.targets import quantised
from tests.targets.test_tosa_integers import BETWEEN, FEW_BETWEEN, PRODUCTS, X

RESULTS = ((1.71e-4, 0), (0.49e-4, 0), (3.1e-3, 0))
REFUSED = {
    **dict.fromkeys(("floor", "ceil"), "a function of 16 bits that tables have wrong by up to"),
    **dict.fromkeys(
        (name for name in BETWEEN if name.startswith(("softmax", "layer norm"))),
        "torch.int16, where this is computed of int8 alone",
    ),
}


class Between(quantised.Between):
    SCALES = ((1.13e-4, 0), (1.41e-4, 0), (0.97e-4, 0))  # which do not reach all of the inputs
    INTEGERS = quantised.INT16


class Product(quantised.Product):
    INPUT, RESULT = (1.13e-4, 0), (0.61e-4, 0)
    INTEGERS = quantised.INT16


def lower(module: nn.Module | dimorder.QuantizedNetwork, inputs: tuple[Tensor, ...]) -> Lowered:
    made = dimorder.lower(module, inputs, target="tosa", run_artifact=True)
    found = inspect_tosa(made.artifact.data)
    assert {tensor.dtype for tensor in (*found.inputs, *found.outputs)} == {"INT16"}
    assert made.verified.artifact_ran
    return made


@pytest.mark.parametrize("name", slow_but(BETWEEN, {*FEW_BETWEEN, "floor"}))
def test_an_operator_between_values_of_16_bits(name: str) -> None:
    compute, inputs = BETWEEN[name]
    if name not in REFUSED:
        lower(Between(compute, *RESULTS), inputs)
        return
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Between(compute, *RESULTS), inputs, target="tosa")
    assert f"  found: {REFUSED[name]}" in str(raised.value).splitlines()[1]


def test_a_sum_over_rows_less_one_of_them() -> None:
    """The sum is a convolution with ones, in 48 bits, which no RESHAPE takes."""
    lower(Between(lambda x: x.sum(1) - x[:, 0], (3.1e-4, 0)), (X,))


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_16_bits(name: str) -> None:
    if name == "of what is padded":
        pytest.skip("quantised in 8 bits")
    lower(Product(*PRODUCTS[name][:3]), (X,))


@pytest.mark.parametrize("name", ["transposed", "of volumes"])
def test_convolutions_of_each_channel_that_are_no_single_operator(name: str) -> None:
    """TOSA has neither; CONCAT takes no sums of 48 bits."""
    torch.manual_seed(3)
    nets = {
        "transposed": (nn.ConvTranspose2d(3, 6, 4, stride=2, padding=1, groups=3), (2, 3, 5, 7)),
        "of volumes": (nn.Conv3d(3, 6, (2, 3, 1), groups=3), (1, 3, 4, 6, 5)),
    }
    net, sizes = nets[name]
    examples = [torch.randn(sizes) for _ in range(3)]
    quantized = dimorder.quantize(net.eval(), examples, "int16x8", target="tosa")
    (found,) = quantized.compare(lower(quantized, (examples[0],)))
    assert found.snr_db is not None and found.snr_db > 45


@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        (nn.LSTM(7, 6), (2, 5, 7)),  # weights before what they multiply
        (Net(lambda m, x: torch.matmul(m.weight, x), weight=torch.randn(4, 6, 5)), (2, 4, 5, 7)),
        (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 5, 7)),
        (nn.TransformerEncoderLayer(8, 2, 12), (2, 5, 8)),  # a root near its pole: three tables
        (nn.RMSNorm(7), (2, 5, 7)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_network_of_16_bits(net: nn.Module, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    examples = [torch.randn(sizes) for _ in range(4)]
    first = Net(lambda m, x: pytree.tree_leaves(m.net(x))[0], net=net).eval()
    quantized = dimorder.quantize(first, examples, "int16x8", target="tosa")
    (found,) = quantized.compare(lower(quantized, (examples[0],)))
    assert found.snr_db is not None and found.snr_db > 40


@pytest.mark.parametrize("how", ["ol", "lo"])
def test_a_constant_matrix_of_16_bits(how: str) -> None:
    """A quantizer may observe a matrix as it does values; TOSA's convolutions have weights of 8 bits."""
    weight = torch.linspace(-2, 3, 28).reshape(4, 7)

    def compute(x: Tensor) -> Tensor:
        matrix = quantised.quantised(weight, 1.1e-4, 0, quantised.INT16)
        return F.linear(x, matrix) if how == "lo" else torch.einsum("blc,oc->bol", x, matrix)

    lower(Between(compute, (3.1e-4, 0)), (torch.randn(2, 5, 7),))


def test_a_convolution_whose_weight_has_16_bits_is_refused() -> None:
    weight = torch.linspace(-2, 3, 36).reshape(4, 3, 3, 1)

    def compute(x: Tensor) -> Tensor:
        return F.conv2d(x, quantised.quantised(weight, 1.1e-4, 0, quantised.INT16))

    with pytest.raises(dimorder.DimorderError, match="a weight of 16 bits, where TOSA's convolutions have 8"):
        dimorder.lower(Between(compute, (3.1e-4, 0)), (torch.randn(2, 3, 5, 7),), target="tosa")


@pytest.mark.parametrize("shift", [0, 2])
def test_moves_of_an_input_of_16_bits(shift: int) -> None:
    """The output's integers stand for what the input's do: RESCALE has no zero point for 16 bits."""
    move = Net(lambda m, x: x.roll(shift, -1) if shift else x.flip(-1))
    x = torch.linspace(-3, 2, 210).reshape(2, 3, 5, 7)
    quantized = dimorder.quantize(move, [x], "int16x8", target="tosa")
    made = lower(quantized, (x,))
    (taken,), (given,) = made.contract.inputs, made.contract.outputs
    assert (taken.scale, taken.zero_point) == (given.scale, given.zero_point)
    assert torch.equal(made.run(taken.quantized(x)), move(taken.quantized(x)))


def test_a_zero_point_of_16_bits_is_refused() -> None:
    module = Between(lambda x, y: x + y, (1.71e-4, 3))
    found = "found: int16 with zero point 3, where RESCALE has one for 8 bits alone"
    with pytest.raises(dimorder.DimorderError, match=found):
        dimorder.lower(module, (torch.ones(2, 3, 5), torch.ones(2, 3, 5)), target="tosa")


@pytest.mark.parametrize("taken", ["int8", "uint8"])
def test_8_bits_are_refused_for_a_network_of_16(taken: str) -> None:
    module = Between(torch.add, (1.71e-4, 0))
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(module, (torch.ones(2, 3, 5), torch.ones(2, 3, 5)), target="torch", input_types=taken)
    _, found, fix = str(raised.value).splitlines()
    assert found == "  found: the network has it in torch.int16"
    assert fix == "  fix: ask for int16, or quantise the network by recipe int8"


@pytest.mark.parametrize("name", ["atan", "sinc", "erfinv", "atanh"])
def test_functions_that_choose_without_a_step(name: str) -> None:
    """They are written in parts for small and for large numbers, which meet."""
    compute = {
        "atan": torch.atan,
        "sinc": torch.sinc,
        "erfinv": lambda x: torch.erfinv(x.tanh() * 0.9),
        "atanh": lambda x: torch.atanh(x.tanh() * 0.9),
    }[name]
    examples = [torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    quantized = dimorder.quantize(Net(lambda m, x: compute(x)), examples, "int16x8", target="tosa")
    (found,) = quantized.compare(lower(quantized, (examples[0],)))
    assert found.snr_db is not None and found.snr_db > 55


@pytest.mark.parametrize("name", ["entr", "xlogy"])
def test_a_function_that_is_infinite_out_of_reach(name: str) -> None:
    """A sigmoid gives no negative numbers, for which these functions are infinite or undefined."""

    def compute(x: Tensor) -> Tensor:
        x = x.sigmoid()
        return torch.special.entr(x) if name == "entr" else torch.xlogy(x, x)

    x = 3 * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    quantized = dimorder.quantize(Net(lambda m, x: compute(x)), [(x,)], "int16x8", target="tosa")
    (found,) = quantized.compare(lower(quantized, (x,)))
    assert found.snr_db is not None and found.snr_db > 55


@pytest.mark.parametrize("target", ["tosa", "ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(
    "how",
    [{"scale_factor": 2}, {"size": (9, 13), "align_corners": True}, {"size": (3, 4)}, {"size": (5, 14)}],
    ids=["doubled", "with corners aligned", "smaller", "of columns"],
)
def test_a_bilinear_resize_of_16_bits(how: dict[str, Any], target: str) -> None:
    """On an Ethos-U55 the columns are rounded before the rows are resized."""
    if target != "tosa":
        pytest.importorskip("ethosu")
    torch.manual_seed(3)
    net = Net(lambda m, x: F.interpolate(x, **how, mode="bilinear"))
    examples = [torch.randn(1, 3, 5, 7) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, "int16x8", target=target)
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target=target))
    assert found.snr_db is not None and found.snr_db > 60
    assert found.quanta <= 2
