"""Run a program in float64, so that its numbers do not depend on the order of sums.

In a quantised program the floats between dequantize and quantize are computed in float64. Another order of
sums then moves no value across a rounding boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.nn import Module

from dimorder.capture.dynamic import is_dynamic_dequantize, is_static_quantize
from dimorder.capture.functionalize import functional
from dimorder.capture.integers import KEEPS_SCALE
from dimorder.capture.state import left_in_state
from dimorder.errors import VerificationError
from dimorder.graph.elements import Elements
from dimorder.graph.exported import readable
from dimorder.graph.quantized_constant import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE, Scaled
from dimorder.graph.schema import bound
from dimorder.graph.tracing import EXPORTED
from dimorder.ops.dialect import dynamic_type
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.ops.table import OPERATORS, elements_of, moved_operands

aten = torch.ops.aten


QUANTA = 1  # by which a rounded integer may be off
OFF = 1e-3  # the share of integers that may be off
FEW = 8  # further integers that may be off
HALF = 1e-3  # quanta from a half, within which float32 may round to either side


def run(
    module: Module, inputs: Sequence[Tensor], forced: Mapping[str, Tensor] | None = None
) -> tuple[list[Tensor], dict[Node, Differences]]:
    """Run a graph with its floats computed in float64.

    Args:
        module: the graph.
        inputs: its inputs.
        forced: values by the names of nodes: integers, or floats that were quantised dynamically. They
            replace the results of these nodes.

    Returns:
        The results, and for each forced node by how many quanta its own result differs.

    >>> class Halves(torch.nn.Module):
    ...     def forward(self, x):
    ...         return QUANTIZE(x / 3, 0.5, 0, -128, 127, torch.int8)
    >>> program = torch.export.export(Halves(), (torch.tensor([1.0, 2.0]),)).module()
    >>> run(program, (torch.tensor([3.0, 6.2]),))[0]
    [tensor([2, 4], dtype=torch.int8)]
    """
    interpreter = _Exact(module, forced or {})
    with torch.no_grad():
        results = interpreter.run(*inputs)
    return [r for r in pytree.tree_leaves(results) if isinstance(r, Tensor)], interpreter.differences


def moved(module: GraphModule, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Run a graph in float64 with noise in place of dynamic quantisation.

    Each value that is quantised dynamically is not rounded, but moved at random by up to half of its step.

    >>> class Rounds(torch.nn.Module):
    ...     def forward(self, x):
    ...         return FAKE_QUANTIZE_DYNAMIC(x, [0], -128, 127, 1e-9, "asymmetric")
    >>> program = torch.export.export(Rounds(), (torch.ones(2),)).module()
    >>> (got,) = moved(program, (torch.tensor([0.0, 255.0]),), 0)
    >>> (got - torch.tensor([0.0, 255.0])).abs() <= 0.5
    tensor([True, True])
    """
    interpreter = _Exact(module, {}, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        results = interpreter.run(*inputs)
    return [r for r in pytree.tree_leaves(results) if isinstance(r, Tensor)]


def roundings(module: Module, inputs: Sequence[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what a graph rounds to integers, and the integers, by the names of the nodes that quantise.

    The first is in float64: real over scale, plus the zero point, clamped to the type's range.

    >>> class Halves(torch.nn.Module):
    ...     def forward(self, x):
    ...         return QUANTIZE(x, 0.5, 3, -128, 127, torch.int8)
    >>> program = torch.export.export(Halves(), (torch.tensor([1.1, -99.0]),)).module()
    >>> ((real, integers),) = roundings(program, (torch.tensor([1.1, -99.0]),)).values()
    >>> real.to(torch.float32), integers
    (tensor([   5.2000, -128.0000]), tensor([   5, -128], dtype=torch.int8))
    """
    interpreter = _Roundings(module, {})
    with torch.no_grad():
        interpreter.run(*inputs)
    return interpreter.found


def twice(exported: ExportedProgram, leaves: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Run an exported program unchanged, and in float64.

    The floats of the second result stay in float64: for half precision that is more than the first can
    represent. The leaves of several calls follow one another, and so do their results. A call finds what the
    last call left in the buffers that the program writes.

    Args:
        exported: the program.
        leaves: the leaves of its inputs.

    >>> class Thirds(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x + 1e6) - 1e6
    >>> x = torch.tensor([1 / 3])
    >>> twice(torch.export.export(Thirds(), (x,)), (x,))
    ([tensor([0.3125])], [tensor([0.3333], dtype=torch.float64)])
    """
    program = _FunctionalProgram(exported)
    plain = program.run(Interpreter(program.module), leaves)
    wide = program.run(_Exact(program.module, {}), leaves, _wide)
    pairs = [pair for pair in zip(plain, wide, strict=True) if isinstance(pair[0], Tensor)]
    return [p for p, _ in pairs], [w for _, w in pairs]


def once(exported: ExportedProgram, leaves: Sequence[Any], mode: AbstractContextManager[Any]) -> list[Tensor]:
    """Run an exported program unchanged, while `mode` is active."""
    program = _FunctionalProgram(exported)
    with mode:
        results = program.run(Interpreter(program.module), leaves)
    return [result for result in results if isinstance(result, Tensor)]


def noisy(exported: ExportedProgram, leaves: Sequence[Any], seed: int = 0) -> list[Tensor]:
    """Run an exported program with noise in each float that an operator computes.

    Each float is off by a few roundings, zeros have either sign, and subnormal numbers are zero.

    >>> class Ties(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x * 3).argmax()
    >>> x = torch.ones(1000)
    >>> program = torch.export.export(Ties(), (x,))
    >>> program.module()(x), noisy(program, (x,))[0] == 0
    (tensor(0), tensor(False))
    """
    program = _FunctionalProgram(exported)
    results = program.run(_Noisy(program.module, seed), leaves)
    return [result for result in results if isinstance(result, Tensor)]


class _FunctionalProgram:
    """A program as a module that writes to nothing.

    Its constants and buffers are among its inputs. What it leaves in buffers comes before its results.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        program = functional(exported, OPERATORS)
        specs, held = program.graph_signature.input_specs, {**program.state_dict, **program.constants}
        self.module = program.graph_module
        self.inputs = [None if spec.kind is InputKind.USER_INPUT else str(spec.target) for spec in specs]
        self.held = {name: held[name] for name in self.inputs if name is not None}
        self.left = list(left_in_state(program))

    def run(
        self, interpreter: Interpreter, leaves: Sequence[Any], of: Callable[[Any], Any] = lambda value: value
    ) -> list[Any]:
        """Return the results of each call; `of` is applied to all inputs."""
        held, results = {name: of(value) for name, value in self.held.items()}, list[Any]()
        feed = iter(leaves)
        with torch.no_grad():
            for _ in range(len(leaves) // self.inputs.count(None)):
                given = [of(next(feed)) if name is None else held[name] for name in self.inputs]
                made = interpreter.run(*given, enable_io_processing=False)
                held |= zip(self.left, made, strict=False)
                results += made[len(self.left) :]
        return results


def recorded(exported: ExportedProgram, inputs: Sequence[Tensor], captured: GraphModule) -> dict[str, Tensor]:
    """Return what an exported program quantises, by the names of the captured nodes.

    These are its integers, and the results of dynamic quantisation.
    """
    recorder = _Recorder(readable(exported))
    with torch.no_grad():
        recorder.run(*inputs)
    origins = {node.name: node.meta.get(EXPORTED) for node in captured.graph.nodes}
    return {name: recorder.found[origin] for name, origin in origins.items() if origin in recorder.found}


class _Recorder(Interpreter):
    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if is_static_quantize(n) or is_dynamic_dequantize(n):
            self.found[n.name] = result
        return result


class Origin(NamedTuple):
    """The values that integers were rounded from, in quanta without the zero point, and the `quantum`.

    `unsure` are the elements that were computed from integers that may be rounded to either side.
    """

    quanta: Tensor
    quantum: float = 1.0
    unsure: Tensor | bool = False

    @property
    def on_a_half(self) -> Tensor:
        return (self.quanta - self.quanta.floor() - 0.5).abs() <= HALF


class Differences:
    """How far values are off that were compared one by one: by how many quanta, and in how many elements.

    An element that was rounded from a half may be off by a quantum without being counted: either integer is
    right.
    """

    def __init__(self) -> None:
        self.most, self.off, self.compared = 0, 0, 0

    @staticmethod
    def together(parts: Iterable[Differences]) -> Differences:
        """Return the differences of several values as one."""
        made = Differences()
        for part in parts:
            made.most = max(made.most, part.most)
            made.off += part.off
            made.compared += part.compared
        return made

    def add(self, got: Tensor, wanted: Tensor, origin: Origin | None = None) -> None:
        """Compare integers; `origin` is what `got` was rounded from, if that is known."""
        quanta = (got.to(torch.int64) - wanted.to(torch.int64)).abs()
        off = quanta > 0
        if origin is not None:
            quanta[origin.unsure] = 0
            off = (quanta > 0) & ~origin.on_a_half
        self.most = max(self.most, int(quanta.max()))
        self.off += int(off.sum())
        self.compared += quanta.numel()

    def require_few(self, what: str) -> None:
        """Check that no more is off than rounding explains.

        Raises:
            VerificationError: if more is.
        """
        if self.most > QUANTA or self.off > FEW + OFF * self.compared:
            raise VerificationError(
                what,
                f"integers are off by up to {self.most}, {self.off} of {self.compared}",
                "report this network: a rule is wrong",
            )


def require_close(got: Tensor, wanted: Tensor, what: str, origin: Origin | None = None) -> None:
    """Check that integers differ by no more than rounding explains; see `Differences`.

    Raises:
        VerificationError: if they do.

    >>> origin = Origin(torch.full((99,), 2.5))
    >>> require_close(torch.tensor([3] * 99), torch.tensor([2] * 99), "halves", origin)
    """
    differences = Differences()
    differences.add(got, wanted, origin)
    differences.require_few(what)


class _Noisy(Interpreter):
    def __init__(self, module: GraphModule, seed: int) -> None:
        super().__init__(module)
        self.generator = torch.Generator().manual_seed(seed)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        noise = torch.randn(result.shape, generator=self.generator).to(result.dtype)
        rounded = result * (1 + 4 * torch.finfo(result.dtype).eps * noise)
        nothing = result.abs() < torch.finfo(result.dtype).tiny
        return torch.where(nothing, torch.zeros_like(result).copysign(noise), rounded)


class _Exact(Interpreter):
    def __init__(
        self, module: Module, forced: Mapping[str, Tensor], noise: torch.Generator | None = None
    ) -> None:
        super().__init__(module)
        self.forced, self.noise = forced, noise
        self.differences: dict[Node, Differences] = {}
        self.origins: dict[Node, Origin] = {}  # of integers that are not forced, and their floats

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(super().get_attr(target, args, kwargs))

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        wanted = self.forced.get(n.name)
        if wanted is not None and n.target is FAKE_QUANTIZE_DYNAMIC:
            x, *tokens = self.fetch_args_kwargs_from_env(n)[0]
            step, _ = dynamic_type(x.double(), *tokens)
            found = self.differences[n] = Differences()
            found.add((result / step).round(), (wanted / step).round(), Origin(x / step))
            return torch.empty_like(result).copy_(wanted)
        origin = self._origin(n)
        if wanted is None or result.dtype != wanted.dtype:
            if origin is not None:
                self.origins[n] = origin
            return result
        self.differences[n] = Differences()
        self.differences[n].add(result, wanted, origin)
        return torch.empty_like(result).copy_(wanted)  # with the same strides: views read it

    def _origin(self, n: Node) -> Origin | None:
        """Return what a value's elements were rounded from, there or before they were moved or selected."""
        if n.target is QUANTIZE:
            real, scale, *_ = self.fetch_args_kwargs_from_env(n)[0]
            before = self.origins.get(n.all_input_nodes[0])
            if before is not None and before.quantum == scale:
                return before
            unsure = before.on_a_half | before.unsure if before is not None else False
            return Origin(real.double() / in_float32(scale), scale, unsure)
        keeps = n.target is DEQUANTIZE or elements_of(n.target) in KEEPS_SCALE
        sources = moved_operands(n) if keeps else []
        found = {source: self.origins[source] for source in sources if source in self.origins}
        if not found or len(found) < len(sources) or len({each.quantum for each in found.values()}) > 1:
            return None
        if n.target is DEQUANTIZE:
            return found[sources[0]]

        def moved(part: Callable[[Origin], Tensor]) -> Tensor:
            args: Any = torch.fx.map_arg(n.args, lambda m: part(found[m]) if m in found else self.env[m])
            made: Tensor = Interpreter.call_function(self, n.target, args, n.kwargs)
            return made

        unsure = moved(lambda origin: origin.quanta * 0 + origin.unsure) > 0
        return Origin(moved(lambda origin: origin.quanta), found[sources[0]].quantum, unsure)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is FAKE_QUANTIZE_DYNAMIC:
            return self._dynamic(*args)
        special = _SPECIAL.get(target)
        if special is not None:
            return special(**bound(target, args, kwargs))
        if (
            elements_of(target) is not Elements.RELABELS
        ):  # an input is quantised in float32, as in every kernel
            args, kwargs = pytree.tree_map(_wide, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _dynamic(self, x: Tensor, *tokens: Any) -> Tensor:
        x = x.double()
        scale, zero = dynamic_type(x, *tokens)
        if self.noise is not None:
            return x + (torch.rand(x.shape, generator=self.noise, dtype=torch.float64) - 0.5) * scale
        _, low, high, *_ = tokens
        # The least value may be a tie, however it was rounded.
        quanta = (x / scale * 2.0**30).round() / 2.0**30
        return ((quanta.round() + zero).clamp(low, high) - zero) * scale


class _Roundings(_Exact):
    def __init__(self, module: Module, forced: Mapping[str, Tensor]) -> None:
        super().__init__(module, forced)
        self.found: dict[str, tuple[Tensor, Tensor]] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.target is QUANTIZE:
            a = bound(n.target, *self.fetch_args_kwargs_from_env(n))
            real = a["input"].double() / in_float32(a["scale"]) + a["zero_point"]
            self.found[n.name] = real.clamp(a["quant_min"], a["quant_max"]), result
        return result


def _wide(value: Any) -> Any:
    if isinstance(value, Scaled) and value.integers.per_channel():
        held = value.integers
        return (held.values.double() - held.zero_point) * held.scales.double()
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def in_float32(scale: float) -> float:
    """Return a scale as float32 tensors are multiplied by it: times an integer it is exact in float64."""
    return float(torch.tensor(scale, dtype=torch.float32))


def _quantize(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    scaled = input * (1.0 / scale) if input.dtype == torch.float32 else input / in_float32(scale)
    return scaled.round().add(zero_point).clamp(quant_min, quant_max).to(dtype)


def _dequantize(input: Tensor, scale: float, zero_point: int, **_: Any) -> Tensor:
    return (input.double() - zero_point) * in_float32(scale)


def _dequantize_channels(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, axis: int, **_: Any
) -> Tensor:
    along = [-1 if d == axis else 1 for d in range(input.dim())]
    centred = input.double() if zero_points is None else input.double() - zero_points.reshape(along)
    return centred * scales.double().reshape(along)


_SPECIAL: Mapping[Any, Callable[..., Tensor]] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    DEQUANTIZE_CHANNELS: _dequantize_channels,
}
