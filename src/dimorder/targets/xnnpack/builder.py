"""Build an XNNPACK graph, value by value and node by node.

Nothing is transposed unless the plan asks for it. A dequantised value stays integers, which are converted for
a node that computes in floats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.utils import xnnpack_constants
from torch.fx import Node

from dimorder.graph.dynamic_sizes import DynamicSize, DynamicSizeError, is_fixed
from dimorder.graph.quantized import IntegerType
from dimorder.physical.annotations import Annotation, How
from dimorder.targets.graph_writer import ViewWriter
from dimorder.targets.integer_kernels import integers_of, unfit_4_bits
from dimorder.targets.table import View
from dimorder.targets.xnnpack.graph import NONE_ID, XnnBytes, XnnConstant, XnnGraph, XnnValue, constants_of
from dimorder.targets.xnnpack.integers import CHOOSES, DYNAMIC, MOVES, OPERANDS, READS, WEIGHTS
from dimorder.targets.xnnpack.weights import XnnWeights


class XnnBuilder(ViewWriter[XnnValue]):
    """A writer of values and nodes of an XNNPACK graph.

    `origin` is the program's node for which the next nodes are written. `in_integers` says how the one of
    these that computes reads integers: to return integers, or to return floats.
    """

    def __init__(self, graph: XnnGraph | None = None) -> None:
        super().__init__()
        self.graph = XnnGraph() if graph is None else graph
        self.origin: Node | None = None
        self.in_integers: Annotation | None = None
        self._weights = XnnWeights(self.graph, self._stored)
        self._dynamic: dict[tuple[int, int], int] = {}  # by floats and dimensions that share a scale
        self._constants: dict[tuple[object, ...], XnnValue] = {}
        # by constant and half-precision type: the same in that type
        self._in_half: dict[tuple[int, torch.dtype], int] = {}
        self._floats: dict[XnnValue, XnnValue] = {}  # by integers: what they stand for
        self._wide: dict[XnnValue, XnnValue] = {}  # by half-precision value: the same in float32

    def _value(self, shape: Sequence[int], of: IntegerType | torch.dtype | None = None) -> XnnValue:
        return self.graph.add(shape, of, origin=self.origin)

    def _values(self, fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, XnnValue]:
        """Return the values that fields of a node name."""
        return {n: self.graph.values[v] for n, v in fields.items() if n in names and v is not None}

    def input(
        self, shape: Sequence[int], of: IntegerType | torch.dtype | None = None, *, is_rounded: bool = False
    ) -> XnnValue:
        """Add the next external input, dense in `shape`.

        `of` is its type, or the type of its integers. `is_rounded` says that the input was computed in
        floats.
        """
        value = self._value(shape, of)
        value.is_input, value.is_rounded = True, is_rounded
        self.graph.inputs.append(value.id)
        return value

    def output(self, value: XnnValue) -> None:
        """Make `value` the next external output.

        An input, a constant or an existing output is copied first.
        """
        if value.is_external or value.constant is not None:
            value = self.copied(value)
        value.is_output = True
        self.graph.outputs.append(value.id)

    def copied(self, value: XnnValue) -> XnnValue:
        """Return a value of its own with the elements of `value`."""
        return self.node("Copy", value.shape, input_id=value.id)

    def constant(self, tensor: torch.Tensor) -> XnnValue:
        """Return a constant, which is stored once per distinct data; a scalar gets shape (1,).

        It is float32. A node that reads it beside half-precision values gets it in half precision (see
        `node`).
        """
        data = tensor.detach().as_subclass(torch.Tensor).to("cpu", torch.float32)
        shape, stored, integers = tuple(tensor.shape) or (1,), XnnBytes.of(data), integers_of(tensor)
        # constants of the same numbers may be made of other integers, or of none
        made_of = None if integers is None else (integers.zero_point, XnnBytes.of(integers.scales).name)
        key = stored.name, shape, made_of
        if key not in self._constants:
            self._constants[key] = self._value(shape)
            self._constants[key].constant = XnnConstant(data.reshape(shape), stored, integers)
        return self._constants[key]

    def standing_for(self, integers: torch.Tensor, of: IntegerType) -> XnnValue:
        """Return a constant of integers of a type."""
        stored = self._stored(integers)
        key = stored.name, tuple(integers.shape), of
        if key not in self._constants:
            constant = XnnConstant(integers, stored)
            self._constants[key] = self.graph.add(integers.shape, of, origin=self.origin, constant=constant)
        return self._constants[key]

    def repeated(self, row: torch.Tensor, shape: Sequence[int]) -> XnnValue:
        """Return a constant of a shape with dynamic sizes, which is `row` repeated along these."""
        value = self.constant(row)
        if tuple(shape) == value.shape:
            return value
        repeated = self._value(shape)
        repeated.constant = value.constant
        return repeated

    def ones(self, shape: Sequence[int]) -> XnnValue:
        """Return a constant of ones."""
        return self.repeated(torch.ones([1 if isinstance(n, DynamicSize) else n for n in shape]), shape)

    def require_fixed(self, sizes: Sequence[int], what: str) -> None:
        """Refuse sizes that are dynamic; `what` needs them fixed."""
        if not is_fixed(sizes):
            raise DynamicSizeError(what)

    def node(
        self,
        kind: str,
        shape: Sequence[int],
        *,
        flags: Sequence[str] = (),
        result_type: IntegerType | torch.dtype | None = None,
        **fields: Any,
    ) -> XnnValue:
        """Add a node of the schema's class `XNN{kind}`, with one result of `shape`. An id may be None.

        The result has `result_type` if that is given. Otherwise it has the floating type of the operands, or
        float32 if these are integers, which are then converted first. A move keeps the type of its operands.
        """
        if self.in_integers is not None and kind not in MOVES:
            return self._integer_node(kind, shape, flags, fields)
        operands = self._values(fields, OPERANDS)
        types = {value.integer_type for value in operands.values()}
        if (kind in MOVES or kind in CHOOSES) and len(types) == 1:
            (result_type,) = types
        elif kind != "Convert" and result_type is None:
            fields = {**fields, **{name: self.floats(value).id for name, value in operands.items()}}
        half = None if kind == "Convert" else self._reads_half(fields)
        if half is not None:
            result_type = half
            fields = {name: self._as_half(name, value, half) for name, value in fields.items()}
        return self._write(kind, flags, fields, self._value(shape, result_type))

    def _write(
        self, kind: str, flags: Sequence[str], fields: Mapping[str, Any], result: XnnValue, bounds: Any = None
    ) -> XnnValue:
        ids = {name: NONE_ID for name, value in fields.items() if value is None}
        bits = sum(getattr(xnnpack_constants, f"XNN_FLAG_{flag}") for flag in flags)
        node = getattr(schema, f"XNN{kind}")(**{**fields, **ids}, output_id=result.id, flags=bits)
        self.graph.nodes.append(schema.XNode(node, len(self.graph.nodes), bounds))
        return result

    def _integer_node(
        self, kind: str, shape: Sequence[int], flags: Sequence[str], fields: Mapping[str, Any]
    ) -> XnnValue:
        """Add the node of a call that computes in integers, with their types and its clamp."""
        annotation, self.in_integers = self.in_integers, None
        assert annotation is not None
        operands, read = self._values(fields, OPERANDS), self._values(fields, WEIGHTS)
        for value in read.values():
            self.require_fixed(value.shape, f"the weight of an int8 {kind}")
        if annotation.how is How.KERNEL:
            ids = {name: self._weights.operand(value).id for name, value in operands.items()}
            for name, value in read.items():
                outputs = 3 if name == "filter_id" and kind == "DepthwiseConv2d" else 0
                ids[name] = self._weights.in_8_bits(value.id, outputs)
            low, high = _number(annotation.low), _number(annotation.high)
            bounds = schema.OutputMinMax(low, high) if annotation.is_clamped else None
            return self._write(kind, flags, {**fields, **ids}, self._value(shape, annotation.type), bounds)
        ids = {name: self._quantized(self.floats(x), DYNAMIC[kind]) for name, x in operands.items()}
        weight = read["filter_id"]
        in_4_bits = kind == "FullyConnected" and unfit_4_bits(weight.integers) is None
        weights = self._weights
        ids["filter_id"] = weights.in_4_bits(weight.id) if in_4_bits else weights.in_8_bits(weight.id, 0)
        return self._write(kind, flags, {**fields, **ids}, self._value(shape))

    @property
    def quantizes_dynamically(self) -> bool:
        """Whether the call that is written reads what it quantises dynamically."""
        return self.in_integers is not None and self.in_integers.how is How.DYNAMIC_KERNEL

    def _quantized(self, value: XnnValue, nonbatch: int) -> int:
        """Return dynamically quantised integers, with one scale over the last `nonbatch` dimensions."""
        if (value.id, nonbatch) not in self._dynamic:
            result = self._value(value.shape)
            result.datatype, result.nonbatch = schema.XNNDatatype.xnn_datatype_qdint8, nonbatch
            self._dynamic[value.id, nonbatch] = self._write("Convert", (), {"input_id": value.id}, result).id
        return self._dynamic[value.id, nonbatch]

    def _reads_half(self, fields: Mapping[str, Any]) -> torch.dtype | None:
        """Return the half-precision type of the operands that are not constants, or None."""
        read = self._values(fields, READS).values()
        types = {value.half for value in read if value.constant is None}
        assert len(types) < 2, f"a node reads {types}"
        return next(iter(types), None)

    def _stored(self, data: torch.Tensor) -> XnnBytes:
        return XnnBytes.of(data)

    def _as_half(self, name: str, index: Any, half: torch.dtype) -> Any:
        """Return a field of a half-precision node; a constant is replaced by its half-precision copy."""
        if name not in READS or index is None or self.graph.values[index].half:
            return index
        if (index, half) not in self._in_half:
            data = constants_of([self.graph.values[index]])[index].to(half)
            value = self._value(self.graph.values[index].shape, half)
            value.constant = XnnConstant(data.float(), self._stored(data))
            self._in_half[index, half] = value.id
        return self._in_half[index, half]

    def widened(self, operand: Any) -> Any:
        """Return an operand in float32.

        That is a convert from half precision, or the float32 value from before its own conversion.
        """
        if not isinstance(operand, View) or operand.value.half is None:
            return operand
        value = first = operand.value
        while first not in self._wide and first.reshaped is not None:
            first = first.reshaped
        if first not in self._wide:
            first = value
            self._wide[value] = self.node("Convert", value.shape, input_id=value.id)
        return View(self.reshape(self._wide[first], value.shape), operand.order)

    def narrowed(self, view: View[XnnValue], dtype: torch.dtype) -> View[XnnValue]:
        """Convert a result that was computed in float32 to its own type."""
        if dtype == torch.float32:
            return view
        value = self.cast(view, dtype).value
        self._wide[value] = view.value
        return View(value, view.order)

    def cast(self, view: View[XnnValue], dtype: torch.dtype) -> View[XnnValue]:
        """Convert floats to `dtype`; between two half-precision types the conversion goes through float32."""
        value = self.floats(view.value)
        for to in (torch.float32, dtype) if value.half and dtype != torch.float32 else (dtype,):
            value = self.node("Convert", value.shape, input_id=value.id, result_type=to)
        return View(value, view.order)

    def clamp(self, value: XnnValue, low: float, high: float) -> XnnValue:
        """Return min(max(value, low), high). An infinity stands for a missing bound."""
        result = self.node("Clamp", value.shape, input_id=value.id)
        self.graph.nodes[-1].output_min_max = schema.OutputMinMax(_number(low), _number(high))
        return result

    def quantize(self, source: XnnValue, of: IntegerType) -> XnnValue:
        """Convert floats to integers, or integers to another scale by a clamp.

        A convert between two scales is sometimes off by 1. A convert between signed and unsigned integers of
        one scale is exact, and no clamp exists for it.
        """
        own, shape = source.integer_type, source.shape
        if own is None:
            return self.node("Convert", shape, input_id=source.id, result_type=of)
        if own.dtype != of.dtype:
            same = own.as_type(of.dtype)
            converted = self.node("Convert", shape, input_id=source.id, result_type=same)
            return converted if same == of else self.quantize(converted, of)
        value = self.node("Clamp", shape, input_id=source.id, result_type=of)
        self.graph.nodes[-1].output_min_max = whole_range(of)
        return value

    def floats(self, value: XnnValue) -> XnnValue:
        """Return the numbers that integers stand for, converted once; or floats as they are."""
        if value.integer_type is None:
            return value
        if value not in self._floats:
            self._floats[value] = self.node("Convert", value.shape, input_id=value.id)
        return self._floats[value]

    def dense(self, operand: View[XnnValue] | torch.Tensor | float) -> XnnValue:
        """Return `operand` as `ViewWriter` does, or a number as a constant."""
        if not isinstance(operand, (View, torch.Tensor)):
            return self.constant(torch.tensor([float(operand)]))
        return super().dense(operand)

    def _transpose(self, view: View[XnnValue]) -> XnnValue:
        perm = list(view.order)
        return self.node("StaticTranspose", view.shape, num_dims=len(perm), perm=perm, input_id=view.value.id)

    def reshape(self, value: XnnValue, shape: Sequence[int]) -> XnnValue:
        """Return the same elements in `shape`."""
        shape = tuple(shape)
        assert math.prod(shape) == math.prod(value.shape), (value.shape, shape)
        if shape == value.shape:
            return value
        result = self.node(
            "StaticReshape", shape, num_dims=len(shape), new_shape=list(shape), input_id=value.id
        )
        result.reshaped = value
        return result


def whole_range(of: IntegerType) -> Any:
    """Return the bounds of a clamp that cuts none of these values."""
    return schema.OutputMinMax(*((bound - of.zero_point) * of.scale for bound in (of.low, of.high)))


def _number(bound: float) -> float | str:
    """Return a bound in the form that the serializer's JSON takes."""
    return bound if math.isfinite(bound) else f"{bound:+}"
