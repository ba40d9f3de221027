"""Whole networks, one program for all sizes of a range: eager's numbers at each size."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.contract import Symbol
from dimorder.lowered import Lowered
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.marks import slow_but
from tests.sizes.symbols import OF_SIZES, PICTURES, RANGES, TARGETS, TIMES, errors, lower, sized

BATCHES = [{"N": n} for n in (1, 2, 4, 7, 15, 16)]

# Dilated convolutions lose taps where a map is small, and a program is one for all sizes.
DILATED = [{"H": h, "W": w} for h, w in ((32, 48), (96, 112), (96, 48), (32, 112), (64, 64), (48, 80))]


NETWORKS: dict[str, tuple[str, list[dict[str, int]]]] = {
    "unet": ("1x3xHxW", PICTURES),
    "pnet": ("1x3xHxW", PICTURES),
    "vit_128": ("Nx3x64x64", BATCHES),
    "tcn": ("Nx6x200", BATCHES),
    "resnet18": ("Nx3x64x64", BATCHES),
    "mobilenet_v3_small": ("Nx3x64x64", BATCHES),
    "shufflenet_v2_x1_0": ("Nx3x64x64", BATCHES),
    "convnext_tiny": ("Nx3x64x64", BATCHES),
    "espcn": ("1x3xHxW", PICTURES),
    "deeplabv3_mobilenet_v3_large": ("1x3xHxW", DILATED),
}


@pytest.mark.parametrize(
    ("name", "target"),
    slow_but(
        product(NETWORKS, TARGETS),
        [("pnet", "torch"), *product(("unet", "vit_128", "tcn"), ["xnnpack"])],
    ),
)
def test_one_program_gives_eagers_numbers_at_every_size(name: str, target: str) -> None:
    shape, points = NETWORKS[name]
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


def test_time_is_a_symbol_too() -> None:
    module = zoo.network("tcn").build()
    lowered = lower(module, "1x6xT", target="torch")
    for sizes in TIMES:
        assert max(errors(lowered, module, sized("1x6xT", sizes))) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("heads", [[2, 3], [2, 3, 4]])
def test_so_may_pictures_that_shifted_windows_cut(target: str, heads: list[int]) -> None:
    zoo.load_torchvision()
    from torchvision.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    module = SwinTransformer([4, 4], 12, [2] * len(heads), heads, [4, 4]).eval()
    step = 4 * 2 ** (len(heads) - 1)
    dims = ({2: step * Dim("h", min=5, max=14), 3: step * Dim("w", min=5, max=14)},)
    example = torch.randn(1, 3, 6 * step, 8 * step)
    lowered = dimorder.lower(module, (example,), dynamic_shapes=dims, target=target)
    for rows, columns in ((5, 14), (14, 5), (9, 8), (7, 7)):
        assert max(errors(lowered, module, torch.randn(1, 3, rows * step, columns * step))) <= 1e-4


@pytest.mark.slow
def test_so_may_pictures_of_two_or_three_windows_in_the_deepest_of_four_stages() -> None:
    zoo.load_torchvision()
    from torchvision.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    module = SwinTransformer([4, 4], 12, [1, 1, 1, 2], [1, 2, 2, 2], [7, 7]).eval()
    dims = ({2: 32 * Dim("h", min=8, max=20), 3: 32 * Dim("w", min=8, max=20)},)
    example = torch.randn(1, 3, 256, 320)
    lowered = dimorder.lower(module, (example,), dynamic_shapes=dims, target="xnnpack")
    for rows, columns in ((8, 20), (20, 8), (14, 15), (9, 9)):
        assert max(errors(lowered, module, torch.randn(1, 3, rows * 32, columns * 32))) <= 1e-4
