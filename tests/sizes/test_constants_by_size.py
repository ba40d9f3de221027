"""Constants that depend on a size are slices of the largest one where they can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import PICTURES, TARGETS, errors, lower, refusal, sized


class Anchored(nn.Module):
    """Adds the centre of each place of a map to a point found there, all places in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 8, stride=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        rows, columns = (torch.arange(size) + 0.5 for size in y.shape[2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1]).flatten(1)
        return (y.flatten(2) + grid[None]) * torch.full((1, grid.shape[1]), 8.0)


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_anchors_are_sliced_and_laid_out_in_each_call(target: str) -> None:
    module = Anchored().eval()
    lowered = lower(module, "2x3xHxW", target=target)
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("2x3xHxW", sizes))) <= 1e-4


def test_a_matrix_that_begins_as_a_larger_one_is_sliced_beside_what_is_computed() -> None:
    class Both(nn.Module):
        """Resizes twice: a larger nearest matrix begins like a smaller one; a bilinear one ends otherwise."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            linear = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            return nn.functional.interpolate(x.relu(), scale_factor=2.0), linear

    lowered = lower(Both(), "1x3xHxW", target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in PICTURES:
        assert max(errors(lowered, Both(), sized("1x3xHxW", sizes))) <= 1e-4
    products = [line for line in lowered.text("physical").splitlines() if "matmul(" in line]
    assert sum("matmul(slice_constant" in line for line in products) == 2 and len(products) == 4


class Codes(nn.Module):
    """Returns the distances of pixels to the codes of a table, by a product with columns of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.table = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.randn(9, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(self.conv(x).permute(0, 2, 3, 1).reshape(-1, 4), self.table)


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_ones_along_several_dynamic_sizes(target: str) -> None:
    module = Codes().eval()
    lowered = lower(module, "2x3xHxW", target=target)
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("2x3xHxW", sizes))) <= 1e-4


class Positions(nn.Module):
    """Adds each place's row of a table before a causal mask, and with the table transposed after the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 12))
        self.conv = nn.Conv1d(12, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        y = (x + self.table[torch.arange(length)]) @ x.mT
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        y = y.masked_fill(~mask, 0.5).softmax(-1) @ x
        return self.conv(y.mT + self.table[:length].mT)


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_a_constant_that_begins_as_a_longer_one_is_a_slice_of_that(target: str) -> None:
    module = Positions().eval()
    lowered = dimorder.lower(
        module, (torch.randn(3, 9, 12),), dynamic_shapes=({1: Dim("L", min=4, max=40)},), target=target
    )
    if target == "xnnpack":
        assert lowered.artifact.delegates == 1
        assert lowered.artifact.outside["aten::slice_copy.Tensor_out"] > 1
    for length in (4, 5, 9, 23, 39, 40):
        x = torch.randn(3, length, 12)
        assert max(errors(lowered, module, x)) <= 1e-4
        with torch.no_grad():
            (plain,) = pytree.tree_leaves(lowered.decomposed().module()(x))
            assert relative_error(plain, module(x)) <= 1e-4


class Local(nn.Module):
    """Attends to near places alone, once by a mask of the operator and once by one of scores."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[2])
        near = (places - places[:, None]).abs() <= self.reach
        y = nn.functional.scaled_dot_product_attention(x, x * 0.5, x.cos(), attn_mask=near)
        return (y @ x.mT).masked_fill(~near, -20.0).softmax(-1) @ x


@pytest.mark.parametrize("reach", [4, 17])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_mask_that_hides_nothing_at_small_sizes_is_a_slice_of_one_that_does(
    reach: int, target: str
) -> None:
    sizes = ({2: Dim("L", min=1, max=40)},)
    lowered = dimorder.lower(Local(reach), (torch.randn(1, 2, 9, 8),), dynamic_shapes=sizes, target=target)
    for length in (1, 5, 18, 19, 40):
        assert max(errors(lowered, Local(reach), torch.randn(1, 2, length, 8))) <= 1e-4


_MOST = 17
_MASKS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "by place": lambda buffer, n: (torch.arange(n) >= 5).expand(n, n),
    "beginning": lambda buffer, n: buffer[:n, :n],
    "one row for all": lambda buffer, n: buffer[3:4, :n],
    "four dimensions": lambda buffer, n: buffer[None, None, :n, :n],
    "end": lambda buffer, n: buffer[-n:, -n:],
    "bias": lambda buffer, n: (
        (torch.arange(_MOST) / 7).expand(_MOST, _MOST).masked_fill(~buffer, -torch.inf)[:n, :n]
    ),
    "numbers": lambda buffer, n: torch.zeros(n, n).masked_fill(~buffer[:n, :n], float("-inf")),
}


class Hiding(nn.Module):
    """Attention whose mask hides whole rows at some sizes alone; PyTorch gives zeros for them."""

    def __init__(self, mask: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.mask = mask
        drawn = torch.rand(_MOST, _MOST, generator=torch.Generator().manual_seed(0))
        self.seen = nn.Buffer((drawn > 0.7) & (torch.arange(_MOST) >= 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.mask(self.seen, x.shape[2])
        return nn.functional.scaled_dot_product_attention(x, x * 0.5, x.cos(), attn_mask=mask)


@pytest.mark.parametrize("name", _MASKS)
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_mask_may_hide_whole_rows_at_some_sizes(target: str, name: str) -> None:
    require_runtime(target)
    module, sizes = Hiding(_MASKS[name]), ({2: Dim("L", min=1, max=_MOST)},)
    lowered = dimorder.lower(module, (torch.randn(1, 2, 9, 8),), dynamic_shapes=sizes, target=target)
    for length in range(1, _MOST + 1):
        assert max(errors(lowered, module, torch.randn(1, 2, length, 8))) <= 1e-4


def test_a_constant_that_is_another_one_for_each_size_is_refused() -> None:
    class Lengths(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.full((x.shape[1],), x.shape[1])

    dims = ({1: Dim("L", min=4, max=2**17)},)  # too many for a table
    first, found, _ = refusal(Lengths(), torch.ones(2, 9), dims)
    assert first.startswith("aten.add.Tensor (test_constants_by_size.py:")
    assert found == "  found: the constant constant__0, whose values depend on a dynamic size"


class Hidden(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nothing = float("nan")
        return x.masked_fill(x < 0, nothing), torch.where(x > 0.5, x, nothing)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_nan_is_the_same_number_at_all_sizes(target: str) -> None:
    sizes = ({0: torch.export.Dim("N", min=2, max=6)},)
    lowered = dimorder.lower(Hidden().eval(), (torch.randn(3, 5),), target=target, dynamic_shapes=sizes)
    x = torch.randn(4, 5)
    for got, wanted in zip(lowered(x), Hidden()(x), strict=True):
        assert torch.allclose(got, wanted, rtol=0, atol=0, equal_nan=True)


class Relative(nn.Module):
    """Adds the end of a table, and scores by the rows around the middle of another, as Conformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Buffer(torch.randn(40, 12))
        self.around = nn.Buffer(torch.randn(79, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        around = self.around[40 - length : 39 + length]
        return (x + self.last[40 - length :]).relu() @ around.T


class Backwards(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[1] - 1, -1, -1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_the_end_and_the_middle_of_a_table_are_sliced(target: str) -> None:
    sizes = ({0: Dim("N", min=1, max=4), 1: Dim("L", min=2, max=32)},)
    module = Relative().eval()
    lowered = dimorder.lower(module, (torch.randn(2, 9, 12),), target=target, dynamic_shapes=sizes)
    assert lowered.text("physical").count("slice_constant(") == 2
    for shape in ((3, 32, 12), (1, 5, 12), (4, 2, 12)):
        x = torch.randn(shape)
        assert relative_error(lowered(x), module(x)) <= 1e-5


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_count_down_is_the_end_of_a_longer_one(target: str) -> None:
    sizes = ({1: Dim("L", min=4, max=40)},)
    lowered = dimorder.lower(Backwards(), (torch.ones(2, 9),), target=target, dynamic_shapes=sizes)
    assert "slice_constant(constant[40], dim 0, 40 - L, end 40)" in lowered.text("physical")
    for length in (4, 5, 39, 40):
        x = torch.randn(2, length)
        assert torch.equal(lowered(x), Backwards()(x))


class Regions(nn.Module):
    """Numbers the regions of a map in zeros like it, and adds the numbers of each window of two places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:]
        regions = x.new_zeros((rows, columns))
        regions[-2:, : columns - 2] = 3.0
        regions[:, columns - 2 :] = 5.0
        windows = regions.view(rows // 2, 2, columns // 2, 2).permute(0, 2, 1, 3).reshape(-1, 4)
        return x.reshape(len(x), -1, 4) + windows[None]


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_regions_numbered_in_zeros_like_an_input_are_sliced(target: str) -> None:
    require_runtime(target)
    dims = ({1: 2 * Dim("h", min=3, max=9), 2: 2 * Dim("w", min=3, max=9)},)
    lowered = dimorder.lower(Regions(), (torch.randn(3, 10, 14),), target=target, dynamic_shapes=dims)
    for shape in ((3, 6, 18), (3, 18, 6), (3, 16, 12)):
        assert max(errors(lowered, Regions(), torch.randn(shape))) <= 1e-5


class Scaled(nn.Module):
    """A scale of each feature, repeated to a dynamic size by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 5), nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y * self.scale.expand_as(y)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_parameter_may_be_repeated_to_a_dynamic_size(target: str) -> None:
    require_runtime(target)
    module = Scaled().eval()
    dims = ({1: torch.export.Dim("L", min=1, max=6)},)
    lowered = dimorder.lower(module, (torch.randn(1, 3, 8),), target=target, dynamic_shapes=dims)
    for length in (1, 3, 6):
        x = torch.randn(1, length, 8)
        torch.testing.assert_close(lowered.run(x), module(x))


class Interpolated(nn.Module):
    """Adds positions that are resized to the size of a map."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 3, 7, 5))
        self.mode, _, self.antialias = mode.partition(" ")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        antialias = bool(self.antialias)
        resized = nn.functional.interpolate(self.positions, x.shape[2:], mode=self.mode, antialias=antialias)
        return x + resized


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic antialias"])
def test_a_parameter_may_be_resized_to_dynamic_sizes(mode: str, target: str) -> None:
    module = Interpolated(mode).eval()
    lowered = lower(module, "2x3xHxW", target=target)
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("2x3xHxW", sizes))) <= 1e-4


class Numbered(nn.Module):
    """Makes tensors of the number of columns: filled, a single one, and written into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(90, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = x.shape[1]
        places = torch.zeros(count, dtype=torch.long)
        places[1:] = torch.arange(count - 1)
        places[0] = 2 * count
        return x + torch.full((count,), count), x * torch.tensor(count), x + self.table[places].sum(-1)


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
def test_a_size_may_be_written_into_a_tensor(target: str) -> None:
    module = Numbered().eval()
    dims = ({1: Dim("L", min=4, max=40)},)
    lowered = dimorder.lower(module, (torch.randn(2, 9),), target=target, dynamic_shapes=dims)
    for length in (4, 13, 40):
        assert max(errors(lowered, module, torch.randn(2, length))) <= 1e-5


class Placed(nn.Module):
    """Adds the place of each row to points near it. Returns the places too, of every picture."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Linear(6, 2 * 3 * 4 * 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = nn.functional.pad(x, (1, 0, 0, 1)).flatten(2).transpose(1, 2)
        pictures, rows, _ = x.shape
        places = ((torch.arange(rows) + 0.5) / rows)[None, :, None, None] * torch.ones(pictures, 1, 3, 2)
        points = places[:, :, None, :, None] + self.offsets(x).view(pictures, rows, 2, 3, 4, 2)
        return points.reshape(pictures, 4, 5, 2, 24).sum(1), places * 2


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_constant_is_repeated_for_each_picture_of_a_batch(target: str) -> None:
    """Along the batch it has one place, so that its rows are not merged with the batch."""
    require_runtime(target)
    module = Placed().eval()
    dims = ({0: Dim("N", min=1, max=5)},)
    lowered = dimorder.lower(module, (torch.randn(2, 6, 3, 4),), target=target, dynamic_shapes=dims)
    for pictures in (1, 2, 5):
        assert max(errors(lowered, module, torch.randn(pictures, 6, 3, 4))) <= 1e-5
