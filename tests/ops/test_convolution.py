"""Convolutions and transposed convolutions, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import IMAGE, Case, case, check, constant, conv

FAMILIES: dict[str, dict[str, Case]] = {
    "convolution": {
        "plain": conv(nn.Conv2d(12, 10, 3), *IMAGE),
        "no bias": conv(nn.Conv2d(12, 10, (3, 2), bias=False), *IMAGE),
        "strided, padded": conv(nn.Conv2d(12, 10, (3, 5), stride=(2, 1), padding=(1, 2)), *IMAGE),
        "dilated": conv(nn.Conv2d(12, 10, 3, dilation=(2, 1)), *IMAGE),
        "pointwise": conv(nn.Conv2d(12, 10, 1), *IMAGE),
        "pointwise, strided": conv(nn.Conv2d(12, 10, 1, stride=(1, 2)), *IMAGE),
        "grouped": conv(nn.Conv2d(12, 8, 3, groups=4), *IMAGE),
        "grouped pointwise": conv(nn.Conv2d(12, 20, 1, groups=2), *IMAGE),
        "depthwise": conv(nn.Conv2d(12, 12, 3, groups=12), *IMAGE),
        "depthwise, multiplier": conv(nn.Conv2d(12, 36, (3, 2), groups=12), *IMAGE),
        "groups with one output": conv(nn.Conv2d(12, 4, 3, groups=4), *IMAGE),
        "same, odd": conv(nn.Conv2d(12, 10, (3, 5), padding="same"), *IMAGE),
        "same, even": conv(nn.Conv2d(12, 10, (2, 4), padding="same"), *IMAGE),
        "valid": conv(nn.Conv2d(12, 10, 3, padding="valid"), *IMAGE),
        "reflect": conv(nn.Conv2d(12, 10, 3, padding=1, padding_mode="reflect"), *IMAGE),
        "1-D": conv(nn.Conv1d(6, 10, 3, stride=2, padding=1), 2, 6, 11),
        "1-D grouped, dilated": conv(nn.Conv1d(6, 9, 2, groups=3, dilation=2), 2, 6, 11),
        "1-D same, even": conv(nn.Conv1d(6, 9, 4, padding="same"), 2, 6, 11),
        "unbatched": conv(nn.Conv2d(12, 10, 3), *IMAGE[1:]),
        "to one channel": conv(nn.Conv2d(12, 1, 3), *IMAGE),
        "from one channel": conv(nn.Conv2d(1, 12, 3), 2, 1, 9, 7),
        "to one place": conv(nn.Conv2d(12, 10, (9, 7)), *IMAGE),
        "3-D": conv(nn.Conv3d(3, 4, (2, 3, 1), padding=(0, 1, 0)), 2, 3, 5, 6, 7),
        "3-D, transposed": conv(
            nn.ConvTranspose3d(4, 6, (3, 2, 4), (2, 3, 1), (1, 0, 2), (1, 2, 0), 2, dilation=(2, 3, 1)),
            *(2, 4, 4, 5, 3),
        ),
        "weight computed": case(lambda m, x, w: F.conv2d(x, w), IMAGE, (10, 12, 3, 2)),
        "bias computed": case(lambda m, x, b: F.conv2d(x, m.w, b), IMAGE, (10,), w=constant(10, 12, 3, 2)),
        "shared weight": case(
            lambda m, x, y: (m.layer(x), m.layer(y)), IMAGE, (2, 12, 8, 3), layer=nn.Conv2d(12, 10, 3)
        ),
    },
    "transposed convolution": {
        "plain": conv(nn.ConvTranspose2d(12, 10, 3), *IMAGE),
        "strided, output padding": conv(
            nn.ConvTranspose2d(12, 10, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2)), *IMAGE
        ),
        "grouped": conv(nn.ConvTranspose2d(12, 8, 3, groups=4, stride=2), *IMAGE),
        "grouped, no bias, dilated": conv(
            nn.ConvTranspose2d(12, 6, 2, groups=2, dilation=2, bias=False), *IMAGE
        ),
        "depthwise": conv(nn.ConvTranspose2d(12, 12, 2, stride=2, groups=12), *IMAGE),
        "1-D": conv(nn.ConvTranspose1d(6, 10, 3, stride=2, output_padding=1), 2, 6, 11),
        "3-D": conv(nn.ConvTranspose3d(3, 4, 2), 2, 3, 5, 6, 7),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
