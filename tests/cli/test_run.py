"""Test what `dimorder run` reads, writes and prints, and the error for each run that is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from dimorder.cli import main, tensors
from tests.cli import networks
from tests.cli.commands import HERE, SHAPE, documented_keys, refused, tiny

pytestmark = pytest.mark.usefixtures("at_root")


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


def test_complex_numbers_are_told_by_their_magnitudes():
    found = tensors.statistics(torch.tensor([[3 + 4j, -12j], [1 + 0j, complex("nan")]]))
    assert found["largest"][0] == {"place": [0, 1], "value": 12.0}
    assert (found["minimum"], found["maximum"], found["mean"], found["not_finite"]) == (1.0, 12.0, 6.0, 1)


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
        (
            "run x.npy --input x.npy",
            1,
            "4)\n  fix: give a .pte; dimorder.load and dimorder run also take a .tflite, .tosa or .pt2 of",
        ),
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
        ("run net.pte --input image.png --std=-1", 2, "-1, a negative value"),
        ("run net.pte --input image.png --std inf", 2, "--std\n  found: a value that is not finite"),
        ("run net.pte --input image.png --mean nan,0,0", 2, "--mean\n  found: a value that is not finite"),
        ("run net.pte --input image.png --mean 0,123.675", 2, "such as 123.675 / 255 = 0.485"),
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
