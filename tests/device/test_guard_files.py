"""dimorder::Program opens and refuses files as `dimorder.load` does: cut off, changed, without a seal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.contract_file import contract_lines
from dimorder.errors import DimorderError
from tests.device.guarded_programs import (
    ACCESS_FAILED,
    NOT_SUPPORTED,
    OPERATOR_MISSING,
    file_of,
    refused,
    right_inputs,
)
from tests.device.native_fixture import NativeError, NativeProgram
from tests.executorch.test_delegate_checks import wrong_constant, wrong_version
from tests.marks import slow_but
from tests.runtime.networks import Conv, export_pte

pytestmark = pytest.mark.usefixtures("guard_native")


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize("name", ["NHWC", "two", "foreign conv"])
def test_a_mapped_file_and_a_read_one_give_the_same(name: str, loading: str) -> None:
    python = dimorder.load(file_of(name))
    program = NativeProgram(file_of(name), loading=loading, check_seal="foreign" not in name)
    tensors = right_inputs(python.contract)
    assert program.has_contract == ("foreign" not in name)
    assert all(map(torch.equal, program.run(*tensors), python.run(*tensors)))


def python_refuses(path: Path) -> str:
    with pytest.raises(DimorderError) as error:
        dimorder.load(path)
    return error.value.found


@pytest.mark.parametrize("loading", ["mmap", "file"])
def test_a_missing_file_is_refused_as_in_python(tmp_path: Path, loading: str) -> None:
    path = tmp_path / "none.pte"
    assert (
        refused(path, ACCESS_FAILED, loading=loading) == python_refuses(path) == "No such file or directory"
    )


@pytest.mark.parametrize("loading", ["mmap", "file"])
def test_a_folder_is_refused(tmp_path: Path, loading: str) -> None:
    with pytest.raises(NativeError) as error:
        NativeProgram(tmp_path, loading=loading)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize(
    "content", [b"", b"no program", b"\x00" * 5000, b"PK\x03\x04" * 100, b"\x08\0\0\0ET12"]
)
def test_what_is_no_pte_is_refused(tmp_path: Path, content: bytes, loading: str) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(content)
    found = refused(path, loading=loading)
    if not content.endswith(b"ET12"):
        assert found == python_refuses(path) or (not content and "cannot be read" in found)


FEW = [("NHWC", "file", 40), ("foreign conv", "mmap", 40)]


@pytest.mark.parametrize(
    ("name", "loading", "count"),
    slow_but([*FEW, *product(["NHWC", "foreign conv"], ["mmap", "file"], [150])], FEW),
)
def test_a_file_cut_off_anywhere_is_refused_as_in_python(
    tmp_path: Path, name: str, loading: str, count: int
) -> None:
    data, path = file_of(name).read_bytes(), tmp_path / "cut.pte"
    for length in range(1, len(data), max(1, len(data) // count)):
        path.write_bytes(data[:length])
        found = refused(path, loading=loading)
        if length >= 40:
            assert found == python_refuses(path)


def test_a_header_of_24_bytes_has_no_size_of_segments(tmp_path: Path) -> None:
    data, path = bytearray(file_of("foreign conv").read_bytes()), tmp_path / "old.pte"
    data[12:16], data[32:40] = (24).to_bytes(4, "little"), b"\x10\0\0\0\x0a\0\x18\0"  # of the flatbuffer
    path.write_bytes(data)
    tensors = right_inputs(dimorder.load(path).contract)
    assert all(map(torch.equal, NativeProgram(path).run(*tensors), dimorder.load(path).run(*tensors)))


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize("name", ["foreign conv", "NHWC"])
@pytest.mark.parametrize("place", [9, 25])
def test_a_file_whose_header_does_not_say_where_its_segments_begin_is_refused(
    tmp_path: Path, name: str, loading: str, place: int
) -> None:
    """ExecuTorch read the weights from elsewhere in the file."""
    path, data = tmp_path / "net.pte", bytearray(file_of(name).read_bytes())
    data[place] = ord("x") if place == 9 else 0
    path.write_bytes(data)
    assert "no header that says where the segments begin" in refused(path, loading=loading)
    assert name == "NHWC" or "no header that says where the segments begin" in python_refuses(path)


def test_a_changed_byte_is_refused_by_the_seal_as_in_python(tmp_path: Path) -> None:
    data, path = file_of("NHWC").read_bytes(), tmp_path / "changed.pte"
    mark = data.find(b"dimorder sha256 ")
    for place in range(40, len(data), len(data) // 100):
        if mark <= place < mark + 16:
            continue
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert refused(path, check_seal=True) == python_refuses(path)


@pytest.mark.parametrize("damage", [wrong_version, wrong_constant])
def test_a_delegate_that_the_backend_finds_damaged_is_no_lack_of_an_operator(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(damage(file_of("foreign conv").read_bytes()))
    why = python_refuses(path).rpartition(": ")[2]
    assert why == "a part that is damaged, or that is for another version or processor"
    assert refused(path).rpartition(": ")[2] == why


def test_an_operator_that_the_build_lacks_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(file_of("foreign").read_bytes().replace(b"aten::add", b"aten::odd"))
    assert refused(path, OPERATOR_MISSING) == "ExecuTorch: Error::OperatorMissing"
    assert python_refuses(path).endswith("error: 0x:14")


def test_a_program_whose_constants_lie_in_a_ptd_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(export_pte(Conv(3), (torch.ones(2, 3, 11, 9),), None, external_constants=True))
    assert refused(path) == python_refuses(path) == "the constant 'conv.weight', which the file lacks"


def test_a_program_without_forward_is_refused_as_in_python(tmp_path: Path) -> None:
    from executorch.exir import to_edge

    exported = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),))
    path = tmp_path / "net.pte"
    path.write_bytes(to_edge({"encode": exported, "decode": exported}).to_executorch().buffer)
    found = refused(path, NOT_SUPPORTED)
    assert found == python_refuses(path) == "the methods ['decode', 'encode']"


@pytest.mark.parametrize("name", ["foreign", "foreign conv"])
def test_a_seal_that_is_asked_for_must_be_there(name: str) -> None:
    assert refused(file_of(name), check_seal=True) == "no checksum of dimorder's in it"


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("NHWC", ("4 2 3 11 9 0 2 3 1", "4 2 3 11 9 0 1 2 3"), "for input 0 that has another order"),
        ("NHWC", ("4 2 3 11 9 0 2 3 1", "4 2 3 11 9 1 2 3 0"), "for input 0 that has another order"),
        ("NHWC", ("4 2 4 9 7 0 2 3 1", "4 2 4 9 7 0 1 2 3"), "for output 0 that has another order"),
        ("NHWC", ("4 2 3 11 9", "4 2 3 11 8"), "for input 0 that has other sizes"),
        ("NHWC", ("4 2 3 11 9", "4 2 3 9 11"), "for input 0 that has other sizes"),
        ("NHWC", ("float32", "float64"), "for input 0 that has another type"),
        ("int8", ("int8", "bool"), None),
        ("NLC", ("3 2 5 8 0 2 1", "3 2 5 8 0 1 2"), "for input 0 that has other sizes"),
        ("NLC", ("3 2 4 6 0 2 1", "3 2 4 6 2 1 0"), "for output 0 that has other sizes"),
        ("NHWC", ("1 1 0 0\n", "1 1 0 9\n"), "a line of the state that is missing"),
        ("NHWC", ("contract 1 ", "contract 2 "), "another version of its lines"),
        ("NHWC", ("contract 1 1", "contract 1 0"), "a line of an input or output that is missing"),
        ("dynamic", (" 1 4 1\n", " 1 5 1\n"), "for input 0 that has a smaller largest size"),
        ("dynamic", (" 6 16 2\n", " 6 18 2\n"), "for input 0 that has a smaller largest size"),
    ],
)
def test_lines_that_are_not_the_programs_are_refused(
    tmp_path: Path, name: str, change: tuple[str, str], found: str | None
) -> None:
    data = file_of(name).read_bytes()
    lines = contract_lines(dimorder.load(file_of(name)).contract)
    assert data.count(lines.encode()) == 1
    changed = lines.replace(*change, 1)
    assert changed != lines and len(changed) == len(lines)
    path = tmp_path / "patched.pte"
    path.write_bytes(data.replace(lines.encode(), changed.encode()))
    assert (found or "") in refused(path)
