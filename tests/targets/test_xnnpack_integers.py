"""Test quantised networks on target xnnpack: int8 nodes between converts, each bit for bit the model of its
kernel (`targets/xnnpack/model.py`). A lowering whose file gives other bits is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from tests import small_networks
from tests.marks import slow_but
from tests.targets.int8_cases import IN_INT8, PRODUCTS, Between, Weighted, X, Y
from tests.targets.quantised import INT8, UINT8, Net, Symmetric, by_xnnpack, quantised

RESULTS = {"coarse": (0.0311, -7), "fine": (0.0089, 3)}


@pytest.mark.parametrize("result", slow_but(RESULTS, ["coarse"]))
@pytest.mark.parametrize("name", IN_INT8)
def test_an_operator_between_quantised_values_computes_in_int8(
    name: str, result: str, kinds: Counter[str]
) -> None:
    compute, inputs = IN_INT8[name]
    lowered = dimorder.lower(Between(compute, RESULTS[result]), inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert kinds["Convert"] == len(inputs) + 1  # each input's, and the output's


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_int8_weights_computes_in_int8(name: str, kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Weighted(*PRODUCTS[name]), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (kinds["Convert"], lowered.plan.float_islands) == (2, ())


class Again(nn.Module):
    """Takes what a network quantises, may clamp it, and quantises it with another scale."""

    def __init__(self, first: nn.Module, clamp: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.clamp = first, clamp

    def forward(self, x: Tensor) -> Tensor:
        return quantised(self.clamp(self.first(x)), 0.0201, 3)


ONCE: dict[str, nn.Module] = {
    **{name: Weighted(*product) for name, product in PRODUCTS.items()},
    "max pool": Between(lambda x: F.max_pool2d(x, 2), (0.0247, 5)),
}


CLAMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": torch.clone,
    "clamped": lambda x: F.hardtanh(x, -0.51, 0.77),
}


@pytest.mark.parametrize(
    ("name", "clamp"),
    slow_but(
        product(ONCE, CLAMPS),
        [("convolution", "clamped"), ("linear", "as it is"), ("max pool", "clamped")],
    ),
)
def test_what_is_quantised_twice_is_rounded_twice(name: str, clamp: str) -> None:
    """XNNPACK lets these nodes compute a clamp that follows, which would round once."""
    made = Again(ONCE[name], CLAMPS[clamp])
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    lowered = dimorder.lower(made, (X,), target="xnnpack", **orders)
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.float_islands) == (1, (), ())


PADDED: dict[str, Any] = {
    "above": (lambda x: F.pad(x, (2, 0, 0, 3)), 0),
    "of a constant that is a quantised value": (lambda x: F.pad(x, (2, 0, 0, 3), value=0.0247 * 3), 1),
    "of channels": (lambda x: F.pad(x, (0, 0, 0, 0, 0, 6))[:, 1:7], 1),
}


@pytest.mark.parametrize("taken", [None, "uint8"])
@pytest.mark.parametrize("name", PADDED)
def test_a_pad_is_of_integers_and_zeros_are_a_convolutions_own(
    name: str, taken: str | None, kinds: Counter[str]
) -> None:
    """Test a network that quantises after the pad, as PT2E does."""
    pad, pads = PADDED[name]
    compute, shape = PRODUCTS["convolution"]
    made = Weighted(compute, shape)
    made.before = pad
    lowered = dimorder.lower(made, (X,), target="xnnpack", input_orders="NHWC", input_types=taken)
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.float_islands) == (1, (), ())
    assert (kinds["StaticConstantPad"], kinds["Convert"]) == (pads, 2)
    assert lowered.contract.inputs[0].dtype == (taken or "float32")


ISLANDS: dict[str, tuple[nn.Module, tuple[Tensor, ...], str]] = {
    "softmax": (Between(lambda x: x.softmax(1), (1 / 256, -128)), (X,), "XNNPACK has no int8 Softmax"),
    "silu": (Between(F.silu, (0.0311, -7)), (X,), "no int8 kernel computes it alone"),
    "layer norm": (
        Between(lambda x: F.layer_norm(x, (7,)), (0.0311, -7)),
        (X,),
        "no int8 kernel computes it alone",
    ),
    "leaky relu": (
        Between(lambda x: F.leaky_relu(x, 0.13), (0.0311, -7)),
        (X,),
        "XNNPACK's int8 kernel rounds otherwise than what is quantised next",
    ),
    "bilinear, where halves are frequent": (
        Between(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (0.0247, 5)),
        (X.repeat(1, 1, 4, 3),),
        "XNNPACK's int8 kernel rounds otherwise than what is quantised next",
    ),
    "product": (
        Between(torch.mul, (0.0247**2 / 300, -7)),
        (X, Y),
        "a ratio of scales of 300, outside of 2^-16 to 2^8",
    ),
    "sum": (
        Between(torch.add, (0.0247 / 400, 0)),
        (X, Y),
        "a ratio of scales of 400, outside of 0.000976562 to 256",
    ),
    "zero point of a weight": (
        Weighted(*PRODUCTS["linear"], 0, 3),
        (X,),
        "a weight with the zero point 3",
    ),
    "zero point of a matrix": (
        Between(lambda x, y: x @ y.transpose(2, 3), (0.0911, -7)),
        (X, Y),
        "a right matrix with the zero point 5",
    ),
    "joined with floats": (
        Between(lambda x: torch.cat([x, Y], 1).sigmoid(), (1 / 256, -128)),
        (X,),
        "an operand that is not quantised",
    ),
    "float weight": (
        Between(lambda x: F.conv2d(x, Y[:, :, :3, :2]), (0.0911, -7)),
        (X,),
        "a weight that is not int8 with one scale per output channel and one zero point",
    ),
}


@pytest.mark.parametrize("name", ISLANDS)
def test_what_no_int8_kernel_computes_is_a_float_island_with_its_reason(name: str) -> None:
    module, inputs, reason = ISLANDS[name]
    lowered = dimorder.lower(module, inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert [found for _, found in lowered.plan.float_islands] == [reason]
    (told,) = lowered.to_dict()["float_islands"]
    assert told["reason"] == reason and re.match(r"(test_xnnpack_integers|int8_cases)\.py:", told["source"])
    assert f"in float32, not in integers\n  {told['operator']} (" in str(lowered.plan)


@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_of_matrices_computes_in_int8(transposed: bool, kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Symmetric(transposed), (X, Y), target="xnnpack")
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 3)


class Parted(nn.Module):
    """Moves parts of other scales between quantised values, and joins them in a third scale. ExecuTorch 1.5.1
    writes a file for such parts that does not load (#21831)."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = quantised(x, 0.0247, 5).chunk(2, dim=1)
        first, second = quantised(first, 0.0131, -11), quantised(second, 0.0293, 4)
        joined = torch.cat([first.transpose(2, 3), second.flip(2).reshape(2, 3, 7, 5)], 1)
        return quantised(joined, 0.0311, -7)


def test_parts_of_other_scales_are_moved_and_joined_in_int8(kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Parted(), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 2)


@pytest.mark.parametrize(("order", "conversions"), slow_but([("NCHW", 1), ("NHWC", 0)], [("NCHW", 1)]))
def test_a_network_is_one_delegate_of_int8(order: str, conversions: int, kinds: Counter[str]) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = dimorder.lower(by_xnnpack(Net(), x), (x,), target="xnnpack", input_orders=order)
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (told["optimal"], told["conversion_count"]) == (True, conversions)
    assert kinds["Convert"] == 2
    if conversions:
        assert told["cost"] == x.numel()  # int8: a byte for each element


@pytest.mark.slow
def test_a_network_that_was_made_channels_last_is_one_too(kinds: Counter[str]) -> None:
    """ExecuTorch 1.5.1 fails while it lowers such a one."""
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    last = torch.channels_last
    made = by_xnnpack(Net().to(memory_format=last), x.to(memory_format=last))
    lowered = dimorder.lower(made, (x.to(memory_format=last),), target="xnnpack", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.to_dict()["conversion_count"]) == (1, 0)
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 2)


def test_a_linear_may_have_no_bias(kinds: Counter[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 12, bias=False), nn.ReLU())
    lowered = dimorder.lower(by_xnnpack(model, X), (X,), target="xnnpack")
    assert (lowered.plan.float_islands, kinds["FullyConnected"]) == ((), 1)


class Misread(nn.Module):
    """Integers that are read as others than they were quantised as, and joined with others."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine, coarse = QUANTIZE(x, 0.0247, 5, *INT8), QUANTIZE(x, 0.0613, -9, *INT8)
        joined = torch.cat([fine, coarse.flip(3)], 1)
        return DEQUANTIZE(fine.transpose(1, 3), 0.0247, 48, *INT8), DEQUANTIZE(joined, 0.0247, 5, *INT8)


def test_integers_may_be_read_as_others_than_they_are() -> None:
    lowered = dimorder.lower(Misread(), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    for got, wanted in zip(lowered.run(X), Misread()(X), strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


def test_integers_may_be_quantised_and_joined_with_themselves() -> None:
    """Test that the node that reads an input anew stands before the node that read it first."""
    x = torch.randint(0, 256, (2, 3, 5, 7), generator=torch.Generator().manual_seed(1)).to(torch.uint8)

    class Joined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            coarse = QUANTIZE(DEQUANTIZE(x, 0.0173, 0, *UINT8), 0.0519, 0, *UINT8)
            return torch.cat([coarse, x], 1)

    lowered = dimorder.lower(Joined(), (x,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert torch.equal(lowered.run(x), Joined()(x))


def test_what_a_portable_kernel_gives_is_taken_as_it_is() -> None:
    """Its last digits are its own, and log1p of what lies below -1 is NaN on both sides."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x.log1p()
            return self.convolution(x), y, F.relu(y)

    made = by_xnnpack(Beside().eval(), X)
    lowered = dimorder.lower(made, (X,), target="xnnpack")
    got, wanted = lowered.run(X), made(X)
    assert lowered.artifact.outside == {"aten::log1p.out": 1}
    assert not torch.equal(got[1].nan_to_num(), wanted[1].nan_to_num()), "the test shows nothing"
    assert 0 < got[1].isnan().sum() < X.numel()
    for g, w in zip(got, wanted, strict=True):
        assert torch.allclose(g, w, rtol=1e-4, atol=0.03, equal_nan=True)


def test_integers_of_more_dimensions_than_a_delegate_has_are_moved_outside() -> None:
    of, x = (0.0213, -10, -128, 127, torch.int8), X[:1, :3].contiguous()
    network = small_networks.Net(lambda m, x: QUANTIZE(x, *of).repeat(2, 1, 2, 1, 1))
    lowered = dimorder.lower(network, (x,), target="xnnpack")
    assert "aten::expand_copy.out" in lowered.artifact.outside
    assert torch.equal(lowered.run(x), network(x))


def test_an_output_may_be_an_input_of_another_shape() -> None:
    """The largest of one is itself, which XNNPACK need not compute."""
    network = small_networks.Net(lambda m, x: (m.first(x), x.amax(0)), first=nn.Conv2d(6, 4, 3))
    x = X[:1].contiguous()
    lowered = dimorder.lower(by_xnnpack(network.eval(), x), (x,), target="xnnpack")
    assert torch.equal(lowered.run(x)[1], x[0])
