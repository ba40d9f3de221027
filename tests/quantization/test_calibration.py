"""Test what a calibration may be, and the error for each calibration that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import dimorder
from dimorder.errors import DimorderError, UnsupportedError, UsageError
from dimorder.quantization.calibration import ExampleFiles, calls, count_examples
from dimorder.reading import Normalization


class Stream(IterableDataset[Tensor]):
    """Pictures of which nothing says how many there are."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.randn(4, 3, 5, 7)


class Two(nn.Module):
    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        return image * mask


ONE = torch.export.export(nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 5, 7),))
TWO = torch.export.export(Two(), (torch.randn(2, 3, 5, 7), torch.randn(2, 1, 5, 7)))


def test_examples_are_tensors_tuples_or_dicts() -> None:
    image, mask = torch.randn(2, 3, 5, 7), torch.randn(2, 1, 5, 7)
    named = {"image": image, "mask": mask}
    found = [*calls([(image, mask)], TWO), *calls([named], torch.export.export(Two(), (), named))]
    assert [(len(call.args), sorted(call.kwargs)) for call in found] == [(2, []), (0, ["image", "mask"])]
    (alone,) = calls([torch.ones(1, 3, 5, 7)], ONE)
    assert alone.args[0].sum() == 105


@pytest.mark.parametrize(
    "one", [torch.randn(4, 3, 5, 7), {"input": torch.randn(1, 3, 5, 7)}, np.ones((4, 3)), 5]
)
def test_one_example_is_no_list_of_examples(one: Any) -> None:
    with pytest.raises(
        UsageError, match=r"calibration\n.*one \w+, and no list.*\n.*give a list of examples: \[x\]"
    ):
        dimorder.quantize(nn.Conv2d(3, 4, 3), one)


def test_each_example_has_tensors() -> None:
    examples = [torch.randn(1, 3, 5, 7), np.ones((1, 3, 5, 7), np.float32)]
    with pytest.raises(
        UsageError, match="example 1 of the calibration\n  found: 0 tensors, where the network takes 1"
    ):
        dimorder.quantize(nn.Conv2d(3, 4, 3), examples)


def test_a_loader_over_a_dataset_without_a_length_is_a_calibration() -> None:
    loader = DataLoader(Stream(), batch_size=1)
    assert count_examples(loader) is None
    assert len([*calls(loader, ONE)]) == 4


def test_an_array_holds_examples_one_after_another(tmp_path: Path) -> None:
    stacked = np.random.default_rng(0).normal(size=(4, 3, 5, 7)).astype(np.float32)
    np.save(tmp_path / "four.npy", stacked)
    np.savez(tmp_path / "apart.npz", stacked.reshape(4, 1, 3, 5, 7))
    for file in ("four.npy", "apart.npz"):
        found = [*ExampleFiles.read(tmp_path / file, ONE)]
        assert [tuple(call.args[0].shape) for call in found] == [(1, 3, 5, 7)] * 4
        assert torch.equal(found[2].args[0][0], torch.from_numpy(stacked[2]))
    assert len([*ExampleFiles.read(tmp_path, ONE)]) == 8  # of the folder


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "four.npy", np.ones((4, 3, 5, 7), np.float32))
    read, load = [], np.load
    monkeypatch.setattr(np, "load", lambda file, **options: (read.append(file), load(file, **options))[1])
    dimorder.quantize(ONE, tmp_path / "four.npy")
    assert read == [str(tmp_path / "four.npy")]


def test_an_archive_has_an_array_for_each_input(tmp_path: Path) -> None:
    images, masks = (np.ones((6, c, 5, 7), np.float32) for c in (3, 1))
    np.savez(tmp_path / "both.npz", mask=masks * 2, image=images)
    found = [*ExampleFiles.read(tmp_path / "both.npz", TWO)]
    assert [tuple(float(x.mean()) for x in call.args) for call in found] == [(1, 2)] * 3


def test_pictures_are_resized_and_normalised(tmp_path: Path) -> None:
    Image.new("RGB", (20, 30), (255, 0, 51)).save(tmp_path / "red.png")
    (call,) = ExampleFiles.read(tmp_path, ONE, Normalization((0.5,), (0.25,)))
    assert call.args[0].shape == (1, 3, 5, 7)
    assert call.args[0][0, :, 1, 2].tolist() == pytest.approx([2, -2, -1.2])


def _no_files(folder: Path) -> Any:
    return folder


def _other_names(folder: Path) -> Any:
    np.savez(folder / "x.npz", picture=np.ones((1, 3, 5, 7)), mask=np.ones((1, 1, 5, 7)))
    return folder / "x.npz"


def _saved(folder: Path, *shape: int) -> Any:
    np.save(folder / "x.npy", np.ones(shape, np.float32))
    return folder / "x.npy"


def _other_counts(folder: Path) -> Any:
    np.savez(
        folder / "x.npz", image=np.ones((4, 3, 5, 7), np.float32), mask=np.ones((2, 1, 5, 7), np.float32)
    )
    return folder / "x.npz"


def _picture(folder: Path) -> Any:
    Image.new("RGB", (20, 30)).save(folder / "x.png")
    return folder


REFUSED: dict[str, tuple[Any, Callable[[Path], Any], str]] = {
    "nothing": (
        ONE,
        lambda folder: [],
        "calibration\n  found: no example\n  fix: give some inputs of the kind that the network will get",
    ),
    "a folder without files": (
        ONE,
        _no_files,
        "calibration FOLDER\n  found: no example\n"
        "  fix: give some inputs of the kind that the network will get",
    ),
    "no such folder": (
        ONE,
        lambda folder: folder / "lost",
        "calibration FOLDER/lost\n  found: no such file or folder\n"
        "  fix: name a .npz, a .npy, a picture, or a folder",
    ),
    "another shape": (
        ONE,
        lambda folder: [torch.ones(1, 3, 5, 7), torch.ones(1, 3, 5, 8)],
        "example 1 of the calibration, input 'input'\n"
        "  found: (1, 3, 5, 8) of torch.float32, where it takes (1, 3, 5, 7) of float32\n"
        "  fix: give examples like those that it is lowered for",
    ),
    "another type": (
        ONE,
        lambda folder: [torch.ones(1, 3, 5, 7, dtype=torch.uint8)],
        "example 0 of the calibration, input 'input'\n"
        "  found: (1, 3, 5, 7) of torch.uint8, where it takes (1, 3, 5, 7) of float32\n"
        "  fix: give examples like those that it is lowered for",
    ),
    "a last batch": (
        ONE,
        lambda folder: [torch.ones(1, 3, 5, 7), torch.ones(2, 3, 5, 7)],
        "example 1 of the calibration, input 'input'\n"
        "  found: (2, 3, 5, 7) of torch.float32, where it takes (1, 3, 5, 7) of float32\n"
        "  fix: leave out a last batch of another size, or name it in dynamic_shapes",
    ),
    "channels last": (
        ONE,
        lambda folder: _saved(folder, 4, 5, 7, 3),
        "calibration FOLDER/x.npy\n  found: an array of shape (4, 5, 7, 3) for input 'input' of shape "
        "(1, 3, 5, 7)\n  fix: put its channels second: array.transpose(0, 3, 1, 2)",
    ),
    "one example": (
        ONE,
        lambda folder: _saved(folder, 3, 5, 7),
        "calibration FOLDER/x.npy\n  found: an array of shape (3, 5, 7) for input 'input' of shape "
        "(1, 3, 5, 7)\n  fix: save it with a first dimension for the examples: array[None]",
    ),
    "other names": (
        TWO,
        _other_names,
        "calibration FOLDER/x.npz\n  found: arrays picture, mask\n"
        "  fix: save one array for each of image, mask, by name",
    ),
    "other counts": (
        TWO,
        _other_counts,
        "calibration FOLDER/x.npz\n  found: 2 of image, 1 of mask\n"
        "  fix: save as many examples for each input",
    ),
    "a picture for two inputs": (
        TWO,
        _picture,
        "calibration FOLDER/x.png\n  found: an image, for 2 inputs\n"
        "  fix: give .npz files with an array for each input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_error_says_where_what_and_what_to_do(name: str, tmp_path: Path) -> None:
    exported, make, text = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        given = make(tmp_path)
        list(calls(ExampleFiles.read(given, exported) if isinstance(given, Path) else given, exported))
    told = "\n".join(line.rstrip() for line in str(refused.value).splitlines())
    assert told.replace(str(tmp_path), "FOLDER").replace("input 'x'", "input 'input'") == text


@pytest.mark.parametrize(
    ("model", "calibration", "recipe", "text"),
    [
        (nn.Conv2d(3, 4, 3), [], "int8", "calibration\n  found: no example"),
        (
            nn.Conv2d(3, 4, 3),
            [torch.ones(1, 3, 5, 7)],
            "other",
            "quantising to other\n  found: no recipe for target xnnpack",
        ),
        (nn.Softmax(1), [torch.ones(2, 3)], "int8", "found: nothing in it that recipe int8 quantises"),
    ],
)
def test_what_cannot_be_quantised(
    model: nn.Module, calibration: list[Tensor], recipe: str, text: str
) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(DimorderError) as refused:
        dimorder.quantize(model.eval(), calibration, recipe)
    assert text in str(refused.value) and str(refused.value).count("\n") == 2


def test_a_quantised_network_is_not_quantised_again() -> None:
    pytest.importorskip("torchao")
    made = dimorder.quantize(nn.Conv2d(3, 4, 3).eval(), [torch.ones(1, 3, 5, 7)])
    with pytest.raises(UsageError, match="quantised already"):
        dimorder.quantize(made.module, [torch.ones(1, 3, 5, 7)])


class Named(nn.Module):
    """Looks rows up, whose numbers may be out of the table, and takes their logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.mix = nn.Embedding(8, 5), nn.Linear(5, 4)
        nn.init.constant_(self.rows.weight, 2.0)
        self.rows.weight.data[7] = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.mix(self.rows(x).log())
        return mixed


@pytest.mark.parametrize(
    ("number", "found", "fix"),
    [
        (
            20,
            "the network raised IndexError: index out of range in self",
            "give examples that the network takes",
        ),
        (
            7,
            "RuntimeError: torch.histc: range of .nan, nan. is not finite",
            "leave the example out",
        ),
    ],
)
def test_what_the_network_raises_is_told_from_what_an_observer_raises(
    number: int, found: str, fix: str
) -> None:
    examples = [torch.tensor([1, 2, 3]), torch.tensor([1, 2, number])]
    with pytest.raises(
        UnsupportedError, match=f"example 1 of the calibration\n  found: {found}\n  fix: {fix}"
    ) as refused:
        dimorder.quantize(Named().eval(), examples)
    assert refused.value.__cause__ is not None
