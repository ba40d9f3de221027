"""Read tensors from files: arrays with the shape that they have in the file, and images as network inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dimorder.contract import TensorSpec
from dimorder.errors import UnsupportedError, UsageError, require_type
from dimorder.text import shape_text


@dataclass(frozen=True)
class Normalization:
    """How image values are normalised: (x / 255 − mean) / std, per channel or one for all.

    Attributes:
        mean: The mean of each channel, or one for all: a number from 0 to 1.
        std: The standard deviation of each channel, or one for all, above 0.

    >>> Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).std[2]
    0.225
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for option, values in (("--mean", self.mean), ("--std", self.std)):
            fix = "give a tuple with a number for each channel, or with one for all"
            require_type(values, (tuple, list), option, fix)
            if not values or not all(isinstance(value, (int, float)) for value in values):
                raise UsageError(option, f"{values!r:.60}", fix)
            if not all(map(math.isfinite, values)):
                raise UsageError(option, "a value that is not finite", "give a number for each channel")
        if 0 in self.std:
            raise UsageError("--std", "a zero", "give the standard deviation of each channel")
        if min(self.std) < 0:
            raise UsageError("--std", f"{min(self.std):g}, a negative value", "give values above 0")
        most = max(self.mean)
        if most > 1:
            fix = f"give values from 0 to 1, such as {most:g} / 255 = {most / 255:.3g}"
            raise UsageError("--mean", f"{most:g}, where pixels are from 0 to 1", fix)


def is_array(file: str) -> bool:
    return file.endswith((".npy", ".npz"))


def read_array(file: str, where: str) -> torch.Tensor:
    """Return the array of a .npy file; `where` names the file in errors."""
    arrays = read_arrays(file, where)
    if list(arrays) != [""]:
        raise UsageError(where, "a .npz archive", "give one .npy file per input, as NAME=FILE")
    return arrays[""]


def read_arrays(file: str, where: str) -> dict[str, torch.Tensor]:
    """Return the arrays of a .npz file by name, or the array of a .npy file under the name ""."""
    try:
        content = np.load(file, allow_pickle=False)
        arrays = {"": content} if isinstance(content, np.ndarray) else dict(content)
    except OSError as error:
        raise UsageError(where, str(error.strerror or error), "give the path of a .npy file") from error
    # NumPy may raise anything for damaged bytes: ValueError, BadZipFile, zlib.error, TokenError ...
    except Exception as error:
        raise UsageError(where, f"no .npy file of numbers: {error}", "save it with numpy.save") from error
    return {name: _tensor(array, where) for name, array in arrays.items()}


def _tensor(array: np.ndarray[Any, Any], where: str) -> torch.Tensor:
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise UsageError(where, f"an array of {array.dtype}", "save an array of numbers") from error


def read_image(file: str, spec: TensorSpec, normalization: Normalization | None, where: str) -> torch.Tensor:
    """Return an image as an input with 1 or 3 channels, resized to the input's height and width.

    It lies channels-last in memory. A dynamic height or width is that of the image. Without `normalization`
    floats are x / 255, and uint8 has raw pixels.
    """
    if len(spec.shape) != 4 or spec.shape[0] != 1 or spec.shape[1] not in (1, 3):
        raise UsageError(
            where,
            f"an image, for input {spec.name!r} of shape {shape_text(spec.shape, ' x ')}",
            "give a .npy file; an image fits 1 x 3 x H x W and 1 x 1 x H x W",
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            where, "Pillow is not installed", "pip install pillow, or give a .npy file"
        ) from error
    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")):  # Pillow would clip them at 255
                wide = f"pixels of more than 8 bits (mode {opened.mode} of Pillow)"
                raise UsageError(where, wide, "save it with 8 bits per channel, or give a .npy file")
            image = opened.convert("RGB" if spec.shape[1] == 3 else "L")
    except (OSError, Image.DecompressionBombError) as error:
        found = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(where, f"{found}", "give a .npy file or an image that Pillow can read") from error
    height, width = (
        size if isinstance(size, int) else own
        for size, own in zip(spec.shape[2:], (image.height, image.width), strict=True)
    )
    pixels = torch.from_numpy(np.array(image.resize((width, height), Image.Resampling.BILINEAR)))
    pixels = pixels.reshape(1, height, width, int(spec.shape[1]))
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or (spec.scale is not None and normalization is not None):
        chosen = normalization or Normalization()
        mean, std = (_per_channel(values, spec) for values in (chosen.mean, chosen.std))
        pixels = spec.quantized((pixels / 255 - mean) / std).to(dtype)
    elif normalization is not None or dtype != torch.uint8:
        raise UsageError(
            where, f"an image, for an input of {spec.dtype}", "give a .npy file, or raw pixels for uint8"
        )
    return pixels.permute(0, 3, 1, 2)


def _per_channel(values: tuple[float, ...], spec: TensorSpec) -> torch.Tensor:
    if len(values) not in (1, spec.shape[1]):
        raise UsageError(
            "--mean and --std", f"{len(values)} values for {spec.shape[1]} channels", "give one, or one each"
        )
    return torch.tensor(values)
