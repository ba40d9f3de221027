"""Decides how `dimorder run` reads its inputs, and how it writes and tells of its outputs.

An array keeps the strides that it has in its file; an image lies as images do: rows of pixels, channels last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dimorder.contract import Contract, TensorSpec, describe
from dimorder.errors import UnsupportedError, UsageError

TOP = 5  # the largest values of an output that are shown


@dataclass(frozen=True)
class Normalisation:
    """Of an image's values: (x / 255 − mean) / std, per channel or one for all."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if 0 in self.std:
            raise UsageError("--std", "a zero", "give the standard deviation of each channel")


def read_inputs(
    contract: Contract, files: Sequence[str], normalisation: Normalisation | None
) -> list[torch.Tensor]:
    """One tensor per input of the contract, from `[NAME=]FILE` each.

    Raises `UsageError` for files that cannot be read, names that are not promised, inputs that are missing.
    """
    chosen = _assign([spec.name for spec in contract.inputs], files)
    if normalisation is not None and all(_is_array(file) for file in chosen.values()):
        raise UsageError("--mean and --std", "inputs that are no images", "leave them out")
    return [
        _read_array(chosen[spec.name])
        if _is_array(chosen[spec.name])
        else _read_image(chosen[spec.name], spec, normalisation)
        for spec in contract.inputs
    ]


def encode_outputs(path: str, contract: Contract, outputs: Sequence[torch.Tensor]) -> bytes:
    """A .npy with the one output, or a .npz with all by name. numpy has no bfloat16: that becomes float32."""
    arrays = [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in outputs]
    buffer = io.BytesIO()
    if path.endswith(".npz"):
        names = [spec.name for spec in contract.outputs]
        np.savez(buffer, **dict(zip(names, arrays, strict=True)))
    else:
        np.save(buffer, arrays[0], allow_pickle=False)
    return buffer.getvalue()


def check_output_name(path: str, contract: Contract | None = None) -> None:
    """Raises `UsageError` unless the name is that of a file which the outputs fit into."""
    if not path.endswith((".npy", ".npz")):
        raise UsageError(f"-o {path}", "no .npy or .npz", "name a .npy file, or a .npz for several outputs")
    if contract and len(contract.outputs) != 1 and path.endswith(".npy"):
        npz = Path(path).with_suffix(".npz")
        raise UsageError(f"-o {path}", f"{len(contract.outputs)} outputs for one .npy", f"write -o {npz}")


def summary(spec: TensorSpec, tensor: torch.Tensor) -> str:
    """An output in three lines: what it is, its largest values and where they are, its range.

    >>> from dimorder.algebra.dim_order import DimOrder
    >>> spec = TensorSpec("y", (1, 3), "float32", DimOrder(0, 1))
    >>> print(summary(spec, torch.tensor([[0.5, 2.0, -1.0]])))
    y  1 x 3  float32  NC (0, 1)
      largest  [0, 1] 2   [0, 0] 0.5   [0, 2] -1
      from -1 to 2, mean 0.5
    """
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    lines = [f"{spec.name}  {shape}  {spec.dtype}  {describe(spec.dim_order)}"]
    values = tensor.double().contiguous().flatten()
    finite = values[torch.isfinite(values)]
    if len(finite):
        ranked = torch.nan_to_num(values, nan=-torch.inf, posinf=-torch.inf)
        top = torch.topk(ranked, min(TOP, len(finite)))
        places = [np.unravel_index(int(i), tuple(tensor.shape)) for i in top.indices]
        shown = (
            f"[{', '.join(str(int(i)) for i in place)}] {value:.6g}"
            for place, value in zip(places, top.values.tolist(), strict=True)
        )
        lines.append(f"  largest  {'   '.join(shown)}")
        lines.append(f"  from {finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}")
    if len(finite) < len(values):
        lines.append(f"  {len(values) - len(finite)} of {len(values)} values are not finite")
    return "\n".join(lines)


def _assign(names: Sequence[str], files: Sequence[str]) -> Mapping[str, str]:
    """Which file is for which input: those with a name first, the others in order."""
    chosen: dict[str, str] = {}
    unnamed = []
    for text in files:
        name, equals, file = text.partition("=")
        if not equals or Path(text).exists():
            unnamed.append(text)
        elif name not in names or name in chosen:
            raise UsageError(
                f"--input {text}",
                f"{name!r} {'twice' if name in chosen else 'is no input'}",
                f"the inputs are {', '.join(names) or 'none'}; give each once",
            )
        else:
            chosen[name] = file
    left = [name for name in names if name not in chosen]
    if len(unnamed) != len(left):
        raise UsageError(
            "--input",
            f"{len(files)} for {len(names)} inputs",
            f"give --input FILE for each of {', '.join(names)}" if names else "leave --input out",
        )
    return {**chosen, **dict(zip(left, unnamed, strict=True))}


def _is_array(file: str) -> bool:
    return file.endswith((".npy", ".npz"))


def _read_array(file: str) -> torch.Tensor:
    where = f"--input {file}"
    try:
        array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(where, str(error.strerror or error), "give the path of a .npy file") from error
    except (ValueError, EOFError) as error:
        raise UsageError(where, f"no .npy file of numbers: {error}", "save it with numpy.save") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(where, "a .npz archive", "give one .npy file per input, as NAME=FILE")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise UsageError(where, f"an array of {array.dtype}", "save an array of numbers") from error


def _read_image(file: str, spec: TensorSpec, normalisation: Normalisation | None) -> torch.Tensor:
    where = f"--input {file}"
    if len(spec.shape) != 4 or spec.shape[0] != 1 or spec.shape[1] not in (1, 3):
        raise UsageError(
            where,
            f"an image, for input {spec.name!r} of shape {' x '.join(map(str, spec.shape))}",
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
    if dtype.is_floating_point:
        chosen = normalisation or Normalisation()
        mean, std = (_per_channel(values, spec) for values in (chosen.mean, chosen.std))
        pixels = ((pixels / 255 - mean) / std).to(dtype)
    elif normalisation is not None or dtype != torch.uint8:
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
