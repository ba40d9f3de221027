"""Test that a file is refused whose tables contradict each other, or which calls kernels that are wrong."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.export import Dim

pytest.importorskip("executorch")

from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import CompileSpec

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.contract_file import CONTRACT_METHOD
from dimorder.errors import ContractError, UnsupportedError
from dimorder.executorch import check_file
from dimorder.executorch.file_graph import graph_of_file
from dimorder.executorch.lowering_paths import stock
from dimorder.executorch.program_tables import read_program
from dimorder.executorch.pte import load
from tests.runtime.networks import Conv, export_pte

NCHW, NHWC = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)


def spec(
    name: str, shape: tuple[int | str, ...], dtype: str = "float32", order: DimOrder = NCHW
) -> TensorSpec:
    return TensorSpec(name, shape, dtype, order)


X, Y = spec("x", (2, 3, 11, 9)), spec("y", (2, 4, 9, 7))
MARK = b"dimorder sha256 "
HASH = re.compile(rb"[0-9a-f]{64}")  # the name of a constant of an XNNPACK delegate

DAMAGES = {
    "an operator that is not there": lambda plan: plan.operators.clear(),
    "an input that is not there": lambda plan: plan.inputs.__setitem__(0, 77),
    "an operand that is not there": lambda plan: plan.chains[0].instructions[0].instr_args.args.append(77),
    "an order with one dim twice": lambda plan: plan.values[plan.outputs[0]].val.dim_order.__setitem__(0, 2),
}


@pytest.fixture(scope="module")
def data() -> bytes:
    return stock("portable")(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3, 5),)))


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, data: bytes, tmp_path: Path) -> Path:
    file = deserialize_pte_binary(data)
    DAMAGES[request.param](file.program.execution_plan[0])
    path = tmp_path / "damaged.pte"
    path.write_bytes(bytes(serialize_pte_binary(file)))
    return path


@pytest.mark.parametrize("read", [check_file, load, graph_of_file])
def test_tables_that_contradict_each_other_are_refused(read, damaged):
    with pytest.raises(ContractError, match="tables that contradict each other"):
        read(str(damaged))


@pytest.mark.parametrize("read", [check_file, load, graph_of_file])
@pytest.mark.parametrize("kind", ["operators", "delegates", "compile_specs"])
def test_an_operator_a_delegate_or_a_compile_spec_without_a_name_is_damage(read, kind, tmp_path):
    x = torch.ones(2, 3, 11, 9)
    file = deserialize_pte_binary(export_pte(Conv(3), (x,), None, xnnpack=kind != "operators"))
    plan = file.program.execution_plan[0]
    if kind == "compile_specs":
        plan.delegates[0].compile_specs.append(CompileSpec("", b""))
    (one, *_) = getattr(plan.delegates[0] if kind == "compile_specs" else plan, kind)
    setattr(one, {"operators": "name", "delegates": "id", "compile_specs": "key"}[kind], None)
    path = tmp_path / "net.pte"
    path.write_bytes(bytes(serialize_pte_binary(file)))
    with pytest.raises(ContractError, match="an operator, a delegate or a compile spec without a name"):
        read(str(path))


def test_a_contract_that_is_no_text_is_damage(tmp_path):
    file = deserialize_pte_binary(export_pte(Conv(3), (torch.ones(2, 3, 11, 9),), Contract((X,), (Y,))))
    plan = next(each for each in file.program.execution_plan if each.name == CONTRACT_METHOD)
    path = tmp_path / "net.pte"
    for damage in (lambda: setattr(plan.values[0].val, "string_val", None), plan.values.clear):
        damage()
        data = bytes(serialize_pte_binary(file))
        path.write_bytes(data.replace(b"dimorder_seal", b"another_seal_").replace(MARK, b"another sha256  "))
        for read in (check_file, load):
            with pytest.raises(ContractError):
                read(path)


class Joined(torch.nn.Module):
    """Wrong on the portable kernels of ExecuTorch 1.5.1 if its inputs are channels-last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1)


def test_a_build_with_a_suffix_has_the_kernels_of_its_version(tmp_path, monkeypatch):
    x = torch.ones(2, 3, 5, 7).to(memory_format=torch.channels_last)
    path = tmp_path / "joined.pte"
    path.write_bytes(stock("portable")(torch.export.export(Joined(), (x,))))
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version(name) + "+cpu" * (name == "executorch"))
    assert [row.verdict for row in check_file(path).rows] == ["wrong"]
    with pytest.raises(UnsupportedError, match="that kernel returns wrong numbers, silently"):
        load(path)


CONTRACTS = {
    "for input 0 that has another order": ((spec("x", (2, 3, 11, 9), order=NHWC),), (Y,)),
    "for output 0 that has another order": ((X,), (spec("y", (2, 4, 9, 7), order=NHWC),)),
    "for input 0 that has other sizes": ((spec("x", (2, 3, 9, 11)),), (Y,)),
    "for input 0 that has another type": ((spec("x", (2, 3, 11, 9), "int32"),), (Y,)),
    "for input 0 that has another number of dim": (
        (TensorSpec("x", (2, 3), "float32", DimOrder(0, 1)),),
        (Y,),
    ),
    "for input 0 that has a smaller largest size": (
        (spec("x", ("n", 3, 11, 9)),),
        (Y,),
        (Symbol("n", 1, 3),),
    ),
    "another number of inputs or outputs": ((X,), (Y, spec("z", (2, 4, 9, 7)))),
}


@pytest.mark.parametrize("found", CONTRACTS)
def test_a_contract_that_is_not_the_programs_is_refused(found, tmp_path):
    path = tmp_path / "net.pte"
    path.write_bytes(export_pte(Conv(3), (torch.ones(2, 3, 11, 9),), Contract(*CONTRACTS[found])))
    for read in (check_file, load):
        with pytest.raises(ContractError, match=f"a contract .*{found}"):
            read(path)


def test_a_program_with_a_contract_is_refused_too_for_a_kernel_that_is_wrong(tmp_path):
    x = torch.ones(2, 3, 5, 7).to(memory_format=torch.channels_last)
    inside = Contract((spec("x", (2, 3, 5, 7), order=NHWC),), (spec("y", (2, 6, 5, 7), order=NHWC),))
    path = tmp_path / "joined.pte"
    path.write_bytes(export_pte(Joined(), (x,), inside))
    with pytest.raises(UnsupportedError, match="that kernel returns wrong numbers, silently"):
        load(path)


class Mixed(torch.nn.Module):
    """Calls kernels with lists, numbers and tensors of several types, and a delegate."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, torch.sin(x) * 0.5], 1).relu(), x[:, ids].flip(2)


@pytest.mark.parametrize("xnnpack", [False, True])
def test_tables_are_read_as_the_exporter_reads_them(xnnpack):
    args = (torch.ones(2, 3, 5, 7), torch.tensor([2, 0]))
    sizes = ({0: Dim("n", max=6)}, None)
    pte = export_pte(Mixed(), args, Contract((X,), (Y,)), xnnpack=xnnpack, dynamic_shapes=sizes)
    compared = set[str]()

    def compare(own: object, exir: object) -> None:
        compared.add(type(own).__name__)
        assert type(own).__name__ == type(exir).__name__
        if isinstance(own, list):
            for one, other in zip(own, exir, strict=True):
                compare(one, other)
        elif isinstance(own, SimpleNamespace):
            for name, value in vars(own).items():
                # exir takes the first two out of the tables
                if name not in ("named_data", "constant_segment", "constant_sizes"):
                    compare(value, getattr(exir, name))
        else:
            assert getattr(own, "name", own) == getattr(exir, "name", exir)

    compare(read_program(pte), deserialize_pte_binary(pte).program)
    kinds = {"Tensor", "OptionalTensorList", "String", "KernelCall", "AllocationDetails"}
    assert compared >= kinds | ({"DelegateCall", "BackendDelegate"} if xnnpack else {"TensorList"})


@pytest.mark.parametrize("read", [check_file, load])
@pytest.mark.parametrize("place", [0, -1], ids=["in the file's list", "in the delegate"])
def test_a_delegate_whose_constant_the_file_lacks_is_refused(read, place, tmp_path):
    data = bytearray(export_pte(Conv(3), (torch.ones(2, 3, 11, 9),), None, xnnpack=True))
    data[[*HASH.finditer(data)][place].start() + 7] ^= 1
    path = tmp_path / "net.pte"
    path.write_bytes(data)
    with pytest.raises(ContractError) as caught:
        read(str(path))
    assert re.search(r"net\.pte, delegate 0 \(XnnpackBackend\)$", caught.value.where)
    assert re.fullmatch(r"the constant '.{64}', which the file lacks", caught.value.found)


def test_a_program_whose_constants_lie_in_a_ptd_is_refused_by_the_name_of_one(tmp_path):
    path = tmp_path / "net.pte"
    path.write_bytes(export_pte(Conv(3), (torch.ones(2, 3, 11, 9),), None, external_constants=True))
    assert check_file(str(path)).is_safe
    with pytest.raises(ContractError, match=r"constant 'conv.weight', .*\n.* a \.ptd beside it is not"):
        load(path)


def test_a_header_of_24_bytes_has_no_size_of_segments(tmp_path):
    x = torch.randn(2, 3, 11, 9)
    data = bytearray(export_pte(Conv(3), (x,), None, xnnpack=True))
    assert int.from_bytes(data[12:16], "little") == 32
    data[12:16], data[32:40] = (24).to_bytes(4, "little"), b"\x10\0\0\0\x0a\0\x18\0"  # some of the flatbuffer
    path = tmp_path / "net.pte"
    path.write_bytes(data)
    (output,) = load(path)[1]([x])
    torch.testing.assert_close(output, Conv(3)(x))
