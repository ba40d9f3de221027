"""Write one LiteRT graph: its tensors, constants and operators.

A RESHAPE is written late, once, and only if an operator reads it. Nothing is transposed unless the plan asks
for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dimorder.graph.quantized import Integers, IntegerType, Scaled
from dimorder.physical.fuse_quantized import Annotation
from dimorder.targets.graph_writer import NamedValue, NamedWriter, merge_broadcast
from dimorder.targets.integer_kernels import integers_of
from dimorder.targets.litert import integers
from dimorder.targets.litert.flatbuffer import MAX_RANK, TfLiteGraph, TfLiteNode, TfLiteTensor
from dimorder.targets.litert.integers import CONVERTS, MOVES
from dimorder.targets.litert.passes import fuse_clamps, store_in_half
from dimorder.targets.table import View

F32 = torch.float32
BROADCAST_RANK = 4  # LiteRT's own kernels compare, select and divide in up to 4 dimensions

_ARITHMETIC = frozenset(("ADD", "SUB", "MUL"))  # broadcast in up to `MAX_RANK` dimensions by all kernels


@dataclass(frozen=True)
class LiteRtValue(NamedValue[torch.dtype]):
    """A tensor of a LiteRT graph, seen in some shape.

    Integers that stand for floats have `of`, and float32 as their `dtype`. What reads them in floats gets
    them dequantized.
    """

    of: IntegerType | None = None


class LiteRtWriter(NamedWriter[LiteRtValue, TfLiteTensor]):
    """Builds one graph; `finish` returns its bytes. Operators that no output needs are left out.

    `hint` is the name of the next operators' results, and `in_integers` how their one operator that computes
    reads and writes integers.
    """

    MAX_RANK = MAX_RANK

    def __init__(self) -> None:
        super().__init__()
        self.in_integers: Annotation | None = None
        self.computes_floats: set[str] = set()  # the hints of the operators that do
        self._nodes: list[TfLiteNode] = []
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._integers: dict[str, Integers] = {}  # by float constant: those that it is made of
        self._floats: dict[str, LiteRtValue] = {}  # by tensor of integers: what they stand for
        self._wide: dict[str, LiteRtValue] = {}  # by float16 tensor: the same value in float32

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

    def number(self, number: float, dtype: torch.dtype) -> LiteRtValue:
        """Return a constant without dimensions."""
        return self.constant(torch.tensor(number, dtype=dtype))

    def sizes(self, sizes: Sequence[int]) -> LiteRtValue:
        """Return a constant of int32: sizes, starts, paddings or dimensions."""
        return self.constant(torch.tensor(list(sizes), dtype=torch.int32))

    # -- half precision ------------------------------------------------------------------------------------

    def widened(self, operand: Any) -> Any:
        """Return an operand in float32, in which all of a float16 program is computed."""
        if isinstance(operand, torch.Tensor):
            return operand.float() if operand.dtype == torch.float16 else operand
        if not isinstance(operand, View) or operand.value.dtype != torch.float16:
            return operand
        value = operand.value
        if value.tensor not in self._wide:
            self._wide[value.tensor] = self.elementwise("CAST", value, dtype=torch.float32)
        return View(self.reshape(self._wide[value.tensor], value.shape), operand.order)

    def narrowed(self, view: View[LiteRtValue], dtype: torch.dtype) -> View[LiteRtValue]:
        """Convert a result that was computed in float32 to its own type. A reader gets the original value."""
        if dtype != torch.float16:
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
        self._nodes.append(TfLiteNode(kind, operands, tuple(value.tensor for value in made), options))
        return made

    def elementwise(
        self, kind: str, *operands: LiteRtValue | float, dtype: torch.dtype | None = None, **options: Any
    ) -> LiteRtValue:
        """Write an operator on each element.

        Operands broadcast as in torch, numbers take the last value's type. Values of one shape are read in
        the shape in which the first one was written, so that no RESHAPE interrupts a chain of such operators.
        """
        like = [operand for operand in operands if isinstance(operand, LiteRtValue)][-1].dtype
        values = [o if isinstance(o, LiteRtValue) else self.number(o, like) for o in operands]
        shape = tuple(np.broadcast_shapes(*(value.shape for value in values)))
        to = self._written_shape(values, shape)
        if to is not None:
            taken = [self.reshape(value, to if value.size == math.prod(to) else ()) for value in values]
        else:
            most = MAX_RANK if kind in _ARITHMETIC and like == torch.float32 else BROADCAST_RANK
            taken = self._broadcast(values, shape, most)
        out = np.broadcast_shapes(*(value.shape for value in taken))
        return self.reshape(self.op(kind, taken, out, dtype or like, **options), shape)

    def _broadcast(
        self, values: Sequence[LiteRtValue], shape: tuple[int, ...], most: int
    ) -> list[LiteRtValue]:
        """Return operands that broadcast in at most `most` dimensions: with merged ones, or repeated."""
        if len(shape) <= most:
            return list(values)
        merged = merge_broadcast([value.shape for value in values], shape)
        if len(merged[0]) <= most:
            return [self.reshape(value, to) for value, to in zip(values, merged, strict=True)]
        return [self.reshape(self.expanded(value, shape), (math.prod(shape),)) for value in values]

    def expanded(self, value: LiteRtValue, shape: Sequence[int]) -> LiteRtValue:
        """Repeat a value in the dimensions in which it has size 1, or none, and `shape` has not."""
        shape = tuple(shape)
        if value.shape == shape or value.size == math.prod(shape):
            return self.reshape(value, shape)
        constant = self.data(value)
        if constant is not None:
            return self.constant(constant.expand(shape))
        old, new = merge_broadcast([value.shape, shape], shape)
        if len(new) > MAX_RANK:  # first repeat the last such dimension, which then merges with its neighbours
            padded = (1,) * (len(shape) - len(value.shape)) + value.shape
            last = max(d for d, (a, b) in enumerate(zip(padded, shape, strict=True)) if a != b)
            return self.expanded(self.expanded(value, (*padded[:last], *shape[last:])), shape)
        is_unsigned = value.of is not None and value.of.dtype != torch.int8  # which a MUL does not multiply
        if value.dtype.is_floating_point and not is_unsigned and len(new) <= MAX_RANK:  # XNNPACK has no TILE
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

    # -- integers ------------------------------------------------------------------------------------------

    def floats(self, value: LiteRtValue) -> LiteRtValue:
        """Return the numbers that integers stand for, dequantized once; or floats as they are."""
        if value.of is None:
            return value
        if value.tensor not in self._floats:
            written = self.as_written(value)
            (real,) = self._write("DEQUANTIZE", [written], [(written.shape, F32)], None, {})
            self._floats[value.tensor] = real
        return self.reshape(self._floats[value.tensor], value.shape)

    def quantize(self, value: LiteRtValue, of: IntegerType) -> LiteRtValue:
        """Quantize floats, or integers once more.

        XNNPACK's QUANTIZE of int8 is sometimes off by 1. A product with ones is exact.
        """
        own = value.of
        if own is None or own.dtype != of.dtype:
            same = of if own is None else own.as_type(of.dtype)
            written = self.as_written(value)
            (made,) = self._write("QUANTIZE", [written], [(written.shape, F32)], same, {})
            return self.quantize(self.reshape(made, value.shape), of)
        if own == of:
            return value
        if of.dtype != torch.int8 or integers.unfit_ones(own, of) is not None:
            return self.quantize(self.floats(value), of)
        return self.rescaled(value, of)

    def rescaled(self, value: LiteRtValue, of: IntegerType, act: int = 0, factor: float = 1) -> LiteRtValue:
        """Write integers as those of another type, times a factor, and with an activation."""
        numbers = torch.full((1,) * len(value.shape), float(factor))
        return self._product(value, numbers, value.shape, of, act)

    def _product(
        self, value: LiteRtValue, numbers: torch.Tensor, shape: Sequence[int], of: IntegerType, act: int = 0
    ) -> LiteRtValue:
        """Write a product of integers with a constant whose numbers are all the same."""
        constant = self._stored(integers.operand(numbers))
        options = {"fusedActivationFunction": act}
        return self._write("MUL", [value, constant], [(shape, F32)], of, options)[0]

    def clamp_integers(self, value: LiteRtValue, low: float, high: float) -> LiteRtValue:
        """Write a call that clamps integers to bounds that an activation has."""
        annotation, self.in_integers = self.in_integers, None
        assert annotation is not None and annotation.type is not None
        act = integers.activation(low, high, annotation.type)
        assert act is not None, (low, high)
        return self.rescaled(value, annotation.type, act)

    def _moved_type(self, kind: str, inputs: Sequence[LiteRtValue | None]) -> IntegerType | None:
        """Return the type of what an operator moves, if its operands are integers of one type."""
        moved = [value for value in inputs if value is not None and value.dtype == F32]
        types = {value.of for value in moved}
        return types.pop() if kind in MOVES and len(types) == 1 else None

    def _integer_op(
        self,
        kind: str,
        inputs: Sequence[LiteRtValue | None],
        shape: Sequence[int],
        options: Mapping[str, Any],
    ) -> LiteRtValue:
        """Write the operator of a call that computes in integers, with their types and its clamp."""
        annotation, self.in_integers = self.in_integers, None
        assert annotation is not None and annotation.type is not None
        of, (low, high) = annotation.type, (annotation.low, annotation.high)
        operands = self._integer_operands(kind, inputs, of)
        act = integers.activation(low, high, of)
        if kind in integers.CLAMPED:
            options = {**options, "fusedActivationFunction": act or 0}
        (made,) = self._write(kind, operands, [(shape, F32)], of, options)
        if act and kind not in integers.CLAMPED:
            return self.rescaled(made, of, act)
        return made if act is not None else self._clamped(made, low, high, of)

    def _clamped(self, value: LiteRtValue, low: float, high: float, of: IntegerType) -> LiteRtValue:
        """Clamp integers to bounds that no activation has."""
        for kind, bound, cuts in zip(
            ("MAXIMUM", "MINIMUM"), integers.bounds_of(low, high, of), (of.low, of.high), strict=True
        ):
            if bound != cuts:
                number = self._stored(integers.constant(torch.tensor(bound), of))
                (value,) = self._write(kind, [value, number], [(value.shape, F32)], of, {})
        return value

    def _integer_operands(
        self, kind: str, inputs: Sequence[LiteRtValue | None], of: IntegerType
    ) -> list[LiteRtValue | None]:
        """Return operands as integers: constants are stored as such."""
        operands = [None if value is None else self._operand(value) for value in inputs]
        stored = integers.constant_operands(kind, operands, of)
        return [
            self._stored(stored[place]) if place in stored else value for place, value in enumerate(inputs)
        ]

    def _operand(self, value: LiteRtValue) -> IntegerType | torch.Tensor | None:
        """Return what integers stand for, or a constant of floats; None for sizes and the like."""
        if value.of is not None or value.dtype != F32:
            return value.of
        numbers = self.data(value)
        assert numbers is not None, f"{value} is neither integers nor a constant"
        return numbers

    def data(self, value: LiteRtValue) -> torch.Tensor | None:
        """Return the data of `value` if it is a constant, with the integers that it is made of."""
        made = self._integers.get(value.tensor)
        if made is None:
            return super().data(value)
        values, scales = (each.reshape(value.shape) for each in (made.values, made.scales))
        return Scaled.of(values, scales, made.zero_point)

    # -- the file ------------------------------------------------------------------------------------------

    def finish(self, in_half: bool = False) -> TfLiteGraph:
        """Return the graph, with constants as float16 if `in_half`."""
        nodes, tensors = fuse_clamps(self._needed(), self._outputs.values()), self._tensors
        if in_half:
            tensors, nodes = store_in_half(tensors, nodes)
        return TfLiteGraph(tensors, nodes, self._inputs, self._outputs)

    def _needed(self) -> list[TfLiteNode]:
        wanted, kept = set(self._outputs.values()), []
        for node in reversed(self._nodes):
            if wanted.intersection(node.outputs):
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
