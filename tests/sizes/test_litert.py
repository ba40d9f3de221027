"""One `.tflite` for ranges of sizes: eager's numbers by all kernels, and what LiteRT derives or computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

pytest.importorskip("ai_edge_litert")

import dimorder
from dimorder.errors import ContractError
from dimorder.lowered import Lowered
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.runtime import KERNELS, LiteRtProgram
from dimorder.verification.relative_error import relative_error
from tests.sizes.symbols import PICTURES, errors, lower, refusal, sized

LENGTHS = [{"N": n, "T": t} for n, t in ((1, 60), (16, 130), (1, 130), (3, 77), (16, 61))]


class Pooled(nn.Module):
    """Convolutions, a mean over pixels, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 10, 3, 2, 1)
        self.head = nn.Linear(10, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.second(self.first(x).relu()).mean((2, 3)))
        return y


class Enlarged(nn.Module):
    """Resizes and a transposed convolution, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 5, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        near, between = F.interpolate(y, scale_factor=2), F.interpolate(x, scale_factor=2.0, mode="bilinear")
        return torch.cat([near, between, self.up(y)], 1)


class Attended(nn.Module):
    """A token before a sequence with positions, and attention over both, in heads."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 12))
        self.positions = nn.Parameter(torch.randn(1, 140, 12))
        self.packed, self.head = nn.Linear(12, 36), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.positions[:, : x.shape[1]]
        parts = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return self.head(y) / x.shape[1]  # type: ignore[no-any-return]


class Turned(nn.Module):
    """A sequence from its end, beside itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.relu(), x.flip(1).sigmoid()], 2)


class Gathered(nn.Module):
    """The best elements of each row, and elements at computed places of all rows."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        best, places = y.topk(2, 2), y.amax((0, 1)).topk(3)[1]
        return (
            y.gather(2, best[1]) * best[0],
            y[:, :, places],
            y[:, places, places],
            y.gather(1, y.argmax(1, True)),
        )


class Cut(nn.Module):
    """Slices from either end of a sequence, and its steps by twos."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        return y[:, 2:-1] * 2, y[:, -3:].tanh(), y[:, : x.shape[1] - 9, 1:].sigmoid()


CASES = {
    "a picture": (Pooled(), "Nx3xHxW", PICTURES, 1),
    "enlarged": (Enlarged(), "1x3xHxW", PICTURES[:4], None),
    "a sequence": (Attended(), "NxTx12", LENGTHS, None),
    "slices": (Cut(), "NxTx12", LENGTHS, 1),
    "gathered": (Gathered(), "NxTx12", LENGTHS, None),
    "turned": (Turned(), "NxTx12", LENGTHS, None),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_gives_eagers_numbers_at_every_size(name: str) -> None:
    module, shape, points, delegates = CASES[name]
    lowered = lower(module.eval(), shape, target="litert")
    if delegates is not None:
        assert (lowered.artifact.delegates, lowered.artifact.outside) == (delegates, {})
    for kernels in KERNELS:
        program = LiteRtProgram(lowered.artifact.data, lowered.contract, kernels)
        for sizes in points:
            x = sized(shape, sizes)
            spec = lowered.contract.inputs[0]
            given = x.permute(spec.dim_order.dims) if spec.boundary == "physical" else x
            with torch.no_grad():
                wanted = module(x)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for got, want in zip(program([given]), wanted, strict=True):
                assert relative_error(got, want) <= 1e-5, (kernels, sizes)


@pytest.fixture(scope="module")
def pooled() -> Lowered:
    return lower(Pooled().eval(), "Nx3xHxW", target="litert", input_orders="NHWC")


def test_a_loaded_file_takes_the_sizes_of_its_contract(pooled: Lowered, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    pooled.save(path)
    program = dimorder.load(path)
    for sizes in PICTURES:
        x = sized("Nx3xHxW", sizes)
        torch.testing.assert_close(program(x), pooled.run(x))
    with pytest.raises(ContractError) as refused:
        program(torch.ones(17, 3, 32, 48))
    assert str(refused.value).splitlines() == [
        "input 'x'",
        "  found: size 17 in dim 0, where N is from 1 to 16",
        "  fix: pass a size within that range, or lower the program for a wider N",
    ]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ContractError, match="SHA-256"):
        dimorder.load(path)


def test_inputs_are_resized_only_for_other_sizes(pooled: Lowered, monkeypatch: pytest.MonkeyPatch) -> None:
    program, resized = LiteRtProgram(pooled.artifact.data, pooled.contract), []
    resize = program._main._resize
    monkeypatch.setattr(program._main, "_resize", lambda shapes: (resized.append(shapes), resize(shapes)))
    for height in (32, 32, 96, 96, 32):
        program([torch.ones(2, height, 48, 3)])
    assert [shape[1] for (shape,) in resized] == [32, 96, 32]


def test_a_view_with_one_dynamic_size_leaves_it_to_litert() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu().flatten(0, 1).softmax(-1)

    lowered = lower(Rows(), "Nx5x7", target="litert")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert max(errors(lowered, Rows(), torch.randn(13, 5, 7))) <= 1e-5


def test_indices_that_depend_on_a_size_are_refused_by_name() -> None:
    class Resized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x.relu(), scale_factor=1.5)

    dims = ({2: 2 * Dim("H", min=3, max=20)},)
    first, found, fix = refusal(Resized(), torch.ones(2, 3, 12, 10), dims, target="litert")
    assert first.startswith("aten.") and "depends on a dynamic size" in found
    assert fix.startswith("  fix: ")


def test_a_network_of_float16_has_dynamic_sizes_too() -> None:
    network, x = Pooled().eval().half(), torch.randn(4, 3, 9, 11).half()
    dims = ({0: Dim("N", min=1, max=9), 2: Dim("H", min=5, max=40)},)
    lowered = dimorder.lower(network, (x,), target="litert", dynamic_shapes=dims)
    for rows, height in ((1, 5), (9, 40), (2, 17)):
        y = torch.randn(rows, 3, height, 11).half()
        with torch.no_grad():
            assert relative_error(lowered.run(y), network(y)) <= 2e-3


class Lengthened(nn.Module):
    """Zeros after a sequence, as many as a multiple of its length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x.sin(), (0, 2 * x.shape[1])) * 2


def test_padding_by_a_dynamic_amount_is_computed() -> None:
    network, dims = Lengthened(), ({1: Dim("T", min=2, max=20)},)
    lowered = dimorder.lower(network, (torch.randn(3, 5, 7),), target="litert", dynamic_shapes=dims)
    for length in (2, 3, 20):
        assert max(errors(lowered, network, torch.randn(3, length, 7))) <= 1e-6
    assert lowered.artifact.outside["PAD"] == 1


class Halved(nn.Module):
    """Windows of stride 2 and padding 1, which end elsewhere at even sizes than at odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 5, 2, 2, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(self.first(x), 3, 2, 1)
        return self.second(y) + F.avg_pool2d(y, 3, 2, 1)


def test_the_larger_and_the_smaller_of_sizes_are_computed() -> None:
    class Framed(nn.Module):
        """Pads a picture to a square, and returns the best quarter of its rows, at least one."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            height, width = x.shape[2:]
            side = max(height, width)
            square = F.pad(x, (0, side - width, side - min(height, side), 0))
            return square, x.mean((1, 3)).topk(max(height // 4, 1)).values

    module, dims = Framed(), {2: Dim("H", min=3, max=20), 3: Dim("W", min=4, max=22)}
    lowered = dimorder.lower(module, (torch.randn(2, 3, 7, 9),), dynamic_shapes=(dims,), target="litert")
    for height, width in ((3, 22), (20, 4), (8, 5)):
        assert max(errors(lowered, module, torch.randn(2, 3, height, width))) <= 1e-5


def test_strided_windows_end_where_they_should_at_even_and_odd_sizes() -> None:
    network, dims = Halved().eval(), ({2: Dim("H", min=9, max=70), 3: Dim("W", min=10, max=61)},)
    lowered = dimorder.lower(network, (torch.randn(2, 3, 17, 19),), target="litert", dynamic_shapes=dims)
    for height in range(9, 71, 7):
        for width in (10, 11, 30, 61):
            assert max(errors(lowered, network, torch.randn(2, 3, height, width))) <= 1e-6


class Unet(nn.Module):
    """A strided convolution, a pool and a transposed convolution, at sizes that are multiples of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 4, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.up = nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(8, 8, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        y = self.up(self.second(self.pool(y)))
        return y.flatten(2) @ y.flatten(2).transpose(1, 2)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d((5, 3), (3, 1), (2, 0), ceil_mode=True),
        nn.AvgPool2d(2, ceil_mode=True),
    ],
)
def test_the_last_window_of_a_pool_may_be_cut_at_some_sizes(pool: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), pool, nn.Conv2d(4, 5, 1)).eval()
    dims = {2: Dim("H", min=6, max=40), 3: Dim("W", min=7, max=37)}
    lowered = dimorder.lower(net, (torch.randn(1, 3, 20, 23),), target="litert", dynamic_shapes=(dims,))
    for height, width in ((6, 7), (40, 37), (7, 8), (11, 30), (8, 9)):
        assert max(errors(lowered, net, torch.randn(1, 3, height, width))) <= 1e-5


@pytest.mark.parametrize("most", [4, 5, 8])
def test_a_fixed_size_that_a_batch_has_too_is_written_alike_for_all_batches(most: int) -> None:
    """At a batch of 4, 32 is a multiple of the batch, and the image's own size."""
    module, dims = Unet().eval(), ({0: Dim("N", min=1, max=most)},)
    lowered = dimorder.lower(module, (torch.randn(3, 3, 32, 32),), dynamic_shapes=dims, target="litert")
    for count in (1, 2, 4, most):
        assert max(errors(lowered, module, torch.randn(count, 3, 32, 32))) <= 1e-4


class Flipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x).flip((0, 1, 2))


def test_a_flip_of_a_size_that_a_dynamic_one_has_too_is_written_alike_for_all_sizes() -> None:
    module, dims = Flipped().eval(), ({3: Dim("L", min=2, max=5)},)
    lowered = dimorder.lower(module, (torch.randn(3, 4, 2, 3),), dynamic_shapes=dims, target="litert")
    for size in (2, 4, 5):
        assert max(errors(lowered, module, torch.randn(3, 4, 2, size))) <= 1e-5


class Framed(nn.Module):
    def __init__(self, amounts: tuple[int, ...]) -> None:
        super().__init__()
        self.amounts = amounts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x.sin(), self.amounts, value=1.5) * 2


@pytest.mark.parametrize(
    ("dims", "amounts", "kinds"),
    [
        ({0: Dim("N", min=1, max=4)}, (0, 1), {"PAD", "ADD"}),  # a constant is 0 but for the frame
        ({0: Dim("N", min=1, max=4)}, (1, 2, 3, 0), {"PAD", "ADD"}),
        ({2: Dim("L", min=8, max=19)}, (0, 1), {"CONCATENATION"}),
        ({0: Dim("N", min=1, max=4), 2: Dim("L", min=8, max=19)}, (1, 2, 3, 0), {"PADV2"}),
    ],
)
def test_a_frame_of_another_number_is_added_at_all_sizes(
    dims: dict[int, Dim], amounts: tuple[int, ...], kinds: set[str]
) -> None:
    module = Framed(amounts)
    lowered = dimorder.lower(module, (torch.randn(3, 5, 9),), dynamic_shapes=(dims,), target="litert")
    framing = {"PAD", "ADD", "CONCATENATION", "PADV2"}
    assert framing & set(operators(lowered.artifact.data)) == kinds
    for n, length in ((1, 8), (4, 19), (2, 10)):
        shape = (n if 0 in dims else 3, 5, length if 2 in dims else 9)
        assert max(errors(lowered, module, torch.randn(shape))) <= 1e-4


class Sampled(nn.Module):
    """Reads a picture at places between its pixels, and at its border."""

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        inside = F.grid_sample(x, grid, align_corners=False)
        return inside + F.grid_sample(9 * x, grid, padding_mode="border", align_corners=True)


def test_a_picture_is_sampled_at_all_of_its_sizes() -> None:
    dims = ({2: Dim("H", min=6, max=20), 3: Dim("W", min=6, max=20)}, {1: Dim("N", min=3, max=20)})
    example = (torch.randn(1, 3, 9, 11), torch.rand(1, 8, 10, 2))
    lowered = dimorder.lower(Sampled(), example, target="litert", dynamic_shapes=dims)
    for height, width, rows in ((6, 20, 3), (17, 7, 20), (7, 7, 7)):
        x, grid = torch.randn(1, 3, height, width), 2.4 * torch.rand(1, rows, 10, 2) - 1.2
        assert relative_error(lowered(x, grid), Sampled()(x, grid)) < 1e-5


def test_a_clamp_reads_its_bound_from_a_size() -> None:
    """No clamp to [0, 6] of LiteRT's own is written for a row of 7 places."""

    class Bounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(0, x.shape[1] - 1)

    lowered = dimorder.lower(
        Bounded(), (torch.randn(2, 9),), target="litert", dynamic_shapes=({1: Dim("T", min=5, max=19)},)
    )
    for length in (5, 7, 12, 19):
        assert max(errors(lowered, Bounded(), 9 * torch.randn(2, length))) == 0
