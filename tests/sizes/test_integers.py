"""One file of integers for ranges of sizes: bit for bit what its kernels are defined to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.errors import ContractError, VerificationError
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.lowered import Lowered
from dimorder.runtime.guard import check
from dimorder.targets.litert import model
from tests.marks import slow_but
from tests.sizes.symbols import OF_SIZES, errors, refusal
from tests.targets.quantised import by_xnnpack, quantised
from tests.zoo import network, perturb

SHAPE = 2, 3, 16, 22
SUFFIX = {"xnnpack": ".pte", "litert": ".tflite"}
PICTURES = ({0: Dim("N", min=1, max=6), 2: 2 * Dim("H", min=6, max=20), 3: 2 * Dim("W", min=7, max=22)},)


class Layers(nn.Module):
    """A convolution of stride 2, a depthwise, a transposed one and a linear, as a function uses them."""

    def __init__(self, compute: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute
        self.first, self.depthwise = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 2, 2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def pooled(net: Layers, x: Tensor) -> Tensor:
    y: Tensor = net.head(net.depthwise(net.first(x).relu()).mean((2, 3)))
    return y


def enlarged(net: Layers, x: Tensor) -> Tensor:
    y: Tensor = net.up(net.first(x).relu())
    return y


def gated(net: Layers, x: Tensor) -> Tensor:
    """Islands of floats: a hard swish and a softmax."""
    y = F.hardswish(net.first(x))
    scores: Tensor = net.head((y + net.depthwise(y)).mean((2, 3))).softmax(-1)
    return scores


def cropped(net: Layers, x: Tensor) -> Tensor:
    """The network cuts off what a convolution pads, as a causal convolution does."""
    y = F.gelu(net.depthwise(net.first(x).relu())[:, :, 1:, :-1])
    scores: Tensor = net.head(y.mean((2, 3)))
    return scores


class Tokens(nn.Module):
    """A token for each picture, before what a convolution finds in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv(x).flatten(2).transpose(1, 2)
        scores: Tensor = self.head(torch.cat([self.token.expand(x.shape[0], -1, -1), found], 1))
        return scores


class Detector(nn.Module):
    """Three maps whose places have anchors, which are computed from sizes alone."""

    def __init__(self) -> None:
        super().__init__()
        inputs, maps = (3, 7, 9), (7, 9, 11)
        convs = (nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(inputs, maps, strict=True))
        self.down = nn.ModuleList(nn.Sequential(conv, nn.ReLU()) for conv in convs)
        self.points = nn.ModuleList(nn.Conv2d(channels, 2, 1) for channels in maps)

    def forward(self, x: Tensor) -> Tensor:
        found, centres = [], []
        for down, points in zip(self.down, self.points, strict=True):
            x = down(x)
            found.append(points(x).flatten(2))
            rows, columns = (torch.arange(size) + 0.5 for size in x.shape[2:])
            centres.append(torch.stack(torch.meshgrid(rows, columns, indexing="ij")).flatten(1))
        return torch.cat(centres, 1)[None] - torch.cat(found, 2)


class Pooled(nn.Module):
    """Joins a map with the mean of the whole picture, which is resized from one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.own = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 40, 3, padding=1)
        self.mean, self.join = nn.Conv2d(6, 44, 1), nn.Conv2d(84, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).relu()
        mean = self.mean(y.mean((2, 3), keepdim=True)).relu()
        mean = F.interpolate(mean, y.shape[2:], mode="bilinear", align_corners=False)
        joined: Tensor = self.join(torch.cat([self.own(y).relu(), mean], 1))
        return joined


class Rescaled(nn.Module):
    """Quantises the result of a convolution twice, with two scales."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.integers = torch.randint(-127, 128, (5, 3, 3, 3), generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(5, dtype=torch.int64)
        weight = DEQUANTIZE_CHANNELS(self.integers, self.scales, zeros, 0, -127, 127, torch.int8)
        return quantised(quantised(F.conv2d(quantised(x, 0.0247, 5), weight), 0.0313, -8), 0.0431, 3)


class Summed(nn.Module):
    """Sums the numbers of each row between quantised values."""

    def forward(self, x: Tensor) -> Tensor:
        return quantised(quantised(x, 0.5, 0).sum(-1), 0.75, 3)


def made(compute: Callable[[Layers, Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return by_xnnpack(perturb(Layers(compute).eval()), torch.randn(SHAPE))


def lower(network: nn.Module, target: str, **options: Any) -> Lowered:
    return dimorder.lower(network, (torch.randn(SHAPE),), dynamic_shapes=PICTURES, target=target, **options)


@pytest.fixture(scope="module", params=slow_but(SUFFIX, ["xnnpack"]))
def pool(request: pytest.FixtureRequest) -> Lowered:
    return lower(made(pooled), request.param)


# XNNPACK has a hard swish of integers, and LiteRT has none. Neither has a sound mean of a dynamic batch.
@pytest.mark.parametrize(("target", "islands"), slow_but([("xnnpack", 2), ("litert", 3)], [("litert", 3)]))
def test_gates_are_float_islands_at_all_sizes(target: str, islands: int) -> None:
    lowered = lower(made(gated), target)
    assert len(lowered.plan.float_islands) == islands
    require_its_bits(lowered)


def test_every_size_has_the_bits_of_its_kernels(pool: Lowered) -> None:
    assert [place.operator for place, _ in pool.plan.float_islands] == ["aten.mean.dim"]
    assert (pool.artifact.delegates, pool.artifact.outside) == (1, {})
    require_its_bits(pool)


def test_memory_holds_the_constants_of_all_sizes_once(pool: Lowered) -> None:
    programs, _ = pool.specializations
    for name, tensor in pool.physical.state_dict.items():
        same = [program.state_dict[name] for program in programs if name in program.state_dict]
        assert same and all(each.shape != tensor.shape or each is same[0] for each in same)


def require_its_bits(lowered: Lowered, *sizes: tuple[int, int, int]) -> None:
    wanted = lowered.artifact.reference_run
    assert wanted is not None
    for n, h, w in sizes or ((1, 12, 14), (5, 26, 18), (6, 14, 44), (3, 40, 16)):
        inputs = check(lowered.contract, [torch.randn(n, 3, h, w)]).tensors
        (got,), (own,) = lowered.artifact.run(inputs), wanted(inputs)
        assert len(got) == n and torch.equal(got, own)


def test_torch_computes_quantised_networks_at_all_sizes(tmp_path: Path) -> None:
    network = made(pooled)
    lowered = lower(network, "torch")
    lowered.save(tmp_path / "net.pt2")
    loaded = dimorder.load(tmp_path / "net.pt2")
    for n, h, w in ((1, 12, 14), (5, 26, 18), (3, 40, 16)):
        x = torch.randn(n, 3, h, w)
        assert max(errors(lowered, network, x)) <= 1e-6
        assert all(map(torch.equal, tree_leaves(loaded.run(x)), tree_leaves(lowered.run(x))))


def read_as_numbers(x: Tensor) -> Tensor:
    numbers: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(
        x, 0.0173, -15, -128, 127, torch.int8
    )
    return numbers


class OfNumbers(nn.Module):
    """Reads integers as numbers, and quantises nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        numbers = read_as_numbers(x)
        return self.conv(numbers).mean((2, 3)).softmax(-1), numbers * 0.8 + 0.3


@pytest.mark.parametrize("dims", [None, PICTURES], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("target", ["torch", *SUFFIX])
def test_integers_may_be_read_as_numbers_alone(target: str, dims: Any) -> None:
    x, module = torch.randint(-128, 128, SHAPE).to(torch.int8), OfNumbers().eval()
    lowered = dimorder.lower(module, (x,), dynamic_shapes=dims, target=target)
    assert max(errors(lowered, module, x)) <= 1e-5


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["xnnpack"]))
def test_what_is_cut_of_a_convolution_is_never_computed(target: str) -> None:
    lowered = lower(made(cropped), target)
    if target == "xnnpack":
        assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    require_its_bits(lowered)


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["litert"]))
def test_a_quantised_constant_is_repeated_for_each_picture(target: str) -> None:
    x, dims = torch.randn(SHAPE), ({0: Dim("N", min=1, max=6)},)
    network = by_xnnpack(perturb(Tokens().eval()), x, dims=dims)
    lowered = dimorder.lower(network, (x,), dynamic_shapes=dims, target=target)
    require_its_bits(lowered, (1, *SHAPE[2:]), (5, *SHAPE[2:]))


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["xnnpack"]))
def test_quantised_anchors_are_quantised_in_the_delegate(target: str) -> None:
    x, dims = torch.randn(1, 3, 32, 40), ({2: 8 * Dim("H", min=3, max=9), 3: 8 * Dim("W", min=4, max=11)},)
    torch.manual_seed(0)
    network = by_xnnpack(perturb(Detector().eval()), x, dims=dims)
    lowered = dimorder.lower(network, (x,), dynamic_shapes=dims, target=target)
    if target == "xnnpack":
        assert lowered.artifact.delegates == 1
        assert lowered.artifact.outside.keys() <= OF_SIZES
    require_its_bits(lowered, (1, 24, 32), (1, 72, 88), (1, 24, 88), (1, 56, 40))


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["xnnpack"]))
def test_one_pixel_is_repeated_along_two_dynamic_sizes(target: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    lowered = lower(by_xnnpack(perturb(Pooled().eval()), x, dims=PICTURES), target)
    if target == "xnnpack":  # litert resizes to dynamic sizes itself
        assert [place.operator for place, _ in lowered.plan.float_islands] == ["aten.mean.dim"]
        assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    require_its_bits(lowered)


def test_a_convolution_may_be_quantised_twice() -> None:
    lowered = lower(Rescaled(), "xnnpack", input_orders="NHWC", output_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    require_its_bits(lowered)


@pytest.mark.slow
def test_mobilenet_v2_has_its_bits_at_all_sizes() -> None:
    x, steps = torch.randn(2, 3, 64, 96), {"min": 2, "max": 5}
    dims = ({0: Dim("N", min=1, max=4), 2: 32 * Dim("H", **steps), 3: 32 * Dim("W", **steps)},)
    net = by_xnnpack(network("mobilenet_v2").build(), x)
    lowered = dimorder.lower(net, (x,), dynamic_shapes=dims, target="xnnpack", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    ((mean, reason),) = lowered.plan.float_islands
    assert (mean.operator, "dynamic number of results" in reason) == ("aten.mean.dim", True)
    require_its_bits(lowered, (1, 160, 64), (3, 96, 128))


def test_the_network_is_near_and_the_guard_keeps_its_ranges(pool: Lowered, tmp_path: Path) -> None:
    path, network = tmp_path / f"net{SUFFIX[pool.plan.target]}", made(pooled)
    pool.save(path)
    program = dimorder.load(path)
    for shape in ((1, 3, 40, 14), (6, 3, 12, 44)):
        x = torch.randn(shape)
        wanted = network(x)
        assert (program(x) - wanted).norm() <= 0.03 * wanted.norm()
    with pytest.raises(ContractError) as refused:
        program(torch.ones(7, 3, 12, 14))
    assert str(refused.value).splitlines()[1] == "  found: size 7 in dim 0, where N is from 1 to 6"


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["litert"]))
def test_the_caller_passes_integers_of_any_size(target: str) -> None:
    types = {"input_types": "int8", "output_types": "int8"}
    lowered = lower(made(pooled), target, **types, input_orders="NHWC")
    (spec,), (result,) = lowered.contract.inputs, lowered.contract.outputs
    assert (spec.shape, spec.dtype, result.dtype) == (("N", 3, "H", "W"), "int8", "int8")
    x = torch.randint(-128, 128, (4, 3, 18, 30), dtype=torch.int8)
    got = lowered.run(x.contiguous(memory_format=torch.channels_last))
    assert got.shape == (4, 5) and got.dtype == torch.int8


def test_a_kernel_that_is_wrong_at_one_size_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, name = model.ROUNDINGS["DEPTHWISE_CONV_2D"], "DEPTHWISE_CONV_2D"
    wrong = {**model.ROUNDINGS, name: lambda k: right(k) + 3 * (k.operands[0].shape[:2] == (6, 20))}
    network = made(pooled)
    monkeypatch.setattr(model, "ROUNDINGS", wrong)
    with pytest.raises(VerificationError, match="as it was written for LiteRT"):
        lower(network, "litert")


@pytest.mark.parametrize(
    ("target", "what"),
    [("xnnpack", "the weight of an int8 FullyConnected"), ("litert", "the scale of integers")],
)
def test_a_sum_whose_scale_depends_on_a_size_is_refused_with_its_line(target: str, what: str) -> None:
    length = ({1: Dim("L", min=1, max=16)},)
    first, found, fix = refusal(Summed(), torch.randn(3, 5), length, target=target)
    assert first.startswith("aten.sum.dim_IntList (test_integers.py:")
    assert found == f"  found: {what}, which depends on a dynamic size"
    assert fix == "  fix: fix the size, or lower one program for each size that is needed"


def test_an_int8_operator_outside_of_the_delegate_is_refused() -> None:
    """LiteRT's own kernel of a transposed convolution rounds otherwise: 2 of 2,688 integers here."""
    assert refusal(made(enlarged), torch.randn(SHAPE), PICTURES, target="litert") == [
        "dimorder.conv_transpose2d_nhwc.default (test_integers.py:46, in up)",
        "  found: an int8 TRANSPOSE_CONV that dynamic sizes keep out of XNNPACK's delegate",
        "  fix: fix the size, or lower one program for each size that is needed",
    ]


@pytest.mark.parametrize("target", SUFFIX)
def test_a_part_may_have_no_elements(target: str) -> None:
    """The part that is rolled around is the whole of one channel, and the other part is empty."""

    class Rolled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return quantised(x, 0.03, 4).roll((0, 1), (0, 1))

    dims = ({1: Dim("C", min=1, max=7)},)
    lowered = dimorder.lower(Rolled(), (torch.randn(2, 4, 3, 5),), dynamic_shapes=dims, target=target)
    for channels in (1, 7, 2):
        assert max(errors(lowered, Rolled(), torch.randn(2, channels, 3, 5))) == 0
