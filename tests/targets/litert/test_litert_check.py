"""Test what `dimorder check` says of a `.tflite`, whichever tool wrote it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.graph.dynamic_sizes import DynamicSize
from dimorder.targets.litert.file import read_operators, read_signatures
from dimorder.targets.litert.flatbuffer import TfLiteGraph, TfLiteNode, TfLiteScales, TfLiteTensor, serialize
from dimorder.targets.litert.runtime import check
from tests.cli.commands import refused


class Ranked(nn.Module):
    """A convolution, which channels are greatest, and sums that LiteRT computes beside its delegate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return y.argmax(1), y.cumsum(1)


@pytest.fixture(scope="module")
def data() -> bytes:
    return dimorder.lower(Ranked().eval(), (torch.randn(1, 3, 8, 9),), target="litert").artifact.data


def test_a_summary_has_what_moves_and_what_runs_beside_the_delegate(data: bytes) -> None:
    found = check("net.tflite", data).to_dict()
    assert (found["format"], found["error"]) == ("tflite", None)
    assert found["transposes"] == 2 and found["transpose_bytes"] == 4 * (3 * 8 * 9 + 8 * 6 * 7)
    assert found["operators"]["CONV_2D"] == 1 and found["operator_count"] == sum(found["operators"].values())
    assert {"ARG_MAX", "CUMSUM"} <= set(found["beside"]) and "CONV_2D" not in found["beside"]
    assert found["delegates"] == 1


def test_it_is_printed(data: bytes) -> None:
    lines = str(check("net.tflite", data)).splitlines()
    assert "       1  CONV_2D" in lines and any(
        line.startswith("transposes  2, 2,208 bytes") for line in lines
    )


def test_a_file_that_litert_cannot_load_is_told_of_too() -> None:
    floats = TfLiteTensor((2, 3), torch.float32)
    nodes = [TfLiteNode("HASHTABLE_FIND", ("x", "x", "x"), ("y",), {})]
    file = serialize({"main": TfLiteGraph({"x": floats, "y": floats}, nodes, {"x": "x"}, {"y": "y"})}, {})
    found = check("net.tflite", file)
    assert found.error and found.outside is None and found.counts == Counter(HASHTABLE_FIND=1)
    assert str(found).splitlines()[-1].startswith("not loaded")


def test_a_file_too_large_for_memory_has_a_reason_too() -> None:
    order = TfLiteTensor((2,), torch.int32, np.array([1, 0], np.int32))
    tensors = {"x": TfLiteTensor((1 << 23, 3 << 22), torch.float32), "order": order}
    tensors["y"] = TfLiteTensor((3 << 22, 1 << 23), torch.float32)
    graph = TfLiteGraph(
        tensors, [TfLiteNode("TRANSPOSE", ("x", "order"), ("y",), {})], {"x": "x"}, {"y": "y"}
    )
    found = check("net.tflite", serialize({"main": graph}, {}))
    assert found.outside is None and str(found).splitlines()[-1] == "not loaded  LiteRT gives no reason"
    assert found.to_dict()["error"] == "LiteRT gives no reason"


def test_a_transpose_whose_permutation_is_computed_may_move() -> None:
    x, dims = TfLiteTensor((2, 1, 3), torch.float32), TfLiteTensor((3,), torch.int32)
    ones = torch.tensor([1, 0, 2], dtype=torch.int32).numpy()
    tensors = {"x": x, "dims": dims, "ones": TfLiteTensor((3,), torch.int32, data=ones), "y": x, "z": x}
    nodes = [TfLiteNode("TRANSPOSE", ("x", given), (y,), {}) for given, y in (("dims", "y"), ("ones", "z"))]
    outputs = {"y": "y", "z": "z"}
    file = serialize({"main": TfLiteGraph(tensors, nodes, {"x": "x", "dims": "dims"}, outputs)}, {})
    assert [each.moves for each in read_operators(file)] == [True, False]


COUNT, HEIGHT = DynamicSize.of((2, 3)), DynamicSize.of((5, 7))


@pytest.mark.parametrize(
    ("dtype", "sizes", "count"),
    [
        (torch.int8, (COUNT, HEIGHT), 1),
        (torch.uint8, (COUNT, 5), 1),
        (torch.float32, (COUNT, HEIGHT), 0),
        (torch.int8, (2, HEIGHT), 0),
    ],
)
def test_a_mean_of_integers_of_a_dynamic_batch_is_named(
    dtype: torch.dtype, sizes: tuple[int, int], count: int
) -> None:
    """An int8 gate of three dynamic sizes gave other numbers in 1 of 160 calls than in a new interpreter."""
    scales = None if dtype == torch.float32 else TfLiteScales((0.5,), 3)
    tensors = {
        "x": TfLiteTensor((*sizes, 6, 3), dtype, scales=scales),
        "dims": TfLiteTensor((2,), torch.int32, np.array([1, 2], np.int32)),
        "y": TfLiteTensor((sizes[0], 1, 1, 3), dtype, scales=scales),
    }
    node = TfLiteNode("MEAN", ("x", "dims"), ("y",), {"keepDims": True})
    found = check("net.tflite", serialize({"": TfLiteGraph(tensors, [node], {"x": "x"}, {"y": "y"})}, {}))
    assert found.outside == {} and found.to_dict()["resized_sums"] == count
    assert ("resized  1 MEAN or SUM of integers may be wrong" in str(found)) == bool(count)


def test_a_name_of_a_tensor_that_is_not_utf8_keeps_no_file_from_being_loaded() -> None:
    """Damage, or another tool: the runtime itself reads no names."""
    x = TfLiteTensor((2, 3), torch.float32)
    nodes = [TfLiteNode("SIN", ("first",), ("second",), {})]
    graph = TfLiteGraph({"first": x, "second": x}, nodes, {"x": "first"}, {"y": "second"})
    data = serialize({"main": graph}, {})
    for name in (b"first", b"second"):
        found = check("net.tflite", data.replace(name, b"\xff" + name[1:]))
        assert (found.error, found.delegates, found.outside) == ("", 1, {})


@pytest.mark.parametrize("damage", ["cut off", "one byte changed"])
def test_a_damaged_file_of_ours_ends_in_three_lines(
    damage: str, data: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.tflite"
    for place in range(101, len(data), 197):
        changed = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        file.write_bytes(data[:place] if damage == "cut off" else changed)
        text = refused(capfd, ["check", file], 1)
        assert text.startswith(f"check {file}\n") and text.endswith("  fix: write the file again")


def test_a_damaged_file_of_another_tool_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="damaged flatbuffer"):
        read_operators(data[:40])


def test_names_of_signatures_are_read_or_the_file_is_damaged(data: bytes) -> None:
    assert read_signatures(data) == ["serving_default"]
    with pytest.raises(ValueError, match="damaged flatbuffer"):
        read_signatures(data[:40])
