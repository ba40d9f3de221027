"""Pooling and resizing, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import IMAGE, Case, case, check, conv, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "spatial": {
        "max pool": conv(nn.MaxPool2d(2), *IMAGE),
        "max pool, ceil": conv(nn.MaxPool2d(3, 2, 1, ceil_mode=True), *IMAGE),
        "max pool, dilated": conv(nn.MaxPool2d((2, 3), 1, dilation=(3, 2)), *IMAGE),
        "max pool with indices": conv(nn.MaxPool2d(2, return_indices=True), *IMAGE),
        "max pool 1-D": conv(nn.MaxPool1d(2), 2, 6, 11),
        "max pool 3-D": conv(nn.MaxPool3d(2), 2, 3, 5, 6, 7),
        "max pool, unbatched": conv(nn.MaxPool2d(2), *IMAGE[1:]),
        "avg pool": conv(nn.AvgPool2d((2, 3)), *IMAGE),
        "avg pool, ceil": conv(nn.AvgPool2d(3, 2, ceil_mode=True), *IMAGE),
        "avg pool, padding counted": conv(nn.AvgPool2d(3, 2, 1), *IMAGE),
        "avg pool, padding not counted": conv(nn.AvgPool2d(3, 2, 1, count_include_pad=False), *IMAGE),
        "avg pool, divisor": conv(nn.AvgPool2d(3, 2, 1, divisor_override=5), *IMAGE),
        "avg pool 1-D": conv(nn.AvgPool1d(2), 2, 6, 11),
        "avg pool 3-D": conv(nn.AvgPool3d(2), 2, 3, 5, 6, 7),
        "lp pool": conv(nn.LPPool2d(2, 2), *IMAGE),
        "global avg pool": conv(nn.AdaptiveAvgPool2d(1), *IMAGE),
        "adaptive avg pool that divides": conv(nn.AdaptiveAvgPool2d((3, 7)), *IMAGE),
        "adaptive avg pool": conv(nn.AdaptiveAvgPool2d((4, 3)), *IMAGE),
        "adaptive avg pool up": conv(nn.AdaptiveAvgPool2d((18, 14)), *IMAGE),
        "adaptive avg pool 1-D": conv(nn.AdaptiveAvgPool1d(1), 2, 6, 11),
        "adaptive avg pool 3-D": conv(nn.AdaptiveAvgPool3d(1), 2, 3, 5, 6, 7),
        "adaptive avg pool 3-D that does not divide": conv(nn.AdaptiveAvgPool3d((3, 1, 4)), 2, 3, 5, 6, 7),
        "adaptive avg pool of many windows": conv(nn.AdaptiveAvgPool3d((3, 19, 17)), 2, 3, 5, 23, 7),
        "adaptive avg pool along a size of 1": conv(nn.AdaptiveAvgPool3d((4, 3, 5)), 2, 3, 1, 6, 7),
        "adaptive avg pool of one element": conv(nn.AdaptiveAvgPool2d((4, 3)), 2, 5, 1, 1),
        "adaptive avg pool of a row": conv(nn.AdaptiveAvgPool1d(4), 2, 5, 1),
        "adaptive max pool with indices": unary(
            lambda x: F.adaptive_max_pool2d(x, (3, 7), return_indices=True), *IMAGE
        ),
        "max pool with indices, ceil": unary(
            lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True, return_indices=True), *IMAGE
        ),
        "adaptive avg pool, one side": conv(nn.AdaptiveAvgPool2d((None, 1)), *IMAGE),
        "adaptive max pool": conv(nn.AdaptiveMaxPool2d((3, 2)), *IMAGE),
        "adaptive max pool 1": conv(nn.AdaptiveMaxPool2d(1), *IMAGE),
        "nearest": unary(lambda x: F.interpolate(x, scale_factor=2), *IMAGE),
        "nearest, size": unary(lambda x: F.interpolate(x, size=(5, 13)), *IMAGE),
        "nearest, factors": unary(lambda x: F.interpolate(x, scale_factor=(1.5, 2.3)), *IMAGE),
        "nearest, factors recomputed": unary(
            lambda x: F.interpolate(x, scale_factor=(1.5, 2.3), recompute_scale_factor=True), *IMAGE
        ),
        "nearest exact": unary(lambda x: F.interpolate(x, size=(5, 13), mode="nearest-exact"), *IMAGE),
        "bilinear": unary(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), *IMAGE),
        "bilinear, aligned": unary(
            lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True), *IMAGE
        ),
        "bilinear, size": unary(lambda x: F.interpolate(x, size=(5, 13), mode="bilinear"), *IMAGE),
        "bilinear, factors": unary(
            lambda x: F.interpolate(x, scale_factor=(1.5, 2.3), mode="bilinear"), *IMAGE
        ),
        "bilinear, antialias": unary(
            lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True), *IMAGE
        ),
        "bicubic": unary(lambda x: F.interpolate(x, size=(5, 13), mode="bicubic"), *IMAGE),
        "linear": unary(lambda x: F.interpolate(x, size=13, mode="linear"), 2, 6, 11),
        "nearest 1-D": unary(lambda x: F.interpolate(x, size=13), 2, 6, 11),
        "trilinear": unary(lambda x: F.interpolate(x, size=(3, 4, 5), mode="trilinear"), 2, 3, 5, 6, 7),
        "grid sample": case(
            lambda m, x, g: F.grid_sample(x, g.tanh(), align_corners=False), IMAGE, (2, 4, 5, 2)
        ),
        "one place": conv(nn.Sequential(nn.Conv2d(12, 5, 1), nn.MaxPool2d(1), nn.AvgPool2d(1)), 2, 12, 1, 1),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
