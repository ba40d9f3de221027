"""Test what the face example shows: real weights find a face, programs agree with eager, and the guard
holds.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dimorder.demo import face, photo
from dimorder.demo import face_networks as networks
from dimorder.errors import UnsupportedError, UsageError

LANDMARKS = {  # of the astronaut's face, read off the photo
    "left eye": (204, 100),
    "right eye": (247, 102),
    "nose": (225, 126),
    "left of the mouth": (202, 140),
    "right of the mouth": (245, 143),
}


@pytest.mark.parametrize("name", ["pnet", "rnet", "onet"])
def test_each_network_tells_the_face_from_the_helmet(name):
    network = getattr(networks, name)()
    size = networks.INPUT_SHAPES[name][-1]
    with torch.no_grad():
        face, other = (
            network(photo.crop(photo.photo(), box, size))[0].flatten()
            for box in (photo.FACE, photo.NOT_A_FACE)
        )
    assert face[1] > 0.99
    assert other[1] < 0.04
    assert torch.allclose(face.sum(), torch.tensor(1.0))


def test_onet_finds_the_five_landmarks():
    with torch.no_grad():
        found = photo.finding(photo.FACE, networks.onet()(photo.crop(photo.photo(), photo.FACE, 48)))
    assert np.abs(np.subtract(found.landmarks, list(LANDMARKS.values()))).max() < 4
    left, top, right, bottom = found.box
    assert all(left < x < right and top < y < bottom for x, y in found.landmarks)


def test_a_crop_lies_in_memory_as_the_pixels_do():
    x = photo.crop(photo.photo(), photo.FACE, 24)
    assert x.shape == (1, 3, 24, 24)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert -1 <= x.min() < x.max() < 1


def test_the_drawing_changes_the_photo_at_the_box_and_the_landmarks(tmp_path):
    finding = photo.FaceFound(0.99, (170.0, 60.0, 280.0, 190.0), tuple(LANDMARKS.values()))
    photo.draw(photo.photo(), finding, photo.NOT_A_FACE, 0.003, tmp_path / "drawn.png")
    drawn = np.asarray(Image.open(tmp_path / "drawn.png").resize((512, 512)))
    changed = np.abs(drawn.astype(int) - np.asarray(photo.photo())).sum(2) > 60
    assert all(changed[y, x] for x, y in LANDMARKS.values())
    assert changed[60, 175:275].mean() > 0.8
    assert changed[250:290].mean() < 0.1


def test_missing_weights_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(networks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install --no-deps facenet-pytorch==2\.6\.0"):
        networks.onet()


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    from dimorder.demo import face

    out, lines = tmp_path_factory.mktemp("face"), []
    face.show(out, lines.append)
    return out, "\n".join(lines)


def _numbers(printed, title):
    (line,) = [line for line in printed.splitlines() if line.strip().startswith(title)]
    return [float(word) for word in line.replace(",", "").split() if word[0].isdigit()]


@pytest.mark.parametrize(("title", "moved_bytes"), [("P-Net", 1_728), ("R-Net", 6_912), ("O-Net", 27_648)])
def test_the_demo_reaches_one_conversion_for_nchw_and_none_for_nhwc(demo_run, title, moved_bytes):
    _, printed = demo_run
    for order, expected in (("NCHW", [1, moved_bytes, moved_bytes, 1]), ("NHWC", [0, 0, 0, 1])):
        *counts, error = _numbers(printed, f"{title}    {order}")
        assert counts == expected
        assert error < 1e-4


@pytest.mark.parametrize("title", ["P-Net", "R-Net", "O-Net"])
def test_the_demo_programs_agree_with_eager(demo_run, title):
    _, printed = demo_run
    row = next(line for line in printed.splitlines() if line.strip().startswith(f"{title}    0."))
    eager_face, program_face, eager_other, program_other = map(float, row.split()[1:])
    assert eager_face == pytest.approx(program_face, abs=1e-6)
    assert eager_other == pytest.approx(program_other, abs=1e-6)
    assert eager_other < 0.04 < 0.99 < eager_face


@pytest.mark.parametrize("title", ["P-Net", "R-Net", "O-Net"])
def test_the_demo_int8_programs_tell_the_face_from_the_helmet(demo_run, title):
    _, printed = demo_run
    *_, row = [line for line in printed.splitlines() if line.strip().startswith(f"{title}    0.")]
    face, int8_face, other, int8_other, size, int8_size = map(float, row.replace(",", "").split()[1:])
    assert (int8_face, int8_other) == pytest.approx((face, other), abs=0.05)
    assert int8_size < size or title == "P-Net"  # of which little is weights


def test_the_demo_int8_program_finds_the_same_box_and_landmarks(demo_run):
    _, printed = demo_run
    real, quantised = (
        [float(word) for word in line.split()[1:]]
        for line in printed.splitlines()
        if line.split()[:1] in (["float"], ["int8"]) and line.count(".") == 14
    )
    assert quantised == pytest.approx(real, abs=2)


def test_the_demo_shows_the_wrong_order_silent_adapted_and_refused(demo_run):
    _, printed = demo_run
    eager = _numbers(printed, "eager PyTorch")
    assert _numbers(printed, "stock .pte")[0] < 0.1 < eager[0]
    for title in ("the same .pte", 'our .pte, on_mismatch="adapt"'):
        *adapted, inputs, moved_bytes = _numbers(printed, title)
        assert adapted == pytest.approx(eager, abs=1e-6)
        assert (inputs, moved_bytes) == (2, 2 * 27_648)
    refusal = printed.split("refuses:")[1]
    assert "NCHW" in refusal and "NHWC" in refusal and "fix:" in refusal


def test_the_demo_writes_the_programs_and_the_drawing(demo_run):
    out, _ = demo_run
    assert (out / "astronaut.png").stat().st_size > 100_000
    kinds = ("nchw", "nhwc", "int8")
    orders = [f"{name}-{kind}.pte" for name in ("pnet", "rnet", "onet") for kind in kinds]
    assert sorted(file.name for file in out.glob("*.pte")) == sorted([*orders, "onet-stock.pte"])


@pytest.mark.parametrize("name", ["file", "file/folder", 300 * "a"])
def test_a_folder_that_cannot_be_made_is_refused(name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name a folder that you can write to"):
        face.show(tmp_path / name, print)
