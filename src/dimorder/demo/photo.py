"""Give the networks photos to see and to be calibrated on, and draw what they find.

Two crops of scikit-image's `astronaut.png`, taken and mapped back as MTCNN does it; a box and five landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from skimage import data
from torch import Tensor

CropBox = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the photo
Landmark = tuple[float, float]

FACE: CropBox = (170, 60, 280, 190)
NOT_A_FACE: CropBox = (350, 300, 450, 420)

GREEN, YELLOW, GREY, DARK = (70, 220, 120), (255, 214, 64), (210, 210, 215), (24, 26, 30)


@dataclass(frozen=True)
class FaceFound:
    """O-Net's result for a crop: the probability of a face, the box of the face, and its five landmarks."""

    probability: float
    box: CropBox
    landmarks: tuple[Landmark, ...]


def photo() -> Image.Image:
    """A portrait of the astronaut Eileen Collins, 512 × 512, RGB (NASA, public domain)."""
    return Image.fromarray(data.astronaut())


def crops(size: int, count: int = 96, seed: int = 0) -> Iterator[Tensor]:
    """Random squares of four of scikit-image's photos, and every fourth time the face, moved a little."""
    choose = np.random.default_rng(seed)
    photos = [Image.fromarray(taken()) for taken in (data.astronaut, data.chelsea, data.coffee, data.rocket)]
    for index in range(count):
        if index % 4 == 0:
            left, top, right, bottom = np.array(FACE) + choose.uniform(-20, 20, 4)
            yield crop(photos[0], (left, top, right, bottom), size)
            continue
        image = photos[index % len(photos)]
        side = choose.uniform(0.2, 1.0) * min(image.size)
        left, top = choose.uniform(0, (image.width - side, image.height - side))
        yield crop(image, (left, top, left + side, top + side), size)


def crop(image: Image.Image, box: CropBox, size: int) -> Tensor:
    """Return the crop of `box` as an input of a network: (1, 3, size, size) in [-1, 1).

    In memory it is NHWC, as the pixels of an image are; only its dimensions are permuted.
    """
    pixels = np.asarray(image.crop(box).resize((size, size), Image.Resampling.BOX), dtype=np.float32)
    return torch.from_numpy((pixels - 127.5) / 128)[None].permute(0, 3, 1, 2)


def finding(box: CropBox, outputs: tuple[Tensor, ...]) -> FaceFound:
    """O-Net's three outputs for the crop of `box`, in pixels of the photo."""
    probabilities, offsets, marks = (output.flatten().tolist() for output in outputs)
    left, top, right, bottom = box
    width, height = right - left + 1, bottom - top + 1
    refined = (
        left + offsets[0] * width,
        top + offsets[1] * height,
        right + offsets[2] * width,
        bottom + offsets[3] * height,
    )
    landmarks = tuple(
        (left - 1 + x * width, top - 1 + y * height) for x, y in zip(marks[:5], marks[5:], strict=True)
    )
    return FaceFound(probabilities[1], refined, landmarks)


def draw(
    image: Image.Image, face: FaceFound, other_box: CropBox, other_probability: float, path: Path
) -> None:
    """Writes the photo with the face's box and landmarks, and the other crop in grey, as a PNG."""
    smooth, zoom = 4, 2  # drawn 4 times as large as written, which smooths the edges
    scale = smooth * zoom
    canvas = image.resize((image.width * scale, image.height * scale), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=9 * scale)

    def outline(box: CropBox, colour: tuple[int, int, int], width: float, text: str) -> None:
        left, top, right, bottom = (value * scale for value in box)
        pen.rectangle((left, top, right, bottom), outline=colour, width=round(width * scale))
        _, _, text_width, text_height = pen.textbbox((0, 0), text, font=font)
        pad = 3 * scale
        label = (left, top - text_height - 2 * pad, left + text_width + 2 * pad, top)
        pen.rectangle(label, fill=colour)
        pen.text((left + pad, label[1] + pad / 2), text, font=font, fill=DARK)

    outline(other_box, GREY, 1, f"face {other_probability:.3f}")
    outline(face.box, GREEN, 1.5, f"face {face.probability:.5f}")
    for x, y in face.landmarks:
        for radius, colour in ((2.6, DARK), (2.0, YELLOW)):
            corners = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(tuple(value * scale for value in corners), fill=colour)

    canvas.resize((image.width * zoom, image.height * zoom), Image.Resampling.LANCZOS).save(path)
