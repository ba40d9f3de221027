"""Test what the writer makes of a graph: which RESHAPEs and copies a file has, and what shares a buffer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dimorder.targets.litert.file import operators
from dimorder.targets.litert.flatbuffer import TfLiteNode, TfLiteTensor
from dimorder.targets.litert.in_place import copy_before_overwriting
from tests.targets.cases import Net, aten, r
from tests.targets.litert.litert_runs import compare, emitted


def tensors(**shapes: tuple[int, ...]) -> dict[str, TfLiteTensor]:
    return {name: TfLiteTensor(shape, torch.float32) for name, shape in shapes.items()}


def node(kind: str, operands: str, result: str) -> TfLiteNode:
    return TfLiteNode(kind, tuple(operands.split()), (result,), {})


def text(nodes: list[TfLiteNode]) -> list[str]:
    return [f"{each.outputs[0]} = {each.kind} {' '.join(map(str, each.inputs))}" for each in nodes]


# `y` is written over `x`. So `z` is written over `rows`, which share the memory of `y`, and of `x`.
OVERWRITTEN = [
    node("NEG", "input", "x"),
    node("ADD", "x x2", "y"),
    node("RESHAPE", "y", "rows"),
    node("MUL", "rows row", "z"),
    node("SUB", "y z2", "last"),
]
SHAPES = {
    **dict.fromkeys(("input", "x", "x2", "y", "z2", "last"), (2, 3, 5)),
    **dict.fromkeys(("rows", "z"), (6, 5)),
    "row": (5,),
}


def copied(nodes: list[TfLiteNode]) -> list[str]:
    known, written = copy_before_overwriting(tensors(**SHAPES), nodes, ["input"], ["last", "z"])
    assert all(name in known for each in written for name in each.inputs)
    return text(written)


def test_a_value_that_is_still_to_be_read_is_copied_before_it_is_overwritten() -> None:
    nodes = [*OVERWRITTEN[:4], node("NEG", "z", "w"), OVERWRITTEN[4]]
    known, written = copy_before_overwriting(tensors(**SHAPES, w=(6, 5)), nodes, ["input"], ["last", "w"])
    assert text(written) == [
        "x = NEG input",
        "y = ADD x x2",
        "rows = RESHAPE y",
        "rows.copy = MAXIMUM rows rows",
        "z = MUL rows.copy row",
        "w = NEG z",
        "last = SUB y z2",
    ]
    assert known["rows.copy"].shape == (6, 5)


def test_nothing_is_copied_that_no_kernel_overwrites() -> None:
    assert copied(OVERWRITTEN) == text(OVERWRITTEN)  # an output gets memory of its own
    read_before = [*OVERWRITTEN[:3], OVERWRITTEN[4], OVERWRITTEN[3]]
    _, written = copy_before_overwriting(
        tensors(**SHAPES, w=(6, 5)), [*read_before, node("NEG", "z", "w")], ["input"], ["last", "w"]
    )
    assert text(written[:-1]) == text(read_before)


def test_kernels_that_compute_in_place_give_torchs_numbers() -> None:
    def function(x: Tensor, y: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        total = aten.neg(x) + y.exp()
        multiplied = aten.view(total, [6, 5]) * factors  # rows of 5 are no rows of 15
        return aten.sin(multiplied), total - y

    found = operators(compare(Net(function), (r(2, 15), r(2, 15), r(5))).data)
    assert found["MAXIMUM"] == 1, found


def test_rows_are_read_in_the_shape_in_which_they_were_written() -> None:
    weight, bias = r(4, 5), r(5)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = aten.view(aten.neg(x), [1, 6, 5])
        normed = torch.nn.functional.layer_norm(rows, (5,), bias)
        return aten.softmax(aten.view(aten.linear(aten.view(normed, [6, 5]), weight), [2, 3, 4]), -1)

    found = operators(compare(Net(function, (weight, bias)), (r(2, 3, 5),)).data)
    assert found["RESHAPE"] == 0, found


def test_a_reshape_after_a_linear_is_done_before_it() -> None:
    weight, bias = r(4, 15), r(4)

    def function(x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        joined = aten.view(aten.clone(x.permute(1, 0, 2), memory_format=torch.contiguous_format), [6, 15])
        rows = aten.gelu(aten.linear(joined, weight, bias))
        return aten.neg(skip) + aten.view(rows, [1, 2, 3, 4])

    found = operators(compare(Net(function, (weight, bias)), (r(3, 6, 5), r(1, 2, 3, 4))).data)
    assert found["RESHAPE"] == 1, found


def test_batches_that_broadcast_are_not_repeated() -> None:
    left = r(4, 5)
    artifact = compare(Net(lambda x, left: aten.matmul(left, x), (left,)), (r(3, 7, 5, 6),))
    assert operators(artifact.data) == {"BATCH_MATMUL": 1}
    more = compare(Net(lambda x, y: aten.matmul(x, y), ()), (r(2, 1, 3, 4, 5), r(1, 3, 1, 5, 6)))
    assert operators(more.data) == {"BATCH_MATMUL": 1}
    compare(Net(lambda x, y: aten.matmul(x, y), ()), (r(2, 1, 3, 2, 4, 5), r(1, 3, 1, 2, 5, 6)))


def test_constants_of_the_same_bytes_share_a_buffer() -> None:
    table = torch.arange(60_000, dtype=torch.float32)

    def function(x: Tensor, y: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return x * aten.view(table, [200, 300]), y * aten.view(table, [2, 100, 300])

    artifact = emitted(Net(function, (table,)), (r(200, 300), r(2, 100, 300)))
    assert len(artifact.data) < 1.2 * table.nbytes


def test_padding_with_a_number_is_in_the_delegate() -> None:
    artifact = compare(Net(lambda x: aten.constant_pad_nd(x, [1, 2, 0, 1], 1.5)), (r(2, 3, 5),))
    assert operators(artifact.data) == {"CONCATENATION": 2}
    assert (artifact.delegates, artifact.outside) == (1, {})


@pytest.mark.parametrize("amounts", [[1, 0, 0, 0, 2, 0, 0, 0, 0, 3], [0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 2, 0]])
def test_dimensions_that_are_not_padded_are_merged(amounts: list[int]) -> None:
    """PAD has five dimensions; unpadded ones go into the padded one before them."""
    artifact = compare(Net(lambda x: aten.constant_pad_nd(x, amounts)), (r(2, 3, 1, 4, 5, 2),))
    assert operators(artifact.data)["PAD"] == 1


def test_a_table_is_read_by_indices_in_their_own_shape() -> None:
    ids, table = torch.tensor([[3, 0, 2], [1, 3, 3]]), r(4, 5)
    artifact = compare(Net(lambda ids, table: aten.embedding(table, ids), (table,)), (ids,))
    assert operators(artifact.data) == {"GATHER": 1}
