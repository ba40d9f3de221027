"""Networks of float16 with dynamic sizes: one delegate, and as near to float64 as PyTorch's own float16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

pytest.importorskip("executorch")

import dimorder
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.marks import slow_but
from tests.sizes.symbols import OF_SIZES
from tests.targets.halves import share_of_allowed

_BATCH = {0: Dim("N", min=1, max=6)}
_PICTURE = {2: 16 * Dim("H", min=3, max=8), 3: 16 * Dim("W", min=4, max=9)}
_DETECTED = {2: 32 * Dim("H", min=5, max=15), 3: 32 * Dim("W", min=5, max=15)}
# The example's shape, the dynamic sizes, and shapes at which the program runs.
NETWORKS: dict[str, tuple[tuple[int, ...], dict[int, Any], list[tuple[int, ...]]]] = {
    **dict.fromkeys(
        ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_128"),
        ((2, 3, 64, 64), _BATCH, [(1, 3, 64, 64), (5, 3, 64, 64)]),
    ),
    **dict.fromkeys(
        ("unet", "deeplabv3_mobilenet_v3_large"),
        ((1, 3, 64, 80), _PICTURE, [(1, 3, 48, 144), (1, 3, 128, 64), (1, 3, 80, 96)]),
    ),
    "yolo": ((1, 3, 256, 256), _DETECTED, [(1, 3, 160, 480), (1, 3, 480, 160), (1, 3, 320, 256)]),
    "wav2vec2": ((1, 3200), {1: Dim("T", min=1600, max=6400)}, [(1, 1600), (1, 3207), (1, 6399)]),
    "tcn": ((1, 6, 700), {2: Dim("T", min=500, max=4000)}, [(1, 6, 500), (1, 6, 1001), (1, 6, 4000)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_delegate(name: str) -> None:
    shape, dims, others = NETWORKS[name]
    row = zoo.network(name)
    if name == "yolo":  # calibrated at 64 x 96, its rounding grows at larger sizes
        row = replace(row, shape=shape)
    net = row.build().half()
    lowered = dimorder.lower(net, (torch.randn(shape).half(),), dynamic_shapes=(dims,), target="xnnpack")
    assert lowered.artifact.delegates == 1
    assert lowered.artifact.outside.keys() <= OF_SIZES
    for other in others:
        x = torch.randn(other).half()
        assert share_of_allowed(lowered.run(x), net, (x,)) <= 1 or name == "yolo"
        with torch.no_grad():
            wanted = net(x)  # yolo decodes boxes in float32, where only the features have half precision
        assert relative_error(lowered.run(x), wanted) <= 5e-2


@pytest.mark.slow
def test_so_is_one_for_texts_of_any_number_and_length() -> None:
    net, draw = zoo.network("bert").build().half(), torch.Generator().manual_seed(0)

    def text(batch: int, length: int) -> dict[str, Tensor]:
        ids = torch.randint(0, 90, (batch, length), generator=draw)
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(length) < length - 2).long().expand(batch, -1),
        }

    both = {0: Dim("N", min=1, max=6), 1: Dim("L", min=4, max=37)}
    dims = dict.fromkeys(("input_ids", "attention_mask"), both)
    lowered = dimorder.lower(net, kwargs=text(3, 13), dynamic_shapes=dims, target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in ((1, 4), (6, 37), (2, 9)):
        given = text(*sizes)
        with torch.no_grad():
            wanted = net(**given)[0]
        assert (lowered.run(**given)[0] - wanted).abs().max() <= 2e-2 * wanted.abs().max()


class Between(nn.Module):
    """A function between two convolutions of a line or a picture."""

    def __init__(self, compute: Callable[[Tensor], Tensor], dims: int, channels: int = 8) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv1d
        self.compute = compute
        self.first, self.last = conv(3, 8, 3, padding=1), conv(channels, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.compute(self.first(x)))  # type: ignore[no-any-return]  # a module's call


ONE_PIXEL = "one pixel to the size of a map"
TWICE: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "last step": (lambda y: y[..., -1:], 1, 8),
    "three last steps": (lambda y: y[..., -3:], 1, 8),
    "linear": (lambda y: F.interpolate(y, scale_factor=2.0, mode="linear"), 1, 8),
    "bilinear to the size of another value": (
        lambda y: y + F.interpolate(F.avg_pool2d(y, 2), y.shape[2:], mode="bilinear"),
        2,
        8,
    ),
    ONE_PIXEL: (
        lambda y: y * F.interpolate(y.mean((2, 3), keepdim=True), y.shape[2:], mode="bilinear"),
        2,
        8,
    ),
    "nearest": (lambda y: F.interpolate(y, scale_factor=2.0), 2, 8),
    "pixel shuffle": (lambda y: F.pixel_shuffle(y, 2), 2, 2),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_but(
        ((name, dtype) for name in TWICE for dtype in (torch.float16, torch.bfloat16)),
        [
            (name, torch.float16)
            for name in ("last step", "three last steps", "linear", "pixel shuffle", ONE_PIXEL)
        ],
    ),
)
def test_a_resize_to_dynamic_sizes_is_in_the_delegate(name: str, dtype: torch.dtype) -> None:
    compute, dims, channels = TWICE[name]
    torch.manual_seed(0)
    net = zoo.perturb(Between(compute, dims, channels).eval()).to(dtype)
    shape = (1, 3, *((20, 14) if dims == 2 else (40,)))
    symbols = {2: 2 * Dim("H", min=3, max=20), **({3: 2 * Dim("W", min=4, max=20)} if dims == 2 else {})}
    lowered = dimorder.lower(
        net, (torch.randn(shape).to(dtype),), dynamic_shapes=(symbols,), target="xnnpack"
    )
    assert lowered.artifact.delegates == 1
    assert lowered.artifact.outside.keys() <= OF_SIZES
    for other in ((6, 40), (38, 8)):
        x = torch.randn(1, 3, *other[:dims]).to(dtype)
        assert share_of_allowed(lowered.run(x), net, (x,)) <= 1
