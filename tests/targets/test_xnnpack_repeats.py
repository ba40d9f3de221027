"""Test that grouped attention reads its keys and values once on xnnpack, not once for each head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.executorch.file_graph import graph_of_file

GROUPS, HEADS, CHANNELS, KEYS = 2, 3, 8, 5


class Grouped(nn.Module):
    """Attention in which three heads of queries read one head of keys and values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x[:, :, None].expand(-1, -1, HEADS, -1, -1).flatten(1, 2) for x in (k, v))
        return torch.softmax(q @ keys.transpose(2, 3), -1) @ values


def call(length: int) -> tuple[Tensor, ...]:
    shapes = (1, GROUPS * HEADS, length, CHANNELS), *[(1, GROUPS, KEYS, CHANNELS)] * 2
    return tuple(torch.randn(shape) for shape in shapes)


def nodes(lowered: dimorder.Lowered, path: Path) -> list[str]:
    """Return the kinds of the nodes in the delegate that compute."""
    kinds = [node.operator for node in graph_of_file(str(lowered.save(path))) if node.group]
    return [kind for kind in kinds if kind != "StaticReshape"]


def test_a_repeated_operand_is_read_once(tmp_path: Path) -> None:
    lowered = dimorder.lower(Grouped(), call(7), target="xnnpack")
    assert nodes(lowered, tmp_path / "net.pte") == [
        *("BatchMatrixMultiply", "Softmax", "BatchMatrixMultiply")
    ]
    products = [kernel.sizes for kernel in lowered.artifact.kernels if kernel.name.startswith("products")]
    rows = HEADS * 7
    assert products == [(GROUPS, rows, KEYS, CHANNELS), (GROUPS, rows, CHANNELS, KEYS)]


def test_a_repeated_operand_is_read_once_at_all_sizes(tmp_path: Path) -> None:
    length = Dim("L", min=1, max=9)
    shapes = {"q": {2: length}, "k": None, "v": None}
    lowered = dimorder.lower(Grouped(), call(7), target="xnnpack", dynamic_shapes=shapes)
    assert "Multiply" not in nodes(lowered, tmp_path / "net.pte")
    for size in (1, 4, 9):
        given = call(size)
        torch.testing.assert_close(lowered.run(*given), Grouped()(*given))
