"""A resize to a dynamic size is products inside the delegate where it can be."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.capture.decompose_dynamic_resize import decompose_dynamic_resize
from tests.marks import slow_but
from tests.sizes.symbols import OF_SIZES, PICTURES, errors, lower, sized


@pytest.mark.parametrize("mode", slow_but(["nearest", "linear"], ["linear"]))
def test_long_lines_are_resized_without_a_matrix(mode: str) -> None:
    module = nn.Sequential(nn.Conv1d(3, 5, 3), nn.Upsample(scale_factor=2, mode=mode)).eval()
    dims = ({2: Dim("T", min=100, max=4000)},)
    lowered = dimorder.lower(module, (torch.randn(1, 3, 200),), dynamic_shapes=dims, target="xnnpack")
    assert len(lowered.artifact.data) < 100_000
    assert max(errors(lowered, module, torch.randn(1, 3, 1001))) <= 1e-4


def test_a_size_that_is_made_by_a_float_is_no_symbol_of_a_product() -> None:
    module = nn.Upsample(scale_factor=2.0, mode="bilinear", recompute_scale_factor=True)
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-4


class Resized(nn.Module):
    """A map, or a line, that is resized between two convolutions."""

    def __init__(self, dims: int, share: tuple[int, int] | None, options: dict[str, Any]) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv1d
        self.first, self.second = conv(3, 5, 3, padding=1), conv(5, 4, 3, padding=1)
        self.share, self.options = share, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = None
        if self.share is not None:
            size = [self.share[0] * each // self.share[1] for each in x.shape[2:]]
        y = nn.functional.interpolate(self.first(x), size, **self.options)
        return cast(torch.Tensor, self.second(y.relu()))


SHAPES = {1: ["1x3xW"], 2: ["1x3xHxW", "Nx3xHxW"]}
RESIZES: dict[str, tuple[int, tuple[int, int] | None, dict[str, Any]]] = {
    "nearest": (2, None, {"scale_factor": 2.0, "mode": "nearest"}),
    "nearest to a size": (2, (5, 4), {"mode": "nearest"}),
    "nearest, exact": (2, (3, 4), {"mode": "nearest-exact"}),
    "nearest, exact, by a factor": (2, None, {"scale_factor": 3.0, "mode": "nearest-exact"}),
    "bilinear": (2, None, {"scale_factor": 2.0, "mode": "bilinear"}),
    "bilinear to a size": (2, (3, 4), {"mode": "bilinear"}),
    "bilinear, aligned": (2, None, {"scale_factor": 3.0, "mode": "bilinear", "align_corners": True}),
    "bilinear to a size, aligned": (2, (5, 4), {"mode": "bilinear", "align_corners": True}),
    "bicubic": (2, None, {"scale_factor": 3.0, "mode": "bicubic"}),
    "bicubic to a size": (2, (3, 4), {"mode": "bicubic"}),
    "bicubic to a size, aligned": (2, (5, 4), {"mode": "bicubic", "align_corners": True}),
    "nearest along a line": (1, None, {"scale_factor": 3.0, "mode": "nearest"}),
    "linear": (1, None, {"scale_factor": 4.0, "mode": "linear"}),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    slow_but(
        ((name, shape) for name, (dims, *_) in RESIZES.items() for shape in SHAPES[dims]),
        [
            ("nearest", "Nx3xHxW"),
            ("bilinear to a size, aligned", "1x3xHxW"),
            ("bicubic", "1x3xHxW"),
            ("nearest along a line", "1x3xW"),
        ],
    ),
)
def test_a_resize_to_symbols_is_products_inside_the_delegate(name: str, shape: str) -> None:
    module = Resized(*RESIZES[name]).eval()
    lowered = lower(module, shape, target="xnnpack")
    assert lowered.artifact.delegates == 1
    assert lowered.artifact.outside.keys() <= OF_SIZES
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized(shape, sizes))) <= 1e-5


@pytest.mark.parametrize(
    "name",
    slow_but((name for name in RESIZES if "linear" not in name), ["nearest, exact", "bicubic to a size"]),
)
def test_resizes_to_symbols_that_litert_lacks_are_products(name: str) -> None:
    pytest.importorskip("ai_edge_litert")
    module, shape = Resized(*RESIZES[name]).eval(), SHAPES[RESIZES[name][0]][-1]
    lowered = lower(module, shape, target="litert")
    assert not {"RESIZE_NEAREST_NEIGHBOR", "GATHER_ND", "GATHER"} & lowered.artifact.outside.keys()
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized(shape, sizes))) <= 1e-5


def test_back_to_a_size_that_was_halved_with_a_rest() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.join = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(7, 5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.interpolate(self.down(x), x.shape[2:], mode="bilinear")
            return cast(torch.Tensor, self.join(torch.cat([x, y], 1)))

    module = Halved().eval()
    dims = ({2: Dim("H", min=5, max=37), 3: Dim("W", min=6, max=41)},)
    lowered = dimorder.lower(module, (torch.ones(1, 3, 9, 11),), dynamic_shapes=dims, target="xnnpack")
    assert lowered.artifact.delegates == 1
    for height, width in ((5, 6), (37, 41), (6, 6), (7, 40), (20, 21), (36, 7)):
        assert max(errors(lowered, module, torch.randn(1, 3, height, width))) <= 1e-5


@pytest.mark.parametrize("mode", slow_but(["nearest", "bilinear"], ["bilinear"]))
def test_from_one_pixel_to_symbols_is_a_repeat(mode: str) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            mean = nn.functional.interpolate(y.mean((2, 3), keepdim=True), y.shape[2:], mode=mode)
            return torch.cat([y, mean], 1)

    module = Pooled().eval()
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert "matmul(" not in lowered.text("physical")
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-5


@pytest.mark.parametrize("mode", slow_but(["bilinear", "nearest"], ["nearest"]))
def test_a_resize_by_a_share_of_a_symbol_runs_beside_the_delegates_and_is_named(mode: str) -> None:
    module = Resized(2, None, {"scale_factor": 1.5, "mode": mode}).eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert lowered.artifact.outside[f"aten::upsample_{mode}2d.vec_out"] == 1
    ((place, reason),) = lowered.plan.outside
    assert place.operator == f"aten.upsample_{mode}2d.vec" and f"{mode} resize" in reason
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-4


class Windows(nn.Module):
    """Adds up each window of a map over the places that are in the same region, of two rows and the rest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:]
        regions = x.new_zeros((rows, columns))
        regions[-2:] = 3.0
        windows = regions.view(rows // 2, 2, columns // 2, 2).permute(0, 2, 1, 3).reshape(-1, 4)
        apart = windows[:, None] - windows[..., None]
        return x.reshape(len(x), -1, 1, 4) @ apart.masked_fill(apart != 0, -7.0)


def test_the_last_rows_of_what_is_computed_from_sizes_are_no_products() -> None:
    dims = ({1: 2 * Dim("h", min=3, max=9), 2: 2 * Dim("w", min=3, max=9)},)
    exported = torch.export.export(Windows(), (torch.randn(3, 10, 14),), dynamic_shapes=dims)
    assert decompose_dynamic_resize(exported) is exported
    lowered = dimorder.lower(Windows(), (torch.randn(3, 10, 14),), dynamic_shapes=dims, target="xnnpack")
    for shape in ((3, 6, 18), (3, 18, 6), (3, 16, 12)):
        assert max(errors(lowered, Windows(), torch.randn(shape))) <= 1e-5


class Delayed(nn.Module):
    """Writes a line after four zeros, and adds up its last steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros((x.shape[0], x.shape[1] + 4, x.shape[2]))
        y[:, 4:] = x.relu()
        return y[:, -6:].sum(1)


def test_the_last_steps_of_zeros_into_which_data_are_written_are_products() -> None:
    lowered = dimorder.lower(
        Delayed(), (torch.randn(2, 9, 5),), dynamic_shapes=({1: Dim("L", min=2, max=30)},), target="xnnpack"
    )
    assert lowered.artifact.delegates == 1
    for length in (2, 3, 7, 30):
        assert max(errors(lowered, Delayed(), torch.randn(2, length, 5))) <= 1e-5
