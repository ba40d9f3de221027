"""Quantised networks on target xnnpack: int8 nodes between converts, each held to its kernel's arithmetic bit
for bit (`targets/xnnpack/model.py`; a lowering whose file gives other bits is refused).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized_constant import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from tests.targets.quantised import INT8, UINT8, Net, by_xnnpack, quantised


class Between(nn.Module):
    """One operator between quantised values of awkward scales and zero points."""

    def __init__(self, compute: Callable[..., Tensor], result: tuple[float, int]) -> None:
        super().__init__()
        self.compute, self.result = compute, result

    def forward(self, *inputs: Tensor) -> Tensor:
        return quantised(self.compute(*(quantised(x, 0.0247, 5) for x in inputs)), *self.result)


X, Y = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
IN_INT8: dict[str, Any] = {
    "hardswish": (F.hardswish, (X,)),
    "sigmoid": (torch.sigmoid, (X,)),
    "tanh": (torch.tanh, (X,)),
    "gelu": (F.gelu, (X,)),
    "elu": (F.elu, (X,)),
    "exp": (torch.exp, (X,)),
    "abs": (torch.abs, (X,)),
    "square": (torch.square, (X,)),
    "sin": (torch.sin, (X,)),
    "add": (torch.add, (X, Y)),
    "sub": (torch.sub, (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "mul, broadcast": (torch.mul, (X, Y[:, :, :1, :1].contiguous())),
    "neg": (torch.neg, (X,)),
    "floor": (torch.floor, (X,)),
    "ceil": (torch.ceil, (X,)),
    "cos": (torch.cos, (X,)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.51, 0.77), (X,)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "maximum of a dimension": (lambda x: x.amax(1, keepdim=True), (X,)),
    "add a number": (lambda x: x + 0.37, (X,)),
    "times a number": (lambda x: x * -1.83, (X,)),
    "mean over space": (lambda x: x.mean((2, 3)), (X,)),
    "mean over space, kept": (lambda x: x.mean((2, 3), keepdim=True), (X,)),
    "mean over the last": (lambda x: x.mean(-1), (X,)),
    "sum over the last": (lambda x: x.sum(-1), (X,)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "average pool of 6 taps": (lambda x: F.avg_pool2d(x, (2, 3)), (X,)),
    "average pool of the whole picture": (lambda x: F.avg_pool2d(x, (5, 7)), (X,)),
    "requantised": (lambda x: x, (X,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (X,)),
    "reflect pad": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (X,)),
    "transpose": (lambda x: x.transpose(1, 3), (X,)),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), (X,)),
    "index": (lambda x: x[:, [3, 0, 5, 0]], (X,)),
    "expand": (lambda x: x[:, :, :1].expand(-1, -1, 3, -1), (X,)),
}


@pytest.mark.parametrize("result", [(0.0311, -7), (0.0089, 3)])
@pytest.mark.parametrize("name", IN_INT8)
def test_an_operator_between_quantised_values_computes_in_int8(
    name: str, result: tuple[float, int], kinds: Counter[str]
) -> None:
    compute, inputs = IN_INT8[name]
    lowered = dimorder.lower(Between(compute, result), inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert kinds["Convert"] == len(inputs) + 1  # each input's, and the output's


class Weighted(nn.Module):
    """A product with int8 weights of a scale per output channel, between quantised values, and a clamp."""

    def __init__(
        self, compute: Callable[..., Tensor], shape: tuple[int, ...], dim: int = 0, zero_point: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.compute, self.dim = compute, dim
        self.integers = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(shape[dim], generator=generator)
        self.zero_points = torch.full((shape[dim],), zero_point)
        self.bias = nn.Parameter(torch.randn(12, generator=generator))
        self.before: Callable[[Tensor], Tensor] = torch.clone

    def forward(self, x: Tensor) -> Tensor:
        how = (self.scales, self.zero_points, self.dim, -127, 127, torch.int8)
        weight = DEQUANTIZE_CHANNELS(self.integers, *how)
        product = self.compute(quantised(self.before(x), 0.0247, 5), weight, self.bias)
        return quantised(F.hardtanh(product, -1.31, 1.87), 0.0151, -9)


PRODUCTS: dict[str, Any] = {
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)), (12, 6, 3, 2)),
    "grouped": (lambda x, w, b: F.conv2d(x, w, b, 1, (0, 1), 1, 2), (12, 3, 3, 5)),
    "depthwise": (lambda x, w, b: F.conv2d(x, w, b, (1, 2), (1, 2), 1, 6), (12, 1, 3, 5)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (0, 1)), (6, 12, 3, 2), 1),
    "transposed, a scale for two channels": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (0, 1), 6),
        (6, 2, 3, 2),
    ),
    "linear": (F.linear, (12, 7)),
    "linear without bias": (lambda x, w, b: F.linear(x, w), (12, 7)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_int8_weights_computes_in_int8(name: str, kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Weighted(*PRODUCTS[name]), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (kinds["Convert"], lowered.plan.float_islands) == (2, ())


class Again(nn.Module):
    """What a network quantises, perhaps clamped, quantised with another scale."""

    def __init__(self, first: nn.Module, clamp: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.clamp = first, clamp

    def forward(self, x: Tensor) -> Tensor:
        return quantised(self.clamp(self.first(x)), 0.0201, 3)


ONCE: dict[str, nn.Module] = {
    **{name: Weighted(*product) for name, product in PRODUCTS.items()},
    "max pool": Between(lambda x: F.max_pool2d(x, 2), (0.0247, 5)),
}


@pytest.mark.parametrize("clamp", [torch.clone, lambda x: F.hardtanh(x, -0.51, 0.77)], ids=["", "clamped"])
@pytest.mark.parametrize("name", ONCE)
def test_what_is_quantised_twice_is_rounded_twice(name: str, clamp: Callable[[Tensor], Tensor]) -> None:
    """XNNPACK lets these nodes compute a clamp that follows, which would round once."""
    made = Again(ONCE[name], clamp)
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
    """The network quantises behind the pad, as PT2E does."""
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
    assert told["reason"] == reason and "test_xnnpack_integers.py:" in told["source"]
    assert f"in float32, not in integers\n  {told['operator']} (" in str(lowered.plan)


class Symmetric(nn.Module):
    """A product of matrices of which the right one has zero point 0."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = quantised(x, 0.0247, 5), quantised(y, 0.0313, 0)
        y = y.transpose(2, 3) if self.transposed else y.reshape(2, 6, 7, 5)
        return quantised(x @ y, 0.0911, -7)


@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_of_matrices_computes_in_int8(transposed: bool, kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Symmetric(transposed), (X, Y), target="xnnpack")
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 3)


class Parted(nn.Module):
    """Parts of other scales, of which ExecuTorch 1.5.1 writes a file that does not load (#21831), moved
    between quantised values, and joined in a third scale."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = quantised(x, 0.0247, 5).chunk(2, dim=1)
        first, second = quantised(first, 0.0131, -11), quantised(second, 0.0293, 4)
        joined = torch.cat([first.transpose(2, 3), second.flip(2).reshape(2, 3, 7, 5)], 1)
        return quantised(joined, 0.0311, -7)


def test_parts_of_other_scales_are_moved_and_joined_in_int8(kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Parted(), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 2)


@pytest.mark.parametrize(("order", "conversions"), [("NCHW", 1), ("NHWC", 0)])
def test_a_network_is_one_delegate_of_int8(order: str, conversions: int, kinds: Counter[str]) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = dimorder.lower(by_xnnpack(Net(), x), (x,), target="xnnpack", input_orders=order)
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (told["optimal"], told["conversion_count"]) == (True, conversions)
    assert kinds["Convert"] == 2
    if conversions:
        assert told["cost"] == x.numel()  # int8: a byte for each element


def test_a_network_that_was_made_channels_last_is_one_too(kinds: Counter[str]) -> None:
    """ExecuTorch 1.5.1 fails while it lowers such a one."""
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    last = torch.channels_last
    made = by_xnnpack(Net().to(memory_format=last), x.to(memory_format=last))
    lowered = dimorder.lower(made, (x.to(memory_format=last),), target="xnnpack", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.to_dict()["conversion_count"]) == (1, 0)
    assert (lowered.plan.float_islands, kinds["Convert"]) == ((), 2)


def test_a_wrong_island_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.xnnpack import model

    wrong = {**model._FLOAT, "Softmax": lambda fields, shape, x: x.softmax(-1) * 1.02}
    monkeypatch.setattr(model, "_FLOAT", wrong)
    with pytest.raises(VerificationError, match=r"aten.softmax.int .* in float32"):
        dimorder.lower(Between(lambda x: x.softmax(1), (1 / 256, -128)), (X,), target="xnnpack")


def test_a_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.xnnpack import model

    right = model._scaled

    def wrong(sums: Tensor, scale: Tensor, of: Any) -> Tensor:
        made = right(sums, scale, of)
        made[0, 0, 0, 0] -= made[0, 0, 0, 0].sign()
        return made

    monkeypatch.setattr(model, "_scaled", wrong)
    with pytest.raises(VerificationError, match="1 of 420 elements of output 0 are not what its integer"):
        dimorder.lower(Between(torch.mul, (0.0311, -7)), (X, Y), target="xnnpack")


HALVES = torch.arange(-128, 128).to(torch.int8).reshape(1, 256)


@pytest.mark.parametrize("result", [(0.0494, -8), (0.0494, -9), (0.0988, 2)])
def test_integers_on_a_half_are_rounded_as_the_kernel_does_it(result: tuple[float, int]) -> None:
    """Twice or four times the scale: half of the integers, or a quarter, lie on a half of the new one."""

    class Coarser(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(DEQUANTIZE(x, 0.0247, 5, *INT8), *result, *INT8)

    lowered = dimorder.lower(Coarser(), (HALVES,), target="xnnpack")
    assert (lowered.run(HALVES).int() - Coarser()(HALVES).int()).abs().max() <= 1


HALVED = {
    "reshaped": lambda x: x.unflatten(0, (1, -1)).transpose(0, 1).flatten(0, 1),
    "repeated": lambda x: x.repeat(2, 3),
    "joined twice": lambda x: x[:, [3, 1, 1, 7, 5, 9, 11]],
    "joined with what lies elsewhere": lambda x: torch.cat([x, x.flip(1)], 1),
}


@pytest.mark.parametrize("name", HALVED)
def test_a_half_may_be_rounded_either_way_before_it_is_moved(name: str) -> None:
    """3.75 times the scale: of every fourth integer a half is made, which float32 does not hold."""

    class Moved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            moved = HALVED[name](DEQUANTIZE(x, 0.03102, 0, *INT8))
            return DEQUANTIZE(QUANTIZE(moved, 0.008272, 0, *INT8), 0.008272, 0, *INT8)

    lowered = dimorder.lower(Moved(), (HALVES,), target="xnnpack")
    assert (lowered.run(HALVES) - Moved()(HALVES)).abs().max() <= 1.01 * 0.008272


def test_what_is_computed_from_a_half_is_as_unsure() -> None:
    """1.25 times the scale makes halves, which are quantised again before they are repeated."""

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = quantised(x, 0.005545, 0).unsqueeze(3).expand(2, 2, 14, 2, 3)
            return quantised(quantised(x, 0.004436, 0), 0.01314, 0)

    x = torch.randn(2, 2, 14, 3, generator=torch.Generator().manual_seed(11))
    lowered = dimorder.lower(Chain(), (x,), target="xnnpack")
    assert (lowered.run(x) - Chain()(x)).abs().max() <= 1.01 * 0.01314


@pytest.mark.parametrize("scale", [0.028, 0.01055])  # whose inverse is another in float64 than in float32
def test_numbers_on_a_half_are_rounded_as_the_kernel_does_it(scale: float) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(x, scale, -9, *INT8)

    x = (HALVES.double() + 0.5).mul(scale).float()
    lowered = dimorder.lower(Rounded(), (x,), target="xnnpack")
    (wanted,) = lowered.artifact.exactly([x])
    assert torch.equal(lowered.run(x), wanted)


def test_a_mean_of_integers_of_one_scale_lies_on_halves() -> None:
    x = torch.randn(2, 8, 6, 10, generator=torch.Generator().manual_seed(3))
    lowered = dimorder.lower(Between(lambda x: F.avg_pool2d(x, 2), (0.0247, 5)), (x,), target="xnnpack")
    assert lowered.plan.float_islands == ()


def test_a_mean_on_a_half_is_rounded_as_the_kernel_does_it() -> None:
    """Of 14 numbers: the sum is scaled before the zero point is taken away."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(DEQUANTIZE(x, 0.0247, 5, *INT8).mean((2, 3), keepdim=True), 0.0247, 5, *INT8)

    x = torch.randint(-30, 40, (1, 3001, 2, 7), generator=torch.Generator().manual_seed(3)).to(torch.int8)
    lowered = dimorder.lower(Mean(), (x,), target="xnnpack", input_orders="NHWC")
    (wanted,) = lowered.artifact.exactly([x.permute(0, 2, 3, 1)])
    assert torch.equal(lowered.run(x).flatten(), wanted.flatten())


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
    """What reads an input anew stands before what read it first."""
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


def test_a_float_island_may_make_much_of_constants() -> None:
    """The norm of rows whose elements hardly differ, of what an enlargement in constants of float32 gave."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            large = F.interpolate(1 + F.relu(x[..., :2, :2]) * 0.1, scale_factor=3, mode="bicubic")
            return self.convolution(x), F.layer_norm(large, (6,))

    made = by_xnnpack(Steep().eval(), X)
    lowered = dimorder.lower(made, (X,), target="xnnpack")
    assert lowered.artifact.delegates == 1


def _affine(x: Tensor, block: Any, scales: Tensor, zeros: Tensor) -> Tensor:
    """Rounded by torchao's operators, a scale for each block."""
    from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

    integers = quantize_affine(x, block, scales, zeros, torch.int8, -128, 127)
    return dequantize_affine(integers, block, scales, zeros, torch.int8, -128, 127)


def _by_tensors(x: Tensor, scale: float, zero: int, *limits: Any) -> Tensor:
    ops, of = torch.ops.quantized_decomposed, (torch.tensor(scale), torch.tensor(zero), *limits, torch.int8)
    overload = "tensor2" if limits and isinstance(limits[0], Tensor) else "tensor"
    integers = getattr(ops.quantize_per_tensor, overload)(x, *of)
    return getattr(ops.dequantize_per_tensor, overload)(integers, *of)


KNOWN_SCALES = {
    "torchao's": lambda x, s, z: _affine(x, x.shape, torch.tensor([s]), torch.tensor([z])),
    "of tensors": lambda x, s, z: _by_tensors(x, s, z, -128, 127),
    "of tensors alone": lambda x, s, z: _by_tensors(x, s, z, torch.tensor(-128), torch.tensor(127)),
}


@pytest.mark.parametrize("name", KNOWN_SCALES)
def test_scales_that_are_constants_are_known_however_they_are_given(name: str) -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 10, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            rounded, weight = KNOWN_SCALES[name], self.conv.weight
            scales = weight.detach().abs().amax((1, 2, 3)) / 127
            weight = _affine(weight, (1, *weight.shape[1:]), scales, torch.zeros(10, dtype=torch.int32))
            return rounded(F.relu(F.conv2d(rounded(x, 0.0247, 5), weight)), 0.0151, -128)

    torch.manual_seed(0)
    model = Convolution().eval()
    lowered = dimorder.lower(model, (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside, lowered.artifact.float_islands) == (
        1,
        {},
        (),
    )
    with torch.no_grad():
        assert (lowered.run(X) - model(X)).abs().max() <= 1.01 * 0.0151
    assert [i.bytes for i in lowered.plan.conversions] == [X.numel(), 2 * 10 * 3 * 5]


def test_what_is_left_in_floats_may_be_computed_with_constants_of_float32() -> None:
    class Beside(nn.Module):
        """A quantised convolution, and a picture of another size, in weights that lowering works out."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            small = F.interpolate(x, size=(3, 2), mode="bicubic", antialias=True)
            return self.convolution(x), small

    made = by_xnnpack(Beside().eval(), X)
    lowered = dimorder.lower(made, (X,), target="xnnpack")
    for got, wanted in zip(lowered.run(X), made(X), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert lowered.artifact.delegates == 1
