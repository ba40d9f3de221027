"""Record what a program quantizes, and measure how far roundings move these values and its results."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.nn import Module

from dimorder.capture.dynamic import is_dynamic_dequantize, is_static_quantize
from dimorder.capture.integers import WEIGHTED
from dimorder.capture.passes import EXPORTED_PASSES
from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import Elements
from dimorder.graph.exported import graph_with_tensors, state_of
from dimorder.graph.interpreter import GraphRun, arguments
from dimorder.graph.nodes import CUTS, EXPORTED, bound
from dimorder.graph.passes import run_passes
from dimorder.graph.quantized import QUANTIZE, Scaled
from dimorder.graph.tracing import is_half
from dimorder.ops.quantization import is_dynamic
from dimorder.ops.table import elements_of
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import Float64Run, NoisyRun
from dimorder.verification.reference import HALF_FACTOR
from dimorder.verification.relative_error import error_in_float64

aten = torch.ops.aten

# How many draws of noise explain what a comparison finds: first none. An element at a step takes one side of
# it in each draw, so few draws may miss the other one.
DRAWS = (0, 4, 20)
_MOST_OF_BIAS = 0.05  # quanta that the rounding of a bias may explain


@dataclass(frozen=True)
class RoundingErrors:
    """How far roundings may move a program's values.

    Attributes:
        read: For each quantize, by name: how far what it reads may be off, in all elements or in each.
        outputs: The relative errors that outputs of floats may have.
    """

    read: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: Sequence[float] = ()


@dataclass(frozen=True)
class QuantizedValues:
    """Holds what an exported program quantizes, by the names of the captured nodes.

    Attributes:
        values: Integers, and results of dynamic quantization.
        state: The values of the program's buffers after the call.
        margins: How far half precision, or the rounding of a bias, may have moved what was quantized.
    """

    values: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    margins: Mapping[str, float | Tensor]


def record_quantized(
    exported: ExportedProgram,
    inputs: Sequence[Tensor],
    captured: GraphModule,
    state: Mapping[str, Tensor] = MappingProxyType({}),
    draws: int = 0,
) -> QuantizedValues:
    """Return what an exported program quantizes.

    Args:
        exported: the program.
        inputs: its inputs.
        captured: its normal form.
        state: its buffers' values before the call.
        draws: how many draws of noise tell how far roundings of float32 move what is quantized.
    """
    if not state_of(exported) and not is_dynamic(captured):  # torch names the calls anew that it decomposes
        exported = run_passes(EXPORTED_PASSES, exported)
    by_topk = _sorts_by_topk(captured)
    run = _QuantizedRun(_with_state(exported, state, by_topk))
    run.run(*inputs)
    after = dict(state)
    if state_of(exported):  # a functional program writes the buffers of its own module
        after = {name: run.module.get_buffer(name) for name in state}
    errors = RoundingErrors()
    if not is_dynamic(captured):  # the outputs of such a program are compared instead
        errors = rounding_errors(exported, inputs, run.quantized, state, draws=draws, by_topk=by_topk)
    values, margins = dict[str, Tensor](), bias_margins(captured)
    for node in captured.graph.nodes:
        origin = node.meta.get(EXPORTED)
        if origin in run.quantized:
            values[node.name] = _as_captured(run.quantized[origin], node)
        if origin in errors.read:
            margins[node.name] = margins.get(node.name, 0.0) + _as_captured(errors.read[origin], node)
    return QuantizedValues(values, after, margins)


def bias_margins(captured: GraphModule) -> dict[str, float | Tensor]:
    """Return how far a rounded bias may move what a node quantizes, by the node's name.

    In the normal form the bias of a product of quantized values is a multiple of its scale. A few values may
    be the products of a whole channel, and then one that is near a half is off in many places.
    """
    margins: dict[str, float | Tensor] = {}
    for node in captured.graph.find_nodes(op="call_function", target=QUANTIZE):
        product, quantum = node.all_input_nodes[0], node.args[1]
        while elements_of(product.target) is Elements.CLAMPS:
            product = product.all_input_nodes[0]
        if product.target in WEIGHTED:
            bias = bound(product.target, product.args, product.kwargs)["bias"]
            constant = getattr(captured, str(getattr(bias, "target", "")), None)
            if isinstance(constant, Scaled):
                margins[node.name] = min(float(constant.integers.scales.max()) / 2, _MOST_OF_BIAS * quantum)
    return margins


def _as_captured(value: Tensor, node: Node) -> Tensor:
    """Return what a captured node keeps of the value of the exported program's node, as signed integers if
    the captured ones are. One margin for all elements has no dimensions."""
    for dim, first, end in node.meta.get(CUTS, ()) if value.dim() else ():
        value = value.narrow(dim, first, end - first)
    if value.dtype == torch.uint8 and node.meta["val"].dtype == torch.int8:
        return (value.to(torch.int16) - 128).to(torch.int8)
    return value


def rounding_errors(
    program: ExportedProgram,
    inputs: Sequence[Tensor],
    integers: Mapping[str, Tensor],
    state: Mapping[str, Tensor] = MappingProxyType({}),
    half_sums: bool = False,
    draws: int = 0,
    by_topk: bool = False,
) -> RoundingErrors:
    """Return how far half precision, or noise, may move the values of a program; else nothing does.

    Each value is computed as torch computes it and in float64, from the same integers before it.

    Args:
        program: the program.
        inputs: its inputs.
        integers: what its quantize nodes give, by their names.
        state: its buffers' values before the call, if they are not those of the program.
        half_sums: whether sums may be kept in float16.
        draws: how often each float is moved by as much as float32 rounds a long sum. Each element then has an
            error of its own: one channel may amplify what others do not.
        by_topk: whether each sort is the topk of all elements, as in the program's normal form.
    """
    if not (draws or any(map(is_half, program.graph.nodes))):
        return RoundingErrors()
    wide = _WideRun(_with_state(program, state, by_topk), integers)
    exact = wide.tensors(*inputs)
    read, outputs = dict[str, Tensor](), [0.0] * len(exact)
    modes: list[AbstractContextManager[Any]] = [nullcontext(), *([HalfSums()] if half_sums else [])]
    for mode, seed in itertools.product(modes, range(draws or 1)):
        own = _with_state(program, state, by_topk)
        narrow = _NoisyQuantizedRun(own, integers, seed) if draws else _QuantizedRun(own, integers)
        with mode:
            found = narrow.tensors(*inputs)
        for name, value in narrow.read.items():
            off = (value.double() - wide.read[name].double()).abs().nan_to_num(0.0, 0.0)
            margin = HALF_FACTOR * (off if draws or not off.numel() else off.max())
            read[name] = torch.maximum(read[name], margin) if name in read else margin
        for i, (value, wanted) in enumerate(zip(found, exact, strict=True)):
            if value.is_floating_point():  # also float32 that is computed from half precision
                outputs[i] = max(outputs[i], HALF_FACTOR * error_in_float64(value, wanted))
    return RoundingErrors(read, outputs)


def _sorts_by_topk(captured: GraphModule) -> bool:
    """Return whether a normal form has topk for sorts: it may give equal elements in another sequence."""
    topk, sorts = (
        captured.graph.find_nodes(op="call_function", target=target)
        for target in (aten.topk.default, aten.sort.default)
    )
    return bool(topk) and not sorts


def _with_state(exported: ExportedProgram, state: Mapping[str, Tensor], by_topk: bool = False) -> Module:
    """Return a program as a graph with other values of its buffers, which it may write; see `by_topk`."""
    own = {name: value.clone() for name, value in state.items()}
    if own:
        held, constants = (
            {name: own.get(name, value) for name, value in each.items()}
            for each in (exported.state_dict, exported.constants)
        )
        exported = replace_parts(exported, state_dict=held, constants=constants)
    module = graph_with_tensors(exported)
    sorts = module.graph.find_nodes(op="call_function", target=aten.sort.default) if by_topk else ()
    for node in sorts:
        given, shape = bound(node.target, node.args, node.kwargs), node.meta["val"][0].shape
        if shape:
            count, dim = shape[given["dim"]], given["dim"]
            node.target, node.args = aten.topk.default, (given["self"], count, dim, given["descending"])
            node.kwargs = {}
    return module


class _ReadRun(GraphRun):
    """A run that records what is quantized."""

    def __init__(self, module: Module, *more: Any) -> None:
        super().__init__(module, *more)
        self.read: dict[str, Tensor] = {}

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if is_static_quantize(node):
            self.read[node.name] = arguments(node, operands)[0][0]
        return super().result(node, operands, result)


class _QuantizedRun(_ReadRun):
    """A run that records the integers too. Nodes in `forced` give these values instead."""

    def __init__(self, module: Module, forced: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        super().__init__(module)
        self.forced, self.quantized = forced, dict[str, Tensor]()

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if is_static_quantize(node) or is_dynamic_dequantize(node):
            self.quantized[node.name] = result
        return self.forced.get(node.name, super().result(node, operands, result))


class _NoisyQuantizedRun(_QuantizedRun, NoisyRun):
    """Such a run with noise in each float, as of XNNPACK's sums of thousands of elements."""

    def __init__(self, module: Module, forced: Mapping[str, Tensor], seed: int) -> None:
        super().__init__(module, forced)
        self.roundings, self.generator = 16, torch.Generator().manual_seed(seed)


class _WideRun(_ReadRun, Float64Run):
    """The run in float64, with forced values."""
