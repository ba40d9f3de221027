"""Test that a call whose arguments would end the process is refused when the file is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.exir import schema
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from flatbuffers.number_types import Uint64Flags

from dimorder.errors import ContractError
from dimorder.executorch import check_file
from dimorder.executorch.pte import load
from dimorder.executorch.xnn_blob import FlatRecord
from tests.runtime.networks import Conv, export_pte


class Network(nn.Module):
    """Calls kernels with numbers, lists, a constant and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 7))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = (x * self.scale).topk(2, 1)
        return torch.cat([x.mean((0, 2), keepdim=True).expand(2, 5, 3), values[:, :, :3].clone()], 1), places


@pytest.fixture(scope="module")
def data() -> bytes:
    return export_pte(Network(), (torch.randn(2, 5, 7),), None)


def call(plan: Any, operator: str) -> Any:
    """Return the first call of an operator."""
    calls = (instruction.instr_args for instruction in plan.chains[0].instructions)
    return next(each for each in calls if plan.operators[each.op_index].name == operator)


def put(operator: str, argument: int, kind: str) -> Callable[[Any], None]:
    """Put a value of another kind in the place of an argument."""

    def damage(plan: Any) -> None:
        kinds = [type(value.val).__name__ for value in plan.values]
        call(plan, operator).args[argument] = kinds.index(kind)

    return damage


def cut_off(plan: Any) -> None:
    del call(plan, "aten::mul").args[2:]


def list_of_tensors(plan: Any) -> None:
    plan.values[call(plan, "aten::mean").args[1]].val.items[0] = plan.inputs[0]


def without_memory(plan: Any) -> None:
    constant = plan.values[call(plan, "aten::mul").args[1]].val
    assert constant.data_buffer_idx and constant.allocation_info is None
    constant.data_buffer_idx = 0


def move_over(plan: Any) -> None:
    moved = schema.MoveCall(move_from=plan.inputs[0], move_to=call(plan, "aten::mean").args[1])
    plan.chains[0].instructions.insert(0, schema.Instruction(moved))


def jump_by_tensors(plan: Any) -> None:
    jump = schema.JumpFalseCall(cond_value_index=call(plan, "aten::cat").args[0], destination_instruction=0)
    plan.chains[0].instructions.insert(0, schema.Instruction(jump))


def release_planned(plan: Any) -> None:
    freed = schema.FreeCall(value_index=call(plan, "aten::cat").args[2])
    plan.chains[0].instructions.insert(0, schema.Instruction(freed))


def put_zero(plan: Any, place: int) -> None:
    """Put 0 in the place of an argument of a convolution, or of the second item in it."""
    value = plan.values[call(plan, "aten::convolution").args[place]].val
    number = value if isinstance(value, schema.Int) else plan.values[value.items[1]].val
    number.int_val = 0


DAMAGES = {
    "aten::topk.values: 'k' is of kind Tensor": put("aten::topk", 1, "Tensor"),
    "aten::mean.out: 'dim' is of kind Int": put("aten::mean", 1, "Int"),
    "aten::cat.out: 'tensors' is of kind IntList": put("aten::cat", 0, "IntList"),
    "aten::cat.out: 'out' is of kind Int": put("aten::cat", 2, "Int"),
    "_clone_dim_order.out: 'non_blocking' is of kind Int": put("dim_order_ops::_clone_dim_order", 1, "Int"),
    "aten::mul.out: 2 arguments of 3": cut_off,
    "values of another kind in IntList": list_of_tensors,
    "aten::mul.out: a tensor without memory": without_memory,
    "call 0, a move to a value of another kind": move_over,
}


FLOWS = {
    "call 0, a jump by a value of kind TensorList": jump_by_tensors,
    "call 0, a value is freed whose memory is not its own": release_planned,
}


@pytest.mark.parametrize("read", [check_file, load])
@pytest.mark.parametrize("found", [*DAMAGES, *FLOWS])
def test_an_argument_that_would_end_the_process_is_refused(found, read, data, tmp_path):
    file = deserialize_pte_binary(data)
    {**DAMAGES, **FLOWS}[found](file.program.execution_plan[0])
    path = tmp_path / "net.pte"
    path.write_bytes(bytes(serialize_pte_binary(file)))
    with pytest.raises(ContractError, match=f"tables that contradict each other .*{found}"):
        read(str(path))


class Rows(nn.Module):
    """Computes with sizes, and views memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).cumsum(1).reshape(x.shape[0] * 3, 5) + 1


def rows() -> bytes:
    sizes = ({0: torch.export.Dim("n", min=2, max=6)},)
    return export_pte(Rows(), (torch.randn(4, 3, 5),), None, dynamic_shapes=sizes)


# The operators are ExecuTorch's own, of which PyTorch has no schema until the exporter is imported.
SIZE_DAMAGES = {
    "executorch_prim::et_view.default: 'size' is of kind Tensor": put(
        "executorch_prim::et_view", 1, "Tensor"
    ),
    "aten::sym_size.int: a result of kind Tensor": put("aten::sym_size", 2, "Tensor"),
    "executorch_prim::mul.Scalar: a result of kind Tensor": put("executorch_prim::mul", 2, "Tensor"),
}


@pytest.mark.parametrize("found", SIZE_DAMAGES)
def test_a_view_or_a_size_that_would_end_the_process_is_refused(found, tmp_path):
    file, path, x = deserialize_pte_binary(rows()), tmp_path / "net.pte", torch.randn(6, 3, 5)
    path.write_bytes(rows())
    torch.testing.assert_close(load(path)[1]([x])[0], Rows()(x))
    SIZE_DAMAGES[found](file.program.execution_plan[0])
    path.write_bytes(bytes(serialize_pte_binary(file)))
    with pytest.raises(ContractError, match=f"tables that contradict each other .*{found}"):
        load(str(path))


@pytest.mark.parametrize(("place", "name"), [(3, "stride"), (5, "dilation"), (8, "groups")])
def test_a_number_by_which_a_kernel_divides_is_not_zero(place, name, tmp_path):
    file = deserialize_pte_binary(export_pte(Conv(3), (torch.randn(2, 3, 11, 9),), None))
    put_zero(file.program.execution_plan[0], place)
    path = tmp_path / "net.pte"
    path.write_bytes(bytes(serialize_pte_binary(file)))
    with pytest.raises(ContractError, match=f"aten::convolution.out: '{name}' is 0"):
        load(str(path))


class Steps(nn.Module):
    """Divides sizes by numbers, and by a size."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.shape[0]
        return torch.arange(0, 100, rows), torch.full((rows // 3 + 2, rows % 5 + 2), 0.5)


def steps() -> bytes:
    sizes = ({0: torch.export.Dim("n", min=2, max=30)},)
    return export_pte(Steps(), (torch.randn(7, 5),), None, dynamic_shapes=sizes)


def test_a_size_by_which_a_kernel_divides_is_known_only_at_run_time(tmp_path):
    """The file has 0 in its place, and was refused."""
    path, x = tmp_path / "net.pte", torch.randn(11, 5)
    path.write_bytes(steps())
    torch.testing.assert_close(tuple(load(path)[1]([x])), Steps()(x))


@pytest.mark.parametrize("operator", ["floordiv", "mod"])
def test_a_number_by_which_a_size_is_divided_is_not_zero(operator, tmp_path):
    """The process ended at the first call."""
    file, path = deserialize_pte_binary(steps()), tmp_path / "net.pte"
    divide_by_zero(file.program.execution_plan[0], operator)
    path.write_bytes(bytes(serialize_pte_binary(file)))
    with pytest.raises(ContractError, match=f"executorch_prim::{operator}.Scalar: 'divisor' is 0"):
        load(path)


def divide_by_zero(plan: Any, operator: str) -> None:
    plan.values[call(plan, f"executorch_prim::{operator}").args[1]].val.int_val = 0


def test_a_stride_in_memory_may_be_zero(tmp_path):
    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_strided_copy(x, (3, 4), (1, 0))

    path, x = tmp_path / "net.pte", torch.randn(6)
    path.write_bytes(export_pte(Repeated(), (x,), None))
    torch.testing.assert_close(load(path)[1]([x])[0], Repeated()(x))


def earlier_constant(data: bytes) -> bytes:
    at, count = root(data).table(5)._vector(1)  # the offsets in constant_segment
    return reduced(data, at + 8 * (count - 1), 4)


def earlier_segment(data: bytes) -> bytes:
    segments = [each for each in root(data).tables(4) if each.number(0, Uint64Flags)]
    return reduced(data, segments[-1].Pos + segments[-1].Offset(4), 256)  # its offset: more than the padding


def root(data: bytes) -> FlatRecord:
    return FlatRecord(data, int.from_bytes(data[:4], "little"))


def reduced(data: bytes, at: int, by: int) -> bytes:
    number = int.from_bytes(data[at : at + 8], "little")
    return data[:at] + (number - by).to_bytes(8, "little") + data[at + 8 :]


@pytest.mark.parametrize("read", [check_file, load])
@pytest.mark.parametrize(
    ("damage", "xnnpack", "found"),
    [
        (earlier_constant, False, "a constant of 428 bytes for a tensor of 432"),
        (earlier_segment, True, "segments that overlap"),
    ],
)
def test_constants_or_segments_that_overlap_are_refused(damage, xnnpack, found, read, tmp_path: Path):
    """They would be other weights."""
    path = tmp_path / "net.pte"
    path.write_bytes(damage(export_pte(Conv(3), (torch.randn(2, 3, 11, 9),), None, xnnpack=xnnpack)))
    with pytest.raises(ContractError, match=f"tables that contradict each other .*{found}"):
        read(str(path))


def test_the_same_file_runs_undamaged(data, tmp_path: Path):
    path = tmp_path / "net.pte"
    path.write_bytes(data)
    x = torch.randn(2, 5, 7)
    outputs = load(path)[1]([x])
    torch.testing.assert_close(tuple(outputs), Network()(x))


def test_a_name_that_is_no_operators_is_not_looked_up(data, tmp_path):
    path = tmp_path / "net.pte"
    path.write_bytes(data.replace(b"aten::topk", b"aten;:topk"))
    with pytest.raises(Exception, match="lacks an operator"):
        load(path)
