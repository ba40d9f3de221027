"""Operators that are written in others: what is left of each, and the network's numbers in every order."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dimorder
from dimorder.capture.captured import capture
from dimorder.ops.table import SPELLINGS
from tests.layout.lowering import lower_everywhere
from tests.small_networks import Net

aten = torch.ops.aten
X = (2, 8, 6, 10)
LINE = (2, 6, 11)
VOLUME = (2, 3, 5, 6, 7)


def counted(**counts: int) -> Counter[str]:
    return Counter(counts)


# Name → the network, its shapes, and what is left of it.
FORMS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], Counter[str]]] = {
    "other names of clamp": (
        lambda m, x, y: (x.clip(-1, 1), x.clip(y - 1, y + 1)), [X, X],
        Counter({"clamp": 2, "sub": 1, "add": 1})
    ),
    "maximum and minimum as max and min": (
        lambda m, x, y: (torch.max(x, y), torch.min(x, y)), [X, X], counted(maximum=1, minimum=1)
    ),
    "quotient, true_divide": (lambda m, x, y: torch.true_divide(x, y.exp()), [X, X], counted(div=1, exp=1)),
    "pixel shuffle": (lambda m, x: F.pixel_shuffle(x, 2), [X], counted(reshape=2, permute=1)),
    "pixel shuffle without a batch": (
        lambda m, x: F.pixel_shuffle(x, 2), [(12, 3, 5)], counted(reshape=2, permute=1)
    ),
    "pixel unshuffle": (lambda m, x: F.pixel_unshuffle(x, 2), [X], counted(reshape=2, permute=1)),
    "channel shuffle": (lambda m, x: F.channel_shuffle(x, 4), [X], counted(reshape=2, permute=1)),
    "movedim": (lambda m, x: x.movedim(1, -1).movedim((0, -1), (2, 0)), [X], counted(permute=2)),
    "swapaxes, mT, narrow": (
        lambda m, x: x.swapaxes(1, -1).mT.narrow(-2, -4, 3), [X], counted(permute=2, slice=1)
    ),
    "broadcast_to, expand_as": (
        lambda m, x, y: x.broadcast_to(3, 2, 5) + x.expand_as(y),
        [(2, 1), (2, 5)], counted(reshape=1, expand=1, add=1)
    ),
    "repeat": (lambda m, x: x.repeat(2, 1, 3, 1, 2), [X], counted(reshape=2, expand=1)),
    "tile": (lambda m, x: x.tile(3, 2), [X], counted(reshape=2, expand=1)),
    "repeat interleaved": (lambda m, x: x.repeat_interleave(3, -2), [X], counted(reshape=2, expand=1)),
    "repeat interleaved flat": (lambda m, x: x.repeat_interleave(3), [LINE], counted(reshape=3, expand=1)),
    "index_select of a slice": (lambda m, x: x.index_select(1, torch.arange(2, 7)), [X], counted(slice=1)),
    "index_select of every other": (
        lambda m, x: x.index_select(3, torch.arange(0, 10, 2)), [X], counted(slice=1)
    ),
    "index by a permutation": (lambda m, x: x[:, [5, 6, 7, 0, 1, 2]], [X], counted(slice=2, cat=1)),
    "index by negative numbers": (lambda m, x: x[..., [-1, 0, 0]], [X], counted(slice=2, cat=1)),
    "index backwards": (lambda m, x: x[:, [7, 6, 5, 4, 3, 2]], [X], counted(slice=1, flip=1)),
    "index of one shape": (
        lambda m, x: x[:, [[0, 1, 2], [4, 5, 6]]], [X], counted(slice=2, cat=1, reshape=1)
    ),
    "index by a grid": (
        lambda m, x: x[torch.tensor([[1], [0]]), :, torch.tensor([[4, 2, 0, 1, 3, 5]])],
        [X], counted(slice=7, cat=2, permute=1),
    ),
    "index by a grid of neighbours": (
        lambda m, x: x[:, torch.tensor([3, 4]).view(2, 1, 1), torch.arange(6).view(6, 1, 1, 1)],
        [X], counted(slice=1, reshape=1, permute=1),
    ),
    "index by pairs": (lambda m, x: x[:, [3, 4], [0, 5]], [X], counted(index=1)),
    "index at random": (
        lambda m, x: x[..., [0, 3, 1, 7, 2, 9, 4, 8, 5, 6, 0, 5, 3, 9, 7, 1, 4, 0]], [X], counted(index=1)
    ),
    "gather of one row": (
        lambda m, x: x.gather(1, torch.tensor([2, 3, 4]).view(3, 1, 1).expand(2, 3, 6, 7)),
        [X], counted(slice=2),
    ),
    "gather of many": (
        lambda m, x: x.gather(1, torch.arange(120).view(1, 2, 6, 10) % 8), [X], counted(gather=1)
    ),
    "gather of repeated rows": (
        lambda m, x: torch.arange(5.0).square().expand(3, 5).gather(1, (x > 0).long()),
        [(3, 4)], counted(gt=1, _to_copy=1, embedding=1, reshape=1)
    ),
    "embedding of constants": (
        lambda m, x: F.embedding(torch.tensor([[0, 1], [3, 4]]), x),
        [(6, 5)], counted(slice=2, cat=1, reshape=1)
    ),
    "reflected by 1": (
        lambda m, x: F.pad(x, (1, 1, 1, 0), mode="reflect"), [X], counted(slice=3, cat=2)
    ),
    "reflected by much": (
        lambda m, x: F.pad(x, (5, 0, 0, 2), mode="reflect"), [X], counted(slice=3, flip=1, cat=2)
    ),
    "replicated": (
        lambda m, x: F.pad(x, (2, 1, 0, 3), mode="replicate"), [X], counted(slice=3, cat=2)
    ),
    "replicated by much": (
        lambda m, x: F.pad(x, (6, 0), mode="replicate"), [LINE], counted(slice=1, expand=1, cat=1)
    ),
    "circular": (lambda m, x: F.pad(x, (2, 3, 0, 1), mode="circular"), [X], counted(slice=3, cat=2)),
    "a padded volume": (
        lambda m, x: F.pad(x, (1, 0, 0, 1, 1, 0), mode="replicate"), [VOLUME], counted(slice=3, cat=3)
    ),
    "padded by nothing": (lambda m, x: F.pad(x, (0, 0)).relu(), [X], counted(relu=1)),
    "norm": (lambda m, x: torch.norm(x, dim=1), [X], counted(mul=1, sum=1, sqrt=1)),
    "norm of all": (lambda m, x: torch.norm(x), [X], counted(mul=1, sum=1, sqrt=1)),
    "frobenius": (
        lambda m, x: x.norm(p="fro", dim=(1, -1), keepdim=True) + torch.linalg.matrix_norm(x, keepdim=True),
        [X], counted(mul=1, sum=2, sqrt=2, add=1),
    ),
    "norms of other orders": (
        lambda m, x: [torch.linalg.vector_norm(x, p, -3) for p in (0, 1, 3, float("inf"), -float("inf"))],
        [X], counted(ne=1, _to_copy=1, abs=1, sum=3, pow=2, amax=1, amin=1),
    ),
    "linalg.norm": (
        lambda m, x: torch.linalg.norm(x, 1, -1) + torch.linalg.norm(x), [X],
        counted(abs=1, sum=2, mul=1, sqrt=1, add=1),
    ),
    "norms of matrices": (
        lambda m, x: torch.linalg.norm(x, 1, (1, 3)) + torch.linalg.norm(x, float("-inf"), (1, 3)),
        [X], counted(abs=1, sum=2, amax=1, amin=1, add=1),
    ),
    "a norm in another type": (
        lambda m, x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float64), [X],
        counted(_to_copy=1, mul=1, sum=1, sqrt=1),
    ),
    "normalised": (
        lambda m, x: F.normalize(x, dim=1), [X], counted(mul=1, sum=1, sqrt=1, clamp_min=1, div=1)
    ),
    "var of a dimension, by a flag": (
        lambda m, x: torch.ops.aten.var.dim(x, [1], False) * torch.ops.aten.std.default(x, True), [X],
        counted(mean=3, sub=2, mul=3, sum=1, div=1, sqrt=1),
    ),
    "var": (lambda m, x: x.var((2, -1), keepdim=True), [X], counted(mean=1, sub=1, mul=1, sum=1, div=1)),
    "std without a correction": (
        lambda m, x: x.std(1, correction=0), [X], counted(mean=2, sub=1, mul=1, sqrt=1)
    ),
    "std of all": (lambda m, x: x.std(), [X], counted(mean=1, sub=1, mul=1, sum=1, div=1, sqrt=1)),
    "var and mean": (
        lambda m, x: torch.var_mean(x, (0, 2)), [X], counted(mean=1, sub=1, mul=1, sum=1, div=1, reshape=1)
    ),
    "std and mean, of which one is read": (
        lambda m, x: torch.std_mean(x, 1, unbiased=False)[0], [X], counted(mean=2, sub=1, mul=1, sqrt=1)
    ),
    "glu": (lambda m, x: F.glu(x, 1), [X], counted(slice=2, sigmoid=1, mul=1)),
    "threshold": (lambda m, x: F.threshold(x, 0.1, 2.0), [X], counted(le=1, where=1)),
    "threshold to itself": (lambda m, x: F.threshold(x, -0.3, -0.3), [X], counted(clamp_min=1)),
    "addmv": (
        lambda m, b, a, x: torch.addmv(b, a, x, beta=0.5, alpha=2),
        [(5,), (5, 7), (7,)], counted(reshape=2, matmul=1, mul=2, add=1),
    ),
    "mv by a constant": (lambda m, x: torch.mv(m.w, x), [(7,)], counted(linear=1)),
    "baddbmm": (
        lambda m, b, x, y: torch.baddbmm(b, x, y, beta=0, alpha=3),
        [(2, 5, 3), (2, 5, 7), (2, 7, 3)], counted(matmul=1, mul=1),
    ),
    "addbmm": (
        lambda m, b, x, y: torch.addbmm(b, x, y),
        [(5, 3), (2, 5, 7), (2, 7, 3)], counted(permute=1, reshape=2, matmul=1, add=1),
    ),
    "dot, outer": (
        lambda m, x, y: torch.outer(x, y) * torch.dot(x, x), [(5,), (7,)], counted(mul=3, reshape=2, sum=1)
    ),
    "sum and extremes of all": (
        lambda m, x: x.sum() + x.max() * x.min(), [X], counted(sum=1, amax=1, amin=1, mul=1, add=1)
    ),
    "the largest of a dimension": (lambda m, x: x.max(1)[0], [X], counted(amax=1)),
    "the smallest, and where": (lambda m, x: list(x.min(1, True)), [X], counted(amin=1, argmin=1)),
    "max-pool of a line": (
        lambda m, x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True), [LINE], counted(reshape=2, max_pool2d=1)
    ),
    "avg-pool of a line": (
        lambda m, x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
        [LINE], counted(reshape=2, avg_pool2d=1)
    ),
    "avg-pool of a line without a batch": (
        lambda m, x: F.avg_pool1d(x, 2), [(6, 11)], counted(reshape=4, avg_pool2d=1)
    ),
    "max-pool of a volume": (
        lambda m, x: F.max_pool3d(x, (3, 2, 3), (2, 1, 2), 1), [VOLUME],
        counted(max_pool3d=1),
    ),
    "avg-pool of a volume": (
        lambda m, x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), [VOLUME],
        counted(avg_pool3d=1),
    ),
    "a volume without a batch": (
        lambda m, x: F.avg_pool3d(x, 2), [(3, 5, 6, 7)], counted(reshape=2, avg_pool3d=1)
    ),
    "a divisor": (
        lambda m, x: F.avg_pool3d(x, 2, divisor_override=3), [VOLUME], counted(avg_pool3d=1)
    ),
    "adaptive max-pools": (
        lambda m, x: F.adaptive_max_pool2d(x, (3, 5)) + F.adaptive_max_pool2d(x, 1), [X],
        counted(max_pool2d=2, add=1),
    ),
    "an adaptive max-pool with indices": (
        lambda m, x: list(F.adaptive_max_pool2d(x, (3, 5), return_indices=True)), [X],
        counted(
            max_pool2d=1, slice=6, reshape=4, cat=1, argmax=1, div=1, mul=2, sub=1, add=3
        ),
    ),
    "adaptive pools that do not divide": (
        lambda m, x: F.adaptive_max_pool2d(x, (4, 5)), [X],
        counted(reshape=4, slice=2, amax=3, cat=1),
    ),
    "an adaptive pool of many windows": (
        lambda m, x: F.adaptive_max_pool1d(x, 17), [(2, 6, 12)], counted(slice=7, cat=2, maximum=1),
    ),
    "adaptive pools of lines": (
        lambda m, x: F.adaptive_max_pool1d(x, 4) + F.adaptive_avg_pool1d(x, 4), [(2, 6, 12)],
        counted(reshape=3, max_pool2d=1, avg_pool2d=1, add=1),
    ),
    "a line to one": (lambda m, x: F.adaptive_avg_pool1d(x, 1), [LINE], counted(mean=1)),
    "adaptive pools of volumes": (
        lambda m, x: F.adaptive_max_pool3d(x, (5, 3, 1)) + F.adaptive_avg_pool3d(x, (1, 3, 7)), [VOLUME],
        counted(max_pool3d=1, avg_pool3d=1, add=1),
    ),
    "nearest on a line": (
        lambda m, x: F.interpolate(x, scale_factor=3), [LINE], counted(reshape=2, upsample_nearest2d=1)
    ),
    "linear on a line": (
        lambda m, x: F.interpolate(x, 23, mode="linear")
        + F.interpolate(x, 23, mode="linear", align_corners=True),
        [LINE], counted(reshape=3, upsample_bilinear2d=2, add=1),
    ),
    "nearest in a volume": (
        lambda m, x: F.interpolate(x, (10, 6, 21)),
        [VOLUME], counted(upsample_nearest3d=1)
    ),
    "linear in a volume": (
        lambda m, x: F.interpolate(x, scale_factor=(2, 1.5, 3), mode="trilinear"), [VOLUME],
        counted(upsample_trilinear3d=1),
    ),
    "resizes of the core set": (
        lambda m, x: torch.ops.aten.upsample_nearest2d.default(x, [9, 20], 1.5, 2.0)
        + torch.ops.aten.upsample_bilinear2d.default(x, [9, 20], False),
        [X], counted(upsample_nearest2d=1, upsample_bilinear2d=1, add=1),
    ),
}  # fmt: skip

LAYERS = {"w": torch.randn(5, 7, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_left_and_its_numbers_in_every_order(name: str) -> None:
    function, shapes, wanted = FORMS[name]
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    lowered = lower_everywhere(Net(function, **LAYERS), inputs, count=2)
    calls = [node for node in lowered.program.nodes if node.op == "call_function"]
    names = [str(getattr(node.target, "_opname", node.target.__name__)) for node in calls]
    assert Counter(names) == wanted


def test_integers_keep_their_rules() -> None:
    def function(_: nn.Module, x: Tensor) -> list[Tensor]:
        return [x.sum(), x.max(1)[0], F.pad(x, (1, 0), mode="constant", value=3), x.repeat(1, 2), x.max()]

    lower_everywhere(Net(function), [torch.arange(12, dtype=torch.int32).view(3, 4)])


@pytest.mark.parametrize("shape", [(1, 8, 6, 10), (2, 8, 1, 1), (1, 8, 1, 10)])
def test_sizes_of_1(shape: tuple[int, ...]) -> None:
    def function(_: nn.Module, x: Tensor) -> Tensor:
        y = F.pixel_shuffle(F.channel_shuffle(x, 2), 2)
        scaled = F.normalize(F.pad(y, (1, 1, 0, 1), mode="replicate"), dim=-1) * x.std(1).mean()
        return scaled + y.norm(dim=(2, 3)).sum()

    lower_everywhere(Net(function), [torch.randn(shape, generator=torch.Generator().manual_seed(3))])


def test_a_shuffle_between_channels_last_layers_costs_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.PixelShuffle(2), nn.Conv2d(4, 5, 3)).eval()
    planned = dimorder.plan(
        model, (torch.randn(2, 3, 6, 7),), input_orders="NHWC", output_orders="NHWC", objective="count"
    )
    assert len(planned.conversions) == 1  # the interleaving itself


# What XNNPACK computes whole.
DELEGATED = (
    "pixel shuffle", "channel shuffle", "repeat", "index by a permutation", "reflected by 1", "replicated",
    "circular", "norm", "var", "std without a correction", "glu", "threshold to itself", "addbmm",
    "max-pool of a line", "avg-pool of a line", "max-pool of a volume", "avg-pool of a volume",
    "adaptive max-pools", "nearest on a line", "linear on a line", "nearest in a volume",
)  # fmt: skip


@pytest.mark.parametrize("name", DELEGATED)
def test_xnnpack_computes_it_whole(name: str) -> None:
    pytest.importorskip("executorch")
    function, shapes, _ = FORMS[name]
    generator = torch.Generator().manual_seed(4)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    lowered = dimorder.lower(Net(function, **LAYERS), inputs, target="xnnpack")
    assert dict(lowered.artifact.outside) == {}


def test_each_spelling_is_of_an_operator() -> None:
    builtin = {operator.getitem}
    assert all(isinstance(target, torch._ops.OpOverload) for target in SPELLINGS.keys() - builtin)


def test_what_is_known_is_not_decomposed() -> None:
    """In-place operators that nothing else sees take no decomposition, which takes longer than the export."""
    model = Net(lambda m, x: F.relu(x.movedim(1, 2).narrow(1, 1, 2) + 1, inplace=True))
    names = {str(node.target) for node in capture(model, (torch.randn(X),)).nodes}
    assert "aten.relu.default" in names


def test_no_other_name_of_a_pointwise_operator_stays() -> None:
    """torch writes these names in others by itself. Targets have rows for some, or none needs one."""
    kept = {
        "square",
        "isfinite",
        "conj_physical",
        "silu_backward",
        "positive",
        "relu6",
        "rrelu",
        "float_power",
    }
    names = (getattr(aten, name) for name in dir(aten))
    overloads = [
        getattr(packet, each)
        for packet in names
        if hasattr(packet, "overloads")
        for each in packet.overloads()
    ]
    implicit = "CompositeImplicitAutograd"
    left = {
        overload._schema.name.removeprefix("aten::")
        for overload in overloads
        if torch.Tag.pointwise in overload.tags
        and not overload._schema.is_mutable
        and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), implicit)
        and overload not in SPELLINGS
    }
    assert left == kept
