"""Test that `model.tosa` and its contract hold together, and that files that do not fit are refused."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.contract import Contract
from dimorder.errors import ContractError, DimorderError, UnsupportedError, UsageError
from dimorder.files import write_whole
from dimorder.targets.tosa import sidecar
from dimorder.targets.tosa.target import check

pytest.importorskip("tosa_serializer")

SHAPE = (2, 3, 5, 7)


class Mixed(nn.Module):
    """A map, a table that is read by 64-bit indices, and a number: inputs and outputs of every rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.table = nn.Embedding(6, 7)

    def forward(self, image: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.conv(image) + self.table(ids)
        return features, features.mean((2, 3)), features.sum()


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SHAPE, generator=generator), torch.tensor([5, 0, 3, 1, 4])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that saves the network for one input order, once per module."""
    folder, made = tmp_path_factory.mktemp("tosa"), {}

    def make(order):
        if order not in made:
            orders = [order, None]
            lowered = dimorder.lower(Mixed().eval(), inputs(), target="tosa", input_orders=orders)
            made[order] = lowered.save(folder / f"{order}.tosa")
        return made[order]

    return make


@pytest.mark.parametrize("order", ["NCHW", "NHWC", "2,3,1,0"])
def test_a_saved_graph_gives_what_eager_gives_however_it_is_fed(saved, order):
    image, ids = inputs()
    program, expected = dimorder.load(saved(order)), Mixed()(image, ids)
    for fed in (image, image.contiguous(memory_format=torch.channels_last), image.flip(0).flip(0)):
        for got, wanted in zip(program(fed, ids=ids), expected, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert program.stats.calls == 3 and program.stats.conversions > 0


def test_a_saved_graph_is_guarded(saved):
    image, ids = inputs()
    program = dimorder.load(saved("NHWC"), on_mismatch="error")
    program(image.contiguous(memory_format=torch.channels_last), ids)
    with pytest.raises(ContractError, match="promised in NHWC"):
        program(image, ids)
    with pytest.raises(ContractError, match=r"torch.int32, where torch.int64"):
        program(image.contiguous(memory_format=torch.channels_last), ids.int())


def test_the_contract_can_be_read_without_any_tool(saved):
    path = saved("NHWC")
    text = path.with_name(path.name + ".json").read_text()
    assert Contract.from_json(text) == dimorder.load(path).contract
    assert json.loads(text)["inputs"][0]["order"] == "NHWC"


# What is refused


@pytest.fixture
def pair(saved, tmp_path):
    """The two files of one graph, free to be broken."""
    for file in saved("NHWC").parent.glob("NHWC.tosa*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "NHWC.tosa", tmp_path / "NHWC.tosa.json"


def refused(path, kind=ContractError):
    with pytest.raises(kind) as error:
        dimorder.load(path)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[0] == f"loading {path}"
    return lines[1]


def test_a_graph_without_its_contract_is_wrong_usage(pair):
    pair[1].unlink()
    assert "NHWC.tosa.json: No such file" in refused(pair[0], UsageError)


def test_a_missing_graph_is_wrong_usage(pair):
    pair[0].unlink()
    assert "NHWC.tosa: No such file" in refused(pair[0], UsageError)


def test_a_graph_cut_off_anywhere_is_refused(pair):
    data = pair[0].read_bytes()
    for length in range(0, len(data), 97):
        pair[0].write_bytes(data[:length])
        assert f"is not of these {length} bytes" in refused(pair[0])


@pytest.mark.parametrize("name", [0, 1])
def test_a_changed_byte_in_either_file_is_refused(pair, name):
    data = pair[name].read_bytes()
    for place in range(0, len(data), max(1, len(data) // 60)):
        pair[name].write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        refused(pair[0])


@pytest.mark.parametrize("name", [0, 1])
def test_check_refuses_a_changed_byte_in_either_file(pair, name):
    data = pair[name].read_bytes()
    assert check(str(pair[0]), pair[0].read_bytes()).operators["CONV2D"] == 1
    place = 3 * len(data) // 4
    pair[name].write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(ContractError, match=r"NHWC\.tosa\.json"):
        check(str(pair[0]), pair[0].read_bytes())


@pytest.mark.parametrize("text", [None, '{"format": "tosa"}'], ids=["none", "of another tool"])
def test_check_reads_a_graph_without_a_companion(pair, text):
    pair[1].unlink()
    if text is not None:
        pair[1].write_text(text)
    assert check(str(pair[0]), pair[0].read_bytes()).operators["CONV2D"] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("[]", "no JSON of the format"),
        ("\xff", "no JSON"),
        ("{}", "no JSON of the format"),
        ('{"format": "dimorder.contract", "version": 9}', "version 9"),
        ('{"format": "dimorder.contract", "version": 1}', "missing"),
    ],
)
def test_a_broken_contract_is_refused(pair, text, says):
    pair[1].write_text(text)
    assert says in refused(pair[0])


def test_bytes_that_are_no_text_are_refused(pair):
    pair[1].write_bytes(b"\xff\xfe")
    assert "NHWC.tosa.json" in refused(pair[0])


def test_an_order_changed_by_hand_is_refused(pair):
    """The shapes still fit: without the seal the numbers would be wrong."""
    data = json.loads(pair[1].read_text())
    data["outputs"][0]["dim_order"] = [1, 0, 2, 3]
    pair[1].write_text(json.dumps(data))
    assert "its seal differs" in refused(pair[0])


def test_a_contract_without_a_seal_is_refused(pair):
    data = json.loads(pair[1].read_text())
    del data["seal"]
    pair[1].write_text(json.dumps(data))
    assert "its seal differs" in refused(pair[0])


def test_the_contract_of_another_graph_is_refused(pair, saved):
    other = saved("NCHW")
    pair[1].write_bytes(other.with_name(other.name + ".json").read_bytes())
    assert "its seal differs" in refused(pair[0])


@pytest.mark.parametrize(
    ("key", "entry", "says"),
    [
        ("shape", [2, 3, 7, 5], "inputs 2x5x7x3:FP32, 5:INT32, where"),
        ("dtype", "int32", "promises 2x5x7x3:INT32, 5:INT32"),
        ("dtype", "float16", "promises 2x5x7x3:FP16, 5:INT32"),
    ],
)
def test_a_contract_that_does_not_fit_its_graph_is_refused(pair, key, entry, says):
    data = json.loads(pair[1].read_text())
    data["inputs"][0][key] = entry
    pair[1].write_bytes(sidecar.encode(pair[0].read_bytes(), Contract.from_json(json.dumps(data))))
    assert says in refused(pair[0])


def test_a_contract_of_fewer_outputs_is_refused(pair):
    data = json.loads(pair[1].read_text())
    del data["outputs"][1:]
    pair[1].write_bytes(sidecar.encode(pair[0].read_bytes(), Contract.from_json(json.dumps(data))))
    assert refused(pair[0]).count("FP32") == 4


def test_what_is_no_graph_is_refused_though_it_is_sealed(pair):
    contract = Contract.from_json(pair[1].read_text())
    pair[0].write_bytes(b"no graph")
    pair[1].write_bytes(sidecar.encode(b"no graph", contract))
    with pytest.raises(DimorderError, match="no TOSA identifier"):
        dimorder.load(pair[0])


def test_without_tosa_tools_the_error_says_what_to_install(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "tosa.TosaGraph", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[tosa\]'"):
        dimorder.load(pair[0])


# What is written


def test_a_name_that_could_not_be_loaded_is_refused(tmp_path):
    lowered = dimorder.lower(nn.ReLU(), (torch.randn(2, 3),), target="tosa")
    with pytest.raises(UsageError, match=r"no \.tosa, which is what target tosa writes"):
        lowered.save(tmp_path / "net.pte")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", ["net.tosa", "net.tosa.json"])
def test_both_files_are_written_or_neither(tmp_path, blocked):
    (tmp_path / blocked).mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / "net.tosa", b"graph", {".json": b"contract"})
    assert [file.name for file in tmp_path.iterdir()] == [blocked]


def test_what_was_there_before_stays_where_a_file_cannot_be_written(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "net.tosa", b"graph", {".json": b"contract"})
    replace = os.replace

    def full(source, destination):
        if Path(destination) == path:
            raise OSError(28, "No space left on device")
        replace(source, destination)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_whole(path, b"other graph", {".json": b"other contract"})
    assert sorted((file.name, file.read_bytes()) for file in tmp_path.iterdir()) == [
        ("net.tosa", b"graph"),
        ("net.tosa.json", b"contract"),
    ]
