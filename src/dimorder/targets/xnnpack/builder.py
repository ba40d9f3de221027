"""Build an XNNPACK graph, value by value and node by node.

Nothing is transposed unless the plan asks for it. A move of dequantised values becomes a move of the
integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.utils import xnnpack_constants
from torch.fx import Node

from dimorder.graph.quantized import IntegerType, Scaled
from dimorder.sizes.specialization import DynamicSize, DynamicSizeError, is_fixed
from dimorder.targets.table import View
from dimorder.targets.xnnpack.graph import NONE_ID, XnnBytes, XnnConstant, XnnGraph, XnnValue, constants_of
from dimorder.targets.xnnpack.integers import CHOOSES, MOVES, OPERANDS, READS
from dimorder.targets.xnnpack.model import move


class XnnBuilder:
    """Adds values and nodes to an XNNPACK graph.

    `origin` is the program's node for which the next ones are written.
    """

    def __init__(self, graph: XnnGraph | None = None) -> None:
        self.graph = XnnGraph() if graph is None else graph
        self.origin: Node | None = None
        self._constants: dict[tuple[str, tuple[int, ...]], XnnValue] = {}
        self._transposed: dict[View[XnnValue], XnnValue] = {}
        # by constant and half-precision type: the same in that type
        self._in_half: dict[tuple[int, torch.dtype], int] = {}
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
        value = value.tokens[0] if value.tokens else value
        if value.is_external or value.constant is not None:
            value = self.node("Copy", value.shape, input_id=value.id)
        value.is_output = True
        self.graph.outputs.append(value.id)

    def constant(self, tensor: torch.Tensor) -> XnnValue:
        """Return a constant, which is stored once per distinct data; a scalar gets shape (1,).

        It is float32. A node that reads it beside half-precision values gets it in half precision (see
        `node`).
        """
        data = tensor.detach().as_subclass(torch.Tensor).to("cpu", torch.float32)
        shape, stored = tuple(tensor.shape) or (1,), XnnBytes.of(data)
        if (stored.name, shape) not in self._constants:
            integers = tensor.integers if isinstance(tensor, Scaled) else None
            value = self._value(shape)
            value.constant = XnnConstant(data.reshape(shape), stored, integers)
            self._constants[stored.name, shape] = value
        return self._constants[stored.name, shape]

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
        float32 if these are integers. A move keeps the type of its operand.
        """
        if kind in MOVES or kind in CHOOSES:
            operands = self._values(fields, OPERANDS)
            sources = {name: value.dequantized for name, value in operands.items()}
            types = {None if source is None else source.integer_type for source in sources.values()}
            if len(types) == 1 and None not in types:  # move the integers, and dequantise them afterwards
                ids = {name: source.id for name, source in sources.items() if source is not None}
                moved_integers = self.node(kind, shape, flags=flags, **{**fields, **ids})
                return self.node("Convert", shape, input_id=moved_integers.id)
            floats = [value.tokens for value in operands.values() if value.tokens is not None]
            if len(floats) == len(operands):  # move the floats, and quantise them afterwards
                ids = {name: source.id for name, (source, _) in zip(operands, floats, strict=True)}
                moved_floats = self.node(kind, shape, flags=flags, **{**fields, **ids})
                return self.dynamic(moved_floats, _moved(kind, shape, fields, [each for _, each in floats]))
            result_type = next(iter(operands.values())).integer_type
        if kind == "Convert" and isinstance(result_type, IntegerType):
            operand = self.graph.values[fields["input_id"]]
            if operand.dequantized is not None:
                return self._requantised(operand.dequantized, shape, result_type)
            if operand.reshaped is not None:  # reshape the integers, so that the node before can write them
                source = operand.reshaped
                converted = self.node(kind, source.shape, result_type=result_type, input_id=source.id)
                return self.reshape(converted, shape)
        half = None if kind == "Convert" else self._reads_half(fields)
        if half is not None:
            result_type = half
            fields = {name: self._as_half(name, value, half) for name, value in fields.items()}
        result = self._value(shape, result_type)
        if kind == "Convert" and result_type is None:
            source = self.graph.values[fields["input_id"]]
            result.dequantized = source if source.integer_type is not None else None
        ids = {name: NONE_ID for name, value in fields.items() if value is None}
        bits = sum(getattr(xnnpack_constants, f"XNN_FLAG_{flag}") for flag in flags)
        node = getattr(schema, f"XNN{kind}")(**{**fields, **ids}, output_id=result.id, flags=bits)
        self.graph.nodes.append(schema.XNode(node, debug_handle=len(self.graph.nodes)))
        return result

    def _reads_half(self, fields: Mapping[str, Any]) -> torch.dtype | None:
        """Return the half-precision type of the operands that are not constants, or None."""
        read = self._values(fields, READS).values()
        types = {value.half for value in read if value.constant is None}
        assert len(types) < 2, f"a node reads {types}"
        return next(iter(types), None)

    def _as_half(self, name: str, index: Any, half: torch.dtype) -> Any:
        """Return a field of a half-precision node; a constant is replaced by its half-precision copy."""
        if name not in READS or index is None or self.graph.values[index].half:
            return index
        if (index, half) not in self._in_half:
            data = constants_of([self.graph.values[index]])[index].to(half)
            value = self._value(self.graph.values[index].shape, half)
            value.constant = XnnConstant(data.float(), XnnBytes.of(data))
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
        value = view.value
        for to in (torch.float32, dtype) if value.half and dtype != torch.float32 else (dtype,):
            value = self.node("Convert", value.shape, input_id=value.id, result_type=to)
        return View(value, view.order)

    def dynamic(self, value: XnnValue, tokens: torch.Tensor) -> XnnValue:
        """Mark floats that a linear or convolution may read as dynamically quantised integers.

        All other nodes read the floats. `tokens` has the value's shape, and elements with one number share a
        scale.
        """
        result = self._value(value.shape)
        result.tokens = value, tokens
        return result

    def clamp(self, value: XnnValue, low: float, high: float) -> XnnValue:
        """Return min(max(value, low), high). An infinity stands for a missing bound."""
        result = self.node("Clamp", value.shape, input_id=value.id)
        self.graph.nodes[-1].output_min_max = schema.OutputMinMax(_number(low), _number(high))
        return result

    def _requantised(self, source: XnnValue, shape: Sequence[int], of: IntegerType) -> XnnValue:
        """Convert integers to another scale by a clamp.

        A convert between two scales is sometimes off by 1.

        A convert between signed and unsigned integers of one scale is exact, and no clamp exists for it.
        """
        own = source.integer_type
        assert own is not None
        if own.dtype != of.dtype:
            same = own.as_type(of.dtype)
            converted = self.node("Convert", shape, input_id=source.id, result_type=same)
            return converted if same == of else self._requantised(converted, shape, of)
        value = self.node("Clamp", shape, input_id=source.id, result_type=of)
        self.graph.nodes[-1].output_min_max = whole_range(of)
        return value

    def dense(self, operand: View[XnnValue] | torch.Tensor | float) -> XnnValue:
        """Return `operand` dense in its own dimension order: a constant, or a value in that order already.

        Only `transposed` writes a transpose, for a conversion of the plan.
        """
        if isinstance(operand, torch.Tensor):
            return self.constant(operand)
        if not isinstance(operand, View):
            return self.constant(torch.tensor([float(operand)]))
        assert operand in self._transposed or operand.is_dense, (
            "the plan has no conversion for this transpose"
        )
        return self._transposed.get(operand) or self.reshape(operand.value, operand.shape)

    def transposed(self, view: View[XnnValue]) -> XnnValue:
        """Return `view` dense in its own dimension order.

        Write a transpose if needed, once per value and order.
        """
        if view.is_dense:
            return self.reshape(view.value, view.shape)
        if view not in self._transposed:
            self._transposed[view] = self.node(
                "StaticTranspose",
                view.shape,
                num_dims=len(view.order),
                perm=list(view.order),
                input_id=view.value.id,
            )
        return self._transposed[view]

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


def _moved(
    kind: str, shape: Sequence[int], fields: Mapping[str, Any], tokens: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the tokens of a move's result."""
    ends = itertools.accumulate((int(each.max()) + 1 for each in tokens[:-1]), initial=0)
    apart = [each + first for each, first in zip(tokens, ends, strict=True)]
    return move(kind, SimpleNamespace(**fields), shape, *apart)


def _number(bound: float) -> float | str:
    """Return a bound in the form that the serializer's JSON takes."""
    return bound if math.isfinite(bound) else f"{bound:+}"
