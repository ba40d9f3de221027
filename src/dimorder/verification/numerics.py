"""Run a program in float64, so that its results do not depend on the order of sums, or with random noise.

In a quantised program the floats between dequantize and quantize are computed in float64. Another order of
sums then moves no value across a rounding boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.nn import Module

from dimorder.capture.functionalize import functionalize
from dimorder.capture.integers import KEEPS_SCALE
from dimorder.capture.state import left_in_state
from dimorder.graph.elements import Elements, jumps
from dimorder.graph.interpreter import GraphRun, arguments
from dimorder.graph.nodes import bound, origin_of
from dimorder.graph.pairs import real_views
from dimorder.graph.quantized import (
    DEQUANTIZE,
    DEQUANTIZE_CHANNELS,
    QUANTIZE,
    Scaled,
    dequantize_in_float64,
    in_float32,
)
from dimorder.ops.dialect import dynamic_type
from dimorder.ops.problem_map import BufferInfo
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.ops.table import OPERATORS, elements_of, moved_operands
from dimorder.verification.arithmetic import round_then_offset
from dimorder.verification.differences import Differences, Origin


class FunctionalProgram:
    """An exported program as a graph that writes to nothing.

    Its constants and buffers are among its inputs. It returns the buffers' new values before its results.
    With `in_pairs` it returns complex results as torch.view_as_real does.
    """

    def __init__(self, exported: ExportedProgram, in_pairs: bool = False) -> None:
        self.in_pairs = in_pairs
        program = functionalize(exported, OPERATORS)
        specs, tensors = program.graph_signature.input_specs, {**program.state_dict, **program.constants}
        self.module = program.graph_module
        self.inputs = [None if spec.kind is InputKind.USER_INPUT else str(spec.target) for spec in specs]
        self.tensors = {name: tensors[name] for name in self.inputs if name is not None}
        self.written = list(left_in_state(program))

    def run(
        self, leaves: Sequence[Any], numerics: Callable[[GraphModule], GraphRun] = GraphRun
    ) -> list[Tensor]:
        """Run the program, as torch computes or in other numerics, and return its tensors.

        The results of `Float64Run` stay in float64: for half precision that is more than the program can
        represent. The leaves of several calls follow one another, and so do their results. A call finds what
        the last call left in the buffers that the program writes.

        Args:
            leaves: the leaves of the program's inputs.
            numerics: makes the run of the graph.

        >>> class Thirds(torch.nn.Module):
        ...     def forward(self, x):
        ...         return (x + 1e6) - 1e6
        >>> x = torch.tensor([1 / 3])
        >>> program = FunctionalProgram(torch.export.export(Thirds(), (x,)))
        >>> program.run((x,)), program.run((x,), Float64Run)
        ([tensor([0.3125])], [tensor([0.3333], dtype=torch.float64)])
        """
        run, feed, results = numerics(self.module), iter(leaves), list[Any]()
        tensors = {name: run.constant(value) for name, value in self.tensors.items()}
        for _ in range(len(leaves) // self.inputs.count(None)):
            inputs = [run.constant(next(feed)) if name is None else tensors[name] for name in self.inputs]
            outputs = run.run(*(each for each in inputs if isinstance(each, Tensor)))
            tensors |= zip(self.written, outputs, strict=False)
            results += outputs[len(self.written) :]
        return real_views([result for result in results if isinstance(result, Tensor)], self.in_pairs)

    def overflows(
        self, leaves: Sequence[Any], follow: Callable[[Callable[[GraphModule], GraphRun]], Any]
    ) -> bool:
        """Return whether an operator computes an infinity or NaN from finite numbers.

        Args:
            leaves: the leaves of the program's inputs.
            follow: makes numerics of others, as `Selections.follow` does.
        """
        runs = list[OverflowRun]()

        def numerics(module: GraphModule) -> GraphRun:
            runs.append(OverflowRun(module))
            return runs[-1]

        self.run(leaves, follow(numerics))
        return any(run.overflows for run in runs)


class OverflowRun(GraphRun):
    """A run that looks for overflows: infinities and NaNs that an operator computes from finite numbers.

    >>> class Square(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x * x).clamp(max=1.0)
    >>> run = OverflowRun(torch.export.export(Square(), (torch.ones(1),)).module())
    >>> run.tensors(torch.tensor([1e20])), run.overflows
    ([tensor([1.])], True)
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.overflows = False

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if not self.overflows and operands and not _all_finite(result):
            self.overflows = _all_finite([*operands.values(), node.args, node.kwargs])
        return result


class NoisyRun(GraphRun):
    """A run with noise in each float that an operator computes.

    Each float is off by a few roundings, zeros have either sign, and subnormal numbers are zero.

    Args:
        module: the graph.
        seed: the seed of the noise.
        roundings: the noise's standard deviation, in spacings of the floats about 1.

    >>> class Ties(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x * 3).argmax()
    >>> x = torch.ones(1000)
    >>> program = torch.export.export(Ties(), (x,))
    >>> program.module()(x), FunctionalProgram(program).run((x,), NoisyRun)[0] == 0
    (tensor(0), tensor(False))
    """

    def __init__(self, module: Module, seed: int = 0, roundings: float = 4) -> None:
        super().__init__(module)
        self.roundings, self.generator = roundings, torch.Generator().manual_seed(seed)

    def branch_run(self, branch: Module) -> GraphRun:
        run = NoisyRun(branch, roundings=self.roundings)
        run.generator = self.generator  # each call draws other noise
        return run

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call(target, args, kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        noise = torch.randn(result.shape, generator=self.generator)
        factor = 1 + self.roundings * torch.finfo(result.dtype).eps * noise
        rounded = (result * factor).to(result.dtype)
        nothing = result.abs() < torch.finfo(result.dtype).tiny
        return torch.where(nothing, torch.zeros_like(result).copysign(noise.to(result.dtype)), rounded)


class Float64Run(GraphRun):
    """A run with floats in float64.

    Args:
        module: the graph.
        forced: values by the names of nodes, which replace the results of these nodes. They are integers, or
            floats that were quantised dynamically.
        seed: for noise. A value that is quantised dynamically is then not rounded, but moved at random by up
            to half of its step.
        margins: how far half precision, or the rounding of a bias, may move what a node quantises, by the
            node's name.

    Attributes:
        differences: The difference in quanta between each forced value and the node's own result.

    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return QUANTIZE(x / 3, 0.5, 0, -128, 127, torch.int8)
    >>> program = torch.export.export(Net(), (torch.ones(2),)).module()
    >>> Float64Run(program).tensors(torch.tensor([3.0, 6.2]))
    [tensor([2, 4], dtype=torch.int8)]
    """

    def __init__(
        self,
        module: Module,
        forced: Mapping[str, Tensor] | None = None,
        seed: int | None = None,
        margins: Mapping[str, float | Tensor] = MappingProxyType({}),
    ) -> None:
        super().__init__(module)
        self.forced, self.margins = forced or {}, margins
        self.noise = None if seed is None else torch.Generator().manual_seed(seed)
        self.differences: dict[Node, Differences] = {}
        self.origins: dict[Node, Origin] = {}  # of integers that are not forced, and their floats

    def constant(self, value: Any, readers: Iterable[Any] = ()) -> Any:
        gathered = {elements_of(reader) for reader in readers} == {Elements.GATHERS}
        return value if gathered else _wide(value)

    def tensors(self, *inputs: Any) -> list[Tensor]:
        return [_wide(each) for each in super().tensors(*inputs)]  # also an input that was only relabelled

    def branch_run(self, branch: Module) -> GraphRun:
        return Float64Run(branch)

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is FAKE_QUANTIZE_DYNAMIC:
            return self._dynamic(*args)
        special = _SPECIAL.get(target)
        if special is not None:
            return special(**bound(target, args, kwargs))
        effect = elements_of(target)
        if effect is Elements.GATHERS:
            return _gathered(super().call, target, args, kwargs)
        if effect is not Elements.RELABELS:
            # a relabelled input is still quantised in float32, as in every kernel
            held = _narrow if jumps(target, kwargs) else _wide
            args, kwargs = pytree.tree_map(held, (args, kwargs))
        return super().call(target, args, kwargs)

    def _dynamic(self, x: Tensor, *tokens: Any) -> Tensor:
        x = x.double()
        scale, zero = dynamic_type(x, *tokens)
        if self.noise is not None:
            return x + (torch.rand(x.shape, generator=self.noise, dtype=torch.float64) - 0.5) * scale
        _, low, high, *_ = tokens
        # The least value may be a tie, however it was rounded.
        quanta = (x / scale * 2.0**30).round() / 2.0**30
        return ((quanta.round() + zero).clamp(low, high) - zero) * scale

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if not self.forced:
            return result
        wanted = self.forced.get(node.name)
        if wanted is not None and node.target is FAKE_QUANTIZE_DYNAMIC:
            x, *tokens = arguments(node, operands)[0]
            step, _ = dynamic_type(x.double(), *tokens)
            found = Differences.between((result / step).round(), (wanted / step).round(), Origin(x / step))
        else:
            origin = self._origin(node, operands)
            if wanted is None or result.dtype != wanted.dtype:
                if origin is not None:
                    self.origins[node] = origin
                return result
            found = Differences.between(result, wanted, origin)
        self.differences[node] = found
        return torch.empty_like(result).copy_(wanted)  # with the same strides: views read it

    def _origin(self, node: Node, operands: Mapping[Node, Any]) -> Origin | None:
        """Return what a value's elements were rounded from, there or before they were moved or selected."""
        if node.target is QUANTIZE:
            real, scale, *_ = arguments(node, operands)[0]
            before = self.origins.get(node.all_input_nodes[0])
            if before is not None and before.quantum == scale:
                return before
            unsure = before.on_a_half | before.unsure if before is not None else False
            margin = self.margins.get(node.name, 0.0) / scale
            return Origin(real.double() / in_float32(scale), scale, unsure, margin)
        keeps = node.target is DEQUANTIZE or elements_of(node.target) in KEEPS_SCALE
        sources = moved_operands(node) if keeps else []
        found = {source: self.origins[source] for source in sources if source in self.origins}
        if not found or len(found) < len(sources) or len({each.quantum for each in found.values()}) > 1:
            return None
        if node.target is DEQUANTIZE:
            return found[sources[0]]

        def move(part: Callable[[Origin], Tensor]) -> Tensor:
            args: Any = map_arg(node.args, lambda m: part(found[m]) if m in found else operands[m])
            moved: Tensor = GraphRun.call(self, node.target, args, node.kwargs)
            return moved

        unsure = move(lambda origin: origin.quanta * 0 + origin.unsure) > 0
        quantum = found[sources[0]].quantum
        # The network may quantise what is moved, and have a margin there.
        margin = (
            move(lambda origin: origin.quanta * 0 + origin.margin)
            + self.margins.get(node.name, 0.0) / quantum
        )
        return Origin(move(lambda origin: origin.quanta), quantum, unsure, margin)


class LogicalIntegersRun(Float64Run):
    """A run of a physical program that records the values that are quantized, in their logical shapes.

    Attributes:
        integers: For each call, the values by the names of the captured program's nodes.
    """

    def __init__(self, module: Module, buffers: Sequence[BufferInfo]) -> None:
        super().__init__(module)
        self.buffers, self.integers = buffers, list[dict[str, Tensor]]()

    def run(self, *inputs: Any) -> Any:
        if self.buffers:
            self.integers.append({})
        return super().run(*inputs)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        buffer = origin_of(node).get("buffer")
        if buffer is not None and self.buffers and self.buffers[buffer].root.target in _QUANTIZES:
            info = self.buffers[buffer]
            # A value whose padding became its convolution's own (`fuse_pad_into_conv`) has fewer elements.
            if result.numel() == info.value.numel():
                self.integers[-1][info.root.name] = info.logical(result, origin_of(node)["order"], info.shape)
        return result


class RoundingsRun(Float64Run):
    """A run that records what it rounds to integers, and the integers, by the names of the quantize nodes.

    The first is in float64: real over scale, plus the zero point, clamped to the type's range.

    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return QUANTIZE(x, 0.5, 3, -128, 127, torch.int8)
    >>> run = RoundingsRun(torch.export.export(Net(), (torch.ones(2),)).module())
    >>> _ = run.run(torch.tensor([1.1, -99.0]))
    >>> ((real, integers),) = run.roundings.values()
    >>> real.to(torch.float32), integers
    (tensor([   5.2000, -128.0000]), tensor([   5, -128], dtype=torch.int8))
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.roundings: dict[str, tuple[Tensor, Tensor]] = {}

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if node.target is QUANTIZE:
            a = bound(node.target, *arguments(node, operands))
            real = a["input"].double() / in_float32(a["scale"]) + a["zero_point"]
            self.roundings[node.name] = real.clamp(a["quant_min"], a["quant_max"]), result
        return result


def _all_finite(values: Any) -> bool:
    numbers = [x for x in pytree.tree_leaves(values) if isinstance(x, (float, Tensor))]
    return all(bool(torch.as_tensor(x).isfinite().all()) for x in numbers)


def _wide(value: Any) -> Any:
    if isinstance(value, Scaled):
        return value.in_float64
    if isinstance(value, torch.dtype):
        return torch.complex128 if value.is_complex else torch.float64 if value.is_floating_point else value
    return value.to(_wide(value.dtype)) if isinstance(value, Tensor) else value


def _narrow(value: Any) -> Any:
    """Return numbers in float32, which decide on which side of a step they are."""
    value = _wide(value)
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _gathered(call: Callable[..., Any], target: Any, args: Any, kwargs: Any) -> Any:
    """Widen what is read of a table, which may be large, and nothing else of it.

    A table of integers gives what `Scaled.in_float64` would. One rounding less or more decides how halves are
    rounded, and rows of a table of integers have such halves.
    """
    table, *places = args
    if not isinstance(table, Scaled) or table.integers.per_channel() is None:
        return _wide(call(target, args, kwargs))
    integers, scales = table.integers.values, table.integers.scales
    real = call(target, (integers, *places), kwargs).double() - table.integers.zero_point
    return real * call(target, (scales, *places), kwargs).double()


def _quantize(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    quanta = input * (1.0 / scale) if input.dtype == torch.float32 else input / in_float32(scale)
    return round_then_offset(quanta, zero_point).clamp(quant_min, quant_max).to(dtype)


def _dequantize(input: Tensor, scale: float, zero_point: int, **_: Any) -> Tensor:
    return (input.double() - zero_point) * in_float32(scale)


def _dequantize_channels(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, axis: int, **_: Any
) -> Tensor:
    return dequantize_in_float64(input, scales, zero_points, axis)


_QUANTIZES = (QUANTIZE, FAKE_QUANTIZE_DYNAMIC)
_SPECIAL: Mapping[Any, Callable[..., Tensor]] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    DEQUANTIZE_CHANNELS: _dequantize_channels,
}
