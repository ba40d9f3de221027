"""One program for all sizes of a range: it gives eager's numbers at each, its plan is the best at each, and
what it cannot be made for is refused by the operator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.contract import Contract, Symbol
from dimorder.errors import ContractError, UnsupportedError, UsageError, VerificationError
from dimorder.lowered import Lowered
from dimorder.verification.verify import relative_error
from tests import zoo

TARGETS = ("torch", "xnnpack")
RANGES = {
    "N": Symbol("N", 1, 16),
    "H": Symbol("H", 32, 96, 16),
    "W": Symbol("W", 48, 112, 16),
    "T": Symbol("T", 60, 130),
}
BATCHES = [{"N": n} for n in (1, 2, 4, 7, 15, 16)]
PICTURES = [
    {"N": n, "H": h, "W": w}
    for n, h, w in ((1, 32, 48), (2, 96, 112), (1, 96, 48), (3, 32, 112), (2, 64, 64), (16, 48, 80))
]
# Dilated convolutions lose taps where a map is small, and a program is one for all sizes.
DILATED = [{"H": h, "W": w} for h, w in ((32, 48), (96, 112), (96, 48), (32, 112), (64, 64), (48, 80))]
TIMES = [{"T": t} for t in (60, 61, 77, 96, 129, 130)]


def dynamic_shapes(shape: str) -> tuple[dict[int, Any], ...]:
    """What torch.export is told of one input of such a shape: `Nx3x64x64`."""
    dims = {}
    for d, size in enumerate(shape.split("x")):
        if size in RANGES:
            symbol = RANGES[size]
            root = Dim(size, min=symbol.minimum // symbol.step, max=(symbol.maximum or 0) // symbol.step)
            dims[d] = root if symbol.step == 1 else symbol.step * root
    return (dims,)


def sized(shape: str, sizes: Mapping[str, int]) -> torch.Tensor:
    return torch.randn([sizes.get(size) or int(size) for size in shape.split("x")])


def lower(module: nn.Module, shape: str, **options: Any) -> Lowered:
    example = sized(shape, {name: symbol.minimum + symbol.step for name, symbol in RANGES.items()})
    return dimorder.lower(module, (example,), dynamic_shapes=dynamic_shapes(shape), **options)


def errors(lowered: Lowered, module: nn.Module, x: torch.Tensor) -> list[float]:
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(x))
    return [relative_error(*pair) for pair in zip(pytree.tree_leaves(lowered.run(x)), wanted, strict=True)]


# Whole networks


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


# What is computed of sizes before a delegate: how much of its constants it reads.
OF_SIZES = {
    *("aten::slice_copy.Tensor_out", "aten::sym_size.int"),
    *(f"executorch_prim::{name}.Scalar" for name in ("add", "floordiv", "mul")),
}

NETWORKS = [
    ("unet", "1x3xHxW", PICTURES),
    ("pnet", "1x3xHxW", PICTURES),
    ("vit_128", "Nx3x64x64", BATCHES),
    ("tcn", "Nx6x200", BATCHES),
    _slow("resnet18", "Nx3x64x64", BATCHES),
    _slow("mobilenet_v3_small", "Nx3x64x64", BATCHES),
    _slow("shufflenet_v2_x1_0", "Nx3x64x64", BATCHES),
    _slow("convnext_tiny", "Nx3x64x64", BATCHES),
    _slow("espcn", "1x3xHxW", PICTURES),
    _slow("deeplabv3_mobilenet_v3_large", "1x3xHxW", DILATED),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "shape", "points"), NETWORKS)
def test_one_program_gives_eagers_numbers_at_every_size(
    name: str, shape: str, points: list[dict[str, int]], target: str
) -> None:
    module = zoo.network(name).build()
    lowered = lower(module, shape, target=target)
    assert lowered.artifact.delegates == (target == "xnnpack")
    assert lowered.artifact.outside.keys() <= OF_SIZES
    assert lowered.plan.ranges is not None and lowered.plan.ranges.unproven is None
    for sizes in points:
        x = sized(shape, sizes)
        found = errors(lowered, module, x)
        assert max(found) <= 1e-4, (sizes, found)


WORDS = [4, 5, 11, 23, 36, 37]


def words(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Texts of which the last words are padding."""
    draw = torch.Generator().manual_seed(length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length - 2 :] = 0
    return {"input_ids": torch.randint(0, 90, (batch, length), generator=draw), "attention_mask": mask}


def read(lowered: Lowered, module: nn.Module, text: Mapping[str, torch.Tensor]) -> float:
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(**text))
    got = pytree.tree_leaves(lowered.run(**text))
    return max(relative_error(*pair) for pair in zip(got, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["bert", "distilbert", "t5_encoder", "gpt2", "llama"])
def test_a_text_may_have_any_length(name: str, target: str) -> None:
    module, text = zoo.network(name).build(), words(1, 13)
    length = Dim("L", min=WORDS[0], max=WORDS[-1])
    dims = {key: {1: length} for key in text}
    lowered = dimorder.lower(module, kwargs=text, dynamic_shapes=dims, target=target)
    assert lowered.artifact.delegates == (target == "xnnpack")
    for size in WORDS:
        assert read(lowered, module, words(1, size)) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distilbert", "t5_encoder", "gpt2"])
def test_so_may_a_batch_of_texts(name: str) -> None:
    module = zoo.network(name).build()
    text = words(3, 13)
    batch, length = Dim("N", min=1, max=6), Dim("L", min=4, max=37)
    dims = {key: {0: batch, 1: length} for key in text}
    lowered = dimorder.lower(module, kwargs=text, dynamic_shapes=dims, target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in ((1, 4), (1, 37), (6, 4), (6, 37), (2, 9), (5, 30)):
        assert read(lowered, module, words(*sizes)) <= 1e-4


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


@pytest.mark.parametrize("target", TARGETS)
def test_anchors_are_sliced_and_laid_out_in_each_call(target: str) -> None:
    module = Anchored().eval()
    lowered = lower(module, "2x3xHxW", target=target)
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("2x3xHxW", sizes))) <= 1e-4


DETECTED = [{"H": h, "W": w} for h, w in ((64, 64), (416, 64), (64, 416), (416, 416), (96, 320), (224, 160))]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_picture_of_a_detector_may_have_any_size(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANGES, "H", Symbol("H", 64, 416, 32))
    monkeypatch.setitem(RANGES, "W", Symbol("W", 64, 416, 32))
    module = zoo.network("yolo").build()
    lowered = lower(module, "1x3xHxW", target=target)
    assert lowered.artifact.delegates == (target == "xnnpack")
    for sizes in DETECTED:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_so_may_a_sound_whose_frames_are_made_by_three_divisions(target: str) -> None:
    module = zoo.network("wav2vec2").build()
    dims = ({1: Dim("T", min=1600, max=6400)},)
    lowered = dimorder.lower(module, (torch.randn(1, 3200),), dynamic_shapes=dims, target=target)
    assert lowered.artifact.delegates == (target == "xnnpack")
    assert lowered.plan.ranges is not None
    assert lowered.plan.ranges.unproven == "a size is no affine function of one symbol"
    for length in (1600, 1609, 1610, 3207, 5001, 6400):
        assert max(errors(lowered, module, torch.randn(1, length))) <= 1e-4


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


def test_an_even_size_is_tried_where_all_others_are_odd() -> None:
    class Halved(nn.Module):
        """At even sizes another network, which no operator shows."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (torch.arange(x.shape[1]) + 1) * (x.shape[1] % 2)

    dims = ({1: Dim("L", min=3, max=41)},)
    with pytest.raises(VerificationError, match="at L = 10"):
        dimorder.lower(Halved(), (torch.randn(2, 9),), dynamic_shapes=dims)


def test_a_size_is_tried_at_which_a_number_is_another_one() -> None:
    class Paged(nn.Module):
        """Twice as large where the last place of a page of 40 is taken."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 + (x.shape[1] % 40) // 39)

    dims = ({1: Dim("L", min=3, max=44)},)
    with pytest.raises(VerificationError, match="at L = 39"):
        dimorder.lower(Paged(), (torch.randn(2, 9),), dynamic_shapes=dims)


def test_a_network_that_takes_another_way_at_some_size_is_refused() -> None:
    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if x.shape[0] % 2 else x.sigmoid()

    first, found, fix = refusal(Halved(), torch.ones(4, 3), BATCH)
    assert first == "torch.export of Halved" and "N" in found and fix.startswith("  fix: give sizes that")


def test_time_is_a_symbol_too() -> None:
    module = zoo.network("tcn").build()
    lowered = lower(module, "1x6xT", target="torch")
    for sizes in TIMES:
        assert max(errors(lowered, module, sized("1x6xT", sizes))) <= 1e-4


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


def test_a_matrix_that_begins_as_a_larger_one_is_sliced_beside_what_is_computed() -> None:
    class Both(nn.Module):
        """Of the one resize the matrix ends as no larger one goes on, of the other it begins as it does."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            linear = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            return nn.functional.interpolate(x.relu(), scale_factor=2.0), linear

    lowered = lower(Both(), "1x3xHxW", target="xnnpack")
    assert lowered.artifact.delegates == 1
    for sizes in PICTURES:
        assert max(errors(lowered, Both(), sized("1x3xHxW", sizes))) <= 1e-4
    products = [line for line in lowered.text("physical").splitlines() if "matmul(" in line]
    assert sum("matmul(slice_constant" in line for line in products) == 2 and len(products) == 4


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


@pytest.mark.parametrize("logarithms", [False, True])
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


@pytest.mark.parametrize("heads", [1, 2])
def test_ranges_may_be_small_and_heads_one(heads: int) -> None:
    module = Attended(heads).eval()
    dims = {0: Dim("N", min=1, max=4), 1: Dim("L", min=1, max=6)}
    lowered = dimorder.lower(module, (torch.randn(2, 5, 8),), dynamic_shapes=(dims,), target="xnnpack")
    for n, length in ((1, 1), (4, 6), (2, 2), (3, 5), (4, 1), (1, 6)):
        assert max(errors(lowered, module, torch.randn(n, length, 8))) <= 1e-4


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_long_lines_are_resized_without_a_matrix(mode: str) -> None:
    module = nn.Sequential(nn.Conv1d(3, 5, 3), nn.Upsample(scale_factor=2, mode=mode)).eval()
    dims = ({2: Dim("T", min=100, max=4000)},)
    lowered = dimorder.lower(module, (torch.randn(1, 3, 200),), dynamic_shapes=dims, target="xnnpack")
    assert len(lowered.artifact.data) < 100_000
    assert max(errors(lowered, module, torch.randn(1, 3, 1001))) <= 1e-4


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


def test_a_size_that_is_made_by_a_float_is_no_symbol_of_a_product() -> None:
    module = nn.Upsample(scale_factor=2.0, mode="bilinear", recompute_scale_factor=True)
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-4


def test_a_file_is_loaded_and_run_at_every_size_in_any_order(tmp_path: Path) -> None:
    module = zoo.network("unet").build()
    program = dimorder.load(lower(module, "1x3xHxW", target="xnnpack").save(tmp_path / "unet.pte"))
    for sizes in PICTURES:
        x = sized("1x3xHxW", sizes)
        with torch.no_grad():
            wanted = module(x)
        for fed in (x, x.contiguous(memory_format=torch.channels_last)):
            assert relative_error(program(fed), wanted) <= 1e-4


def test_a_saved_program_of_torch_keeps_its_ranges(tmp_path: Path) -> None:
    module = Gated().eval()
    program = dimorder.load(lower(module, "Nx3xHxW", target="torch").save(tmp_path / "gated.pt2"))
    for sizes in PICTURES:
        x = sized("Nx3xHxW", sizes)
        with torch.no_grad():
            assert relative_error(program(x), module(x)) <= 1e-4


# The contract


class Gated(nn.Module):
    """A convolution of stride 2, times a gate of its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        gate: torch.Tensor = self.gate(y.mean((2, 3))).sigmoid()
        return y * gate[:, :, None, None]


def test_a_contract_holds_names_and_ranges() -> None:
    lowered = lower(Gated().eval(), "Nx3xHxW", input_orders="NHWC")
    contract = lowered.contract
    assert contract.inputs[0].shape == ("N", 3, "H", "W")
    assert contract.outputs[0].shape == ("N", 8, "H/2", "W/2")
    assert contract.symbols == tuple(RANGES[name] for name in "NHW")
    assert Contract.from_json(contract.to_json()) == contract


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((17, 3, 32, 48), "size 17 in dim 0, where N is from 1 to 16"),
        ((2, 3, 16, 48), "size 16 in dim 2, where H is from 32 to 96"),
        ((2, 3, 40, 48), "size 40 in dim 2, where H is a multiple of 16"),
    ],
)
def test_a_size_outside_of_its_range_is_refused(shape: tuple[int, ...], told: str) -> None:
    lowered = lower(Gated().eval(), "Nx3xHxW")
    with pytest.raises(ContractError) as refused:
        lowered.run(torch.zeros(shape))
    assert str(refused.value).splitlines()[1] == f"  found: {told}"


def test_a_range_of_steps_says_what_to_pad_to() -> None:
    lowered = lower(Gated().eval(), "Nx3xHxW")
    with pytest.raises(ContractError, match="fix: pad to 48, or lower the program for other sizes"):
        lowered.run(torch.zeros(2, 3, 40, 48))


class Two(nn.Module):
    """Ids and a picture that share a batch; the ids have a length of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(20, 6), nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, ids: torch.Tensor, *, image: torch.Tensor) -> dict[str, torch.Tensor]:
        told = self.table(ids).mean(1)
        return {"seen": self.conv(image).relu() * told[:, :, None, None], "told": told}


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_share_a_symbol(target: str) -> None:
    module, batch = Two().eval(), Dim("N", min=1, max=8)
    call = (torch.randint(0, 20, (1, 5)),), {"image": torch.randn(1, 3, 9, 7)}
    dims = {"ids": {0: batch, 1: Dim("L", min=2, max=12)}, "image": {0: batch}}
    lowered = dimorder.lower(module, *call, dynamic_shapes=dims, target=target)
    for n, length in ((1, 2), (8, 12), (1, 12), (3, 7)):
        ids, image = torch.randint(0, 20, (n, length)), torch.randn(n, 3, 9, 7)
        wanted, got = module(ids, image=image), lowered.run(ids, image=image)
        assert all(relative_error(got[key], wanted[key].detach()) <= 1e-4 for key in wanted)
    with pytest.raises(ContractError, match="size 3 in dim 0, where N is 2 elsewhere in this call"):
        lowered.run(torch.zeros(2, 5, dtype=torch.int64), image=torch.zeros(3, 3, 9, 7))


def test_the_program_for_other_partitioners_has_the_symbols_too() -> None:
    module = Gated().eval()
    program = lower(module, "Nx3xHxW").decomposed().module(check_guards=False)
    for sizes in PICTURES:
        x = sized("Nx3xHxW", sizes)
        with torch.no_grad():
            assert relative_error(program(x)[0], module(x)) <= 1e-4


# The plan


class Mixed(nn.Module):
    """A convolution, which wants channels last, and a product over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(7, 11)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y.relu(), self.mix(y).softmax(2)


def test_the_plan_for_a_range_is_the_best_at_every_size_of_it() -> None:
    module = Mixed().eval()
    dims = ({0: Dim("N", min=1, max=5), 2: Dim("H", min=4, max=7)},)
    found = dimorder.plan(module, (torch.ones(2, 3, 5, 7),), dynamic_shapes=dims, target="xnnpack")
    assert found.ranges is not None and found.ranges.unproven is None
    kept = [(c.value, c.from_order, c.to_order) for c in found.conversions]
    for n in range(2, 6):
        for h in range(4, 8):
            fixed = dimorder.plan(module, (torch.ones(n, 3, h, 7),), target="xnnpack")
            own = dimorder.plan(
                module,
                (torch.ones(2, 3, 5, 7),),
                dynamic_shapes=dims,
                cost_at={"N": n, "H": h},
                target="xnnpack",
            )
            assert own.cost == fixed.cost and fixed.certificate.optimal
            assert [(c.value, c.from_order, c.to_order) for c in own.conversions] == kept


def test_what_is_proven_is_told_with_the_costs_at_the_ends() -> None:
    dims = ({0: Dim("N", min=1, max=16)},)
    found = dimorder.plan(Gated().eval(), (torch.ones(2, 3, 32, 48),), dynamic_shapes=dims, cost_at={"N": 8})
    assert [line for line in str(found).splitlines() if line.startswith(("sizes", "cost", "proof", "     "))][
        :4
    ] == [
        "sizes   N = 1 … 16",
        "cost    245,760 bytes, 2 conversions at N = 8",
        "proof   no plan costs less than 245,760 bytes: optimal over complete candidates (default)",
        "        nor at any other sizes of these ranges, where this plan costs 30,720 at N = 1 to 491,520 at "
        "N = 16",
    ]
    assert found.to_dict()["ranges"] == {
        "symbols": [{"name": "N", "minimum": 1, "maximum": 16}],
        "cost_at": {"N": 8},
        "corners": [{"sizes": {"N": 1}, "cost": 30720}, {"sizes": {"N": 16}, "cost": 491520}],
        "optimal_for_range": True,
        "unproven": None,
    }


class Pairs(nn.Module):
    """Attention over a length, whose scores grow with its square."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(1) @ x


def test_a_cost_that_grows_with_a_square_is_proven_at_one_size_alone() -> None:
    dims = ({1: Dim("L", min=4, max=40)},)
    found = dimorder.plan(Pairs(), (torch.ones(3, 9, 7),), dynamic_shapes=dims, target="xnnpack")
    assert found.ranges is not None and found.ranges.cost_at == {"L": 12}
    assert found.ranges.unproven == "a cost grows faster than one of the sizes"
    assert "of these sizes alone: a cost grows faster than one of the sizes" in str(found)


# Refusals


def refusal(module: nn.Module, example: torch.Tensor, dims: Any, **options: Any) -> list[str]:
    with pytest.raises((UnsupportedError, UsageError)) as refused:
        dimorder.lower(module, (example,), dynamic_shapes=dims, **options)
    return str(refused.value).splitlines()


BATCH = ({0: Dim("N", min=1, max=16)},)


def test_tosa_has_one_graph_per_size() -> None:
    assert refusal(Gated().eval(), torch.ones(2, 3, 8, 8), BATCH, target="tosa") == [
        "target tosa",
        "  found: symbolic sizes, N = 1 … 16: its graphs have fixed ones",
        "  fix: lower one graph for each size that is needed",
    ]


def test_a_size_without_an_upper_bound_is_refused() -> None:
    assert refusal(Gated().eval(), torch.ones(2, 3, 8, 8), ({0: Dim("N", min=1)},)) == [
        "input x, dim 0",
        "  found: the size N, without an upper bound",
        '  fix: say how large it may be: torch.export.Dim("N", min=1, max=16)',
    ]


def test_a_size_that_the_network_fixes_is_refused_with_torchs_reason() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(2, 3)

    first, found, _ = refusal(Fixed(), torch.ones(2, 3), BATCH)
    assert first == "torch.export of Fixed" and "N" in found


def test_a_cost_is_asked_for_at_a_size_of_the_range() -> None:
    module, x = Gated().eval(), torch.ones(2, 3, 8, 8)
    assert refusal(module, x, BATCH, cost_at={"N": 17}) == [
        "cost_at",
        "  found: N = 17",
        "  fix: give a size of N = 1 … 16",
    ]
    assert refusal(module, x, BATCH, cost_at={"M": 1})[1:] == [
        "  found: no symbol 'M'",
        "  fix: give sizes of N",
    ]


def test_an_exported_program_has_its_own_symbols() -> None:
    module = Gated().eval()
    exported = torch.export.export(module, (torch.ones(3, 3, 8, 6),), dynamic_shapes=BATCH)
    with pytest.raises(UsageError, match="an exported program, which has its own"):
        dimorder.lower(exported, dynamic_shapes=BATCH)
    lowered = dimorder.lower(exported)
    (symbol,) = lowered.contract.symbols
    assert (symbol.maximum, symbol.step) == (16, 1)
    for n in (1, 5, 16):
        assert max(errors(lowered, module, torch.randn(n, 3, 8, 6))) <= 1e-4


def test_integers_have_fixed_sizes() -> None:
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            integers = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)
            y: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(
                integers, 0.5, 0, -128, 127, torch.int8
            )
            return y + 1

    assert refusal(Rounded(), torch.ones(2, 3), BATCH, target="xnnpack") == [
        "a quantised network",
        "  found: integers, with symbolic sizes",
        "  fix: lower one program for each size",
    ]


class Positions(nn.Module):
    """Adds to each place what a table has for it, in whatever order the table lies, behind a causal mask."""

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


@pytest.mark.parametrize("target", TARGETS)
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


def test_a_constant_that_is_another_one_for_each_size_is_refused() -> None:
    class Backwards(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[1] - 1, -1, -1)

    dims = ({1: Dim("L", min=4, max=40)},)
    first, found, _ = refusal(Backwards(), torch.ones(2, 9), dims)
    assert first.startswith("aten.add.Tensor (test_symbolic_sizes.py:")
    assert found == "  found: the constant constant__0, which is another one for each size"


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
    "bilinear": (2, None, {"scale_factor": 2.0, "mode": "bilinear"}),
    "bilinear to a size": (2, (3, 4), {"mode": "bilinear"}),
    "bilinear, aligned": (2, None, {"scale_factor": 3.0, "mode": "bilinear", "align_corners": True}),
    "bilinear to a size, aligned": (2, (5, 4), {"mode": "bilinear", "align_corners": True}),
    "nearest along a line": (1, None, {"scale_factor": 3.0, "mode": "nearest"}),
    "linear": (1, None, {"scale_factor": 4.0, "mode": "linear"}),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name, (dims, *_) in RESIZES.items() for shape in SHAPES[dims]],
)
def test_a_resize_to_symbols_is_products_inside_the_delegate(name: str, shape: str) -> None:
    module = Resized(*RESIZES[name]).eval()
    lowered = lower(module, shape, target="xnnpack")
    assert lowered.artifact.delegates == 1
    assert lowered.artifact.outside.keys() <= OF_SIZES
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


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_from_one_pixel_to_symbols_is_a_product_too(mode: str) -> None:
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
    assert lowered.artifact.delegates == 1
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-5


def test_pixels_are_shuffled_by_a_transposed_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 18, 3, padding=1), nn.PixelShuffle(3), nn.ReLU()).eval()
    lowered = lower(module, "1x3xHxW", target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("1x3xHxW", sizes))) <= 1e-5


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_a_resize_by_a_share_of_a_symbol_runs_beside_the_delegates_and_is_named(mode: str) -> None:
    module = Resized(2, None, {"scale_factor": 1.5, "mode": mode}).eval()
    lowered = lower(module, "Nx3xHxW", target="xnnpack")
    assert lowered.artifact.outside[f"aten::upsample_{mode}2d.vec_out"] == 1
    ((place, reason),) = lowered.plan.outside
    assert place.operator == f"aten.upsample_{mode}2d.vec" and f"{mode} resize" in reason
    for sizes in PICTURES:
        assert max(errors(lowered, module, sized("Nx3xHxW", sizes))) <= 1e-4


def test_a_network_that_takes_only_some_sizes_is_refused_with_what_torch_suggests() -> None:
    dims = ({2: Dim("H", min=24, max=96)},)
    assert refusal(zoo.network("unet").build(), torch.ones(1, 3, 32, 64), dims) == [
        "torch.export of UNet",
        "  found: Not all values of H = L['x'].size()[2] in the specified range 24 <= H <= 96 satisfy the "
        "generated guard (2*(L['x'].size()[2] // 4)) == (L['x'].size()[2] // 2).",
        "  fix: give sizes that the network takes: _H = Dim('_H', min=6, max=24), H = 4*_H",
    ]


def test_shapes_in_another_form_than_the_call_are_refused_with_torchs_reason() -> None:
    class Sum(nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return xs[0] + xs[1]

    batch, x = Dim("N", min=2, max=16), torch.ones(4, 3)
    with pytest.raises(UnsupportedError, match="of Sum"):
        dimorder.lower(Sum(), (x, x), dynamic_shapes=({0: batch}, {0: batch}))
    lowered = dimorder.lower(Sum(), (x, x), dynamic_shapes=(({0: batch}, {0: batch}),))
    assert lowered.run(x[:2], x[:2]).shape == (2, 3)


def test_ranges_with_too_few_sizes_to_tell_symbols_apart_are_refused() -> None:
    dims = ({2: 32 * Dim("H", min=2, max=3), 3: 32 * Dim("W", min=2, max=3)},)
    assert refusal(Gated().eval(), torch.ones(1, 3, 64, 96), dims) == [
        "the ranges of sizes",
        "  found: too few sizes in H = 64 … 96 in steps of 32, W = 64 … 96 in steps of 32",
        "  fix: give ranges of three sizes above 1 at least, or two where there is one symbol, or fix a size",
    ]
