"""Test convolutions that compute only what their taps read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.layout.capabilities import Capabilities
from dimorder.ops.convolution_taps import tap_by_tap
from dimorder.ops.table import PLAIN
from dimorder.targets import find
from tests.marks import require_runtime, slow_but
from tests.targets.quantised import by_xnnpack

CONV2D = torch.ops.dimorder.conv2d_nhwc.default
# A target for which moving elements costs nothing.
CAPABILITIES = Capabilities(
    lambda call, constants: None,
    implementations=(PLAIN | {"aten.convolution/without outer taps"},),
    own_implementations={"aten.convolution": (tap_by_tap(0),)},
)
EAGER = replace(find("torch"), capabilities=CAPABILITIES)


def kernels(lowered: dimorder.Lowered) -> list[tuple[int, ...]]:
    """Return height and width of the kernel of each convolution."""
    calls = lowered.physical.graph.find_nodes(op="call_function", target=CONV2D)
    return [tuple(node.args[1].meta["val"].shape[1:3]) for node in calls]


@pytest.mark.parametrize("count", slow_but((12, 40), (12,)))
def test_each_tap_is_computed_where_it_reads(count: int) -> None:
    settings(max_examples=count, deadline=None)(given(st.data())(compare_taps))()


def compare_taps(data: st.DataObject) -> None:
    draw = data.draw
    sizes = draw(st.lists(st.integers(2, 13), min_size=1, max_size=2, unique=True))
    taps = [draw(st.sampled_from((1, 3, 5))) for _ in sizes]
    dilation = [draw(st.integers(1, 9)) for _ in sizes]
    kind = (nn.Conv1d, nn.Conv2d)[len(sizes) - 1]
    padding = [apart * (k // 2) for apart, k in zip(dilation, taps, strict=True)]
    layer = kind(4, 3, taps, padding=padding, dilation=dilation, bias=draw(st.booleans()))
    x = torch.randn(draw(st.integers(1, 2)), 4, *sizes)
    lowered = dimorder.lower(layer, (x,), target=EAGER)
    torch.testing.assert_close(lowered(x), layer(x))

    # No others read anything but padding.
    reading = [
        sum(apart * abs(tap) < size for tap in range(-(k // 2), k // 2 + 1))
        for apart, k, size in zip(dilation, taps, sizes, strict=True)
    ]
    count = torch.Size(reading).numel()
    assert len(kernels(lowered)) == count
    assert set(kernels(lowered)) == {(1, 1)}


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_dilation_nearly_as_large_as_the_image_is_computed_tap_by_tap(target: str) -> None:
    require_runtime(target)
    layer, x = nn.Conv2d(320, 88, 3, padding=12, dilation=12), torch.randn(1, 320, 14, 15)
    assert kernels(dimorder.lower(layer, (x,), target=target)) == [(1, 1)] * 9


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_depthwise_kernel_is_in_parts_if_many_of_its_taps_read_the_image(target: str) -> None:
    require_runtime(target)
    layer = nn.Conv2d(48, 48, 7, padding=3, groups=48)
    found = [
        kernels(dimorder.lower(layer, (torch.randn(1, 48, *hw),), target=target)) for hw in ((2, 3), (4, 5))
    ]
    assert found == [[(3, 5)], [(7, 3), (7, 2), (7, 2)]]


LAYERS: dict[str, tuple[Any, ...]] = {
    "most taps read the image": (320, 88, 3, 1, 4, 4),
    "few channels": (32, 8, 3, 1, 12, 12),
    "groups": (320, 320, 3, 1, 12, 12, 320),
    "steps": (320, 88, 3, 2, 12, 12),
    "a smaller result": (320, 88, 3, 1, 9, 12),
}


@pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
def test_other_convolutions_stay_whole(arguments: tuple[Any, ...]) -> None:
    pytest.importorskip("executorch")
    layer, x = nn.Conv2d(*arguments), torch.randn(1, arguments[0], 14, 15)
    assert kernels(dimorder.lower(layer, (x,), target="xnnpack")) == [(3, 3)]


def test_dynamic_sizes_of_the_image_keep_a_convolution_whole_and_a_dynamic_batch_does_not() -> None:
    pytest.importorskip("executorch")
    layer, x = nn.Conv2d(320, 88, 3, padding=12, dilation=12), torch.randn(2, 320, 14, 15)
    batch = dimorder.lower(layer, (x,), target="xnnpack", dynamic_shapes=({0: Dim("N", min=1, max=4)},))
    assert kernels(batch) == [(1, 1)] * 9
    width = dimorder.lower(layer, (x,), target="xnnpack", dynamic_shapes=({3: Dim("W", min=13, max=17)},))
    assert kernels(width) == [(3, 3)]


def test_integers_are_convolved_whole_but_for_outer_taps() -> None:
    pytest.importorskip("executorch")
    x = torch.randn(1, 320, 14, 15)
    layer = by_xnnpack(nn.Conv2d(320, 88, 3, padding=12, dilation=12), x)
    assert kernels(dimorder.lower(layer, (x,), target="xnnpack")) == [(3, 3)]
    x = torch.randn(1, 48, 2, 3)
    layer = by_xnnpack(nn.Conv2d(48, 48, 7, padding=3, groups=48), x)
    lowered = dimorder.lower(layer, (x,), target="xnnpack")
    assert kernels(lowered) == [(3, 5)] and lowered.plan.float_islands == ()
