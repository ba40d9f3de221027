"""Compute in torch what LiteRT's XNNPACK delegate gives for integers; the runtime must agree bit for bit.

`ROUNDINGS` says how each operator of integers rounds. The model computes no floats. The runtime supplies the
integers that are rounded from floats; these are compared with the physical program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.interpreter import GraphNode, interpret
from dimorder.graph.quantized import IntegerType, level_bounds
from dimorder.ops.dialect import OPS
from dimorder.targets.litert.flatbuffer import TfLiteGraph, TfLiteNode
from dimorder.targets.litert.integers import (
    ACTIVATIONS,
    BY_ROWS,
    CONVERTS,
    WEIGHTS,
    scales_by_element,
    type_of_tensor,
)
from dimorder.verification import arithmetic
from dimorder.verification import xnnpack_roundings as roundings


@dataclass(frozen=True)
class LiteRtModel:
    """A finished LiteRT graph, with functions that compute its integers in torch.

    `rounded` names the values that the runtime must supply, because the model cannot compute them. These are
    integers, outputs, and the operands and results of linears that quantize each row dynamically.
    """

    graph: TfLiteGraph

    @property
    def rounded(self) -> list[str]:
        known = {name for name, tensor in self.graph.tensors.items() if tensor.data is not None}
        known |= {*self.graph.inputs.values()}
        found = list[str]()
        for node in self.graph.nodes:
            is_known = self.computes(node) and known.issuperset(filter(None, node.inputs))
            given = [] if is_known else [name for name in self._given(node) if name not in known]
            found += given
            known |= {*node.outputs} if is_known else {*given}
        return found

    def _given(self, node: TfLiteNode) -> list[str]:
        """Return what the runtime must tell of an operator that the model does not compute."""
        if is_by_rows(node):
            return [name for name in (*node.inputs[:1], *node.outputs) if name]
        outputs = self.graph.outputs.values()
        return [name for name in node.outputs if self.graph.tensors[name].scales or name in outputs]

    def computes(self, node: TfLiteNode) -> bool:
        """Return whether the model has an operator: of integers or sizes, or one that moves or converts."""
        result = self.graph.tensors[node.outputs[0]]
        if node.kind == "DEQUANTIZE" and self._type(node.inputs[0] or "") is None:
            return False  # a weight of several scales, or of float16, which only operators of floats read
        if result.dtype == torch.int32 and node.kind in _SIZES:
            return True
        return node.kind in {*CONVERTS, *_MOVED, "PAD"} or (
            result.scales is not None and node.kind in ROUNDINGS
        )

    @property
    def needs_xnnpack(self) -> bool:
        """Whether a weight of dynamically quantized rows is one that LiteRT's own kernels misread.

        Such a weight has -128, or groups of 4 bits.
        """
        weights = (self.graph.tensors[node.inputs[1] or ""] for node in self.graph.nodes if is_by_rows(node))
        return any(
            (each.data is not None and bool((each.data == -128).any()))
            or (each.scales is not None and each.scales.group is not None)
            for each in weights
        )

    def has_integers(self, node: TfLiteNode) -> bool:
        """Return whether the model has an operator, and its result is integers that stand for floats."""
        return self.graph.tensors[node.outputs[0]].scales is not None and self.computes(node)

    def run(
        self, inputs: Sequence[Tensor], rounded: Mapping[str, Tensor], kept: Collection[str]
    ) -> Mapping[str, Any]:
        """Return the tensors `kept` for these inputs; the runtime gives those in `rounded`."""
        graph = self.graph
        constants = {
            name: torch.from_numpy(tensor.data)
            for name, tensor in graph.tensors.items()
            if tensor.data is not None
        }
        values = {**constants, **dict(zip(graph.inputs.values(), inputs, strict=True))}
        nodes = [
            GraphNode(node.kind, tuple(filter(None, node.inputs)), name, node)
            for node in graph.nodes
            for name in node.outputs
        ]

        def compute(node: GraphNode, operands: Sequence[Tensor | None]) -> Tensor | None:
            if is_by_rows(node.attributes):
                self.require_near(node.attributes, operands, rounded[node.output])
            if node.output in rounded:
                return rounded[node.output]
            known = [each for each in operands if each is not None]
            is_known = len(known) == len(operands) and self.computes(node.attributes)
            return self.result(node.attributes, known) if is_known else None

        return interpret(nodes, values, kept, compute)

    def result(self, node: TfLiteNode, operands: Sequence[Tensor]) -> Tensor:
        """Return the result of an operator that the model has."""
        tensor = self.graph.tensors[node.outputs[0]]
        names = [name for name in node.inputs if name]
        of = type_of_tensor(tensor)
        if node.kind == "DEQUANTIZE":
            return roundings.real(operands[0], self._type(names[0]))
        if node.kind == "QUANTIZE":
            assert of is not None
            return _quantized(operands[0], self._type(names[0]), of)
        if node.kind == "PAD":
            fill = 0 if of is None else of.zero_point
            return arithmetic.pad(operands[0], operands[1].tolist(), fill)
        if node.kind in _MOVED:
            moved: Tensor = _MOVED[node.kind](node, *operands)
            return moved
        if of is None:
            size: Tensor = _SIZES[node.kind](*operands)
            return size
        kernel = _TfLiteKernel(
            node, operands, [self._type(name) for name in names], of, self._weight_scales(node)
        )
        low, high = level_bounds(*ACTIVATIONS[node.options.get("fusedActivationFunction", 0)], of)
        return ROUNDINGS[node.kind](kernel).clamp(low, high).to(of.dtype)

    def require_near(self, node: TfLiteNode, operands: Sequence[Tensor | None], found: Tensor) -> None:
        """Check what the runtime gives for a linear whose rows it quantizes dynamically."""
        x, values, *bias = operands
        assert x is not None and values is not None
        weight = values.double() * scales_by_element(self.graph.tensors[node.inputs[1] or ""]).double()
        read = roundings.DynamicIntegers.of(x, 1)
        wanted = torch.nn.functional.linear(read.values, weight, *(b.double() for b in bias if b is not None))
        wanted = wanted.clamp(*ACTIVATIONS[node.options.get("fusedActivationFunction", 0)])
        unsure = torch.nn.functional.linear(read.unsure, weight.abs())
        roundings.require_near_sum(found, wanted, unsure, node.outputs[0])

    def _type(self, name: str) -> IntegerType | None:
        return type_of_tensor(self.graph.tensors[name])

    def _weight_scales(self, node: TfLiteNode) -> Tensor | None:
        places = WEIGHTS.get(node.kind)
        if places is None:
            return None
        scales = self.graph.tensors[node.inputs[places.weight] or ""].scales
        assert scales is not None
        return torch.tensor(scales.scales, dtype=torch.float32)


def is_by_rows(node: TfLiteNode) -> bool:
    """Return whether an operator quantizes the rows of its operand as it runs."""
    return BY_ROWS.items() <= node.options.items()


def is_rounded(node: TfLiteNode, graph: TfLiteGraph) -> bool:
    """Return whether an operator rounds its results to integers; others choose among their operands."""
    return node.kind in ROUNDINGS.keys() - _CHOOSE and graph.tensors[node.outputs[0]].scales is not None


@dataclass(frozen=True)
class _TfLiteKernel:
    """An operator of integers with its operands, their types, and the scales of its weight."""

    node: TfLiteNode
    operands: Sequence[Tensor]
    types: Sequence[IntegerType | None]
    result: IntegerType
    scales: Tensor | None

    def type(self, place: int) -> IntegerType:
        of = self.types[place]
        assert of is not None
        return of

    def centred(self, place: int) -> Tensor:
        return roundings.centred(self.operands[place], self.type(place))

    def option(self, *names: str) -> list[int]:
        return [self.node.options[name] for name in names]


def _quantized(x: Tensor, own: IntegerType | None, of: IntegerType) -> Tensor:
    if own is not None and own.dtype != of.dtype:  # signed and unsigned integers of one scale
        return (x.to(torch.int32) + (of.zero_point - own.zero_point)).to(of.dtype)
    return roundings.quantized(x, of).clamp(of.low, of.high).to(of.dtype)


# -- how each operator rounds; the results are clamped afterwards --------------------------------------------


def _weighted(
    total: Callable[[_TfLiteKernel, Tensor, Tensor, Tensor | None], Tensor],
) -> Callable[[_TfLiteKernel], Tensor]:
    """Return the rounding of sums of products with a weight: in int32, times a float32 scale per channel."""

    def rounding(k: _TfLiteKernel) -> Tensor:
        places = WEIGHTS[k.node.kind]
        bias = k.operands[places.bias].double() if len(k.operands) > places.bias else None
        assert k.scales is not None
        sums = total(k, k.centred(places.data), k.operands[places.weight].double(), bias)
        return roundings.scaled_sum(sums, k.type(places.data), k.scales, k.result)

    return rounding


def _same_pads(k: _TfLiteKernel, x: Tensor, taps: Sequence[int]) -> list[int]:
    """Return the padding before and after rows and columns: of SAME, or none."""
    if k.node.options["padding"]:
        return [0, 0, 0, 0]
    pads, strides = list[int](), k.option("strideH", "strideW")
    for size, step, tap, dilation in zip(x.shape[1:3], strides, taps, _dilation(k), strict=True):
        count = -(-size // step)
        needed = max((count - 1) * step + dilation * (tap - 1) + 1 - size, 0)
        pads += [needed // 2, needed - needed // 2]
    return pads


def _dilation(k: _TfLiteKernel) -> list[int]:
    return [k.node.options.get(name, 1) for name in ("dilationHFactor", "dilationWFactor")]


def _conv(k: _TfLiteKernel, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    strides, pads = k.option("strideH", "strideW"), _same_pads(k, x, weight.shape[1:3])
    groups = x.shape[3] // weight.shape[3]
    return arithmetic.conv(x, weight, bias, strides, pads, _dilation(k), groups)


def _depthwise(k: _TfLiteKernel, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _conv(k, x, weight.permute(3, 1, 2, 0), bias)


def _conv_transpose(k: _TfLiteKernel, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    window = k.option("strideH", "strideW"), (0, 0), (0, 0), (1, 1)
    y: Tensor = OPS.conv_transpose2d_nhwc.default(x, weight, bias, *window, 1)
    return y


def _linear(k: _TfLiteKernel, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def _product(multiply: Callable[..., Tensor]) -> Callable[[_TfLiteKernel], Tensor]:
    """Return the rounding of a product of two values of integers."""

    def rounding(k: _TfLiteKernel) -> Tensor:
        sums = multiply(k, k.centred(0), k.centred(1))
        return roundings.scaled_sum(sums, k.type(0), k.type(1).scale, k.result)

    return rounding


def _matmul(k: _TfLiteKernel, x: Tensor, y: Tensor) -> Tensor:
    return x @ (y.transpose(-1, -2) if k.node.options["adjY"] else y)


def _sum(add: Callable[..., Tensor]) -> Callable[[_TfLiteKernel], Tensor]:
    return lambda k: roundings.fixed_point_sum(add, k.operands, [k.type(0), k.type(1)], k.result)


def _mean(k: _TfLiteKernel) -> Tensor:
    return roundings.scaled_mean(k.operands[0], k.type(0), k.operands[1].tolist(), k.result)


def _function(function: Callable[[Tensor], Tensor]) -> Callable[[_TfLiteKernel], Tensor]:
    """Return the rounding of a function of one value, which is a table."""
    return lambda k: roundings.table(function(roundings.real(k.operands[0], k.type(0))), k.result)


def _max_pool(k: _TfLiteKernel) -> Tensor:
    taps, x = k.option("filterHeight", "filterWidth"), k.operands[0].double()
    return arithmetic.max_pool(x, taps, k.option("strideH", "strideW"), _same_pads(k, x, taps))


def _chosen(choose: Callable[..., Tensor]) -> Callable[[_TfLiteKernel], Tensor]:
    """Return the rounding of an operator whose results are some of its operands."""
    return lambda k: choose(*(x.double() if of else x for x, of in zip(k.operands, k.types, strict=True)))


ROUNDINGS: Mapping[str, Callable[[_TfLiteKernel], Tensor]] = MappingProxyType(
    {
        "CONV_2D": _weighted(_conv),
        "DEPTHWISE_CONV_2D": _weighted(_depthwise),
        "TRANSPOSE_CONV": _weighted(_conv_transpose),
        "FULLY_CONNECTED": _weighted(_linear),
        "BATCH_MATMUL": _product(_matmul),
        "MUL": _product(lambda k, x, y: x * y),
        "ADD": _sum(torch.add),
        "SUB": _sum(torch.sub),
        "MEAN": _mean,
        "LOGISTIC": _function(torch.sigmoid),
        "TANH": _function(torch.tanh),
        "MAX_POOL_2D": _max_pool,
        "REDUCE_MAX": _chosen(lambda x, dims: x.amax(dims.tolist(), keepdim=True)),
        "MAXIMUM": _chosen(torch.maximum),
        "MINIMUM": _chosen(torch.minimum),
        "PADV2": _chosen(lambda x, pads, value: arithmetic.pad(x, pads.tolist(), float(value))),
    }
)

_CHOOSE = frozenset(("MAX_POOL_2D", "REDUCE_MAX", "MAXIMUM", "MINIMUM", "PADV2"))

# -- what moves elements -------------------------------------------------------------------------------------


def _strided(n: TfLiteNode, x: Tensor, starts: Tensor, ends: Tensor, steps: Tensor) -> Tensor:
    cuts = zip(starts.tolist(), ends.tolist(), steps.tolist(), strict=True)
    whole, one = (n.options.get(name, 0) for name in ("endMask", "shrinkAxisMask"))  # bits by dimension
    return x[
        tuple(
            start if one >> d & 1 else slice(start, None if whole >> d & 1 else end, step)
            for d, (start, end, step) in enumerate(cuts)
        )
    ]


_MOVED: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "RESHAPE": lambda n, x, shape: x.reshape(shape.tolist()),
        "TRANSPOSE": lambda n, x, order: x.permute(order.tolist()),
        "SLICE": lambda n, x, starts, sizes: arithmetic.cut(x, starts.tolist(), sizes.tolist()),
        "STRIDED_SLICE": _strided,
        "CONCATENATION": lambda n, *x: torch.cat(x, n.options["axis"]),
        "GATHER": lambda n, x, at: x[(slice(None),) * n.options["axis"] + (at.long(),)],
        "REVERSE_V2": lambda n, x, dims: x.flip(dims.tolist()),
        "TILE": lambda n, x, multiples: x.repeat(multiples.tolist()),
    }
)

# -- numbers that depend on dynamic sizes --------------------------------------------------------------------

_SIZES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "SHAPE": lambda x: torch.tensor(x.shape, dtype=torch.int32),
        "MUL": torch.mul,
        "SUM": lambda x, dims: x.sum(dims.tolist(), keepdim=True, dtype=torch.int32),
        "FLOOR_DIV": lambda x, y: x // y,
    }
)
