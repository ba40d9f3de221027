"""Operators of which a size is a symbol: where they run, and eager's numbers at each size."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.targets.litert.file import operators
from tests import zoo
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import PICTURES, TARGETS, TIMES, errors, lower, sized


def test_what_torch_cannot_prove_of_sizes_is_computed_for_each() -> None:
    class Framed(nn.Module):
        """Torch has no rule by which 12 n is divided by n, where n is a quotient."""

        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.Sequential(nn.Conv1d(3, 9, 10, stride=5), nn.Conv1d(9, 12, 3, stride=2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.convs(x)
            return y.transpose(1, 2).reshape(y.shape[2], -1)

    module = Framed().eval()
    dims = ({2: Dim("T", min=40, max=300)},)
    for target in TARGETS:
        lowered = dimorder.lower(module, (torch.randn(1, 3, 63),), dynamic_shapes=dims, target=target)
        for length in (40, 41, 64, 65, 199, 300):
            assert max(errors(lowered, module, torch.randn(1, 3, length))) <= 1e-4


class Token(nn.Module):
    """One token that is learned, repeated for each item, looks at the others; its angles are of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.norm, self.query, self.key = nn.LayerNorm(24), nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(self.norm(self.token.expand(x.shape[0], -1, -1)))
        with torch.autocast("cpu", enabled=False):
            key = self.key(x.sin())
        return (query @ key.transpose(1, 2)).softmax(-1) @ key


@pytest.mark.parametrize("target", [*TARGETS, "litert"])
def test_a_learned_token_and_a_region_without_autocast_are_the_same_at_all_sizes(target: str) -> None:
    """The token's query is computed once: torch multiplies more rows otherwise, with other roundings."""
    require_runtime(target)
    module, dims = Token().eval(), ({0: Dim("N", min=1, max=33)},)
    lowered = dimorder.lower(module, (torch.randn(3, 5, 24),), dynamic_shapes=dims, target=target)
    for count in (1, 2, 17, 33):
        assert max(errors(lowered, module, torch.randn(count, 5, 24))) <= 1e-4


class Scaled(nn.Module):
    """Resizes a picture by a factor, so that an odd size is rounded down."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x.relu(), scale_factor=self.factor).sigmoid()


@pytest.mark.parametrize("factor", slow_but([0.5, 1.5, 0.75], [0.75]))
def test_a_fraction_of_a_symbol_is_a_size(factor: float) -> None:
    module, dims = Scaled(factor), ({2: Dim("H", min=8, max=19), 3: Dim("W", min=6, max=21)},)
    for target in TARGETS:
        lowered = dimorder.lower(module, (torch.randn(1, 3, 9, 11),), dynamic_shapes=dims, target=target)
        for height, width in ((8, 6), (13, 20), (19, 21)):
            assert max(errors(lowered, module, torch.randn(1, 3, height, width))) <= 1e-4


class Steps(nn.Module):
    """The last steps of a sequence, counted from its end, beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(3, 6, 3, padding=1), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        return self.head(y[..., -1]), y[:, :, -3:].relu(), y.transpose(1, 2)[:, -4:-2].sigmoid()


@pytest.mark.parametrize("module", [Steps(), zoo.network("tcn").build()], ids=["own", "tcn"])
def test_the_last_steps_of_a_symbol_are_of_the_delegate(module: nn.Module) -> None:
    shape = "2x3xT" if isinstance(module, Steps) else "2x6xT"
    lowered = lower(module.eval(), shape, target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in TIMES:
        assert max(errors(lowered, module, sized(shape, sizes))) <= 1e-4


class Repeated(nn.Module):
    """Repeats the mean of a picture along three dynamic sizes, `times` the sizes of the picture."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.conv, self.times = nn.Conv2d(3, 5, 3, padding=1), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.conv(x).mean((0, 2, 3), keepdim=True).sigmoid()
        batch, _, height, width = x.shape
        return mean.expand(batch, -1, self.times * height, width).relu()


def test_a_value_is_repeated_along_several_dynamic_sizes_in_the_delegate() -> None:
    module = Repeated(1).eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-5


def test_a_repeat_to_a_size_that_no_other_value_has_runs_outside() -> None:
    module = Repeated(2).eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert lowered.artifact.outside["aten::expand_copy.out"] == 1
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-5


class Rows(nn.Module):
    """The last of rows that no batch holds, and of rows in a batch."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.relu()[-1], x.unsqueeze(0).sigmoid()[:, -1:], x.view(1, -1, 3, 1, 1).tanh()[:, -1]


def test_the_last_of_rows_needs_no_matrix() -> None:
    lowered = lower(Rows(), "Tx3", target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in TIMES:
        assert max(errors(lowered, Rows(), sized("Tx3", sizes))) <= 1e-4
    program = lowered.text("physical")
    assert program.count("upsample_bilinear2d_nhwc(") == 2 and program.count("matmul(") == 1


class Masked(nn.Module):
    """The last of steps some of which are infinite, where the input says so, and of what is finite again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x).masked_fill(x[:, :1] < -1, -torch.inf)
        return y[..., -2:], y.softmax(-1)[..., -1:]


def test_infinite_steps_do_not_spread_to_the_last() -> None:
    module = Masked().eval()
    lowered = lower(module, "2x3xT", target="xnnpack")
    for sizes in TIMES:
        x = sized("2x3xT", sizes)
        x[1, 0, 1] = -2.0
        with torch.no_grad():
            wanted = module(x)
        for got, want in zip(lowered.run(x), wanted, strict=True):
            torch.testing.assert_close(got, want)


class Padded(nn.Module):
    """Texts of which some begin with padding: those rows of attention are no numbers, or infinite."""

    def __init__(self, logarithms: bool) -> None:
        super().__init__()
        self.logarithms, self.packed = logarithms, nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.packed(x).chunk(3, -1)
        if self.logarithms:
            return (value + mask.float().log()[..., None])[:, -2:].exp()
        seen = torch.ones(2 * x.shape[1:2], dtype=torch.bool).tril() & mask.bool()[:, None]
        return ((query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value)[:, -2:]


@pytest.mark.parametrize("logarithms", slow_but([False, True], [True]))
def test_rows_that_are_no_numbers_do_not_spread_to_the_last(logarithms: bool) -> None:
    module, length = Padded(logarithms).eval(), Dim("L", min=4, max=24)
    mask = torch.ones(2, 7, dtype=torch.int64)
    example = torch.randn(2, 7, 8), mask
    lowered = dimorder.lower(module, example, dynamic_shapes=({1: length},) * 2, target="xnnpack")
    for size in (4, 5, 23, 24):
        x, mask = torch.randn(2, size, 8), torch.ones(2, size, dtype=torch.int64)
        mask[1, :2] = 0
        with torch.no_grad():
            torch.testing.assert_close(lowered.run(x, mask), module(x, mask), rtol=1e-4, atol=1e-5)


class Attended(nn.Module):
    """Attention by hand, of which the last row counts."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.packed, self.head = heads, nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        query, key, value = parts
        y = ((query @ key.mT).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.head(y)[:, -1]


@pytest.mark.parametrize("heads", slow_but([1, 2], [2]))
def test_ranges_may_be_small_and_heads_one(heads: int) -> None:
    module = Attended(heads).eval()
    dims = {0: Dim("N", min=1, max=4), 1: Dim("L", min=1, max=6)}
    lowered = dimorder.lower(module, (torch.randn(2, 5, 8),), dynamic_shapes=(dims,), target="xnnpack")
    for n, length in ((1, 1), (4, 6), (2, 2), (3, 5), (4, 1), (1, 6)):
        assert max(errors(lowered, module, torch.randn(n, length, 8))) <= 1e-4


@pytest.mark.parametrize(
    ("shape", "options", "in_phases"),
    [
        ("1x3xT", (4, 2), True),
        ("Nx3x9", (4, 2, 1), True),
        ("1x3xT", (4, 2, 1), False),  # a slice of a symbol is left
        ("1x3xT", (7, 3, 3, 2), True),
        ("1x3xT", (3, 2, 1, 1), True),
        ("2x3xHx12", (2, 2), True),
        ("2x3xHx12", (3, 2, 1, 1), True),
        ("2x3xHx12", (3, 2, 1), False),
        ("1x3xHxW", (2, 2), False),  # a reshape has one symbol
    ],
)
def test_phases_are_joined_where_one_size_is_a_symbol(
    shape: str, options: tuple[int, ...], in_phases: bool
) -> None:
    lines = shape.count("x") == 2
    conv, transposed = (nn.Conv1d, nn.ConvTranspose1d) if lines else (nn.Conv2d, nn.ConvTranspose2d)
    module = nn.Sequential(conv(3, 6, 3, padding=1), nn.ReLU(), transposed(6, 5, *options)).eval()
    lowered = lower(module, shape, target="xnnpack")
    assert lowered.artifact.delegates == 1
    assert ("conv_transpose2d" not in lowered.text("physical")) == in_phases
    x = sized(shape, {"T": 77, "N": 3, "H": 96, "W": 112})
    assert max(errors(lowered, module, x)) <= 1e-4


def test_taps_that_read_padding_at_all_sizes_are_left_out() -> None:
    """At no height, and at some widths."""
    dilated = nn.Conv2d(6, 5, (3, 3), padding=(96, 50), dilation=(96, 50))
    module = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), dilated).eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert (5, 1, 3, 6) in {tuple(constant.shape) for constant in lowered.physical.state_dict.values()}
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-4


def test_a_convolution_by_what_is_computed_runs_beside() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 3, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(x, self.weight * x.mean())

    module = Computed().eval()
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-4


def test_what_xnnpack_cannot_do_at_all_sizes_runs_outside_where_that_is_right() -> None:
    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()[:, -9:] * 2  # more steps than a product inside the delegate takes

    dims = ({1: Dim("L", min=10, max=40)},)
    lowered = dimorder.lower(Last(), (torch.ones(2, 13, 3),), dynamic_shapes=dims, target="xnnpack")
    assert lowered.artifact.delegates == 2
    assert lowered.artifact.outside["aten::slice_copy.Tensor_out"] == 1
    for length in (10, 11, 17, 40):
        assert max(errors(lowered, Last(), torch.randn(2, length, 3))) <= 1e-4


def test_a_reshape_of_two_symbols_is_a_view_between_delegates() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.mix(x).reshape(x.shape[0], x.shape[1], 5, 2)
            return rows.softmax(3)

    module = Heads().eval()
    dims = ({0: Dim("N", min=1, max=16), 1: Dim("L", min=4, max=40)},)
    lowered = dimorder.lower(module, (torch.ones(2, 9, 10),), dynamic_shapes=dims, target="xnnpack")
    assert lowered.artifact.delegates == 2
    for batch, length in ((1, 4), (16, 40), (1, 40), (16, 4), (3, 17), (5, 5)):
        assert max(errors(lowered, module, torch.randn(batch, length, 10))) <= 1e-4


def test_pixels_are_shuffled_by_a_transposed_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 18, 3, padding=1), nn.PixelShuffle(3), nn.ReLU()).eval()
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-5


def test_a_slice_before_two_dynamic_dimensions_is_planned_inside_the_delegate() -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.relu()[:1] * 2, x.sigmoid()[2:5] + 1

    dims = ({1: Dim("L", min=2, max=40), 2: Dim("M", min=3, max=30)},)
    lowered = dimorder.lower(Parts(), (torch.ones(6, 9, 7),), dynamic_shapes=dims, target="xnnpack")
    assert lowered.plan.extracted.outside == {}
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for length, width in ((2, 3), (40, 30), (2, 30), (40, 3), (17, 5)):
        assert max(errors(lowered, Parts(), torch.randn(6, length, width))) <= 1e-6


class Pooled(nn.Module):
    """Reductions over the pixels of a convolution."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.conv = names, nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x)
        return tuple(getattr(y, name)((2, 3)) for name in self.names)


def test_a_mean_over_pixels_is_of_the_delegate_at_three_symbols() -> None:
    module = Pooled("mean").eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert lowered.plan.extracted.outside == {}
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-5


@pytest.mark.parametrize(
    ("target", "shape"),
    slow_but(
        product(TARGETS, ["Nx3xHxW", "2x3xHxW", "Nx3x9xW"]), [("torch", "2x3xHxW"), ("xnnpack", "Nx3xHxW")]
    ),
)
def test_other_reductions_over_pixels_have_their_numbers(target: str, shape: str) -> None:
    """A variance is over the number of pixels less one."""
    module = Pooled("sum", "var", "amax").eval()
    lowered = lower(module, shape, target=target)
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized(shape, sizes))) <= 1e-5


class Parted(nn.Module):
    """Operators that ExecuTorch and LiteRT lack, or have with the wrong sign."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.lgamma(x), torch.exp2(x), torch.sort(x, -1).values, i % 3


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_operators_in_parts_have_dynamic_sizes(target: str) -> None:
    net, batch = Parted(), {0: Dim("N", min=2, max=9)}
    i = torch.arange(-6, 6).reshape(3, 4)
    lowered = dimorder.lower(net, (torch.randn(3, 5), i), dynamic_shapes=(batch, batch), target=target)
    for size in (2, 5, 9):
        given = torch.randn(size, 5), torch.randint(-9, 9, (size, 4))
        for got, wanted in zip(lowered.run(*given), net(*given), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


class EverySecond(nn.Module):
    """Takes every second row of a picture, from either end, by slices and by places."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        rows = y.index_select(2, torch.arange(1, y.shape[2], 2))
        return y[:, :, 1::2].sigmoid(), y[:, :, ::2] * 2, y[:, :, 1:-2:2], rows.flatten(2)


@pytest.mark.parametrize("target", [*TARGETS, "litert"])
def test_every_second_row_is_taken_of_odd_and_of_even_sizes(target: str) -> None:
    module, dims = EverySecond(), ({2: Dim("H", min=9, max=14)},)
    lowered = dimorder.lower(module, (torch.randn(1, 4, 10, 7),), dynamic_shapes=dims, target=target)
    for height in range(9, 15):
        assert max(errors(lowered, module, torch.randn(1, 4, height, 7))) <= 1e-5


def test_steps_of_sizes_of_which_the_step_is_a_divisor_stay_in_the_delegate() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sigmoid()
            return y[:, :, ::2] * y[:, :, 1::2]

    dims = ({2: 2 * Dim("_H", min=4, max=9)},)
    lowered = dimorder.lower(Halves(), (torch.randn(1, 4, 10, 7),), dynamic_shapes=dims, target="litert")
    assert operators(lowered.artifact.data)["RESHAPE"]  # rows of two, of which each first one stays
    for height in (8, 10, 18):
        assert max(errors(lowered, Halves(), torch.randn(1, 4, height, 7))) <= 1e-5


class Norm(nn.Module):
    """Divides places by their norm over two dimensions, one of which is dynamic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.argmax(-1).to(torch.float32)
        norm: torch.Tensor = torch.linalg.vector_norm(places, dim=(1, 2), keepdim=True)
        return places / (norm + 1)


def test_a_sum_over_a_fixed_and_a_dynamic_size_is_of_the_delegate() -> None:
    dims = ({2: Dim("H", min=5, max=10)},)
    lowered = dimorder.lower(Norm(), (torch.randn(2, 4, 6, 3),), dynamic_shapes=dims, target="xnnpack")
    assert all("sum" not in str(place) for place, _ in lowered.plan.outside)
    for height in (5, 8, 10):
        assert max(errors(lowered, Norm(), torch.randn(2, 4, height, 3))) <= 1e-5


class Folded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = nn.functional.fold(x, (x.shape[2], 1), 1, dilation=(1, 2))
        return columns + x.unsqueeze(-1).flip(2) * 2


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_a_slice_may_be_of_one_row_at_the_least_size(target: str) -> None:
    module = Folded().eval()
    sizes = ({2: 2 * Dim("rows", min=1, max=7)},)
    lowered = dimorder.lower(module, (torch.randn(1, 4, 10),), target=target, dynamic_shapes=sizes)
    for rows in (2, 4, 14):
        assert max(errors(lowered, module, torch.randn(1, 4, rows))) <= 1e-6


class Windows(nn.Module):
    """Windows of a size and a step, which may overlap, touch, or leave elements out."""

    def __init__(self, size: int, step: int) -> None:
        super().__init__()
        self.size, self.step = size, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(2, self.size, self.step) * 2


@pytest.mark.parametrize(
    ("target", "size", "step"),
    slow_but(
        [(target, *each) for target in (*TARGETS, "litert") for each in ((1, 2), (2, 3), (2, 2), (3, 2))],
        [("xnnpack", 1, 2), ("litert", 2, 2), ("xnnpack", 2, 3)],
    ),
)
def test_windows_are_taken_of_sizes_that_leave_elements_over(target: str, size: int, step: int) -> None:
    module, dims = Windows(size, step), ({2: Dim("H", min=5, max=12)},)
    lowered = dimorder.lower(module, (torch.randn(1, 2, 6, 5),), dynamic_shapes=dims, target=target)
    for height in range(5, 13):
        assert max(errors(lowered, module, torch.randn(1, 2, height, 5))) == 0


@pytest.mark.parametrize("count", [3, 9])
def test_a_sum_that_the_plan_asked_for_with_merged_dimensions_may_run_outside(count: int) -> None:
    """A median counts smaller elements, along a dimension before two dynamic ones."""

    class Median(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.median(1).values * 2

    dims = ({2: Dim("H", min=3, max=9), 3: Dim("W", min=5, max=11)},)
    x = torch.randn(2, count, 8, 6)
    lowered = dimorder.lower(Median(), (x,), dynamic_shapes=dims, target="xnnpack")
    for height, width in ((3, 5), (4, 11), (9, 8)):
        assert max(errors(lowered, Median(), torch.randn(2, count, height, width))) == 0


class Places(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, places = nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        return y + places


@pytest.mark.parametrize("target", slow_but([*TARGETS, "litert"], ["litert"]))
def test_a_pool_returns_places_at_sizes_that_leave_elements_over(target: str) -> None:
    dims = ({2: Dim("H", min=5, max=13)},)
    lowered = dimorder.lower(Places(), (torch.randn(1, 2, 8, 6),), dynamic_shapes=dims, target=target)
    for height in range(5, 14):
        assert max(errors(lowered, Places(), torch.randn(1, 2, height, 6))) == 0
