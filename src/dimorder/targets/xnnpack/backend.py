"""Write one XNNPACK graph, value by value and node by node.

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
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    XNN_VALUE_FLAG_EXTERNAL_INPUT,
    XNN_VALUE_FLAG_EXTERNAL_OUTPUT,
)

from dimorder.graph.integer_type import IntegerType
from dimorder.graph.quantized_constant import Scaled
from dimorder.sizes.merge_specializations import SizesError, broadcast_row
from dimorder.targets.table import View
from dimorder.targets.xnnpack.fusion import whole_range
from dimorder.targets.xnnpack.graph import NONE_ID, XnnValue, keyed, reads_of
from dimorder.targets.xnnpack.integers import CHOOSES, MOVES, OPERANDS, READS
from dimorder.targets.xnnpack.model import move
from dimorder.targets.xnnpack.ranks import XnnRanks

BACKEND = "XnnpackBackend"  # the name that the stock runtime registers


class XnnWriter(XnnRanks):
    """Builds one XNNPACK graph. After `finish`, `serialise` returns its bytes and its named constants."""

    def input(
        self, shape: Sequence[int], of: IntegerType | torch.dtype | None = None, *, is_rounded: bool = False
    ) -> XnnValue:
        """Add the next external input, dense in `shape`.

        `of` is its type, or the type of its integers. `is_rounded` says that the input was computed in
        floats.
        """
        value = self._value(shape, of)
        if is_rounded:
            self._rounded.add(value.id)
        self._values[value.id].flags = XNN_VALUE_FLAG_EXTERNAL_INPUT
        self._inputs.append(value.id)
        return value

    def output(self, value: XnnValue) -> None:
        """Make `value` the next external output.

        An input, a constant or an existing output is copied first.
        """
        value = XnnValue(self._dynamic.get(value.id, (value.id,))[0], value.shape)
        if self._values[value.id].flags or self._values[value.id].constant_buffer_idx:
            value = self.node("Copy", value.shape, input_id=value.id)
        self._values[value.id].flags = XNN_VALUE_FLAG_EXTERNAL_OUTPUT
        self._outputs.append(value.id)

    def constant(self, tensor: torch.Tensor) -> XnnValue:
        """Return a constant, which is stored once per distinct data; a scalar gets shape (1,).

        It is float32. A node that reads it beside half-precision values gets it in half precision (see
        `node`).
        """
        held = tensor.detach().as_subclass(torch.Tensor).to("cpu", torch.float32)
        shape = tuple(tensor.shape) or (1,)
        key, data = keyed(held)
        if (key, shape) not in self._constants:
            value = self._value(shape)
            self._values[value.id].constant_buffer_idx = self._stored(key, data)
            self._constants[key, shape] = value
            self._data[value.id] = held.reshape(shape)
            if isinstance(tensor, Scaled):
                self._integers[value.id] = tensor.integers
        return self._constants[key, shape]

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
            sources = {
                n: self._dequantised.get(v) for n, v in fields.items() if n in OPERANDS and v is not None
            }
            types = {None if source is None else self._types[source] for source in sources.values()}
            if len(types) == 1 and None not in types:  # move the integers, and dequantise them afterwards
                moved = self.node(kind, shape, flags=flags, **{**fields, **sources})
                return self.node("Convert", shape, input_id=moved.id)
            read = [v for n, v in fields.items() if n in OPERANDS and v is not None]
            if all(v in self._dynamic for v in read):  # move the floats, and quantise them afterwards
                floats = {
                    n: self._dynamic[v][0] if v in read else v for n, v in fields.items() if n in OPERANDS
                }
                moved_floats = self.node(kind, shape, flags=flags, **{**fields, **floats})
                tokens = _moved(kind, shape, fields, [self._dynamic[v][1] for v in read])
                return self.dynamic(moved_floats, tokens)
            result_type = self._types.get(next(v for n, v in fields.items() if n in OPERANDS))
        if kind == "Convert" and isinstance(result_type, IntegerType):
            index = fields["input_id"]
            if index in self._dequantised:
                return self._requantised(self._dequantised[index], shape, result_type)
            if index in self._reshaped:  # reshape the integers, so that the node before can write them
                source = self._reshaped[index]
                made = self.node(kind, source.shape, result_type=result_type, input_id=source.id)
                return self.reshape(made, shape)
        half = None if kind == "Convert" else self._reads_half(fields)
        if half is not None:
            result_type = half
            fields = {name: self._as_half(name, value, half) for name, value in fields.items()}
        result = self._value(shape, result_type)
        if kind == "Convert" and result_type is None and fields["input_id"] in self._types:
            self._dequantised[result.id] = fields["input_id"]
        ids = {name: NONE_ID for name, value in fields.items() if value is None}
        bits = sum(getattr(xnnpack_constants, f"XNN_FLAG_{flag}") for flag in flags)
        made = getattr(schema, f"XNN{kind}")(**{**fields, **ids}, output_id=result.id, flags=bits)
        self._nodes.append(schema.XNode(made, debug_handle=len(self._nodes)))
        return result

    def _reads_half(self, fields: Mapping[str, Any]) -> torch.dtype | None:
        """Return the half-precision type of the operands that are not constants, or None."""
        read = [value for name, value in fields.items() if name in READS and value is not None]
        types = {self._half(index) for index in read if not self._values[index].constant_buffer_idx}
        assert len(types) < 2, f"a node reads {types}"
        return next(iter(types), None)

    def _as_half(self, name: str, value: Any, half: torch.dtype) -> Any:
        """Return a field of a half-precision node; a constant is replaced by its half-precision copy."""
        if name not in READS or value is None or self._half(value):
            return value
        if (value, half) not in self._in_half:
            held = self._data[value].to(half)
            made = self._value(held.shape, half)
            self._values[made.id].constant_buffer_idx = self._stored(*keyed(held))
            self._data[made.id] = held.float()
            self._in_half[value, half] = made.id
        return self._in_half[value, half]

    def widened(self, operand: Any) -> Any:
        """Return an operand in float32.

        That is a convert from half precision, or the float32 value from before its own conversion.
        """
        if not isinstance(operand, View) or self._half(operand.value.id) is None:
            return operand
        value = first = operand.value
        while first.id not in self._wide and first.id in self._reshaped:
            first = self._reshaped[first.id]
        if first.id not in self._wide:
            first = value
            self._wide[value.id] = self.node("Convert", value.shape, input_id=value.id)
        return View(self.reshape(self._wide[first.id], value.shape), operand.order)

    def narrowed(self, view: View[XnnValue], dtype: torch.dtype) -> View[XnnValue]:
        """Convert a result that was computed in float32 to its own type."""
        if dtype == torch.float32:
            return view
        value = self.cast(view, dtype).value
        self._wide[value.id] = view.value
        return View(value, view.order)

    def cast(self, view: View[XnnValue], dtype: torch.dtype) -> View[XnnValue]:
        """Convert floats to `dtype`; between two half-precision types the conversion goes through float32."""
        value = view.value
        for to in (torch.float32, dtype) if self._half(value.id) and dtype != torch.float32 else (dtype,):
            value = self.node("Convert", value.shape, input_id=value.id, result_type=to)
        return View(value, view.order)

    def dynamic(self, value: XnnValue, tokens: torch.Tensor) -> XnnValue:
        """Mark floats that a linear or convolution may read as dynamically quantised integers.

        All other nodes read the floats. `tokens` has the value's shape, and elements with one number share a
        scale.
        """
        result = self._value(value.shape)
        self._dynamic[result.id] = value.id, tokens
        return result

    def clamp(self, value: XnnValue, low: float, high: float) -> XnnValue:
        """Return min(max(value, low), high). An infinity stands for a missing bound."""
        result = self.node("Clamp", value.shape, input_id=value.id)
        self._nodes[-1].output_min_max = schema.OutputMinMax(_number(low), _number(high))
        return result

    def _requantised(self, source: int, shape: Sequence[int], of: IntegerType) -> XnnValue:
        """Convert integers to another scale by a clamp.

        A convert between two scales is sometimes off by 1.

        A convert between signed and unsigned integers of one scale is exact, and no clamp exists for it.
        """
        own = self._types[source]
        if own.dtype != of.dtype:
            same = own.as_type(of.dtype)
            converted = self.node("Convert", shape, input_id=source, result_type=same)
            return converted if same == of else self._requantised(converted.id, shape, of)
        value = self.node("Clamp", shape, input_id=source, result_type=of)
        self._nodes[-1].output_min_max = whole_range(of)
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
        made = self.node(
            "StaticReshape", shape, num_dims=len(shape), new_shape=list(shape), input_id=value.id
        )
        self._reshaped[made.id] = value
        return made

    def finish(self) -> None:
        """Fuse nodes. Nothing may be written afterwards."""
        self.fuse()

    def unify(self, others: Sequence[XnnWriter]) -> None:
        """Turn this finished graph into one for all sizes; `others` are the same program at other sizes.

        XNNPACK derives all shapes from those of the inputs. It derives only one entry of a reshape, and the
        end of a slice only where the slice takes its whole dimension. Raises `UnsupportedError` for the first
        operator that needs more.
        """
        writers = [self, *others]
        for each in writers:
            each.drop_ones()
        if len({(len(each._nodes), len(each._values)) for each in writers}) > 1:
            raise SizesError(next(iter(self._origins.values())), "other XNNPACK nodes, by the sizes")
        for row in zip(*(each._nodes for each in writers), strict=True):
            self._unify_node([node.xnode_union for node in row], writers)
        read = {index for node in self._nodes for index in reads_of(node.xnode_union)}
        for index in sorted(read):
            held = [each._values[index] for each in writers]
            keys = [
                each._constant_data[v.constant_buffer_idx].named_key
                for each, v in zip(writers, held, strict=True)
            ]
            if len(set(keys)) > 1 or (
                held[0].constant_buffer_idx and any(v.dims != held[0].dims for v in held)
            ):
                self._repeat(index, writers)

    def _unify_node(self, row: Sequence[Any], writers: Sequence[XnnWriter]) -> None:
        """Turn one node into a node for all sizes."""
        first, kind = row[0], type(row[0]).__name__.removeprefix("XNN")
        origin = self._origins[first.output_id]
        if len(set(map(type, row))) > 1:
            raise SizesError(origin, "other XNNPACK nodes, by the sizes")
        for name, value in vars(first).items():
            values = [getattr(each, name) for each in row]
            if all(each == value for each in values):
                continue
            varying = _varying(values)
            if name == "new_shape" and len(varying) == 1:
                value[varying[0]] = _INFERRED
            elif name == "new_shape" and self.may_compute_ones(first):
                for each, node in zip(writers, row, strict=True):
                    each.compute_ones(node, each.constant(torch.ones([1] * len(node.new_shape))))
            elif name == "sizes" and self._is_whole(row, writers, varying):
                for d in varying:
                    value[d] = _INFERRED
            else:
                told = " or ".join(dict.fromkeys(map(str, values)))
                raise SizesError(origin, f"an XNNPACK {kind} whose {name} is {told}, by the sizes")

    def _is_whole(self, slices: Sequence[Any], writers: Sequence[XnnWriter], dims: Sequence[int]) -> bool:
        """Return whether slices take some dimensions whole."""
        read = [each._values[node.input_id].dims for each, node in zip(writers, slices, strict=True)]
        return all(
            node.offsets[d] == 0 and node.sizes[d] == sizes[d]
            for node, sizes in zip(slices, read, strict=True)
            for d in dims
        )

    def _repeat(self, index: int, writers: Sequence[XnnWriter]) -> None:
        """Write a constant that is one row, repeated along dynamic dimensions, for all sizes.

        A reader with another operand of the result's sizes gets the single row. Other readers get the sum of
        the row and zeros of one dynamic size. The zeros come from a padded slice of an input.
        """
        origin, row = self._origins[index], broadcast_row([each._data[index] for each in writers])
        shapes = list(zip(*(each._values[index].dims for each in writers), strict=True))
        varying = _varying([each._values[index].dims for each in writers])
        if row is not None and self._is_broadcast(index):
            self._read_instead(index, self.constant(row).id)
            self._values[index].constant_buffer_idx = 0
            return
        if row is None or len(varying) != 1:
            raise SizesError(origin, "a constant that is another one for each size")
        source = self._input_of(shapes[varying[0]], writers)
        if source is None:
            raise SizesError(origin, "a constant of a size that no input of the delegate has")
        start, (x, dim) = len(self._nodes), source
        size, rank = x.shape[dim], max(2, len(x.shape))
        if len(x.shape) == 1:
            x = self._of_any_size(
                "StaticReshape", (size, 1), 0, num_dims=2, new_shape=[size, 1], input_id=x.id
            )
        ones = [size if d == dim else 1 for d in range(rank)]
        piece = {"num_dims": rank, "offsets": [0] * rank}
        x = self._of_any_size("StaticSlice", ones, dim, **piece, sizes=list(ones), input_id=x.id)
        before = [int(d == (0 if dim else 1)) for d in range(rank)]
        wide = [a + b for a, b in zip(ones, before, strict=True)]
        pads: dict[str, Any] = {"pre_paddings": before, "post_paddings": [0] * rank, "padding_value": 0.0}
        x = self.node("StaticConstantPad", wide, **pads, input_id=x.id)
        x = self._of_any_size("StaticSlice", ones, dim, **piece, sizes=list(ones), input_id=x.id)
        flat = [size if d == varying[0] else 1 for d in range(len(shapes))]
        shaped = {"num_dims": len(flat), "new_shape": list(flat)}
        x = self._of_any_size("StaticReshape", flat, varying[0], **shaped, input_id=x.id)
        term = self.constant(row)
        made = self.node("Add", self._values[index].dims, input1_id=x.id, input2_id=term.id)
        self._nodes[-1].xnode_union.output_id = index
        assert self._values.pop().id_out == made.id
        self._values[index].constant_buffer_idx = 0
        self._nodes[start:], self._nodes[:0] = [], self._nodes[start:]

    def _is_broadcast(self, index: int) -> bool:
        """Return whether every reader of a value has another operand with the sizes of its result."""
        if index in self._outputs:
            return False
        for node in self._readers().get(index, ()):
            if not isinstance(node, schema.XNNNode2x1) or isinstance(node, schema.XNNBatchMatrixMultiply):
                return False
            beside = node.input2_id if node.input1_id == index else node.input1_id
            if self._values[beside].dims != self._values[node.output_id].dims:
                return False
        return True

    def _of_any_size(self, kind: str, shape: Sequence[int], dim: int, **fields: Any) -> XnnValue:
        """Write a reshape or a slice that derives the size of dimension `dim`."""
        made = self.node(kind, shape, **fields)
        node = self._nodes[-1].xnode_union
        (node.new_shape if kind == "StaticReshape" else node.sizes)[dim] = _INFERRED
        return made

    def _input_of(self, sizes: Sequence[int], writers: Sequence[XnnWriter]) -> tuple[XnnValue, int] | None:
        """Return an input of floats, and the dimension of it that has these sizes in each graph."""
        for index in self._inputs:
            for d, found in enumerate(zip(*(each._values[index].dims for each in writers), strict=True)):
                if found == tuple(sizes) and index not in self._types:
                    return XnnValue(index, tuple(self._values[index].dims)), d
        return None


def _varying(rows: Sequence[Any]) -> list[int]:
    """Return the places at which lists of numbers differ."""
    if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        return []
    return [d for d, sizes in enumerate(zip(*rows, strict=True)) if len(set(sizes)) > 1]


_INFERRED = 0  # in place of a size: what the other sizes leave for it, or the whole dimension


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
