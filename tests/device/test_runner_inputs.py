"""`dimorder-run` reads pictures and arrays as Python's `dimorder run` does, and refuses damaged ones."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

pytest.importorskip("executorch")

import dimorder
from tests.device.runner_programs import PIXELS, Run, refused, told_by_python
from tests.zoo import perturb

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


GREY, COLOURS, PALETTE, GREY_ALPHA, ALPHA = 0, 2, 3, 4, 6  # the colour types of a .png


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(bits: int, colours: int, before: bytes = b"") -> bytes:
    """A .png of random samples; `before` has the chunks before its pixels."""
    height, width = PIXELS
    samples = {GREY: 1, COLOURS: 3, PALETTE: 1, GREY_ALPHA: 2, ALPHA: 4}[colours]
    row_bytes = (width * samples * bits + 7) // 8
    pixels = np.random.default_rng(3).integers(0, 256, (height, row_bytes), np.uint8)
    return png_of([pixels], bits, colours, before, is_interlaced=False)


def interlaced_png() -> bytes:
    """A .png of 8-bit colours in seven passes, which Pillow reads but does not write."""
    pixels = np.random.default_rng(3).integers(0, 256, (*PIXELS, 3), np.uint8)
    starts = (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    )
    passes = [
        pixels[y::rows, x::columns].reshape(-(-(PIXELS[0] - y) // rows), -1) for y, x, rows, columns in starts
    ]
    return png_of(passes, 8, COLOURS, b"", is_interlaced=True)


def png_of(passes: list[np.ndarray], bits: int, colours: int, before: bytes, *, is_interlaced: bool) -> bytes:
    height, width = PIXELS
    rows = b"".join(b"\0" + row.tobytes() for pixels in passes for row in pixels)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, is_interlaced))
    parts = (head, before, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def gamma(hundred_thousandths: int) -> bytes:
    return chunk(b"gAMA", struct.pack(">I", hundred_thousandths))


COLOUR_TABLE = chunk(b"PLTE", np.random.default_rng(4).integers(0, 256, 768, np.uint8).tobytes())


@pytest.mark.parametrize(
    "data",
    [
        png(8, COLOURS, gamma(100_000)),
        png(8, COLOURS, gamma(30_000)),
        png(8, GREY, gamma(100_000)),
        png(8, COLOURS, chunk(b"sRGB", b"\0")),
        png(8, COLOURS, chunk(b"tRNS", bytes(6))),
        png(16, COLOURS),
        png(16, ALPHA),
        png(16, GREY_ALPHA),
        png(1, GREY),
        png(2, GREY),
        png(4, GREY, chunk(b"tRNS", b"\0\3")),
        png(8, PALETTE, COLOUR_TABLE + chunk(b"tRNS", b"\xff\xff\0")),
        interlaced_png(),
    ],
    ids=[
        *("linear", "gamma", "grey-gamma", "srgb", "key", "16", "16-alpha", "16-grey-alpha"),
        *("1-bit", "2-bit", "4-bit", "palette", "passes"),
    ],
)
@pytest.mark.parametrize("program", ["photo.pte", "grey.pte"])
def test_every_kind_of_png_is_read_as_pillow_reads_it(
    data: bytes, program: str, run: Run, files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(data)
    ran = run(program, "--input", path, "-o", tmp_path / "y.npy")
    if "without libpng" in ran.err:
        pytest.skip("built without libpng")
    told_by_python(capfd, files, program, "--input", str(path), "-o", str(tmp_path / "wanted.npy"))
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.load(tmp_path / "wanted.npy"))


def test_grey_of_16_bits_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(16, GREY))
    ran = run("photo.pte", "--input", tmp_path / "x.png")
    if "without libpng" in ran.err:
        pytest.skip("built without libpng")
    assert "a picture of 16 bits of grey" in refused(ran, 2)


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
        (
            b"P6 2147483647 2147483647 255\n",
            "a picture of 2147483647x2147483647 pixels, more than 178,956,970",
        ),
        (b"P6 178956971 1 255\n", "a picture of 178956971x1 pixels"),
        (b"P6 178956970 1 255\n", "it is cut off"),
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
