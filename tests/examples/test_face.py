"""Decides what the face example must show: real weights that find a face, programs that agree, a guard that
holds.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from examples.face import networks, photo

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
    finding = photo.Finding(0.99, (170.0, 60.0, 280.0, 190.0), tuple(LANDMARKS.values()))
    photo.draw(photo.photo(), finding, photo.NOT_A_FACE, 0.003, tmp_path / "drawn.png")
    drawn = np.asarray(Image.open(tmp_path / "drawn.png").resize((512, 512)))
    changed = np.abs(drawn.astype(int) - np.asarray(photo.photo())).sum(2) > 60
    assert all(changed[y, x] for x, y in LANDMARKS.values())
    assert changed[60, 175:275].mean() > 0.8
    assert changed[250:290].mean() < 0.1


def test_missing_weights_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(networks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps facenet-pytorch==2\.6\.0"):
        networks.onet()


def test_the_demo_lowers_runs_refuses_and_draws(tmp_path, capfd):
    from examples.face import demo

    demo.main(tmp_path)
    printed = capfd.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    rows = {tuple(words[:2]): words[2:] for words in lines if len(words) > 2}
    for title in ("P-Net", "R-Net", "O-Net"):
        assert rows[title, "NCHW"][0] == "1"
        assert rows[title, "NHWC"][0] == "0"
        assert "(optimal)" in rows[title, "NCHW"] and "(optimal)" in rows[title, "NHWC"]
    eager, stock, adapted = (
        [float(word) for word in rows[key] if word.startswith("0.")]
        for key in [("eager", "PyTorch"), ("stock", "ExecuTorch"), ("dimorder,", 'on_mismatch="adapt"')]
    )
    assert np.allclose(eager, adapted, atol=1e-6)
    assert stock[0] < 0.1 < eager[0]
    assert "NHWC" in printed.split("refuses:")[1]
    assert (tmp_path / "astronaut.png").stat().st_size > 100_000
    assert len(list(tmp_path.glob("*.pte"))) == 6
