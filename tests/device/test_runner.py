"""`dimorder-run` tells and gives what Python's `dimorder run` does: words, outputs, expectations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("executorch")

import dimorder
from tests.conftest import ROOT
from tests.device.runner_programs import TWO, Run, Scale, refused, told_by_python

CALLS = (
    TWO,
    ("one.pte", "--input", "x.npy"),
    ("one.pte", "--input", "turned.npy"),
    ("one.pte", "--input", "special.npy"),
    ("photo.pte", "--input", "photo.ppm", "--mean", "0.5,0.25,0.125", "--std", "0.5"),
    ("brain.pte", "--input", "image.npy"),
    ("sizes.pte", "--input", "x.npy"),
    ("counter.pte", "--input", "seen.npy"),
    ("foreign.pte", "--input", "image.npy"),
)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_text_is_that_of_python(
    call: tuple[str, ...], run: Run, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = run(*call)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == told_by_python(capfd, files, *call)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_json_is_that_of_python(
    call: tuple[str, ...], run: Run, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = (
        json.loads(run(*call, "--json").out),
        json.loads(told_by_python(capfd, files, *call, "--json")),
    )
    for own, other in zip(ours["outputs"], theirs["outputs"], strict=True):
        assert own["mean"] == pytest.approx(other["mean"], rel=1e-9)  # is added up in another order
        own["mean"] = other["mean"]
    assert ours == theirs


def test_json_in_a_file_leaves_the_text_on_stdout(run: Run, files: Path, tmp_path: Path) -> None:
    ran = run(*TWO, "--json", tmp_path / "out.json")
    assert ran.out == run(*TWO).out
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(run(*TWO, "--json").out)


@pytest.mark.parametrize("name", ["two", "sizes", "counter", "foreign"])
def test_inspect_shows_the_contract_as_python_does(name: str, run: Run, files: Path) -> None:
    contract = dimorder.load(files / f"{name}.pte").contract
    text, data = (
        run(f"{name}.pte", "--inspect").out,
        json.loads(run(f"{name}.pte", "--inspect", "--json").out),
    )
    sizes = "".join(f"size    {symbol}\n" for symbol in contract.symbols)
    origin = "none in the file: this is what its own tensors say" if name == "foreign" else "in the file"
    assert text == f"{contract}\n{sizes}contract  {origin}\n"
    assert data.pop("has_contract") == (name != "foreign") and data.pop("program") == f"{name}.pte"
    wanted = {"state": [], **contract.to_dict()}
    assert data == {key: wanted[key] for key in data} and len(data) == 4


# Outputs


def test_outputs_are_written_as_python_writes_them(run: Run, files: Path, tmp_path: Path) -> None:
    assert run(*TWO, "-o", tmp_path / "out").code == 0
    outputs = dimorder.load(files / "two.pte").run(
        *(torch.from_numpy(np.load(files / name)) for name in ("image.npy", "sound.npy"))
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["output0.npy", "output1.npy"]
    for i, output in enumerate(outputs):
        found = np.load(tmp_path / "out" / f"output{i}.npy")
        assert found.flags.c_contiguous and found.tobytes() == output.contiguous().numpy().tobytes()


def test_bfloat16_is_written_as_float32(run: Run, files: Path, tmp_path: Path) -> None:
    assert run("brain.pte", "--input", "image.npy", "-o", tmp_path / "y.npy").code == 0
    x = torch.from_numpy(np.load(files / "image.npy")).bfloat16()
    found = np.load(tmp_path / "y.npy")
    assert found.dtype == np.float32
    assert np.array_equal(found, dimorder.load(files / "brain.pte")(x).float().numpy())


def test_raw_bytes_are_dense_in_the_order_of_the_contract(run: Run, files: Path, tmp_path: Path) -> None:
    image = np.load(files / "image.npy")
    (tmp_path / "image.raw").write_bytes(np.moveaxis(image, 1, 3).tobytes())
    words = ("--input", "sound=sound.npy", "--input", tmp_path / "image.raw")
    outputs, guard = run("two.pte", *words).out.split("guard")
    assert outputs == run(*TWO).out.split("guard")[0] and "converted nothing" in guard
    (tmp_path / "image.raw").write_bytes(bytes(959))
    assert "959 bytes, where the input has 960" in refused(run("two.pte", *words), 2)


def test_several_outputs_take_a_folder(run: Run, tmp_path: Path) -> None:
    assert "name a folder" in refused(run(*TWO, "-o", tmp_path / "y.npz"), 2)
    assert "2 outputs for one .npy" in refused(run(*TWO, "-o", tmp_path / "y.npy"), 2)
    assert list(tmp_path.iterdir()) == []


# Expectations


def test_an_expectation_decides_the_exit_code(run: Run, files: Path, tmp_path: Path) -> None:
    right = np.load(files / "right.npy")
    ran = run("one.pte", "--input", "x.npy", "--expect", "right.npy")
    assert ran.code == 0 and ran.out.splitlines()[-1].endswith(": equal")
    right[1, 2, 3, 4] += 1e-3 * np.abs(right).max()
    np.save(tmp_path / "wrong.npy", right)
    call = ("one.pte", "--input", "x.npy", "--expect", f"output0={tmp_path / 'wrong.npy'}")
    ran = run(*call)
    assert "at [1, 2, 3, 4]" in refused(ran, 1) and ran.out.splitlines()[-1].endswith(": not equal")
    assert run(*call, "--rtol", "1.1e-3").code == 0
    assert run(*call, "--rtol", "0", "--atol", "0.1").code == 0
    (found,) = json.loads(run(*call, "--json").out)["expect"]
    assert not found["equal"] and found["largest_error"] > found["allowed"] > 0


def test_integers_beyond_the_digits_of_a_double_are_compared_exactly(run: Run, tmp_path: Path) -> None:
    x, wanted = np.arange(6).reshape(2, 3) + (1 << 60), tmp_path / "y.npy"
    np.save(tmp_path / "x.npy", x)
    call = ("count.pte", "--input", tmp_path / "x.npy", "--expect", wanted)
    np.save(wanted, x + 1)
    assert run(*call).code == 0
    right = x + 1
    right[1, 2] += 41
    np.save(wanted, right)
    told = "an error of 41 at [1, 2], where 0 is allowed: 1152921504606846982, where 1152921504606847023 is"
    assert told in refused(run(*call), 1)
    assert run(*call, "--atol", "41").code == 0
    np.save(wanted, right.astype(np.float64))
    told = refused(run(*call), 1)
    assert "int64 2 x 3, where float64 2 x 3 is expected" in told
    assert "fix: write the expected values in the output's type and sizes" in told


def test_the_error_of_the_least_and_the_largest_integer_does_not_overflow(run: Run, tmp_path: Path) -> None:
    x = np.array([[1, 2, 3], [4, 5, np.iinfo(np.int64).max - 1]])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.where(x > 9, np.iinfo(np.int64).min, x + 1))
    ran = run("count.pte", "--input", tmp_path / "x.npy", "--expect", tmp_path / "y.npy")
    assert "an error of 1.84467e+19 at [1, 2]" in refused(ran, 1)


@pytest.mark.parametrize(("wanted", "code"), [((np.nan, np.inf, -np.inf), 0), ((np.nan, np.inf, np.inf), 1)])
def test_nan_and_infinities_match_themselves_alone(
    wanted: tuple[float, ...], code: int, run: Run, files: Path, tmp_path: Path
) -> None:
    special = Scale()(torch.from_numpy(np.load(files / "special.npy"))).detach().numpy()
    special[0, 1, 2, :3] = wanted
    np.save(tmp_path / "y.npy", special)
    assert run("one.pte", "--input", "special.npy", "--expect", tmp_path / "y.npy").code == code


def test_exact_is_bit_for_bit(run: Run, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "y.npy"
    call = ("one.pte", "--input", "x.npy")
    assert run(*call, "-o", path).code == 0
    assert run(*call, "--expect", path, "--exact").code == 0
    found = np.load(path)
    found[0, 2, 1, 3] = np.nextafter(found[0, 2, 1, 3], np.float32(np.inf))
    np.save(path, found)
    assert "1 of 210 values have other bits" in refused(run(*call, "--expect", path, "--exact"), 1)
    assert run(*call, "--expect", path).code == 0
    np.save(path, found[:, :, :, :6])
    assert "float32 2 x 3 x 5 x 7, where float32 2 x 3 x 5 x 6" in refused(run(*call, "--expect", path), 1)


# How it runs


def test_a_wrong_order_is_refused_or_told_where_that_is_asked_for(run: Run) -> None:
    call = ("one.pte", "--input", "turned.npy", "--on-mismatch")
    assert "promised in NCHW" in refused(run(*call, "error"), 1)
    told = run(*call, "warn", "--rounds", "3")
    assert told.code == 0 and told.err.count("dimorder: input 'x', promised in NCHW") == 1
    assert "guard  converted 1, 840 bytes\n" in told.out


@pytest.mark.parametrize("loader", ["mmap", "file", "poison", "unmap"])
def test_every_loader_gives_the_same(loader: str, run: Run) -> None:
    ran = run(*TWO, "--loader", loader, "--check-seal")
    assert (ran.code, ran.out, ran.err) == (0, run(*TWO).out, "")


@pytest.mark.parametrize("steps", [1, 4])
def test_state_goes_on_from_step_to_step(steps: int, run: Run, files: Path, tmp_path: Path) -> None:
    program = dimorder.load(files / "counter.pte")
    for _ in range(steps):
        outputs = program.run(torch.from_numpy(np.load(files / "seen.npy")))
    assert run("counter.pte", "--input", "seen.npy", "--steps", steps, "-o", tmp_path).code == 0
    for spec, output in zip(program.contract.outputs, outputs, strict=True):
        assert np.array_equal(np.load(tmp_path / f"{spec.name}.npy"), output.numpy())


def test_rounds_are_timed_with_so_many_threads(run: Run) -> None:
    ran = run(*TWO, "--rounds", 5, "--threads", 2)
    assert ran.code == 0 and ran.out.splitlines()[-1].startswith("time   median ")
    rounds = json.loads(run(*TWO, "--rounds", 5, "--json").out)["rounds"]
    assert rounds["count"] == 5 and 0 < rounds["least_ms"] <= rounds["median_ms"] <= rounds["largest_ms"]


def test_damaged_programs_are_refused(run: Run, files: Path, tmp_path: Path) -> None:
    whole = (files / "one.pte").read_bytes()
    path = tmp_path / "net.pte"
    for loader in ("mmap", "file", "poison"):
        for end in (0, 30, 1000, len(whole) // 2):
            path.write_bytes(whole[:end])
            refused(run(path, "--input", "x.npy", "--loader", loader), 1)
        assert "No such file" in refused(run("missing.pte", "--loader", loader), 2)
    assert "a folder" in refused(run(tmp_path, "--loader", "unmap"), 2)
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert "SHA-256 differs" in refused(run(path, "--input", "x.npy", "--check-seal"), 1)


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        ("", 2, "no PROGRAM.pte"),
        ("one.pte two.pte", 2, "a second program"),
        ("one.pte --guess", 2, "the unknown option --guess"),
        ("one.pte --input", 2, "no value for --input"),
        ("one.pte --exact=yes", 2, "a value for --exact"),
        ("one.pte", 2, "0 for 1 inputs\n  fix: give --input FILE (a picture or .npy) for each of x"),
        ("one.pte --input x.npy --input x.npy", 2, "2 for 1 inputs"),
        ("one.pte --input y=x.npy", 2, "'y' is no input"),
        ("two.pte --input sound=x.npy --input sound=x.npy", 2, "'sound' twice"),
        ("one.pte --input x=", 2, "no file"),
        ("one.pte --input missing.npy", 2, "No such file"),
        ("one.pte --input .", 2, "no .npy"),
        ("one.pte --input many.npz", 2, "a .npz archive"),
        ("one.pte --input photo.jpg", 2, "no .npy, .ppm"),
        ("one.pte --input photo.ppm", 2, "an image, for input 'x' of shape 2 x 3 x 5 x 7"),
        ("one.pte --input seen.npy", 1, "shape (5, 7), where (2, 3, 5, 7) is promised"),
        ("sizes.pte --input x.raw", 2, "bytes without a shape"),
        ("one.pte --input x.npy --mean 0.5", 2, "inputs that are no images"),
        ("photo.pte --input photo.ppm --std 0", 2, "a zero"),
        ("photo.pte --input photo.ppm --mean a,b", 2, "no such value"),
        ("photo.pte --input photo.ppm --mean 1,2", 2, "2 values for 3 channels"),
        ("one.pte --input x.npy -o y.txt", 2, "no .npy"),
        ("one.pte --input x.npy -o no/y.npy", 2, "No such file or directory"),
        ("one.pte --input x.npy -o two.npy/", 2, "no .npy"),
        ("one.pte --input x.npy --json no/y.json", 2, "No such file or directory"),
        ("one.pte --input x.npy --on-mismatch guess", 2, "no such value"),
        ("one.pte --input x.npy --loader guess", 2, "no such value"),
        ("one.pte --input x.npy --threads 0", 2, "no such value"),
        ("one.pte --input x.npy --rounds -1", 2, "no such value"),
        ("one.pte --input x.npy --rtol -1 --expect x.npy", 2, "no such value"),
        ("one.pte --input x.npy --rtol 1", 2, "a tolerance without --expect"),
        ("one.pte --input x.npy --expect x.npy --exact --atol 1", 2, "--exact together with"),
        ("one.pte --input x.npy --expect missing.npy", 2, "No such file"),
        ("one.pte --input x.npy --expect y=x.npy", 2, "'y' is no output"),
        ("one.pte --inspect --input x.npy", 2, "--inspect together with --input"),
    ],
)
def test_wrong_usage_ends_in_three_lines(words: str, code: int, found: str, run: Run, files: Path) -> None:
    before = sorted(files.iterdir())
    ran = run(*words.split())
    assert found in refused(ran, code) and ran.out == ""
    assert sorted(files.iterdir()) == before


def test_help_and_version_need_no_program(run: Run) -> None:
    assert "examples:" in run("--help").out
    assert "XnnpackBackend" in run("--version").out


def test_docs_name_the_keys_of_json(run: Run) -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    (section,) = (text for text in page.split("\n## ") if text.startswith("`dimorder run --json`"))
    call = ("one.pte", "--input", "x.npy", "--expect", "right.npy", "--rounds", "1", "--json")
    data = json.loads(run(*call).out)
    for key in (
        *data,
        *data["guard"],
        *data["rounds"],
        *data["expect"][0],
        *data["outputs"][0]["largest"][0],
    ):
        assert f"`{key}`" in section
