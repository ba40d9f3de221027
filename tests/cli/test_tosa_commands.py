"""Test the commands lower, run and check on .tosa files, and the error for each wrong file or name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dimorder.cli import main
from tests.cli.commands import HERE, INPUT, SHAPE, documented_keys, refused, tiny

serializer = pytest.importorskip("tosa_serializer")


pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with net.tosa and its contract, and arrays to run it on."""
    folder = tmp_path_factory.mktemp("made")
    argv = ["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, "--target", "tosa"]
    assert main([*argv, "-o", str(folder / "net.tosa")]) == 0
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))
    return folder


def foreign() -> bytes:
    """A graph such as others write: two TRANSPOSEs, of which one moves a dimension of 1 only."""
    graph = serializer.TosaSerializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
    block = graph.currRegion.currBasicBlock
    shapes = {"image": [1, 5, 7, 3], "turned": [1, 3, 5, 7], "shifted": [3, 1, 5, 7], "result": [3, 1, 5, 7]}
    for name, shape in shapes.items():
        block.addTensor(name, shape, serializer.DType.FP32)
    block.addInput("image")
    for source, result, perms in (("image", "turned", [0, 3, 1, 2]), ("turned", "shifted", [1, 0, 2, 3])):
        attribute = serializer.TosaSerializerAttribute()
        attribute.TransposeAttribute(perms)
        block.addOperator(serializer.Op.TRANSPOSE, [source], [result], attribute)
    attribute = serializer.TosaSerializerAttribute()
    attribute.TanhAttribute()
    block.addOperator(serializer.Op.TANH, ["shifted"], ["result"], attribute)
    block.addOutput("result")
    return bytes(graph.serialize())


# Lower and run


def test_lower_writes_the_contract_beside_the_graph(made):
    assert {file.name for file in made.iterdir()} == {"net.tosa", "net.tosa.json", "x.npy"}


def test_run_gives_the_numbers_of_the_network(made, tmp_path, capfd):
    argv = ["run", made / "net.tosa", "--input", made / "x.npy", "-o", tmp_path / "y.npy"]
    assert main(list(map(str, argv))) == 0
    out, _ = capfd.readouterr()
    wanted = tiny()(torch.from_numpy(np.load(made / "x.npy"))).detach()
    assert np.allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-6)
    assert out.startswith("output0  2 x 5  float32  NC (0, 1)\n") and out.endswith("converted nothing\n")


def test_run_guards_the_input(made, tmp_path, capfd):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.load(made / "x.npy")))
    files = ["run", str(made / "net.tosa"), "--input", str(tmp_path / "x.npy")]
    assert main(files) == 0
    assert "converted 1, 840 bytes\n  x: (3, 2, 1, 0) -> NCHW" in capfd.readouterr().out
    assert "promised in NCHW" in refused(capfd, [*files, "--on-mismatch", "error"], 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-o net.pte --target tosa", "no .tosa, which is what target tosa writes"),
        ("-o net.bin", "a suffix that no target writes\n  fix: name it net with one of .pt2 (torch)"),
        ("-o net --target tosa", "name it net.tosa"),
        ("-o net.tosa --target tosa --json net.tosa.json", "given for two files"),
        ("-o folder/net.tosa --target tosa", "folder/net.tosa.json\n  found: a folder or a device"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused_before_the_work_begins(
    options, words, capfd, tmp_path, monkeypatch
):
    (tmp_path / "folder" / "net.tosa.json").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert words in refused(capfd, ["lower", f"{HERE}:fails", *options.split()], 2)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("broken", "code", "words"),
    [
        ("missing graph", 2, "net.tosa: No such file"),
        ("missing contract", 2, "net.tosa.json: No such file"),
        ("cut graph", 1, "is not of these 900 bytes"),
        ("cut contract", 1, "net.tosa.json: no JSON"),
        ("other contract", 1, "its seal differs"),
    ],
)
def test_a_pair_that_is_broken_is_refused(made, broken, code, words, capfd, tmp_path):
    what, name = broken.split()
    files = {
        name: (made / f"net.tosa{end}").read_bytes() for name, end in (("graph", ""), ("contract", ".json"))
    }
    if what == "missing":
        del files[name]
    elif what == "cut":
        files[name] = files[name][:900] if name == "graph" else files[name][:90]
    else:
        files[name] = files[name].replace(b'"output0"', b'"output1"')
    for kind, data in files.items():
        (tmp_path / ("net.tosa" if kind == "graph" else "net.tosa.json")).write_bytes(data)
    assert words in refused(capfd, ["run", tmp_path / "net.tosa", "--input", made / "x.npy"], code)


# Check


def test_check_counts_what_a_graph_of_ours_holds(made, capfd):
    assert main(["check", str(made / "net.tosa")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["input", "x", "2", "x", "3", "x", "5", "x", "7", "FP32"]
    assert lines[1].startswith("output  ") and lines[1].endswith("  2 x 5          FP32")
    assert "       2  CONV2D" in lines and lines[-1] == "transposes  1, 840 bytes moved"


def test_check_reads_a_graph_that_others_wrote_whatever_it_is_called(capfd, tmp_path):
    (tmp_path / "graph.bin").write_bytes(foreign())
    assert main(["check", str(tmp_path / "graph.bin"), "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert set(data) == documented_keys("check")
    assert data["inputs"] == [{"name": "image", "shape": [1, 5, 7, 3], "dtype": "FP32"}]
    assert data["outputs"] == [{"name": "result", "shape": [3, 1, 5, 7], "dtype": "FP32"}]
    assert data["operators"] == {"TANH": 1, "TRANSPOSE": 2} and data["operator_count"] == 3
    assert (data["transposes"], data["transpose_bytes"]) == (1, 4 * 3 * 5 * 7)
    assert (data["format"], data["version"]) == ("tosa", "1.0.0")


def test_check_writes_its_json_beside_what_it_prints(made, capfd, tmp_path):
    assert main(["check", str(made / "net.tosa"), "--json", str(tmp_path / "net.json")]) == 0
    assert json.loads((tmp_path / "net.json").read_text())["transposes"] == 1
    assert "CONV2D" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "0 bytes that do not begin as a .tflite file or a .tosa graph or a .pte program does"),
        (b"\x00\x00\x00\x00TOSA", "a damaged flatbuffer"),
        (foreign()[:300], "a damaged flatbuffer"),
    ],
    ids=["missing", "empty", "a head alone", "cut off"],
)
def test_check_refuses_what_is_no_tosa_file(content, words, capfd, tmp_path):
    if content is not None:
        (tmp_path / "net.tosa").write_bytes(content)
    text = refused(capfd, ["check", tmp_path / "net.tosa"], 2 if content is None else 1)
    assert words in text and text.startswith(f"check {tmp_path / 'net.tosa'}\n")


def test_check_needs_no_torch_to_refuse(tmp_path, capfd):
    assert "required: MODEL" in refused(capfd, ["check"], 2)
    assert "No such file or directory" in refused(capfd, ["check", tmp_path / "x", "--json", "no/x.json"], 2)
