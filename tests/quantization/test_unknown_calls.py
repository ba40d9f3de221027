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
from dimorder.quantization.unknown_calls import keep_log_softmax, rewrite_logsumexp, split_trilinear
from tests.small_networks import Net

X = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(5))
RESIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "by factors": partial(F.interpolate, scale_factor=(2, 1.5, 2.5), mode="trilinear"),
    "to a size": partial(F.interpolate, size=(7, 3, 9), mode="trilinear"),
    "with corners aligned": partial(F.interpolate, size=(7, 9, 11), mode="trilinear", align_corners=True),
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
    model = torch.export.export(net, (X,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    keep_log_softmax(model)
    model.recompile()
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
    model = torch.export.export(net, (X,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    rewrite_logsumexp(model)
    model.recompile()
    assert "logsumexp" not in model.code
    torch.testing.assert_close(model(X), net(X))
    assert snr_db(net, [X, 0.7 * X, X.flip(2)], "tosa") > 35


@pytest.mark.parametrize("name", RESIZES)
def test_a_split_resize_computes_the_same(name: str) -> None:
    net = Net(lambda m, x: RESIZES[name](x))
    model = torch.export.export(net, (X,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    split_trilinear(model)
    model.recompile()
    assert "trilinear" not in model.code
    torch.testing.assert_close(model(X), net(X))


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
