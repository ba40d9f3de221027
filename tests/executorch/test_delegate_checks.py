"""Test that an XNNPACK delegate that would end the process is refused when the file is loaded."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
import torch

pytest.importorskip("executorch")

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as xnn
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import serialize_xnnpack_binary
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

from dimorder.errors import ContractError
from dimorder.executorch import check_file
from dimorder.executorch.pte import load
from dimorder.executorch.xnn_blob import FlatRecord, constants_of_graph, readable, root_of
from tests.runtime.networks import Conv, export_pte

NODES, VALUES = 1, 2  # of a graph
DIMS, CONSTANT = 2, 3  # of a tensor
KERNEL_HEIGHT, GROUPS, INPUT, OUTPUT = 4, 12, 15, 18  # of a convolution


@pytest.fixture(scope="module")
def data() -> bytes:
    return export_pte(Conv(3), (torch.randn(2, 3, 11, 9),), None, xnnpack=True)


def graph_in(data: bytes) -> FlatRecord:
    """Return the table of a file's only delegate, at its place in the file."""
    start = data.index(b"XH00") - 4
    start += int.from_bytes(data[start + 10 : start + 14], "little")
    return FlatRecord(data, start + int.from_bytes(data[start : start + 4], "little"))


def changed(data: bytes, table: FlatRecord, field: int, number: int) -> bytes:
    at = table.Pos + table.Offset(4 + 2 * field)
    return data[:at] + struct.pack("<I", number) + data[at + 4 :]


def convolution(data: bytes) -> FlatRecord:
    nodes = (node.table(1) for node in graph_in(data).tables(NODES))
    return next(node for node in nodes if node.number(KERNEL_HEIGHT) == 3)


def wide_filter(data: bytes) -> bytes:
    tensors = (value.table(1) for value in graph_in(data).tables(VALUES))
    tensor = next(each for each in tensors if each.number(CONSTANT) and len(each.numbers(DIMS)) == 4)
    at, _ = tensor._vector(DIMS)
    return data[:at] + struct.pack("<I", 5) + data[at + 4 :]


def written_twice(data: bytes) -> bytes:
    node = convolution(data)
    return changed(data, node, OUTPUT, node.number(INPUT))


def read_early(data: bytes) -> bytes:
    node = convolution(data)
    return changed(data, node, INPUT, node.number(OUTPUT))


def other_kernel(data: bytes) -> bytes:
    return changed(data, convolution(data), KERNEL_HEIGHT, 7)


def other_groups(data: bytes) -> bytes:
    return changed(data, convolution(data), GROUPS, 2)


def short_constant(data: bytes) -> bytes:
    file = deserialize_pte_binary(data)
    (filters,) = (each for each in file.named_data.buffers if len(each) == 4 * 3 * 3 * 3 * 4)
    place = file.named_data.buffers.index(filters)
    file.named_data.buffers[place] = filters[:48]
    return bytes(serialize_pte_binary(file))


def number_as_input(data: bytes) -> bytes:
    file = deserialize_pte_binary(data)
    plan = file.program.execution_plan[0]
    call = plan.chains[0].instructions[0].instr_args
    plan.values.append(type(plan.values[0])(_integer()))
    call.args[0] = len(plan.values) - 1
    return bytes(serialize_pte_binary(file))


def _integer() -> object:
    from executorch.exir.schema import Int

    return Int(3)


DAMAGES = {
    "a constant of 432 bytes for a tensor of 540": wide_filter,
    "a constant of 48 bytes for a tensor of 432": short_constant,
    "Conv2d: it writes a value that is written already": written_twice,
    "Conv2d: it reads a value before that is written": read_early,
    r"Conv2d: a filter of \(4, 3, 3, 3\)": other_kernel,
    r"a filter of \(4, 3, 3, 3\)": other_groups,
    "argument 0 is of kind Int": number_as_input,
}


@pytest.mark.parametrize("read", [check_file, load])
@pytest.mark.parametrize("found", DAMAGES)
def test_a_delegate_that_would_end_the_process_is_refused(found, read, data, tmp_path: Path):
    path = tmp_path / "net.pte"
    path.write_bytes(DAMAGES[found](data))
    with pytest.raises(ContractError, match=f"bytes that cannot be read .*{found}") as caught:
        read(str(path))
    assert caught.value.where.endswith("net.pte, delegate 0 (XnnpackBackend)")


def wrong_version(data: bytes) -> bytes:
    return changed(data, graph_in(data), 0, 2**24)


def wrong_constant(data: bytes) -> bytes:
    tensors = (value.table(1) for value in graph_in(data).tables(VALUES))
    return changed(data, next(each for each in tensors if each.number(CONSTANT)), CONSTANT, 99)


@pytest.mark.parametrize(("code", "damage"), [("30", wrong_version), ("23", wrong_constant)])
def test_a_delegate_that_the_backend_finds_damaged_is_no_lack_of_an_operator(code, damage, data, tmp_path):
    path = tmp_path / "net.pte"
    path.write_bytes(damage(data))
    with pytest.raises(ContractError, match=rf"error: 0x:{code}: a part that is damaged, or that is for"):
        load(path)


@pytest.mark.parametrize(
    "scales",
    [
        xnn.PerChannelQuant(scale=[0.5, 0.25], channel_dim=0, scale_buffer_idx=0, num_scales=0),
        xnn.PerChannelGroupQuant(
            scale=[0.5, 0.25], channel_dim=0, group_size=7, scale_buffer_idx=0, num_scales=0
        ),
    ],
)
def test_a_quantized_constant_has_a_scale_for_each_channel_or_group(scales):
    def graph(kind: object) -> FlatRecord:
        tensor = xnn.XNNTensorValue(xnn.XNNDatatype.xnn_datatype_qcint8, 2, [3, 7], 1, 0, 0, 0)
        value = xnn.XValue(xnn.XNNQuantizedTensorValue(tensor, kind))
        constants = [xnn.ConstantDataOffset(0, 0, ""), xnn.ConstantDataOffset(0, 21, "")]
        return root_of(
            serialize_xnnpack_binary(xnn.XNNGraph("0", [], [value], 0, [], [], constants), bytes(21))
        )

    with pytest.raises(ContractError, match="2 scales for 3 channels or groups"), readable(b"", "here"):
        constants_of_graph(graph(scales))
    scales.scale.append(0.125)
    assert constants_of_graph(graph(scales)) == [("", 0, 0), ("", 21, math.prod((3, 7)))]
