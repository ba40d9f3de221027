"""Read the inputs of `dimorder run`, and write and summarise its outputs.

An array keeps the strides of its file. An image has rows of pixels, channels last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dimorder.algebra.dim_order import describe
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UsageError
from dimorder.reading import Normalization, is_array, read_array, read_image
from dimorder.runtime.program import Program
from dimorder.text import shape_text

TOP = 5  # the number of an output's largest values that are shown


def read_inputs(
    contract: Contract, files: Sequence[str], normalization: Normalization | None
) -> list[torch.Tensor]:
    """Return a tensor for each input, from `[NAME=]FILE`; numpy has no bfloat16, so float32 serves for it."""
    chosen = _assign([spec.name for spec in contract.inputs], files)
    if normalization is not None and all(is_array(file) for file in chosen.values()):
        raise UsageError("--mean and --std", "inputs that are no images", "leave them out")
    inputs = []
    for spec in contract.inputs:
        file, where = chosen[spec.name], f"--input {chosen[spec.name]}"
        x = read_array(file, where) if is_array(file) else read_image(file, spec, normalization, where)
        is_stand_in = spec.dtype == "bfloat16" and x.dtype == torch.float32
        inputs.append(x.to(torch.bfloat16) if is_stand_in else x)
    return inputs


def encode_outputs(path: str, contract: Contract, outputs: Sequence[torch.Tensor]) -> bytes:
    """Return a .npy of the one output, or a .npz of all by name; bfloat16 becomes float32."""
    arrays = [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in outputs]
    buffer = io.BytesIO()
    if path.endswith(".npz"):
        names = [spec.name for spec in contract.outputs]
        np.savez(buffer, **dict(zip(names, arrays, strict=True)))
    else:
        np.save(buffer, arrays[0], allow_pickle=False)
    return buffer.getvalue()


def check_output_name(path: str, contract: Contract | None = None) -> None:
    """Raise `UsageError` unless the outputs fit into a file of that name."""
    if not path.endswith((".npy", ".npz")):
        raise UsageError(f"-o {path}", "no .npy or .npz", "name a .npy file, or a .npz for several outputs")
    if contract and len(contract.outputs) != 1 and path.endswith(".npy"):
        npz = Path(path).with_suffix(".npz")
        raise UsageError(f"-o {path}", f"{len(contract.outputs)} outputs for one .npy", f"write -o {npz}")


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the range, the mean, and the largest finite values of an output with their places.

    Those of complex numbers are of their magnitudes.

    >>> statistics(torch.tensor([[0.5, 2.0, -1.0]]))["largest"][0]
    {'place': [0, 1], 'value': 2.0}
    """
    real = tensor.abs() if tensor.is_complex() else tensor
    values = real.double().contiguous().flatten()
    is_finite = torch.isfinite(values)
    finite = values[is_finite]
    found: dict[str, Any] = {"minimum": None, "maximum": None, "mean": None}
    if len(finite):
        found = {"minimum": finite.min().item(), "maximum": finite.max().item(), "mean": finite.mean().item()}
    places = _largest(torch.where(is_finite, values, -torch.inf), min(TOP, len(finite)))
    return {
        **found,
        "not_finite": len(values) - len(finite),
        "largest": [
            {
                "place": [int(i) for i in np.unravel_index(place, tuple(tensor.shape))],
                "value": values[place].item(),
            }
            for place in places
        ],
    }


def _largest(values: torch.Tensor, count: int) -> list[int]:
    """Return the places of the largest values; among equal ones topk chooses any, this the first."""
    if not count:
        return []
    least = torch.topk(values, count).values[-1]
    (places,) = torch.nonzero(values >= least, as_tuple=True)
    ranked = torch.sort(values[places], descending=True, stable=True).indices[:count]
    return [int(place) for place in places[ranked]]


def summary(spec: TensorSpec, tensor: torch.Tensor) -> str:
    """Return an output in three lines: its type, its largest values with their places, its range.

    >>> from dimorder.algebra.dim_order import DimOrder
    >>> spec = TensorSpec("y", (1, 3), "float32", DimOrder(0, 1))
    >>> print(summary(spec, torch.tensor([[0.5, 2.0, -1.0]])))
    y  1 x 3  float32  NC (0, 1)
      largest  [0, 1] 2   [0, 0] 0.5   [0, 2] -1
      from -1 to 2, mean 0.5
    """
    lines = [f"{spec.name}  {shape_text(tensor.shape, ' x ')}  {spec.type_name}  {describe(spec.dim_order)}"]
    found = statistics(tensor)
    if found["largest"]:
        shown = (f"{each['place']} {each['value']:.6g}" for each in found["largest"])
        lines.append(f"  largest  {'   '.join(shown)}")
        lines.append("  from {minimum:.6g} to {maximum:.6g}, mean {mean:.6g}".format(**found))
    if found["not_finite"]:
        lines.append(f"  {found['not_finite']} of {tensor.numel()} values are not finite")
    return "\n".join(lines)


def run_report(program: Program, outputs: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the JSON of `dimorder run --json` (docs/json.md)."""
    stats = program.stats
    specs = zip(program.contract.outputs, outputs, strict=True)
    return {
        "program": str(program.path),
        "inputs": [spec.to_dict() for spec in program.contract.inputs],
        "outputs": [{**spec.to_dict(), "shape": list(x.shape), **statistics(x)} for spec, x in specs],
        "guard": {
            "conversions": stats.conversions,
            "cost_bytes": stats.cost_bytes,
            "converted": [
                {
                    "tensor": each.value,
                    "found": each.found,
                    "promised": describe(each.promised),
                    "bytes": each.cost_bytes,
                }
                for each in stats.last
            ],
        },
    }


def _assign(names: Sequence[str], files: Sequence[str]) -> Mapping[str, str]:
    """Assign a file to each input: those with a name first, the others in sequence."""
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
            f"give --input FILE (a picture or .npy) for each of {', '.join(names)}"
            if names
            else "leave --input out",
        )
    return {**chosen, **dict(zip(left, unnamed, strict=True))}
