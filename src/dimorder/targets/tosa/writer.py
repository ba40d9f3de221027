"""Write one TOSA graph: its tensors, constants and operators.

A RESHAPE is written late, once, and only if an operator reads it. Nothing is transposed unless the plan asks
for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dimorder.errors import UnsupportedError
from dimorder.physical.annotations import Annotation
from dimorder.targets.graph_writer import NamedValue, NamedWriter, merge_broadcast
from dimorder.targets.table import View
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, NUMPY, TORCH
from dimorder.targets.tosa.flatbuffer import FlatTensor, serialize
from dimorder.targets.tosa.integers.model import TosaModel, TosaNode

MAX_RANK = 6  # MAX_RANK of TOSA's level 8K, spec 1.0 section 1.7.6
PICTURE = 4  # dimensions that an NPU broadcasts along; above that Vela makes an operator for each slice
MAX_OPERANDS = 64  # MAX_TENSOR_LIST_SIZE of the same level: the operands of one CONCAT


class TosaValue(NamedValue[str]):
    """A tensor of a TOSA graph, seen in some shape; its type has TOSA's name."""


class TosaWriter(NamedWriter[TosaValue, FlatTensor]):
    """Builds one TOSA 1.0 graph; `finish` returns its bytes. Operators that no output needs are omitted.

    `hint` is the beginning of the next tensors' names. `annotation` says what the call that is written is
    in a quantised program. `max_stride` is the largest stride of a convolution that is padded or depthwise.
    `reverses_last` says whether REVERSE may reverse the last dimension.
    """

    MAX_RANK = MAX_RANK
    CONCAT, MAX_CONCATENATED = "CONCAT", MAX_OPERANDS
    max_stride: float = math.inf
    reverses_last: bool = True

    def __init__(self) -> None:
        super().__init__()
        self.annotation: Annotation | None = None
        self._nodes: list[TosaNode] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._cut: dict[str, tuple[str, torch.Tensor]] = {}  # by tensor: channels of one that was written
        self._wide: dict[str, TosaValue] = {}  # by half-precision tensor: the same value in float32

    def require_planned(self, value: Any) -> None:
        """Require that the call that was written is what its annotation says."""

    # -- values --------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str) -> TosaValue:
        """Add the next input of the graph, dense in `shape`."""
        value = self._tensor(name, shape, dtype)
        self._inputs.append(value.tensor)
        return value

    def output(self, value: TosaValue) -> None:
        """Make `value` the next output, in its shape.

        An input, a constant or an existing output is copied first.
        """
        name = self._named(value)
        tensor = self._tensors[name]
        if name in self._inputs or name in self._outputs or tensor.data is not None:
            name = self.op("IDENTITY", [value], value.shape, value.dtype).tensor
        self._outputs.append(name)

    def constant(self, data: torch.Tensor | np.ndarray[Any, Any], dtype: str | None = None) -> TosaValue:
        """Return a constant, stored once per distinct data and shape.

        `dtype` is the data's own by default.
        """
        if isinstance(data, torch.Tensor):
            dtype, data = dtype or DTYPES[data.dtype], data.detach().cpu()
            data = (data.float() if data.dtype == torch.bfloat16 else data).numpy()
        assert dtype is not None
        if dtype == "BF16":
            data = torch.tensor(data).to(torch.bfloat16).float().numpy()
        array = np.ascontiguousarray(data, dtype=NUMPY[dtype]).reshape(np.shape(data))
        _require_shape(array.shape, dtype)
        if array.dtype.kind == "i" and not np.array_equal(array, data):
            worst = max(np.ravel(data), key=abs)
            raise UnsupportedError("a constant", f"the integer {worst}, which is beyond {dtype}", "scale it")
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._unique("constant")
            self._tensors[name] = FlatTensor(array.shape, dtype, array)
            self._constants[key] = name
        return TosaValue(self._constants[key], array.shape, dtype)

    def number(self, number: float, dtype: str, rank: int = 1) -> TosaValue:
        """Return a constant of one element, which broadcasts against a value of `rank` dimensions."""
        return self.constant(np.full((1,) * rank, number), dtype)

    def sizes(self, sizes: Sequence[int]) -> TosaValue:
        """Return a constant of type SHAPE: sizes, starts, paddings or multiples."""
        return self.constant(np.array(sizes, dtype=np.int64), "SHAPE")

    # -- half precision ------------------------------------------------------------------------------------

    def cast(self, value: TosaValue, dtype: str) -> TosaValue:
        """Write a CAST between FP32 and another float type, unless the value has that type."""
        if value.dtype == dtype:
            return value
        if dtype == "FP32" and value.tensor in self._wide:
            return self.reshape(self._wide[value.tensor], value.shape)
        made = self.elementwise("CAST", value, dtype=dtype)
        if dtype == "FP32":
            self._wide[value.tensor] = made
        return made

    def narrow(self, value: TosaValue, dtype: str) -> TosaValue:
        """Convert a float32 to half precision. A reader that wants float32 gets the original value."""
        narrowed = self.cast(value, dtype)
        if narrowed != value:
            self._wide[narrowed.tensor] = value
        return narrowed

    def widened(self, operand: Any) -> Any:
        """Return an operand in float32: a half-precision value or constant is cast."""
        if isinstance(operand, torch.Tensor):
            return operand.float() if operand.is_floating_point() else operand
        if not isinstance(operand, View) or operand.value.dtype not in FLOATS:
            return operand
        return View(self.cast(operand.value, "FP32"), operand.order)

    def narrowed(self, view: View[TosaValue], dtype: torch.dtype) -> View[TosaValue]:
        """Convert a result that was computed in float32 to its own type."""
        return View(self.narrow(view.value, DTYPES[dtype]), view.order) if dtype.is_floating_point else view

    # -- operators -----------------------------------------------------------------------------------------

    def op(
        self,
        kind: str,
        inputs: Sequence[TosaValue],
        shape: Sequence[int],
        dtype: str | None = None,
        **attributes: Any,
    ) -> TosaValue:
        """Write TOSA operator `kind` on `inputs` in their shapes.

        Its result has the dtype of the first by default.

        `attributes` have the specification's names. NaNs propagate if the attributes do not say otherwise.
        """
        result = self._tensor(self._unique(self.hint), shape, dtype or inputs[0].dtype)
        operands = tuple(self._named(value) for value in inputs)
        stands_for = TORCH[result.dtype]
        self._nodes.append(TosaNode(kind, operands, result.tensor, attributes, stands_for, result.shape))
        return result

    def _broadcast(self, kind: str, values: Sequence[TosaValue], shape: tuple[int, ...]) -> list[TosaValue]:
        to = self._written_shape(values, shape)
        common = (
            _aligned([value.shape for value in values], shape)
            if to is None
            else [to if value.size == math.prod(to) else (1,) * len(to) for value in values]
        )
        if len(common[0]) > MAX_RANK:
            return [self.reshape(self.tiled(value, shape), (math.prod(shape),)) for value in values]
        return [self.reshape(value, to) for value, to in zip(values, common, strict=True)]

    def tiled(self, x: TosaValue, shape: Sequence[int]) -> TosaValue:
        """Repeat `x` in the dimensions in which it has size 1, or none, and `shape` has not."""
        shape = tuple(shape)
        x = self.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
        if shape == x.shape:
            return x
        constant = self.data(x)
        if constant is not None:
            return self.constant(constant.expand(shape), x.dtype)
        merged, out = merge_broadcast([x.shape, shape], shape)
        if len(out) > MAX_RANK:  # first repeat the last such dimension, which then merges with its neighbours
            last = max(d for d, (old, new) in enumerate(zip(x.shape, shape, strict=True)) if old != new)
            return self.tiled(self.tiled(x, (*x.shape[:last], *shape[last:])), shape)
        multiples = [new // old for old, new in zip(merged, out, strict=True)]
        y = self.op("TILE", [self.reshape(x, merged), self.sizes(multiples)], out)
        return self.reshape(y, shape)

    def _goes_in_rows(self, kind: str, x: TosaValue) -> bool:
        """Return whether a value has a rank that TOSA lacks, or several images.

        Vela cuts and joins images one by one.
        """
        return len(x.shape) > MAX_RANK or math.prod(x.shape[:-3]) > 1

    def _written_shape(self, values: Sequence[TosaValue], shape: Sequence[int]) -> tuple[int, ...] | None:
        """Return the shape in which operands that have all elements of `shape`, or one, need no reshape.

        That is the shape of the first operand that is no constant, as it was written. Return None if an
        operand broadcasts along some dimensions only.
        """
        count = math.prod(shape)
        if any(value.size not in (1, count) for value in values):
            return None
        full = [value for value in values if value.size == count]
        computed = (value for value in full if self._tensors[value.tensor].data is None)
        return self._tensors[next(computed, full[0]).tensor].shape

    # -- the file ------------------------------------------------------------------------------------------

    def finish(self) -> bytes:
        """Return the flatbuffer. Needs tosa-tools."""
        return serialize(self._tensors, self._needed(), self._inputs, self._outputs)

    def _needed(self) -> list[TosaNode]:
        wanted, kept = set(self._outputs), []
        for node in reversed(self._nodes):
            if node.output in wanted:
                wanted.update(node.inputs)
                kept.append(node)
        return kept[::-1]

    def model(self, rounded: Mapping[str, TosaValue]) -> TosaModel:
        """Return the model of the graph in integers.

        `rounded` are the values of the program's nodes, by name.
        """
        nodes = self._needed()
        read = {name for node in nodes for name in node.inputs}
        constants = {
            name: torch.from_numpy(tensor.data)
            for name, tensor in self._tensors.items()
            if tensor.data is not None and name in read
        }
        names = {name: value.tensor for name, value in rounded.items()}
        inputs = {name: self._tensors[name].shape for name in self._inputs}
        return TosaModel(nodes, constants, inputs, tuple(self._outputs), names, cut=self._cut)

    # -- helpers -------------------------------------------------------------------------------------------

    def _tensor(self, name: str, shape: Sequence[int], dtype: str) -> TosaValue:
        shape = tuple(int(size) for size in shape)
        _require_shape(shape, dtype)
        self._tensors[name] = FlatTensor(shape, dtype)
        return TosaValue(name, shape, dtype)

    def _unique(self, stem: str) -> str:
        return f"{stem}.{len(self._tensors)}"

    def _constant_like(self, data: np.ndarray[Any, Any], value: TosaValue) -> TosaValue:
        return self.constant(data, value.dtype)

    def _write_reshape(self, value: TosaValue, shape: tuple[int, ...]) -> TosaValue:
        return self.op("RESHAPE", [value, self.sizes(shape)], shape)

    def _write_transpose(self, value: TosaValue, order: tuple[int, ...]) -> TosaValue:
        return self.op("TRANSPOSE", [value], [value.shape[i] for i in order], perms=list(order))


def _require_shape(shape: tuple[int, ...], dtype: str) -> None:
    if len(shape) > MAX_RANK:
        found = f"{len(shape)} dimensions {shape}, where TOSA has at most {MAX_RANK}"
        raise UnsupportedError("a tensor of a TOSA graph", found, "merge dimensions before it")
    if 0 in shape and dtype != "SHAPE":  # the shape of a scalar has no sizes
        raise UnsupportedError("a tensor of a TOSA graph", f"the empty shape {shape}", "leave it out")


def _aligned(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes that broadcast to `shape`, all at its rank, or merged if that is above `PICTURE`."""
    if len(shape) <= PICTURE:
        return [(1,) * (len(shape) - len(each)) + each for each in shapes]
    return merge_broadcast(shapes, shape)
