"""`dimorder-run` tells and gives what Python's `dimorder run` does, and refuses damaged files."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.cli import main
from tests.conftest import ROOT
from tests.runtime.networks import Conv, export_pte
from tests.zoo import perturb, stateful

PIXELS = (8, 10)  # height and width


class Heard(nn.Module):
    """A picture and a sound, each through weights of its own, and both together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.dense = nn.Linear(9, 5)

    def forward(self, image: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(image).relu()
        return features, self.dense(sound) + features.mean((2, 3))


class Scale(nn.Module):
    """Every element of its own by one weight, which shows where each one lay."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 4.0, dtype=dtype).reshape(3, 1, 1) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.weight


@dataclass(frozen=True)
class Ran:
    """What a run of `dimorder-run` ended with."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(runner: Path, files: Path) -> Run:
    """Call `dimorder-run` in the folder of the files."""

    def call(*words: object) -> Ran:
        command = [str(runner), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=files)
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, and files to feed them with."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    torch.manual_seed(0)
    image, sound = torch.randn(1, 3, *PIXELS), torch.randn(1, 9)
    lower(
        folder / "two.pte", Heard(), image, sound, input_orders=["NHWC", "NC"], output_orders=["NHWC", "NC"]
    )
    lower(folder / "one.pte", Scale(), torch.randn(2, 3, 5, 7))
    lower(folder / "photo.pte", Scale(), image, input_orders="NHWC")
    lower(folder / "brain.pte", Scale(torch.bfloat16), image.bfloat16())
    lower(folder / "counter.pte", stateful.Counter(), torch.randn(5, 7))
    ranges = ({0: torch.export.Dim("N", min=1, max=6), 2: torch.export.Dim("H", min=4, max=12)},)
    lower(folder / "sizes.pte", Scale(), torch.randn(2, 3, 5, 7), dynamic_shapes=ranges)
    (folder / "foreign.pte").write_bytes(export_pte(Conv(3), (image,), None))
    np.save(folder / "sound.npy", sound.numpy())
    np.save(folder / "image.npy", np.moveaxis(rng.standard_normal((1, *PIXELS, 3), np.float32), 3, 1))
    x = rng.standard_normal((2, 3, 5, 7), np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "seen.npy", rng.standard_normal((5, 7), np.float32))
    np.save(folder / "right.npy", Scale()(torch.from_numpy(x)).detach().numpy())
    Image.fromarray(rng.integers(0, 256, (*PIXELS, 3), np.uint8)).save(folder / "photo.ppm")
    return folder


def lower(path: Path, network: nn.Module, *args: Tensor, **options: Any) -> None:
    if not isinstance(network, Scale | stateful.Counter):
        perturb(network)
    dimorder.lower(network.eval(), args, target="xnnpack", **options).save(path)


def told_by_python(capfd: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", *words]) == 0
    return capfd.readouterr().out


def refused(ran: Ran, code: int) -> str:
    """The three lines that a run ends with, after what ExecuTorch logs as errors."""
    lines = [line for line in ran.err.splitlines() if not line.startswith("E executorch:")]
    assert ran.code == code and len(lines) == 3, ran
    assert lines[1].startswith("  found: ") and lines[2].startswith("  fix: ")
    return ran.err


TWO = ("two.pte", "--input", "sound=sound.npy", "--input", "image.npy")
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


@pytest.fixture(scope="module", autouse=True)
def _variants(files: Path) -> None:
    """x.npy with other strides, and with values that are not finite or equal."""
    x = np.load(files / "x.npy")
    np.save(files / "turned.npy", np.asfortranarray(x))
    special = np.round(x)
    special[0, 1, 2, :4] = np.nan, np.inf, -np.inf, np.inf
    np.save(files / "special.npy", special)


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


# Pictures


@pytest.mark.parametrize("suffix", ["ppm", "png"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pictures_of_any_channels_are_read_as_pillow_reads_them(
    suffix: str, mode: str, run: Run, files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if (suffix, mode) == ("ppm", "RGBA"):
        pytest.skip("no such .ppm")
    pixels = np.random.default_rng(2).integers(0, 256, (*PIXELS, len(mode)), np.uint8)
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(pixels.squeeze(), mode).save(path)
    ran = run("photo.pte", "--input", path)
    if "without libpng" in ran.err:
        pytest.skip("built without libpng")
    assert ran.code == 0 and ran.out == told_by_python(capfd, files, "photo.pte", "--input", str(path))


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantised network that takes a camera's bytes."""
    pytest.importorskip("torchao")
    from tests.targets import quantised

    path = tmp_path_factory.mktemp("camera") / "camera.pte"
    torch.manual_seed(0)
    x = torch.rand(1, 3, *PIXELS)
    network = quantised.by_xnnpack(perturb(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())).eval(), x)
    options = {"input_types": "uint8", "input_orders": "NHWC", "target": "xnnpack"}
    dimorder.lower(network, (x,), **options).save(path)
    return path


@pytest.mark.parametrize("normalised", [(), ("--mean", "0.5,0.25,0.125", "--std", "0.5,0.75,1")])
def test_bytes_go_in_as_they_are_or_quantised(
    normalised: tuple[str, ...], camera: Path, run: Run, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = (str(camera), "--input", "photo.ppm", *normalised)
    assert run(*call).out == told_by_python(capfd, files, *call)
    json_of_ours = json.loads(run(camera, "--inspect", "--json").out)
    (wanted,) = dimorder.load(camera).contract.to_dict()["inputs"]
    assert json_of_ours["inputs"] == [wanted] and "scale" in wanted


def test_a_picture_of_another_size_is_refused(run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (9, 8)).save(tmp_path / "x.ppm")
    text = refused(run("photo.pte", "--input", tmp_path / "x.ppm"), 2)
    assert "9x8 pixels, where input 'x' takes 10x8" in text


PPM = b"P6 # a comment\n10 8\n255\n" + bytes(range(240))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no picture that begins with P5 or P6"),
        (b"P3 10 8 255 0 0 0", "no picture that begins with P5 or P6"),
        (b"P6", "whose head is damaged"),
        (b"P6 # no end", "whose head is damaged"),
        (b"P6 10 8", "whose head is damaged"),
        (b"P6 10 -8 255\n", "whose head is damaged"),
        (b"P6 10 99999999999999999999 255\n", "whose head is damaged"),
        (b"P6 2147483647 2147483647 255\n", "that no memory holds"),
        (b"P6 2000000000 1 255\n", "it is cut off"),
        (b"P6 10 8 65535\n" + bytes(480), "values up to 65535"),
        (PPM[:-1], "239 bytes of pixels of 240: it is cut off"),
    ],
)
def test_damaged_pictures_are_refused(data: bytes, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.ppm").write_bytes(PPM)
    assert run("photo.pte", "--input", tmp_path / "x.ppm").code == 0
    (tmp_path / "x.ppm").write_bytes(data)
    assert words in refused(run("photo.pte", "--input", tmp_path / "x.ppm"), 2)


@pytest.mark.parametrize("end", [0, 7, 20, 60, -20])
def test_damaged_png_is_refused(end: int, run: Run, files: Path, tmp_path: Path) -> None:
    Image.open(files / "photo.ppm").save(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes((tmp_path / "x.png").read_bytes()[:end])
    refused(run("photo.pte", "--input", tmp_path / "x.png"), 2)


# Arrays


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


def described(shape: str, type: str = "'<f4'") -> str:
    return f"{{'descr': {type}, 'fortran_order': False, 'shape': {shape}, }}"


DENSE = np.arange(210, dtype=np.float32)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("type", ["<f4", ">f4"])
def test_every_version_and_byte_order_is_read(
    version: tuple[int, int], type: str, run: Run, files: Path, tmp_path: Path
) -> None:
    x = np.load(files / "x.npy").astype(type)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, x, version)
    ran = run("one.pte", "--input", tmp_path / "x.npy", "--expect", "right.npy", "--rtol", "1e-6")
    assert ran.code == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no bytes at all"),
        (b"\x93NUMPY\x01\x00\xff", "does not begin"),
        (b"\x93NUMPY\x01\x00\xff\xff{}", "does not begin"),
        (b"\x93NUMPY\x03\x00\xff\xff\xff\xff{}", "does not begin"),
        (b"\x93NUMPY\x09\x00\x02\x00{}", "does not begin"),
        (npy("{}"), "without its type, order or shape"),
        (npy("{'descr"), "damaged"),
        (npy("{'descr': '<f4' 'shape'"), "damaged"),
        (npy("{'extra': 1}"), "unknown key 'extra'"),
        (npy(described("(2, 3, 5, 7")), "a shape that no tensor has"),
        (npy(described("[2, 3]")), "no tuple"),
        (npy(described("(2 3)")), "no tuple of integers"),
        (npy(described("(2, -3)")), "no tensor has"),
        (npy(described("(99999999999999999999,)")), "no tensor has"),
        (npy(described("(2147483647, 2147483647, 2147483647, 4)")), "no file has room for"),
        (npy(described("(0, 2147483647, 2147483647, 4)")), "no file has room for"),
        (npy(described("(2147483647,)"), bytes(8)), "8 bytes of data where its header promises 8589934588"),
        (npy(described(str((1,) * 17)), bytes(4)), "more than 16 dimensions"),
        (npy(described("(2, 3, 5, 7)"), DENSE.tobytes()[:-1]), "839 bytes of data"),
        (npy(described("(2, 3, 5, 7)"), DENSE.tobytes() + b"x"), "841 bytes of data"),
        (npy(described("(2,)", "'<U1'"), bytes(8)), "an array of <U1"),
        (npy(described("(2,)", "'\t\x1b[m'"), bytes(8)), "an array of ??[m"),
        (npy(described("(2,)", "'<c8'"), bytes(16)), "an array of <c8"),
        (npy(described("(2,)", "'|O'"), bytes(16)), "an array of |O"),
        (npy(described("(2,)", "[('a', '<f4')]"), bytes(8)), "an array of records"),
    ],
)
def test_damaged_arrays_are_refused(data: bytes, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    assert words in refused(run("one.pte", "--input", tmp_path / "x.npy"), 2)


def test_no_cut_of_an_array_crashes(run: Run, files: Path, tmp_path: Path) -> None:
    whole = (files / "x.npy").read_bytes()
    for end in [*range(0, 130, 9), len(whole) - 1]:
        (tmp_path / "x.npy").write_bytes(whole[:end])
        refused(run("one.pte", "--input", tmp_path / "x.npy"), 2)


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
        ("one.pte", 2, "0 for 1 inputs"),
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
