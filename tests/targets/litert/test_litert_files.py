"""Test what a `.tflite` holds, and that damaged files and inputs against the contract are refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder import targets
from dimorder.errors import ContractError, DimorderError, UnsupportedError, UsageError
from dimorder.targets.litert.file import operators, read_contracts
from dimorder.targets.litert.runtime import check

SHAPE = (2, 3, 5, 7)


class Mixed(nn.Module):
    """A map, a table that is read by 64-bit indices, and a number: inputs and outputs of every rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.table = nn.Embedding(6, 7)

    def forward(self, image: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.conv(image).relu() + self.table(ids)
        return features, features.mean((2, 3)), features.sum()


IMAGE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([5, 0, 3, 1, 4])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lowered = dimorder.lower(Mixed().eval(), (IMAGE, IDS), target="litert", input_orders=["NHWC", None])
    return lowered.save(tmp_path_factory.mktemp("litert") / "net.tflite")


@pytest.mark.parametrize("kernels", ["xnnpack", "builtin", "reference"])
def test_a_saved_file_gives_what_eager_gives_however_it_is_fed(saved: Path, kernels: str) -> None:
    options = targets.find("litert").with_options
    assert options is not None
    program, expected = dimorder.load(saved, target=options(kernels=kernels), threads=2), Mixed()(IMAGE, IDS)
    for fed in (IMAGE, IMAGE.contiguous(memory_format=torch.channels_last), IMAGE.flip(0).flip(0)):
        for got, wanted in zip(program(fed, ids=IDS), expected, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert program.stats.calls == 3 and program.stats.conversions > 0


def test_the_signature_has_the_names_of_the_contract(saved: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=saved.read_bytes())
    contract = read_contracts(saved.read_bytes())["serving_default"]
    names = {"inputs": ["ids", "image"], "outputs": sorted(spec.name for spec in contract.outputs)}
    found = interpreter.get_signature_list()["serving_default"]
    assert {side: sorted(found[side]) for side in found} == names
    image = interpreter.get_signature_runner().get_input_details()["image"]
    assert list(image["shape"]) == [2, 5, 7, 3]
    assert "conv2d" not in operators(saved.read_bytes())


def test_tensors_have_the_names_of_the_network_and_buffers_are_aligned(saved: Path) -> None:
    from ai_edge_litert.schema_py_generated import Model

    data = saved.read_bytes()
    model = Model.GetRootAs(data)
    graph = model.Subgraphs(0)
    names = [graph.Tensors(i).Name().decode() for i in range(graph.TensorsLength())]
    assert {"image", "ids", "embedding"} <= set(names)
    buffers = [model.Buffers(i) for i in range(model.BuffersLength())]
    starts = [buffer._tab.Vector(buffer._tab.Offset(4)) for buffer in buffers if buffer.DataLength()]
    assert starts and all(start % 16 == 0 for start in starts)


def test_a_clamp_is_part_of_what_it_reads() -> None:
    """Unless something else reads what it reads, too."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Conv2d(4, 5, 1), Added(), nn.ReLU())
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    lowered = dimorder.lower(net.eval(), (IMAGE,), target="litert", **orders)
    found = operators(lowered.artifact.data)
    assert found == {"CONV_2D": 2, "RELU": 1, "ADD": 1}


class Added(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.relu()


def refused(path: Path, kind: type[DimorderError] = ContractError) -> str:
    with pytest.raises(kind) as error:
        dimorder.load(path)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[0] == f"loading {path}"
    return lines[1]


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "net.tflite", UsageError)


def test_a_damaged_file_is_refused(saved: Path, tmp_path: Path) -> None:
    data, file = bytearray(saved.read_bytes()), tmp_path / "net.tflite"
    for length in range(0, len(data), 197):
        file.write_bytes(data[:length])
        refused(file)
    for place in range(0, len(data), 197):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        refused(file)


def test_a_file_without_a_contract_is_refused(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.tflite"
    data = saved.read_bytes().replace(b"dimorder_seal", b"another_seal_")
    file.write_bytes(data.replace(b"dimorder sha256 ", b"another sha256  "))
    assert "no contract" in refused(file)


def test_a_file_whose_seal_has_no_mark_is_damaged(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.tflite"
    file.write_bytes(saved.read_bytes().replace(b"dimorder sha256 ", b"another sha256  "))
    assert "their SHA-256 differs" in refused(file)
    with pytest.raises(ValueError, match="their SHA-256 differs"):
        check(str(file), file.read_bytes())


@pytest.mark.parametrize(
    ("image", "ids", "found"),
    [
        (IMAGE, IDS, "NCHW (0, 1, 2, 3), shape (2, 3, 5, 7), strides (105, 35, 7, 1)"),
        (IMAGE.half(), IDS, "torch.float16, where torch.float32 is promised"),
        (IMAGE.contiguous(memory_format=torch.channels_last), IDS[:3], "shape (3,), where (5) is promised"),
    ],
)
def test_an_input_that_breaks_the_contract_is_refused(
    saved: Path, image: Tensor, ids: Tensor, found: str
) -> None:
    with pytest.raises(ContractError) as error:
        dimorder.load(saved, on_mismatch="error")(image, ids)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[1] == f"  found: {found}"


class Axes(nn.Module):
    """The eigenvectors of a matrix, which have no sign of their own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigh(x @ x.mT)[1]


def test_an_operator_that_litert_lacks_is_refused_with_its_source_line(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        dimorder.lower(Axes(), (IMAGE,), target="litert").save(tmp_path / "net.tflite")
    where, found, fix = str(error.value).splitlines()
    assert re.fullmatch(r"aten\._linalg_eigh \(test_litert_files\.py:\d+\)", where)
    assert found == "  found: LiteRT has no aten._linalg_eigh.default"
    assert fix == "  fix: replace it in the module, or choose another target"
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    for name in [name for name in sys.modules if name.startswith("ai_edge_litert.")]:
        monkeypatch.delitem(sys.modules, name)
    for use in (
        lambda: dimorder.load(saved),
        lambda: dimorder.lower(nn.ReLU(), (IMAGE,), target="litert"),
    ):
        with pytest.raises(UnsupportedError) as error:
            use()
        assert str(error.value).splitlines()[2] == "  fix: in dimorder's folder: pip install '.[litert]'"


def test_unknown_kernels_are_wrong_usage() -> None:
    options = targets.find("litert").with_options
    assert options is not None
    with pytest.raises(UsageError, match="choose one of xnnpack, builtin, reference"):
        options(kernels="flex")
