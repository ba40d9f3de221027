"""Test calls that Arm's quantizers do not know, which are rewritten for them, or annotated as others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.fidelity import OutputFidelity
from dimorder.quantization.unknown_calls import (
    keep_log_softmax,
    resize_by_matrices,
    rewrite_logsumexp,
    split_average_pools,
    split_trilinear,
)
from tests.quantization.rewriting import rewritten
from tests.small_networks import Net

X = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(5))
RESIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "by factors": partial(F.interpolate, scale_factor=(2, 1.5, 2.5), mode="trilinear"),
    "to a size": partial(F.interpolate, size=(7, 3, 9), mode="trilinear"),
    "with corners aligned": partial(F.interpolate, size=(7, 9, 11), mode="trilinear", align_corners=True),
}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole windows": partial(F.avg_pool3d, kernel_size=2),
    "padded": partial(
        F.avg_pool3d, kernel_size=(3, 2, 3), stride=(1, 2, 2), padding=(1, 0, 1), ceil_mode=True
    ),
    "without what is padded": partial(F.avg_pool3d, kernel_size=3, padding=1, count_include_pad=False),
    "to a size": partial(F.adaptive_avg_pool3d, output_size=(2, 5, 3)),
    "to unequal windows": partial(F.adaptive_avg_pool3d, output_size=(3, 5, 4)),
    "by a divisor": partial(F.avg_pool3d, kernel_size=2, divisor_override=3),
}
PICTURE = X[:, :, 0]
BY_MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "bicubic": partial(F.interpolate, scale_factor=(1.7, 2.5), mode="bicubic"),
    "bicubic with corners aligned": partial(F.interpolate, size=(9, 4), mode="bicubic", align_corners=True),
    "antialiased": partial(F.interpolate, size=(3, 4), mode="bilinear", antialias=True),
    "antialiased bicubic": partial(F.interpolate, scale_factor=0.5, mode="bicubic", antialias=True),
}
TRANSPOSED = {
    "with a stride": partial(nn.ConvTranspose3d, 4, 6, (2, 3, 5), stride=(2, 1, 2)),
    "padded": partial(nn.ConvTranspose3d, 4, 6, (2, 3, 5), stride=2, padding=(0, 1, 2), output_padding=1),
    "in groups, without a bias": partial(nn.ConvTranspose3d, 4, 6, (3, 2, 5), groups=2, bias=False),
    "of one plane": partial(nn.ConvTranspose3d, 4, 6, (1, 3, 2), stride=(1, 2, 2)),
}


def fidelity_of(net: nn.Module, examples: list[Tensor], target: str, recipe: str = "int8") -> OutputFidelity:
    """Return how near the program of a network is to the network; a lowered program is verified."""
    quantized = dimorder.quantize(net.eval(), examples, recipe, target=target)
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target=target))
    return found


def snr_db(net: nn.Module, examples: list[Tensor], target: str, recipe: str = "int8") -> float:
    found = fidelity_of(net, examples, target, recipe)
    assert found.snr_db is not None
    return found.snr_db


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_a_kept_log_softmax_computes_the_same(dtype: torch.dtype | None) -> None:
    net = Net(lambda m, x: F.log_softmax(x, -2, dtype=dtype))
    model = rewritten(net, X, keep_log_softmax)
    assert "log_softmax.int" not in model.code
    torch.testing.assert_close(model(X), net(X), rtol=0, atol=0)


@pytest.mark.parametrize("classes", [10, 100, 1000])
@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
def test_the_signal_to_noise_of_log_softmax(classes: int, recipe: str) -> None:
    """The output's own step allows about 50 dB in 8 bits."""
    generator = torch.Generator().manual_seed(classes)
    examples = [3 * torch.randn(7, classes, generator=generator) for _ in range(4)]
    found = snr_db(nn.LogSoftmax(-1), examples, "tosa", recipe)
    assert found > (32 if recipe == "int8" else 65)


@pytest.mark.parametrize("target", ["tosa", "ethos-u55-128", "ethos-u85-256"])
def test_log_softmax_over_channels(target: str) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LogSoftmax(1))
    examples = [torch.randn(1, 3, 12, 10) for _ in range(3)]
    assert snr_db(net, examples, target) > 40


@pytest.mark.parametrize(("dims", "keepdim"), [([1], False), ([-1], True), ([-1, 2], False)])
def test_a_logsumexp(dims: list[int], keepdim: bool) -> None:
    net = Net(lambda m, x: 3 * torch.logsumexp(2 * x, dims, keepdim))
    model = rewritten(net, X, rewrite_logsumexp)
    assert "logsumexp" not in model.code
    torch.testing.assert_close(model(X), net(X))
    assert snr_db(net, [X, 0.7 * X, X.flip(2)], "tosa") > 35


@pytest.mark.parametrize("name", RESIZES)
def test_a_split_resize_computes_the_same(name: str) -> None:
    net = Net(lambda m, x: RESIZES[name](x))
    model = rewritten(net, X, split_trilinear)
    assert "trilinear" not in model.code
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("name", POOLS)
def test_a_split_pool_computes_the_same(name: str) -> None:
    net = Net(lambda m, x: POOLS[name](x))
    model = rewritten(net, X, split_average_pools)
    assert ("pool3d" in model.code) == (name == "to unequal windows")
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("name", POOLS)
def test_a_split_pool_of_one_volume(name: str) -> None:
    net = Net(lambda m, x: POOLS[name](x))
    model = rewritten(net, X[0], split_average_pools)
    assert ("pool3d" in model.code) == (name == "to unequal windows")
    torch.testing.assert_close(model(X[0]), net(X[0]))


@pytest.mark.parametrize("name", ["whole windows", "by a divisor"])
def test_the_signal_to_noise_of_a_pool_of_one_volume(name: str) -> None:
    assert snr_db(Net(lambda m, x: POOLS[name](x)), [X[0], X[1]], "tosa") > 25


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
@pytest.mark.parametrize("name", POOLS)
def test_an_average_pool_of_volumes(name: str, target: str) -> None:
    torch.manual_seed(2)
    net = Net(lambda m, x: POOLS[name](m.conv(x)), conv=nn.Conv3d(3, 8, 1))
    assert (
        snr_db(net, [X, 0.7 * X, X.flip(2)], target) > 20
    )  # Arm's quantizer gives means the scale of what they read


def test_local_response_norm_in_integers() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(3, 8, 2), nn.LocalResponseNorm(3))
    assert snr_db(net, [PICTURE, 0.7 * PICTURE, PICTURE.flip(2)], "tosa") > 35


@pytest.mark.parametrize("name", BY_MATRICES)
def test_a_resize_by_matrices(name: str) -> None:
    torch.manual_seed(2)
    net = Net(lambda m, x: BY_MATRICES[name](m.conv(x)), conv=nn.Conv2d(3, 8, 1)).eval()
    model = rewritten(net, PICTURE, resize_by_matrices)
    assert "upsample" not in model.code
    torch.testing.assert_close(model(PICTURE), net(PICTURE))
    assert snr_db(net, [PICTURE, 0.7 * PICTURE, PICTURE.flip(2)], "tosa") > 30


def test_a_resize_by_matrices_in_half_precision() -> None:
    torch.manual_seed(2)
    resized = Net(lambda m, x: BY_MATRICES["bicubic"](m.conv(x)), conv=nn.Conv2d(3, 8, 1)).half()
    assert snr_db(resized, [PICTURE.half(), 0.7 * PICTURE.half()], "tosa") > 30


@pytest.mark.parametrize(("size", "stays"), [((3, 1), True), ((4, 1), True), ((5, 1), False)])
def test_an_antialiased_resize_to_one_column_that_pytorch_has_wrong_stays(
    size: tuple[int, int], stays: bool
) -> None:
    net = Net(lambda m, x: F.interpolate(x, size, mode="bilinear", antialias=True))
    model = rewritten(net, PICTURE, resize_by_matrices)
    assert ("upsample" in model.code) == stays
    torch.testing.assert_close(model(PICTURE), net(PICTURE))


def test_a_sampled_picture_is_not_clipped_to_the_range_of_its_grid() -> None:
    torch.manual_seed(2)
    grid = torch.linspace(-0.9, 0.9, 2 * 4 * 7 * 2).reshape(2, 4, 7, 2)
    net = Net(
        lambda m, x: F.grid_sample(3 * m.conv(x), m.grid, align_corners=False),
        conv=nn.Conv2d(3, 8, 1),
        grid=grid,
    )
    assert snr_db(net, [PICTURE, 0.7 * PICTURE, PICTURE.flip(2)], "tosa") > 30


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
@pytest.mark.parametrize("name", RESIZES)
def test_a_trilinear_resize_in_integers(name: str, target: str) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv3d(3, 8, 2), Net(lambda m, x: RESIZES[name](x)))
    assert snr_db(net, [X, 0.7 * X, X.flip(2)], target) > 30


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transposed_convolution_of_volumes(name: str, target: str) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv3d(3, 4, 2), TRANSPOSED[name](), nn.ReLU())
    found = fidelity_of(net, [X, 0.7 * X, X.flip(2)], target)
    assert found.snr_db is not None
    assert found.snr_db > 30
    assert found.quanta <= 1


def test_linear_attention_has_a_softmax_of_a_transposed_value() -> None:
    """Its result, as Arm's passes write it, would have strides that the product cannot view."""

    def attend(m: Net, x: Tensor) -> Tensor:
        heads = m.project(x).reshape(2, 5, 3, 2).transpose(1, 2)
        y: Tensor = torch.einsum("bhnd,bhne->bhde", heads.softmax(-2), heads)
        return y

    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    quantized = dimorder.quantize(Net(attend, project=nn.Linear(6, 6)).eval(), [x, 0.7 * x], target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (x,), target="tosa"))
    assert found.quanta <= 1
