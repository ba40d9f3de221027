"""Write one LiteRT graph: its tensors, constants and operators.

A RESHAPE is written late, once, and only if an operator reads it. Nothing is transposed unless the plan asks
for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from dimorder.graph.quantized import Integers, IntegerType
from dimorder.targets.graph_writer import broadcast_within, merge_broadcast, without_leading_ones
from dimorder.targets.integer_kernels import integers_of
from dimorder.targets.litert import integers
from dimorder.targets.litert.flatbuffer import (
    CAST_ONLY,
    MAX_RANK,
    MAX_SLICED,
    TfLiteGraph,
    TfLiteNode,
    TfLiteTensor,
)
from dimorder.targets.litert.integer_writer import F32, LiteRtValue, TfLiteIntegerWriter
from dimorder.targets.litert.integers import CONVERTS, MOVES
from dimorder.targets.litert.passes import fuse_clamps, store_in_bytes
from dimorder.targets.litert.reshapes import merge_reshapes
from dimorder.targets.table import View

BROADCAST_RANK = 4  # LiteRT's own kernels compare and select in up to 4 dimensions
# Other operators broadcast in more dimensions by all kernels, if they do so in floats.
_BROADCAST_RANKS: Mapping[str, int] = MappingProxyType(
    {**dict.fromkeys(("ADD", "SUB", "MUL"), MAX_RANK), **dict.fromkeys(("DIV", "MAXIMUM", "MINIMUM"), 5)}
)


class LiteRtWriter(TfLiteIntegerWriter):
    """Builds one graph; `finish` returns it. Operators that no output needs are left out.

    `hint` is the name of the next operators' results. `varying` are the dynamic sizes that they read or give,
    if the graph is one of several that are merged.
    """

    MAX_RANK = MAX_RANK
    CONCAT, MAX_CONCATENATED = "CONCATENATION", 5  # XNNPACK's delegate has up to 5 operands

    def __init__(self) -> None:
        super().__init__()
        self.varying: Collection[int] = ()
        self.computes_floats: set[str] = set()  # the hints of the operators that do
        self._nodes: list[TfLiteNode] = []
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._variables: dict[str, tuple[str, LiteRtValue]] = {}  # by name: the handle, the initial value
        self._constants: dict[tuple[Any, ...], str] = {}
        self._wide: dict[str, LiteRtValue] = {}  # by float16 or float64 tensor: the same value in float32

    # -- values --------------------------------------------------------------------------------------------

    def input(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, of: IntegerType | None = None
    ) -> LiteRtValue:
        """Add the next input of the graph, dense in `shape`; `of` is what its integers stand for."""
        value = self._tensor(name, shape, dtype, of)
        self._inputs[name] = value.tensor
        return value

    def output(self, name: str, value: LiteRtValue) -> None:
        """Make `value` the next output, in its shape.

        An input, a constant or an existing output is copied first.
        """
        tensor = self._named(value)
        taken = {*self._inputs.values(), *self._outputs.values()}
        if tensor in taken or self._tensors[tensor].data is not None:
            tensor = self.copied(replace(value, tensor=tensor)).tensor
        self._outputs[name] = tensor

    def variable(self, name: str, initial: torch.Tensor) -> LiteRtValue:
        """Read a variable, which keeps from call to call what `assign` gives it, and begins as `initial`."""
        value = self.constant(initial)
        handle = self._unique(f"{name}.handle")
        self._tensors[handle] = TfLiteTensor((), value.dtype, is_handle=True)
        self._variables[name] = handle, value
        self._nodes.append(TfLiteNode("VAR_HANDLE", (), (handle,), {"sharedName": name}))
        read = self._tensor(self._unique(name), value.shape, value.dtype)
        self._nodes.append(TfLiteNode("READ_VARIABLE", (handle,), (read.tensor,), {}))
        return read

    def assign(self, name: str, value: LiteRtValue) -> None:
        """Let a variable keep a value. Nothing may read the variable afterwards."""
        operands = self._variables[name][0], self._named(value)
        self._nodes.append(TfLiteNode("ASSIGN_VARIABLE", operands, (), {}))

    def constant(self, data: torch.Tensor | np.ndarray[Any, Any]) -> LiteRtValue:
        """Return a constant, stored once per distinct data, shape, and integers that it is made of."""
        made_of = integers_of(data)
        tensor = torch.as_tensor(data).detach().as_subclass(torch.Tensor).cpu().contiguous()
        stored = self._stored(TfLiteTensor(tuple(tensor.shape), tensor.dtype, tensor.numpy()), made_of)
        if made_of is not None:
            self._integers[stored.tensor] = made_of
        return stored

    def _stored(self, tensor: TfLiteTensor, made_of: Integers | None = None) -> LiteRtValue:
        assert tensor.data is not None
        parts = [tensor.data] if made_of is None else [tensor.data, made_of.values, made_of.scales]
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).digest()
        key = (tensor.dtype, tensor.shape, tensor.scales, digest)
        if key not in self._constants:
            self._constants[key] = self._unique("constant")
            self._tensors[self._constants[key]] = tensor
        of = None if tensor.scales is None else integers.type_of_tensor(tensor)
        return LiteRtValue(self._constants[key], tensor.shape, tensor.dtype if of is None else F32, of)

    def standing_for(self, value: LiteRtValue | torch.Tensor, of: IntegerType) -> LiteRtValue:
        """Return integers that an operator gave, or a constant of integers, as those of a type."""
        if isinstance(value, torch.Tensor):
            return replace(self._stored(integers.constant(value, of)), of=of)
        self._tensors[value.tensor] = replace(self._tensors[value.tensor], scales=integers.scales_of(of))
        return replace(value, dtype=F32, of=of)

    def number(self, number: float, dtype: torch.dtype) -> LiteRtValue:
        """Return a constant without dimensions. It has the last bits of an integer, as in torch."""
        return self.constant(torch.tensor(number).to(dtype))

    def sizes(self, sizes: Sequence[int]) -> LiteRtValue:
        """Return a constant of int32: sizes, starts, paddings or dimensions."""
        return self.constant(torch.tensor(list(sizes), dtype=torch.int32))

    # -- half precision and float64 --------------------------------------------------------------------------

    def widened(self, operand: Any) -> Any:
        """Return an operand in float32, in which all of a program in float16 or float64 is computed."""
        if isinstance(operand, torch.Tensor):
            return operand.float() if operand.dtype in CAST_ONLY else operand
        if not isinstance(operand, View) or operand.value.dtype not in CAST_ONLY:
            return operand
        value = operand.value
        if value.tensor not in self._wide:
            self._wide[value.tensor] = self.elementwise("CAST", value, dtype=torch.float32)
        return View(self.reshape(self._wide[value.tensor], value.shape), operand.order)

    def narrowed(self, view: View[LiteRtValue], dtype: torch.dtype) -> View[LiteRtValue]:
        """Convert a result that was computed in float32 to its own type. A reader gets the original value."""
        if dtype not in CAST_ONLY:
            return view
        value = self.elementwise("CAST", view.value, dtype=dtype)
        self._wide[value.tensor] = view.value
        return View(value, view.order)

    # -- operators -----------------------------------------------------------------------------------------

    def op(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> LiteRtValue:
        """Write operator `kind` on `inputs` in their shapes.

        Its result has the type of the first by default. `options` have the schema's names.
        """
        first = inputs[0]
        assert first is not None
        return self.ops(kind, inputs, [(shape, dtype or first.dtype)], **options)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        results: Sequence[tuple[Sequence[int], torch.dtype]],
        **options: Any,
    ) -> list[LiteRtValue]:
        """Write an operator with several results, of these shapes and types."""
        if self.in_integers is not None and kind not in MOVES:
            ((shape, _),) = results
            return [self._integer_op(kind, inputs, shape, options)]
        of = self._moved_type(kind, inputs)
        if of is None and kind not in CONVERTS:
            inputs = [None if value is None else self.floats(value) for value in inputs]
            if kind not in MOVES and any(dtype == F32 for _, dtype in results):
                self.computes_floats.add(self.hint)
        return self._write(kind, inputs, results, of, options)

    def _write(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        results: Sequence[tuple[Sequence[int], torch.dtype]],
        of: IntegerType | None,
        options: Mapping[str, Any],
    ) -> list[LiteRtValue]:
        operands = tuple(None if value is None else self._named(value) for value in inputs)
        made = [self._tensor(self._unique(self.hint), *result, of) for result in results]
        names = tuple(value.tensor for value in made)
        self._nodes.append(TfLiteNode(kind, operands, names, options, self.hint))
        return made

    def _broadcast(
        self, kind: str, values: Sequence[LiteRtValue], shape: tuple[int, ...]
    ) -> list[LiteRtValue]:
        """Return operands that broadcast in as many dimensions as all kernels have: in others, or repeated.

        The first computed value that has all elements is read in the shape in which it was written. The other
        operands get dimensions that fit this shape.
        """
        shapes, most = [value.shape for value in values], _broadcast_rank(kind, values[-1].dtype)
        for within in self._whole_shapes(values, shape):
            found = broadcast_within(shapes, shape, within)
            if found is not None and (len(within) <= most or all(to == within for to in found)):
                return [self._read_in(value, to) for value, to in zip(values, found, strict=True)]
        merged = merge_broadcast(shapes, shape)
        if len(merged[0]) <= most:
            return [self.reshape(value, to) for value, to in zip(values, merged, strict=True)]
        return [self.reshape(self.expanded(value, shape), (math.prod(shape),)) for value in values]

    def _whole_shapes(self, values: Sequence[LiteRtValue], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shapes in which computed values with all elements were written, and at last `shape`.

        If every computed value is a single element, `shape` comes without its leading dimensions of 1.
        Constants may have any shape, and a reader can add these dimensions.
        """
        computed = [value for value in values if self._tensors[value.tensor].data is None]
        written = [self._tensors[value.tensor].shape for value in computed if value.size == math.prod(shape)]
        last = shape if any(value.size > 1 for value in computed) else without_leading_ones(shape)
        return list(dict.fromkeys([*written, last]))

    def _read_in(self, value: LiteRtValue, shape: tuple[int, ...]) -> LiteRtValue:
        """Return a value in a shape, which may lack dimensions of 1 at its beginning."""
        tensor = self._tensors[value.tensor]
        if tensor.data is not None and value.size == 1:
            return self.reshape(value, ())
        if len(tensor.shape) <= len(shape) and without_leading_ones(shape) == without_leading_ones(
            tensor.shape
        ):
            return self.as_written(value)
        return self.reshape(value, shape)

    def _goes_in_rows(self, kind: str, x: LiteRtValue) -> bool:
        return len(x.shape) > (MAX_SLICED if kind == "SLICE" else MAX_RANK)

    def in_rows(self, value: LiteRtValue, most: int = MAX_RANK) -> LiteRtValue:
        """Return a value for an operator on rows: in the shape in which it was written, if that has them."""
        shape = self._tensors[value.tensor].shape
        are_rows = shape[-1:] == value.shape[-1:] and len(shape) <= most
        return self.as_written(value) if are_rows else value

    def expanded(self, value: LiteRtValue, shape: Sequence[int]) -> LiteRtValue:
        """Repeat a value in the dimensions in which it has size 1, or none, and `shape` has not."""
        shape = tuple(shape)
        if value.shape == shape or value.size == math.prod(shape):
            return self.reshape(value, shape)
        constant = self.data(value)
        if constant is not None:
            return self.constant(constant.expand(shape))
        padded = (1,) * (len(shape) - len(value.shape)) + value.shape
        old, new = padded, shape
        if len(shape) > MAX_RANK:
            old, new = merge_broadcast([value.shape, shape], shape)
        if len(new) > MAX_RANK:  # first repeat the last such dimension, which then merges with its neighbours
            last = max(d for d, (a, b) in enumerate(zip(padded, shape, strict=True)) if a != b)
            return self.expanded(self.expanded(value, (*padded[:last], *shape[last:])), shape)
        repeated = {b for a, b in zip(old, new, strict=True) if a != b}
        # A MUL multiplies no unsigned integers, and of int8 only constants. XNNPACK has no TILE.
        is_multiplied = value.of is None or (
            value.of.dtype == torch.int8 and repeated.isdisjoint(self.varying)
        )
        if value.dtype.is_floating_point and is_multiplied:
            ones = torch.ones([1 if a == b else b for a, b in zip(old, new, strict=True)], dtype=value.dtype)
            value = self.reshape(value, old)
            if value.of is not None:
                return self.reshape(self._product(value, ones, new, value.of), shape)
            return self.reshape(self.op("MUL", [value, self.constant(ones)], new), shape)
        multiples = self.sizes([b // a for a, b in zip(old, new, strict=True)])
        return self.reshape(self.op("TILE", [self.reshape(value, old), multiples], new), shape)

    def copied(self, value: LiteRtValue) -> LiteRtValue:
        """Return a tensor of its own with the elements of `value`."""
        return self._write_reshape(value, value.shape)

    # -- the file ------------------------------------------------------------------------------------------

    def finish(self) -> TfLiteGraph:
        """Return the graph."""
        nodes = fuse_clamps(self._needed(), self._outputs.values())
        tensors, nodes = merge_reshapes(self._tensors, nodes, self._outputs.values())
        tensors, nodes = store_in_bytes(tensors, nodes, self._integers)
        if not self._variables:
            return TfLiteGraph(tensors, nodes, self._inputs, self._outputs)
        nodes = [TfLiteNode("CALL_ONCE", (), (), {}), *nodes]
        return TfLiteGraph(tensors, nodes, self._inputs, self._outputs, self._initialization())

    def _initialization(self) -> TfLiteGraph:
        """Return the graph that gives each variable its initial value."""
        nodes = []
        for name, (handle, initial) in self._variables.items():
            nodes.append(TfLiteNode("VAR_HANDLE", (), (handle,), {"sharedName": name}))
            nodes.append(TfLiteNode("ASSIGN_VARIABLE", (handle, initial.tensor), (), {}))
        return TfLiteGraph(self._tensors, nodes, {}, {})

    def _needed(self) -> list[TfLiteNode]:
        wanted, kept = set(self._outputs.values()), []
        for node in reversed(self._nodes):
            if not node.outputs or wanted.intersection(node.outputs):
                wanted.update(name for name in node.inputs if name)
                kept.append(node)
        return kept[::-1]

    # -- helpers -------------------------------------------------------------------------------------------

    def _tensor(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, of: IntegerType | None = None
    ) -> LiteRtValue:
        shape = tuple(int(size) for size in shape)
        stored = dtype if of is None else of.dtype
        self._tensors[name] = TfLiteTensor(
            shape, stored, None, None if of is None else integers.scales_of(of)
        )
        return LiteRtValue(name, shape, dtype if of is None else F32, of)

    def _unique(self, stem: str) -> str:
        """Return a name that no tensor has; the first one is the stem itself."""
        return stem if stem not in self._tensors else f"{stem}.{len(self._tensors)}"

    def _constant_like(self, data: np.ndarray[Any, Any], value: LiteRtValue) -> LiteRtValue:
        if value.of is not None:
            return self._stored(replace(self._tensors[value.tensor], shape=data.shape, data=data))
        numbers = self.data(value)
        assert numbers is not None
        return self.constant(numbers)

    def _write_reshape(self, value: LiteRtValue, shape: tuple[int, ...]) -> LiteRtValue:
        return self.op("RESHAPE", [value, self.sizes(shape)], shape, newShape=list(shape))

    def _write_transpose(self, value: LiteRtValue, order: tuple[int, ...]) -> LiteRtValue:
        return self.op("TRANSPOSE", [value, self.sizes(order)], [value.shape[i] for i in order])


def _broadcast_rank(kind: str, dtype: torch.dtype) -> int:
    """Return in how many dimensions all of LiteRT's kernels broadcast an operator's operands."""
    return _BROADCAST_RANKS.get(kind, BROADCAST_RANK) if dtype == torch.float32 else BROADCAST_RANK
