"""Decides what the commands must do: what they write and say, and how each way of going wrong ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dimorder import api, cli
from dimorder.cli import main, tensors
from tests.cli import networks
from tests.conftest import ROOT

HERE = "tests.cli.networks"
SHAPE = (2, 3, 5, 7)
INPUT = ["--input", "2x3x5x7"]

JSON_KEYS = {
    *("target", "inputs", "outputs", "conversions", "conversion_count", "cost", "cost_unit", "lower_bound"),
    *("optimal", "candidates", "solver", "constant_bytes_added", "delegates", "outside", "verify", "seconds"),
    *("opaque", "outside_calls", "blocks", "ranges", "wasted_levels", "float_islands", "npu"),
}
WITH_QUANTIZE = {"fidelity"}


pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with net.pte, plan.json and report.html, all by one `lower`; the width is not the default."""
    folder = tmp_path_factory.mktemp("made")
    os.chdir(ROOT)
    files = ["-o", folder / "net.pte", "--json", folder / "plan.json", "--report", folder / "report.html"]
    assert main(["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, *map(str, files)]) == 0
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The .pte of a network with two inputs and two outputs, of which one is promised in NHWC."""
    file = tmp_path_factory.mktemp("two") / "two.pte"
    os.chdir(ROOT)
    orders = ["--input-order", "NHWC", "--input-order", "NC", "--output-order", "NHWC"]
    inputs = ["--input", "1x3x4x6", "--input", "2x9"]
    assert main(["lower", f"{HERE}:TwoInTwoOut", *inputs, *orders, "-o", str(file)]) == 0
    return file


def tiny():
    torch.manual_seed(0)
    return networks.Tiny(4).eval()


def refused(capfd, argv, code):
    """The three lines that a command ends with."""
    assert main([str(arg) for arg in argv]) == code
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("dimorder: ")]
    assert out == "" and len(lines) == 3, err
    assert lines[1].startswith("  found: ") and lines[2].startswith("  fix: ")
    return "\n".join(lines)


# Lower, plan, explain


def test_lower_writes_what_it_is_asked_for_and_nothing_else(made):
    assert sorted(file.name for file in made.iterdir()) == ["net.pte", "plan.json", "report.html"]
    assert (made / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("what", "first", "word"),
    [("captured", "x ", "convolution(x, "), ("plan", "input ", "cost "), ("physical", "x ", "conv2d_nhwc(")],
)
def test_lower_prints_what_it_is_asked_for_and_nothing_else(what, first, word, capfd):
    argv = ["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, "--target", "torch", "--print", what]
    assert main(argv) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(first) and word in out
    assert "verified" not in out and ("output0" in out.splitlines()[-1] or what == "plan")


def test_lower_json_has_the_stable_keys(made):
    data = json.loads((made / "plan.json").read_text())
    assert set(data) == JSON_KEYS
    (conversion,) = data["conversions"]
    assert set(conversion) == {"value", "shape", "from", "to", "bytes", "producer", "consumers"}
    assert conversion["producer"] == "contract"
    (consumer,) = conversion["consumers"]
    assert consumer["operator"] == "aten.convolution" and "networks.py:" in consumer["source"]
    assert data["conversion_count"] == 1 and data["cost"] == conversion["bytes"] == 4 * 2 * 3 * 5 * 7
    assert data["cost_unit"] == "bytes" and data["lower_bound"] == data["cost"] and data["optimal"] is True
    assert data["delegates"] == 1 and data["outside"] == {} and data["verify"]["max_rel_error"] < 1e-5
    assert data["seconds"]["total"] == pytest.approx(sum(data["seconds"].values()) / 2)


def test_docs_name_exactly_the_keys_of_json():
    assert documented_keys("lower") == JSON_KEYS | WITH_QUANTIZE


def documented_keys(command):
    sections = (ROOT / "docs" / "json.md").read_text().split("\n## ")
    (section,) = (text for text in sections if text.startswith(f"`dimorder {command} --json`"))
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def test_json_on_stdout_is_alone_there(capfd):
    assert main(["plan", f"{HERE}:is_noisy", *INPUT, "--json"]) == 0
    out, _ = capfd.readouterr()
    assert set(json.loads(out)) < JSON_KEYS


def test_plan_prints_the_plan(capfd):
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHWC"]) == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[0] == "input   x        2 x 3 x 5 x 7  float32  NHWC (0, 2, 3, 1)"
    assert "conversions  none" in out


def test_plan_takes_a_module_as_it_is(capfd):
    assert main(["plan", f"{HERE}:READY", *INPUT, "--target", "torch", "--objective", "count"]) == 0
    assert "target  torch" in capfd.readouterr().out


def test_inputs_by_name_and_of_integers(capfd):
    inputs = ["--input", "2x3:int64", "--input", "mask=2x3"]
    assert main(["plan", f"{HERE}:Ids", *inputs]) == 0
    assert "int64" in capfd.readouterr().out


def test_explain_gives_each_reason(capfd):
    assert main(["explain", f"{HERE}:Tiny", *INPUT]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith("0  x 2×3×5×7: NCHW (0, 1, 2, 3) → NHWC (0, 2, 3, 1)")
    assert "promise input x in NHWC" in out


def test_explain_of_a_plan_without_conversions(capfd):
    nhwc = ["--input-order", "NHWC"]
    assert main(["explain", f"{HERE}:Tiny", *INPUT, *nhwc]) == 0
    assert capfd.readouterr().out == "no conversions: nothing to explain\n"
    text = refused(capfd, ["explain", f"{HERE}:Tiny", *INPUT, *nhwc, "--conversion", "0"], 2)
    assert "a plan of no conversions" in text


def test_explain_tells_of_the_state_too(capfd):
    orders = ["--input-order", "NHWC", "--output-order", "NHWC", "--target", "xnnpack"]
    model = ["tests.zoo.stateful:StreamingConv2d", "--input", "1x3x2x9"]
    assert main(["explain", *model, *orders]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "no conversions",
        "state rows: NHWC (0, 2, 3, 1) at entry and exit",
        "    in another order the best plan costs 432 bytes instead of 0",
        "state features: NHWC (0, 2, 3, 1) at entry and exit",
        "    in another order the best plan costs 2,160 bytes instead of 0",
    ]
    assert main(["explain", *model, *orders, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(each["state"]["name"], each["cost_otherwise"]) for each in told] == [
        ("rows", 432),
        ("features", 2160),
    ]


def test_explain_refuses_a_number_that_is_not_there(capfd):
    text = refused(capfd, ["explain", f"{HERE}:Tiny", *INPUT, "--conversion", "1"], 2)
    assert "give 0 to 0" in text


def test_an_operator_that_no_rule_knows_is_named_and_the_plan_still_comes(capfd):
    assert main(["plan", f"{HERE}:Unruly", "--input", "2x3x5x5"]) == 0
    out, _ = capfd.readouterr()
    line = 1 + next(
        number
        for number, text in enumerate(Path(networks.__file__).read_text().splitlines())
        if "linalg.inv(" in text
    )
    assert f"\n  aten.linalg_inv_ex (networks.py:{line}): " in out


def test_an_operator_without_a_kernel_is_refused_by_name_and_leaves_no_file(capfd, tmp_path):
    file = tmp_path / "net.pte"
    text = refused(capfd, ["lower", f"{HERE}:Unruly", "--input", "2x3x5x5", "-o", file], 1)
    assert "linalg_inv" in text and "networks.py:" in text
    assert list(tmp_path.iterdir()) == []


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


def test_a_truncated_pt2_is_refused(pt2, capfd, tmp_path):
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(pt2.read_bytes()[:2000])
    assert "not a readable exported program" in refused(capfd, ["plan", cut], 2)


# What cannot be meant, and what fails


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["plan"], 2, "required: MODEL"),
        (["plan", "resnet18", *INPUT], 2, "neither a .pt2 file nor package.module:factory"),
        (["plan", "missing.pt2"], 2, "no such file"),
        (["plan", "no_such_package.nets:net", *INPUT], 2, "no module named 'no_such_package'"),
        (["plan", "tests.no_such_module:net", *INPUT], 2, "no module named 'tests.no_such_module'"),
        (["plan", f"{HERE}:Tinny", *INPUT], 2, "did you mean Tiny"),
        (["plan", f"{HERE}:A_NUMBER", *INPUT], 2, "found: a int"),
        (["plan", f"{HERE}:no_network", *INPUT], 2, "it gives a str"),
        (["plan", f"{HERE}:fails", *INPUT], 1, "ValueError: the weights (networks.py:"),
        (["plan", f"{HERE}:Tiny", "--arg", "depth=3", *INPUT], 2, "unexpected keyword argument 'depth'"),
        (["plan", f"{HERE}:READY", "--arg", "depth=3", *INPUT], 2, "a network already"),
        (["plan", f"{HERE}:Tiny", "--arg", "depth", *INPUT], 2, "no key=value"),
        (["plan", f"{HERE}:Tiny"], 2, "missing a required argument: 'x'"),
        (["plan", f"{HERE}:Tiny", *INPUT, *INPUT], 2, "too many positional arguments"),
        (["plan", f"{HERE}:Tiny", "--input", "y=2x3x5x7"], 2, "forward(x: "),
        (["plan", f"{HERE}:Tiny", "--input", "x=2x3x5x7", "--input", "x=2x3x5x7"], 2, "more than once"),
        (["plan", f"{HERE}:Tiny", "--input", "2x4x5x7"], 2, "to have 3 channels, but got 4 channels"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x5x7:int64"], 2, "2x3x5x7, on which it raises RuntimeError"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x-5x7"], 2, "no shape"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x0x7"], 2, "size 0"),
        (["plan", f"{HERE}:Tiny", "--input", "2x3x5x7:f32"], 2, "no dtype 'f32'"),
        (["plan", f"{HERE}:Tiny", "--input", "99999x3x99999x99999"], 2, "more than this machine's memory"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NLC"], 2, "right rank"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHCW"], 2, "NHCW"),
        (
            ["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHWC", "--input-order", "NHWC"],
            2,
            "2 for 1 inputs",
        ),
        (["plan", f"{HERE}:Tiny", *INPUT, "--target", "tpu"], 2, "no target 'tpu'"),
        (["plan", f"{HERE}:Tiny", *INPUT, "--objective", "speed"], 2, "invalid choice: 'speed'"),
        (["lower", f"{HERE}:Tiny", *INPUT], 2, "nothing to write"),
        (["lower", f"{HERE}:fails", "-o", "no/such/folder/x.pte"], 2, "No such file or directory"),
        (["lower", f"{HERE}:fails", "-o", "tests"], 2, "a folder or a device"),
        (["lower", f"{HERE}:fails", "-o", "/dev/null"], 2, "a folder or a device"),
        (["lower", f"{HERE}:fails", "-o", "x.pte", "--json", "x.pte"], 2, "given for two files"),
        (["explain", f"{HERE}:Tiny", *INPUT, "--conversion", "one"], 2, "invalid int value"),
        (["lowr"], 2, "invalid choice: 'lowr'"),
        (["plan", f"{HERE}:Tiny", "--inputs", "2x3x5x7"], 2, "unrecognized arguments"),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else "",
)
def test_bad_input_ends_in_three_lines(argv, code, words, capfd):
    before = sorted(ROOT.iterdir())
    assert words in refused(capfd, argv, code)
    assert sorted(ROOT.iterdir()) == before


def test_what_nobody_expected_is_told_in_three_lines_too(capfd, monkeypatch):
    def broken(*args, **options):
        raise IndexError("tuple index\nout of range")

    monkeypatch.setattr(api, "plan", broken)
    text = refused(capfd, ["plan", f"{HERE}:Tiny", *INPUT], 1)
    assert "IndexError" in text and "tuple index out of range" in text and "--debug" in text
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--debug"]) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


# Run


def test_run_gives_the_numbers_of_the_network(made, tmp_path, capfd):
    x = torch.randn(SHAPE)
    np.save(tmp_path / "x.npy", x.numpy())
    argv = ["run", made / "net.pte", "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npy"]
    assert main(list(map(str, argv))) == 0
    out, _ = capfd.readouterr()
    wanted = tiny()(x).detach()
    assert np.allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-6)
    top = divmod(int(wanted.argmax()), 5)
    assert out.startswith(f"output0  2 x 5  float32  NC (0, 1)\n  largest  [{top[0]}, {top[1]}] ")
    assert out.endswith("guard  converted nothing\n")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_run_takes_and_gives_half_precision(dtype, tmp_path):
    """numpy has no bfloat16: float32 stands for it on either side."""
    argv = ["lower", f"{HERE}:half", "--arg", f"dtype={dtype}", "--input", f"2x3x5x7:{dtype}"]
    assert main([*argv, "--target", "xnnpack", "-o", str(tmp_path / "net.pte")]) == 0
    held = torch.float16 if dtype == "float16" else torch.float32
    x = torch.randn(SHAPE).to(getattr(torch, dtype))
    np.save(tmp_path / "x.npy", x.to(held).numpy())
    files = ["--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy")]
    assert main(["run", str(tmp_path / "net.pte"), *files]) == 0
    got, wanted = np.load(tmp_path / "y.npy"), networks.half(dtype)(x).detach().float().numpy()
    assert got.dtype == (np.float16 if dtype == "float16" else np.float32)
    assert np.abs(got - wanted).max() <= 2 * torch.finfo(x.dtype).eps * np.abs(wanted).max()


def test_run_takes_an_array_as_it_lies(made, tmp_path, capfd):
    x = torch.randn(SHAPE)
    np.save(tmp_path / "x.npy", np.asfortranarray(x.numpy()))
    files = ["run", str(made / "net.pte"), "--input", str(tmp_path / "x.npy")]
    assert main([*files, "-o", str(tmp_path / "y.npy")]) == 0
    assert "converted 1, 840 bytes\n  x: (3, 2, 1, 0) -> NCHW" in capfd.readouterr().out
    assert np.allclose(np.load(tmp_path / "y.npy"), tiny()(x).detach(), rtol=1e-4, atol=1e-6)
    assert "promised in NCHW" in refused(capfd, [*files, "--on-mismatch", "error"], 1)
    assert main([*files, "--on-mismatch", "warn"]) == 0
    assert "promised in NCHW" in capfd.readouterr().err


def test_run_json_tells_of_outputs_and_conversions(made, tmp_path, capfd):
    x = torch.randn(SHAPE)
    np.save(tmp_path / "x.npy", np.asfortranarray(x.numpy()))
    argv = ["run", str(made / "net.pte"), "--input", str(tmp_path / "x.npy"), "--json"]
    assert main(argv) == 0
    data = json.loads(capfd.readouterr().out)
    assert main([*argv, str(tmp_path / "y.json")]) == 0
    assert "guard  converted 1" in capfd.readouterr().out
    assert json.loads((tmp_path / "y.json").read_text()) == data
    assert set(data) == documented_keys("run") - {"rounds", "expect"}  # these are of dimorder-run
    assert data["program"] == str(made / "net.pte") and data["inputs"][0]["shape"] == [2, 3, 5, 7]
    (output,) = data["outputs"]
    wanted = tiny()(x).detach()
    assert output["shape"] == [2, 5] and output["order"] == "NC" and output["not_finite"] == 0
    found = [output[key] for key in ("minimum", "maximum", "mean")]
    assert found == pytest.approx([float(each()) for each in (wanted.min, wanted.max, wanted.mean)], rel=1e-4)
    assert output["largest"][0] == {
        "place": [*divmod(int(wanted.argmax()), 5)],
        "value": output["maximum"],
    }
    assert data["guard"]["conversions"] == 1 and data["guard"]["cost_bytes"] == 840
    (converted,) = data["guard"]["converted"]
    wanted = {"tensor": "x", "found": "(3, 2, 1, 0)", "promised": "NCHW (0, 1, 2, 3)", "bytes": 840}
    assert converted == wanted


def test_of_equal_values_the_first_ones_are_told():
    found = tensors.statistics(torch.tensor([[1.0, 3.0, torch.nan], [3.0, torch.inf, 1.0], [3.0, 1.0, 1.0]]))
    assert [each["place"] for each in found["largest"]] == [[0, 1], [1, 0], [2, 0], [0, 0], [1, 2]]
    assert found["not_finite"] == 2 and found["maximum"] == 3


def test_run_normalises_an_image_that_lies_channels_last(two, tmp_path, capfd):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    np.save(tmp_path / "sound.npy", torch.randn(2, 9).numpy())
    argv = ["run", two, f"--input=sound={tmp_path / 'sound.npy'}", "--input", tmp_path / "image.png"]
    argv += ["--mean", "0.5,0.25,0", "--std", "0.5", "-o", tmp_path / "y.npz"]
    assert main(list(map(str, argv))) == 0
    assert "guard  converted nothing" in capfd.readouterr().out
    with np.load(tmp_path / "y.npz") as outputs:
        assert sorted(outputs) == ["output0", "output1"]
        wanted = 2 * (pixels / 255 - [0.5, 0.25, 0]) / 0.5
        assert np.allclose(outputs["output0"], wanted.transpose(2, 0, 1)[None], atol=1e-5)


def test_run_resizes_an_image_to_the_contract(two, tmp_path):
    Image.new("L", (31, 17), 51).save(tmp_path / "image.png")
    np.save(tmp_path / "sound.npy", torch.randn(2, 9).numpy())
    argv = ["run", two, "--input", tmp_path / "image.png", "--input", tmp_path / "sound.npy"]
    assert main([*map(str, argv), "-o", str(tmp_path / "y.npz")]) == 0
    with np.load(tmp_path / "y.npz") as outputs:
        assert np.allclose(outputs["output0"], np.full((1, 3, 4, 6), 0.4))


@pytest.fixture(scope="module")
def arrays(tmp_path_factory, made):
    """Files of every kind that does not fit, beside one, x.npy, that does."""
    folder = tmp_path_factory.mktemp("arrays")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "double.npy", x.astype(np.float64))
    np.save(folder / "wide.npy", np.zeros((2, 3, 5, 8), np.float32))
    np.save(folder / "text.npy", np.array(["a", "b"]))
    np.savez(folder / "many.npz", x=x)
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:200])
    (folder / "image.png").write_bytes(b"no image")
    (folder / "cut.pte").write_bytes((made / "net.pte").read_bytes()[:3000])
    (folder / "net.pte").write_bytes((made / "net.pte").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ("run missing.pte --input x.npy", 2, "No such file"),
        ("run cut.pte --input x.npy", 1, "it is cut off"),
        ("run x.npy --input x.npy", 1, "do not begin as a .pte does"),
        ("run net.pte", 2, "0 for 1 inputs"),
        ("run net.pte --input x.npy --input x.npy", 2, "2 for 1 inputs"),
        ("run net.pte --input y=x.npy", 2, "'y' is no input"),
        ("run net.pte --input missing.npy", 2, "No such file"),
        ("run net.pte --input missing.png", 2, "an image, for input 'x'"),
        ("run net.pte --input text.npy", 2, "an array of <U1"),
        ("run net.pte --input many.npz", 2, "a .npz archive"),
        ("run net.pte --input cut.npy", 2, "no .npy file of numbers"),
        ("run net.pte --input double.npy", 1, "torch.float64, where torch.float32 is promised"),
        ("run net.pte --input wide.npy", 1, "shape (2, 3, 5, 8), where (2, 3, 5, 7) is promised"),
        ("run net.pte --input x.npy --mean 0.5", 2, "inputs that are no images"),
        ("run net.pte --input image.png --std 0", 2, "a zero"),
        ("run net.pte --input image.png --mean a,b", 2, "no list of numbers"),
        ("run net.pte --input x.npy -o y.txt", 2, "no .npy or .npz"),
        ("run net.pte --input x.npy -o no/y.npy", 2, "No such file or directory"),
        ("run net.pte --input x.npy --on-mismatch guess", 2, "invalid choice: 'guess'"),
    ],
)
def test_bad_runs_end_in_three_lines(argv, code, words, arrays, capfd, monkeypatch):
    monkeypatch.chdir(arrays)
    before = sorted(arrays.iterdir())
    assert words in refused(capfd, argv.split(), code)
    assert sorted(arrays.iterdir()) == before


def test_run_refuses_several_outputs_for_one_npy(two, capfd, tmp_path):
    text = refused(capfd, ["run", two, "-o", tmp_path / "y.npy"], 2)
    assert "2 outputs for one .npy" in text and "y.npz" in text


@pytest.mark.parametrize(("name", "words"), [("image.png", "cannot identify"), ("none.png", "No such file")])
def test_run_refuses_what_is_no_image(name, words, two, capfd, tmp_path):
    (tmp_path / "image.png").write_bytes(b"no image")
    np.save(tmp_path / "sound.npy", np.zeros((2, 9), np.float32))
    argv = ["run", two, "--input", tmp_path / name, "--input", tmp_path / "sound.npy"]
    assert words in refused(capfd, argv, 2)


# A process of its own


def start(*argv: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dimorder", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        # A shell's background jobs ignore SIGINT, and their children with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.mark.parametrize("factory", ["sleeps", "swallows_interrupts"])
def test_ctrl_c_ends_with_130_and_leaves_no_file(factory, tmp_path):
    run = start("lower", f"{HERE}:{factory}", *INPUT, "-o", "net.pte", "--json", "plan.json", cwd=tmp_path)
    time.sleep(0.5)
    assert run.stderr is not None
    while (
        "tests.cli.networks" not in run.stderr.readline()
    ):  # the factory is what it tells of after two seconds
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err.splitlines()[-1] == "dimorder: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path):
    run = start("lower", "tests.zoo:se_linear", "--input", "1x16x5x7", "-o", "net.pte", cwd=tmp_path)
    assert run.stdout is not None and run.stderr is not None
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait(timeout=300) == 0, err
    assert [line for line in err.splitlines() if not line.startswith("dimorder: ")] == []
    assert [file.name for file in tmp_path.iterdir()] == ["net.pte"]


def test_lowering_torchvision_shows_nothing_of_what_libraries_print(tmp_path):
    # Also where torchvision's compiled part is missing, and from a folder that is not the repository.
    argv = ["torchvision.models:squeezenet1_1", "--arg", "num_classes=7", "--input", "1x3x32x40"]
    out, err = (run := start("lower", *argv, "-o", "net.pte", cwd=tmp_path)).communicate(timeout=300)
    assert run.returncode == 0, err
    assert [line for line in err.splitlines() if not line.startswith("dimorder: ")] == []
    assert out.splitlines()[-1].startswith("written      net.pte, ")
    assert [file.name for file in tmp_path.iterdir()] == ["net.pte"]


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom dimorder.cli import main\n"
        "try:\n    main(['lower', '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "examples:" in run.stdout


EXAMPLES = {"dimorder": cli.EXAMPLES, **{command.name: command.examples for command in cli.COMMANDS}}


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_example_in_the_help_is_one(command):
    lines = [line for line in EXAMPLES[command].splitlines() if line.startswith("  dimorder ")]
    assert len(lines) >= 2
    for line in lines:
        cli.parser().parse_args(shlex.split(line.split(" > ")[0])[1:])


def test_each_command_has_a_file_of_its_own():
    folder = Path(cli.__file__).parent
    for command in cli.COMMANDS:
        file = command.name.replace("-", "_") + ".py"
        assert sys.modules[command.run.__module__].__file__ == str(folder / file)
