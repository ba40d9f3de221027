"""Test what a command takes as a model, and the error for each model that is wrong."""

from __future__ import annotations

import sys
import zipfile

import pytest
import torch

from dimorder import api, targets
from dimorder.cli import main, models
from tests.cli.commands import HERE, INPUT, SHAPE, refused, tiny
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("at_root")

# An exported program as MODEL


@pytest.fixture(scope="module")
def pt2(tmp_path_factory):
    file = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(tiny(), (torch.randn(SHAPE),)), file)
    return file


def test_a_pt2_needs_no_input_and_may_repeat_it(pt2, capfd):
    assert main(["plan", str(pt2)]) == 0
    alone = capfd.readouterr().out
    assert main(["plan", str(pt2), *INPUT]) == 0
    assert capfd.readouterr().out == alone


def test_a_pt2_refuses_other_inputs_and_arguments(pt2, capfd):
    assert "exported for 2x3x5x7:float32" in refused(capfd, ["plan", pt2, "--input", "1x3x5x7"], 2)
    assert "leave them out" in refused(capfd, ["plan", pt2, "--arg", "width=3"], 2)


def test_a_pt2_has_no_inputs_by_name(pt2, capfd):
    text = refused(capfd, ["plan", pt2, "--input", "x=2x3x5x7"], 2)
    assert "an input by name" in text and "fix: leave --input out" in text


@pytest.mark.parametrize("writer", ["torch.save", "torch.jit.save"])
def test_an_archive_of_another_function_of_torch_is_named(writer, capfd, tmp_path):
    file = tmp_path / "weights.pt2"
    if writer == "torch.save":
        torch.save(tiny().state_dict(), file)
    else:
        torch.jit.save(torch.jit.trace(tiny(), torch.randn(SHAPE)), file)
    text = refused(capfd, ["plan", file], 2)
    assert f"{writer} wrote it, and it holds no exported program" in text
    assert "torch.export.save(torch.export.export(network, inputs), file)" in text
    assert f"{writer} wrote it" in refused(capfd, ["run", file], 1)


def test_a_module_of_wrong_syntax_is_told_with_its_line(capfd, tmp_path, monkeypatch):
    (tmp_path / "wrong_syntax.py").write_text("x = 1\ny = = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = refused(capfd, ["plan", "wrong_syntax:Net", *INPUT], 1)
    assert (
        "found: importing wrong_syntax raised SyntaxError: invalid syntax (wrong_syntax.py, line 2)\n" in text
    )


def test_a_truncated_pt2_is_refused(pt2, capfd, tmp_path):
    cut = tmp_path / "cut.pt2"
    whole = pt2.read_bytes()
    for content in (whole[:2000], whole[:-200] + bytes(100) + whole[-100:]):
        cut.write_bytes(content)
        assert "not a readable exported program" in refused(capfd, ["plan", cut], 2)


@pytest.mark.parametrize("suffix", [".pte", ".tflite", ".tosa"])
def test_a_lowered_file_is_no_network(suffix, capfd, tmp_path):
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"whatever")
    for command in ("plan", "inspect", "bench"):
        text = refused(capfd, [command, file], 2)
        assert "is lowered for target" in text and f"dimorder check {file}" in text


def test_a_compiled_pt2_is_no_network(capfd, tmp_path):
    file = tmp_path / "net.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"net/{targets.info('inductor').member}/model.so", b"")
    for command in ("plan", "check"):  # check reads no such file
        text = refused(capfd, [command, file], 2)
        assert "is lowered for target inductor already" in text
        assert text.endswith(f"give the network; of this file: dimorder run {file}")


def test_the_file_of_a_module_is_no_network(capfd, tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "fix: write nets:NAME" in refused(capfd, ["plan", "nets.py"], 2)
    assert "fix: write nets:Conv" in refused(capfd, ["plan", "nets.py:Conv"], 2)


# What cannot be meant, and what fails


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        (
            "no_such_library:net",
            "pip install no_such_library torch==2.13.0, or run dimorder in the folder that holds",
        ),
        ("tests.no_such_module:net", "install it, or run dimorder in the folder that holds tests"),
    ],
)
def test_only_a_library_that_is_missing_is_to_be_installed_by_pip(spec, fix, monkeypatch, capfd):
    monkeypatch.setattr(models, "_LIBRARIES", ("no_such_library", "tests"))
    assert refused(capfd, ["plan", spec, *INPUT], 2).splitlines()[2].startswith(f"  fix: {fix}")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["plan"], 2, "required: MODEL"),
        (["plan", "resnet18", *INPUT], 2, "give mynet:Net for the class or function Net"),
        (["plan", "missing.pt2"], 2, "no such file"),
        (["plan", "no_such_package.nets:net", *INPUT], 2, "no module named 'no_such_package'"),
        (["plan", "tests.no_such_module:net", *INPUT], 2, "no module named 'tests.no_such_module'"),
        (["plan", f"{HERE}:Tinny", *INPUT], 2, "did you mean Tiny"),
        (["plan", f"{HERE}:A_NUMBER", *INPUT], 2, "found: an object of type int"),
        (["plan", f"{HERE}:no_network", *INPUT], 2, "it gives an object of type str"),
        (["plan", f"{HERE}:fails", *INPUT], 1, "ValueError: the weights (networks.py:"),
        (["plan", f"{HERE}:Tiny", "--arg", "depth=3", *INPUT], 2, "unexpected keyword argument 'depth'"),
        (["plan", f"{HERE}:PARTIAL", *INPUT], 2, "give --arg key=value as PARTIAL(dtype: 'str')"),
        (["plan", f"{HERE}:READY", "--arg", "depth=3", *INPUT], 2, "a network already"),
        (["plan", f"{HERE}:Tiny", "--arg", "depth", *INPUT], 2, "no key=value"),
        (["plan", f"{HERE}:Tiny"], 2, "missing a required argument: 'x'"),
        (["plan", f"{HERE}:Tiny", *INPUT, *INPUT], 2, "too many positional arguments"),
        (["plan", f"{HERE}:Tiny", "--input", "y=2x3x5x7"], 2, "'y', which is no argument of forward"),
        (["plan", f"{HERE}:Tiny", "--input", "x=2x3x5x7", "--input", "x=2x3x5x7"], 2, "more than once"),
        (["plan", f"{HERE}:Tiny", "--input", "2x4x5x7"], 2, "to have 3 channels, but got 4 channels"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x5x7:int64"], 2, "2x3x5x7, on which it raises RuntimeError"),
        (
            ["plan", f"{HERE}:Tiny", "--arg", "width=4", "--arg", "width=8", *INPUT],
            2,
            "second value of width",
        ),
        (["plan", f"{HERE}:Tiny", "--range", "H=4..8", "--range", "H=2..9"], 2, "give --range H= once"),
        (["plan", f"{HERE}:Tiny", "--cost-at", "N=4", "--cost-at", "N=8"], 2, "a second value of N"),
        (["plan", f"{HERE}:Tiny", "--option", "cpu=a", "--option", "cpu=b"], 2, "a second value of cpu"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target", ""], 2, "an empty text for --target"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target="], 2, "an empty text for --target"),
        (["plan", ""], 2, "an empty text for MODEL"),
        (["check", "a.pte", ""], 2, "an empty text for FILE"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x-5x7"], 2, "no shape"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x0x7"], 2, "size 0"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x5x7:f32"], 2, "no dtype 'f32'"),
        (["plan", f"{HERE}:Tiny", "--input", "99999x3x99999x99999"], 2, "more than this machine's memory"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NLC"], 2, "an order of 3 dims for a tensor of 4"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHCW"], 2, "give one of NCHW, NHWC"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "x=NHWC"], 2, "no order of this name for 4 dims"),
        (
            ["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHWC", "--input-order", "NHWC"],
            2,
            "2 for 1 inputs",
        ),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target", "tpu"], 2, "no target 'tpu'"),
        (
            ["plan", f"{HERE}:Tiny", *INPUT, "--target", "XNNPACK"],
            2,
            "fix: did you mean xnnpack? choose one of",
        ),
        (["plan", f"{HERE}:Tiny", *INPUT, "--objective", "speed"], 2, "no objective of target torch"),
        (["lower", f"{HERE}:Tiny", *INPUT], 2, "nothing to write"),
        (["lower", f"{HERE}:fails", "-o", "no/such/folder/x.pte"], 2, "No such file or directory"),
        (["lower", f"{HERE}:fails", "-o", "tests"], 2, "a folder or a device"),
        (["lower", f"{HERE}:fails", "-o", "/dev/null"], 2, "a folder or a device"),
        (["plan", f"{HERE}:fails", "--json", "x.json", "--explorer", "x.json"], 2, "given for two files"),
        (
            ["lower", f"{HERE}:Tiny", *INPUT, "-o", "x.onnx"],
            2,
            ".tflite (litert), .tosa (tosa), .pte (xnnpack)",
        ),
        (["lower", f"{HERE}:Tiny", *INPUT, "-o", ".pte"], 2, "fix: name it net with one of .pt2"),
        (["plan", "tests"], 2, "MODEL tests\n  found: a folder"),
        (
            ["plan", f"{HERE}:Tiny", "--target", "xnnpack", "--option", "cpu"],
            2,
            "--option cpu\n  found: no value",
        ),
        (["plan", "tests.cli:networks"], 2, "write tests.cli.networks:NAME"),
        (["plan", f"{HERE}:Named", *INPUT], 2, "; for a list or a dict of tensors, give a .pt2"),
        (["plan", f"{HERE}:Listed", *INPUT, *INPUT], 2, "; for a list or a dict of tensors, give a .pt2"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target", "xnpack"], 2, "did you mean xnnpack?"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target", "tflite"], 2, "did you mean litert?"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--objective", "time"], 2, "of target torch, but of xnnpack"),
        (
            ["plan", f"{HERE}:Tiny", *INPUT, "--input-type", "uint8"],
            1,
            "fix: quantise the network first",
        ),
        (["explain", f"{HERE}:Tiny", *INPUT, "--conversion", "one"], 2, "invalid int value"),
        (["lowr"], 2, "invalid choice: 'lowr'"),
        (["plan", f"{HERE}:Tiny", "--inputs", "2x3x5x7"], 2, "see dimorder plan --help"),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else "",
)
def test_bad_input_ends_in_three_lines(argv, code, words, capfd):
    before = sorted(ROOT.iterdir())
    assert words in refused(capfd, argv, code)
    assert sorted(ROOT.iterdir()) == before


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["plan", f"{HERE}:exits", *INPUT], "SystemExit: 0 (networks.py:"),
        (["plan", f"{HERE}:exits", "--arg", "code=3", *INPUT], "SystemExit: 3 (networks.py:"),
        *(
            ([command, f"{HERE}:Exits", *INPUT], "SystemExit: 0 (networks.py:")
            for command in ("plan", "inspect", "check", "bench")
        ),
    ],
)
def test_a_network_that_ends_python_is_an_error(argv, found, capfd):
    lines = refused(capfd, argv, 1).splitlines()
    assert lines[0] == f"MODEL {argv[1]}" and lines[1].startswith(f"  found: its code raised {found}")
    assert lines[2] == "  fix: take the exit out, or put it under if __name__ == '__main__'"


def test_what_nobody_expected_is_told_in_three_lines_too(capfd, monkeypatch):
    def broken(*args, **options):
        raise IndexError("tuple index\nout of range")

    monkeypatch.setattr(api, "plan", broken)
    text = refused(capfd, ["plan", f"{HERE}:Tiny", *INPUT], 1)
    assert "IndexError" in text and "tuple index out of range" in text and "--debug" in text
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--debug"]) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err
