"""Read a calibration: calls of a network, from an iterable, a file or a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from dimorder.capture.calls import call_leaves
from dimorder.contract import TensorSpec
from dimorder.errors import UsageError
from dimorder.reading import Normalization, is_array, read_arrays, read_image

Calibration: TypeAlias = "Iterable[Any] | str | os.PathLike[str]"

_FILES = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True)
class CalibrationCall:
    """One call of the network, as a user writes it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def as_call(item: Any) -> CalibrationCall:
    """Return a tensor, a sequence of arguments or a dict of keyword arguments as a call.

    >>> as_call({"x": 3}), as_call((1, 2))
    (CalibrationCall(args=(), kwargs={'x': 3}), CalibrationCall(args=(1, 2), kwargs={}))
    """
    if isinstance(item, CalibrationCall):
        return item
    if isinstance(item, Mapping):
        return CalibrationCall((), dict(item))
    return CalibrationCall(tuple(item) if isinstance(item, (tuple, list)) else (item,), {})


def calls(calibration: Iterable[Any], exported: ExportedProgram) -> Iterator[CalibrationCall]:
    """Yield the calls of a calibration, items as for `as_call`, each checked against the inputs."""
    count = -1
    for count, item in enumerate(calibration):
        call = as_call(item)
        _check(call, exported, count)
        yield call
    if count < 0:
        raise no_example("calibration")


def count_examples(calibration: object) -> int | None:
    """Return how many calls a calibration has, or None if that is not known before the last one."""
    try:
        return len(calibration) if isinstance(calibration, Sized) else None
    except TypeError:  # a DataLoader over a dataset that has no length
        return None


def require_examples(calibration: object) -> None:
    """Refuse one example, or what holds none: the rows of a tensor would be taken for examples.

    Raises:
        UsageError: if `calibration` is no path and no iterable of examples.
    """
    if calibration is None or isinstance(calibration, (str, os.PathLike)):
        return
    is_one = isinstance(calibration, (torch.Tensor, Mapping)) or hasattr(calibration, "__array__")
    if is_one or not isinstance(calibration, Iterable):
        found = f"one {type(calibration).__name__}, and no list of examples"
        raise UsageError("calibration", found, "give a list of examples: [x]")


def no_example(where: str) -> UsageError:
    return UsageError(where, "no example", "give some inputs of the kind that the network will get")


def _check(call: CalibrationCall, exported: ExportedProgram, index: int) -> None:
    leaves = call_leaves(exported, call.args, call.kwargs)
    inputs, tensors = _tensor_inputs(exported), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(inputs):
        raise UsageError(
            f"example {index} of the calibration",
            f"{len(tensors)} tensors, where the network takes {len(inputs)}",
            "give tensors, such as torch.as_tensor(x)",
        )
    for (name, value), found in zip(inputs.items(), tensors, strict=True):
        if found.dtype != value.dtype or not _has_shape(found, value.shape):
            takes = f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
            raise UsageError(
                f"example {index} of the calibration, input {name!r}",
                f"{tuple(found.shape)} of {found.dtype}, where it takes {takes}",
                "leave out a last batch of another size, or name it in dynamic_shapes"
                if found.shape[1:] == value.shape[1:] and found.dtype == value.dtype
                else "give examples like those that it is lowered for",
            )


def _has_shape(tensor: torch.Tensor, shape: Sequence[int | torch.SymInt]) -> bool:
    """Return whether a tensor has such a shape; a dynamic size is any size."""
    if tensor.dim() != len(shape):
        return False
    return all(not isinstance(own, int) or own == size for size, own in zip(tensor.shape, shape, strict=True))


def _tensor_inputs(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the tensors among a program's inputs by name, in the sequence of its arguments."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = {name: nodes[name].meta["val"] for name in exported.graph_signature.user_inputs if name in nodes}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def tensor_specs(exported: ExportedProgram) -> list[TensorSpec]:
    """Return the tensors among a program's inputs; a dynamic size is that of the program's example."""
    return [
        TensorSpec.row_major(name, torch.empty(_example_shape(value), dtype=value.dtype, device="meta"))
        for name, value in _tensor_inputs(exported).items()
    ]


def _example_shape(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else int(size.node.hint) for size in value.shape)


# Files


@dataclass(frozen=True)
class ExampleFiles:
    """The examples in a file or in the files of a folder: arrays are in memory, pictures are read in turn."""

    exported: ExportedProgram
    normalization: Normalization | None
    examples: Sequence[CalibrationCall | Path]

    @staticmethod
    def read(
        path: Path, exported: ExportedProgram, normalization: Normalization | None = None
    ) -> ExampleFiles:
        """Read the arrays, and find the pictures."""
        specs, examples = tensor_specs(exported), list[CalibrationCall | Path]()
        for file in _files(path):
            where = f"calibration {file}"
            if is_array(str(file)):
                examples += _split_examples(read_arrays(str(file), where), specs, exported, where)
            elif len(specs) == 1:
                examples.append(file)
            else:
                fix = "give .npz files with an array for each input"
                raise UsageError(where, f"an image, for {len(specs)} inputs", fix)
        if not examples:
            raise no_example(f"calibration {path}")
        return ExampleFiles(exported, normalization, examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[CalibrationCall]:
        for example in self.examples:
            yield self._picture(example) if isinstance(example, Path) else example

    def _picture(self, file: Path) -> CalibrationCall:
        (spec,) = tensor_specs(self.exported)
        image = read_image(str(file), spec, self.normalization, f"calibration {file}")
        return _call([image], self.exported)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(
            f"calibration {path}", "no such file or folder", "name a .npz, a .npy, a picture, or a folder"
        )
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in _FILES)


def _split_examples(
    arrays: Mapping[str, torch.Tensor], specs: Sequence[TensorSpec], exported: ExportedProgram, where: str
) -> Iterator[CalibrationCall]:
    """Yield the examples in arrays that stack several of them along the first dimension."""
    names = [spec.name for spec in specs]
    if len(specs) == 1 and len(arrays) == 1:
        arrays = {names[0]: next(iter(arrays.values()))}
    if set(arrays) != set(names):
        raise UsageError(
            where, f"arrays {', '.join(arrays)}", f"save one array for each of {', '.join(names)}, by name"
        )
    parted = [_parts(arrays[spec.name], spec, where) for spec in specs]
    if len({len(parts) for parts in parted}) > 1:
        counts = ", ".join(f"{len(parts)} of {name}" for name, parts in zip(names, parted, strict=True))
        raise UsageError(where, counts, "save as many examples for each input")
    for tensors in zip(*parted, strict=True):
        yield _call(tensors, exported)


def _parts(array: torch.Tensor, spec: TensorSpec, where: str) -> Sequence[torch.Tensor]:
    shape = tuple(array.shape)
    if array.dim() == len(spec.shape) + 1 and shape[1:] == spec.shape:
        return list(array.unbind(0))
    batch = int(spec.shape[0]) if spec.shape else 1
    if spec.shape and shape[1:] == spec.shape[1:] and shape[0] % batch == 0:
        return list(array.split(batch)) if shape[0] else []
    fix = (
        f"save examples of {'×'.join(map(str, spec.shape[1:]))} one after another, along the first dimension"
    )
    if shape == spec.shape[1:]:
        fix = "save it with a first dimension for the examples: array[None]"
    elif array.dim() == len(spec.shape) == 4 and (shape[3], *shape[1:3]) == spec.shape[1:]:
        fix = "put its channels second: array.transpose(0, 3, 1, 2)"
    raise UsageError(where, f"an array of shape {shape} for input {spec.name!r} of shape {spec.shape}", fix)


def _call(tensors: Sequence[torch.Tensor], exported: ExportedProgram) -> CalibrationCall:
    """Return the call with these tensors, and with the program's examples for all that is not a tensor."""
    feed = iter(tensors)
    assert exported.example_inputs is not None
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(feed), exported.example_inputs)
    return CalibrationCall(args, kwargs)
