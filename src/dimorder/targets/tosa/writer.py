"""Write one TOSA graph: its tensors, constants and operators.

A RESHAPE is written late, once, and only if an operator reads it. Nothing is transposed unless the plan asks
for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dimorder.errors import UnsupportedError
from dimorder.targets.table import View
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, NUMPY, TORCH
from dimorder.targets.tosa.flatbuffer import FlatTensor, serialize
from dimorder.targets.tosa.integers.model import TosaModel, TosaNode

MAX_RANK = 6  # MAX_RANK of TOSA's level 8K, spec 1.0 section 1.7.6
PICTURE = 4  # dimensions that an NPU broadcasts along; above that Vela makes an operator for each slice
MAX_OPERANDS = 64  # MAX_TENSOR_LIST_SIZE of the same level: the operands of one CONCAT


@dataclass(frozen=True)
class TosaValue:
    """The dense tensor of that name, seen in `shape`.

    Only the writer knows the shape in which it was written.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str


class TosaWriter:
    """Builds one TOSA 1.0 graph; `finish` returns its bytes. Operators that no output needs are omitted.

    `hint` is the beginning of the next tensors' names.
    """

    def __init__(self) -> None:
        self.hint = "tensor"
        self._tensors: dict[str, FlatTensor] = {}
        self._nodes: list[TosaNode] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._reshaped: dict[tuple[str, tuple[int, ...]], str] = {}
        self._transposed: dict[View[TosaValue], TosaValue] = {}
        self._wide: dict[str, TosaValue] = {}  # by half-precision tensor: the same value in float32

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

    def shape(self, sizes: Sequence[int]) -> TosaValue:
        """Return a constant of type SHAPE: sizes, starts, paddings or multiples."""
        return self.constant(np.array(sizes, dtype=np.int64), "SHAPE")

    def data(self, value: TosaValue) -> torch.Tensor | None:
        """Return the data of `value` if it is a constant, else None."""
        data = self._tensors[value.tensor].data
        return None if data is None else torch.from_numpy(data).reshape(value.shape)

    def reshape(self, value: TosaValue, shape: Sequence[int]) -> TosaValue:
        """Return the same elements in `shape`. A RESHAPE is written only when an operator reads them so."""
        shape = tuple(int(size) for size in shape)
        assert math.prod(shape) == math.prod(value.shape), (value.shape, shape)
        return TosaValue(value.tensor, shape, value.dtype)

    def as_written(self, value: TosaValue) -> TosaValue:
        """Return the same elements in the shape in which they were written, which needs no operator."""
        return self.reshape(value, self._tensors[value.tensor].shape)

    def dense(self, operand: View[TosaValue] | torch.Tensor) -> TosaValue:
        """Return `operand` dense in its own dimension order: a constant, or a value in that order already.

        Only `transposed` writes a TRANSPOSE, for a conversion of the plan.
        """
        if isinstance(operand, torch.Tensor):
            return self.constant(operand)
        assert operand in self._transposed or operand.is_dense, (
            "the plan has no conversion for this transpose"
        )
        return self._transposed.get(operand) or self.reshape(operand.value, operand.shape)

    def transposed(self, view: View[TosaValue]) -> TosaValue:
        """Return `view` dense in its own dimension order.

        Write a TRANSPOSE if needed, once per value and order.
        """
        if view.is_dense:
            return self.reshape(view.value, view.shape)
        if view not in self._transposed:
            value, order = (view.value, view.order) if len(view.order) <= MAX_RANK else _coalesced(view)
            source = self.reshape(value, value.shape)
            written = self.op("TRANSPOSE", [source], [value.shape[i] for i in order], perms=list(order))
            self._transposed[view] = self.reshape(written, view.shape)
        return self._transposed[view]

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

    def elementwise(
        self,
        kind: str,
        *operands: TosaValue | float,
        dtype: str | None = None,
        extra: Sequence[TosaValue] = (),
        **attributes: Any,
    ) -> TosaValue:
        """Write an operator on each element.

        Operands broadcast as in torch, numbers take the last value's dtype.

        `extra` follows the operands as it is. Values of one shape are read in the shape in which the first
        one was written, so that no RESHAPE interrupts a chain of such operators.
        """
        like = [operand for operand in operands if isinstance(operand, TosaValue)][-1].dtype
        values = [o if isinstance(o, TosaValue) else self.number(o, like) for o in operands]
        shape = tuple(np.broadcast_shapes(*(value.shape for value in values)))
        count = math.prod(shape)
        full = [value for value in values if math.prod(value.shape) == count]
        if all(math.prod(value.shape) in (1, count) for value in values):
            written = next((v for v in full if self._tensors[v.tensor].data is None), full[0])
            to = self.as_written(written).shape
            common = [to if value in full else (1,) * len(to) for value in values]
        else:
            common = _aligned([value.shape for value in values], shape)
        taken = [self.reshape(value, to) for value, to in zip(values, common, strict=True)]
        out = np.broadcast_shapes(*(value.shape for value in taken))
        result = self.op(kind, [*taken, *extra], out, dtype or like, **attributes)
        return self.reshape(result, shape)

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
        return TosaModel(nodes, constants, inputs, tuple(self._outputs), names)

    # -- helpers -------------------------------------------------------------------------------------------

    def _tensor(self, name: str, shape: Sequence[int], dtype: str) -> TosaValue:
        shape = tuple(int(size) for size in shape)
        _require_shape(shape, dtype)
        self._tensors[name] = FlatTensor(shape, dtype)
        return TosaValue(name, shape, dtype)

    def _unique(self, stem: str) -> str:
        return f"{stem}.{len(self._tensors)}"

    def _named(self, value: TosaValue) -> str:
        """Return the tensor that holds `value` in its shape."""
        tensor = self._tensors[value.tensor]
        if value.shape == tensor.shape:
            return value.tensor
        key = (value.tensor, value.shape)
        if key not in self._reshaped:
            if tensor.data is not None:
                self._reshaped[key] = self.constant(tensor.data.reshape(value.shape), value.dtype).tensor
            else:
                source = TosaValue(value.tensor, tensor.shape, tensor.dtype)
                written = self.op("RESHAPE", [source, self.shape(value.shape)], value.shape)
                self._reshaped[key] = written.tensor
        return self._reshaped[key]


def _require_shape(shape: tuple[int, ...], dtype: str) -> None:
    if len(shape) > MAX_RANK:
        found = f"{len(shape)} dimensions {shape}, where TOSA has at most {MAX_RANK}"
        raise UnsupportedError("a tensor of a TOSA graph", found, "merge dimensions before it")
    if 0 in shape and dtype != "SHAPE":  # the shape of a scalar has no sizes
        raise UnsupportedError("a tensor of a TOSA graph", f"the empty shape {shape}", "leave it out")


def _aligned(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes that broadcast to `shape`, all at its rank, or merged if that is above `PICTURE`.

    Adjacent dimensions merge if every operand has both or lacks both.
    """
    padded = [(1,) * (len(shape) - len(s)) + s for s in shapes]
    if len(shape) <= PICTURE:
        return padded
    groups: list[list[int]] = []
    held: list[list[bool]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        having = [s[d] == size for s in padded]
        if held and having == held[-1]:
            groups[-1].append(d)
        else:
            groups.append([d])
            held.append(having)
    return [tuple(math.prod(s[d] for d in group) for group in groups) for s in padded]


def _coalesced(view: View[TosaValue]) -> tuple[TosaValue, tuple[int, ...]]:
    """Return the same transpose without dimensions of 1, and with dimensions merged that stay adjacent."""
    sizes, order = view.value.shape, [i for i in view.order if view.value.shape[i] != 1]
    runs: list[list[int]] = []
    kept = sorted(order)
    rank = {dim: position for position, dim in enumerate(kept)}
    for dim in order:
        if runs and rank[dim] == rank[runs[-1][-1]] + 1:
            runs[-1].append(dim)
        else:
            runs.append([dim])
    ordered = sorted(runs)
    value = TosaValue(
        view.value.tensor, tuple(math.prod(sizes[d] for d in run) for run in ordered), view.value.dtype
    )
    return value, tuple(ordered.index(run) for run in runs)
