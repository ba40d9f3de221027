"""Test 3-D convolutions whose depth is dynamic, on target xnnpack: it has 2-D ones alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

pytest.importorskip("executorch")

import dimorder
from tests.sizes.symbols import errors

DEPTH, HEIGHT = Dim("D", min=1, max=9), Dim("H", min=2, max=9)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (2, {"stride": 2}),  # no plane is cut
        (3, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
        ((4, 3, 2), {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1), "bias": False}),
        ((3, 1, 1), {"stride": (2, 1, 1), "padding": (1, 0, 0), "dilation": (2, 1, 1)}),
        (3, {"padding": 1}),
    ],
)
def test_the_planes_of_all_taps_are_added_in_one_delegate(kernel: Any, options: dict[str, Any]) -> None:
    module = nn.ConvTranspose3d(4, 6, kernel, **options).eval()
    lowered = dimorder.lower(
        module, (torch.randn(2, 4, 3, 5, 7),), target="xnnpack", dynamic_shapes=({2: DEPTH},)
    )
    assert lowered.artifact.delegates == 1
    for depth in (1, 2, 9):
        assert max(errors(lowered, module, torch.randn(2, 4, depth, 5, 7))) <= 1e-5


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padding": 1}),
        ((3, 2, 1), {"stride": (2, 1, 2), "padding": (1, 0, 0), "groups": 2}),
        ((2, 3, 1), {"dilation": (2, 1, 1), "bias": False}),
        ((3, 1, 1), {"groups": 4, "padding": (2, 0, 0)}),
        ((1, 3, 3), {"stride": (2, 1, 1)}),
    ],
)
def test_one_convolution_reads_the_planes_of_all_taps_as_channels(
    kernel: Any, options: dict[str, Any]
) -> None:
    module = nn.Conv3d(4, 8, kernel, **options).eval()
    dims = {2: Dim("D", min=3, max=9)}
    lowered = dimorder.lower(module, (torch.randn(2, 4, 5, 6, 7),), target="xnnpack", dynamic_shapes=(dims,))
    assert lowered.artifact.delegates == 1
    for depth in (3, 4, 9):
        assert max(errors(lowered, module, torch.randn(2, 4, depth, 6, 7))) <= 1e-5


def test_batch_depth_height_and_width_are_dynamic_together() -> None:
    module = nn.Conv3d(2, 5, (3, 2, 1), 2, padding=1).eval()
    dims = {0: Dim("N", min=1, max=7), 2: DEPTH, 3: HEIGHT, 4: Dim("W", min=3, max=9)}
    lowered = dimorder.lower(module, (torch.randn(2, 2, 5, 7, 6),), target="xnnpack", dynamic_shapes=(dims,))
    for shape in ((7, 2, 9, 9, 9), (1, 2, 1, 2, 3), (5, 2, 8, 3, 4)):
        assert max(errors(lowered, module, torch.randn(shape))) <= 1e-5


def test_a_batch_joins_depths_that_are_computed() -> None:
    """At three points, the batch times a depth was constant."""
    strides = [(1, 2, 2), 2, 2]
    convs = [nn.Conv3d(i, i + 1, 3, stride, 1) for i, stride in enumerate(strides, 3)]
    module = nn.Sequential(*convs, nn.AdaptiveAvgPool3d(1)).eval()
    dims = {0: Dim("N", min=1, max=4), 2: Dim("D", min=4, max=12)}
    lowered = dimorder.lower(
        module, (torch.randn(1, 3, 8, 24, 40),), target="xnnpack", dynamic_shapes=(dims,)
    )
    for batch, depth in ((1, 12), (4, 4), (3, 7)):
        assert max(errors(lowered, module, torch.randn(batch, 3, depth, 24, 40))) <= 1e-5


def test_views_of_two_dynamic_sizes_run_outside() -> None:
    module = nn.ConvTranspose3d(4, 6, 3, stride=3, bias=False).eval()
    shapes = ({2: DEPTH, 3: HEIGHT},)
    lowered = dimorder.lower(module, (torch.randn(2, 4, 3, 5, 7),), target="xnnpack", dynamic_shapes=shapes)
    assert lowered.artifact.delegates > 1 and "executorch_prim::et_view.default" in lowered.artifact.outside
    for depth, height in ((1, 9), (9, 2), (4, 3)):
        assert max(errors(lowered, module, torch.randn(2, 4, depth, height, 7))) <= 1e-5


def test_the_fixed_form_of_a_tap_within_its_step_cuts_nothing() -> None:
    module = nn.ConvTranspose3d(4, 6, 2, stride=2).eval()
    lowered = dimorder.lower(module, (torch.randn(2, 4, 3, 5, 7),), target="xnnpack")
    assert "slice" not in lowered.text("physical")
