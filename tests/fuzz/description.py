"""Describe a random network, and run it in torch.

A network is data (`Case`); its source is a readable module, and that is lowered.
"""

from __future__ import annotations

import math
import random
import types
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dimorder.algebra.dim_order import DimOrder
from tests.fuzz.branches import choose
from tests.fuzz.integer_operators import HELPERS, INTEGERS
from tests.fuzz.operators import OPERATORS
from tests.fuzz.rows import MAX_ELEMENTS, MAX_RANK, Shape

TOLERANCE = 1e-4  # as `lower` itself has it
NOISE = 3e-6  # relative: what a long sum in float32 is off by

# What float16 is off by: each result is rounded. Sums may be kept in float16 too.
HALF_NOISE = 5e-4
HALF_TOLERANCE = 2e-2

# What a target of the fuzzer named TARGET-FEATURE draws, and the targets that compute it.
FEATURES: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "float16": ("torch", "xnnpack", "litert", "tosa"),
        "ranges": ("torch", "xnnpack", "litert"),
        "int8-ranges": ("xnnpack", "litert"),
        "state": ("torch", "xnnpack", "litert"),
        "cond": ("torch", "xnnpack"),
        "fourier": ("torch", "xnnpack", "litert", "tosa"),
    }
)
# The target that a target of the fuzzer stands for, where its name is another.
STANDS_FOR: Mapping[str, str] = types.MappingProxyType(
    {
        "physical": "torch",
        "int8": "xnnpack",
        "int8-litert": "litert",
        "constants": "xnnpack",
        **{f"{target}-{feature}": target for feature, among in FEATURES.items() for target in among},
    }
)

CALLS = 4  # of a network that a call changes, or that chooses
SEVERAL_CALLS = frozenset(["cond"])

Order = str | tuple[int, ...]  # "contiguous", "channels_last", or the dimensions from slowest to fastest

# What torch raises of operands that do not fit, and what is raised of a piece that a split does not have.
MISFIT = (RuntimeError, ValueError, LookupError, TypeError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True)
class Given:
    """A tensor that is not computed: "normal" values, "positive" ones, a "mask", an "index" below `high`,
    "places", of which none comes twice, or integers, "int8" or "uint8".

    A constructor leaves "zeros" or "ones". Tensors of kind "shared" have the same bytes if they have the same
    seed and as many elements, whatever their shapes.
    """

    shape: Shape
    kind: str = "normal"
    high: int = 0
    seed: int = 0
    order: Order = "contiguous"  # in the contract, where it is an input

    @property
    def tensor(self) -> Tensor:
        return given(self.shape, self.kind, self.high, self.seed)


@dataclass(frozen=True)
class Step:
    """`name = operator(*reads, **attributes)`; it reads expressions: `x0`, `self.c1`, `v2`, `v3[0]`."""

    name: str
    operator: str
    reads: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def source(self) -> str:
        row = OPERATORS.get(self.operator) or INTEGERS[self.operator]
        return row.source.format(*self.reads, **self.attributes).format(*self.reads)


@dataclass(frozen=True)
class Range:
    """A dynamic size: the one of these dimensions of these inputs, a multiple of `step`."""

    name: str
    least: int
    most: int
    step: int
    places: tuple[tuple[str, int], ...]

    def has(self, inputs: Mapping[str, Given]) -> bool:
        """Whether it has the sizes that these inputs have there."""
        sizes = {inputs[name].shape[dim] for name, dim in self.places}
        return len(sizes) == 1 and sizes <= set(range(self.least, self.most + 1, self.step))

    @property
    def dim_name(self) -> str:
        """The name of what torch.export has a multiple of."""
        return self.name if self.step == 1 else f"_{self.name}"


@dataclass(frozen=True)
class Write:
    """A write into a constant at the end of a call, which makes it state: in place, or by an assignment."""

    buffer: str
    expression: str
    in_place: bool = True

    @property
    def source(self) -> str:
        return (
            f"{self.buffer}.copy_({self.expression})"
            if self.in_place
            else f"{self.buffer} = {self.expression}"
        )


@dataclass(frozen=True)
class Case:
    """A network, the contract it is lowered under, and the ATen operators (`softmax`) that are refused.

    `quantizer` is the function of `tests.targets.quantised` that quantises the network. It is "by_hand" if
    steps of the network do. `types` are the types of all inputs and of all outputs in the contract, if they
    are not the network's. `dtype` is the type of its floats. `ranges` are its dynamic sizes: the shapes of
    the inputs are those of the example. `writes` are done at the end of a call, in turn.
    """

    inputs: Mapping[str, Given]
    constants: Mapping[str, Given]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Order], ...]
    objective: str = "bytes"
    refused: tuple[str, ...] = ()
    quantizer: str = ""
    types: tuple[str | None, str | None] = (None, None)
    dtype: str = "float32"
    ranges: tuple[Range, ...] = ()
    writes: tuple[Write, ...] = ()

    @property
    def args(self) -> tuple[Tensor, ...]:
        return tuple(self.typed(each.tensor) for each in self.inputs.values())

    @property
    def is_half(self) -> bool:
        return self.dtype == "float16"

    @property
    def tolerance(self) -> float:
        return HALF_TOLERANCE if self.is_half else TOLERANCE

    def typed(self, tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, self.dtype)) if tensor.is_floating_point() else tensor

    @property
    def source(self) -> str:
        """The network as a module's source."""
        held = [
            f"        self.register_buffer({name[5:]!r}, {given_source(each)})"
            for name, each in self.constants.items()
        ]
        body = [f"        {step.name} = {step.source}" for step in self.steps]
        body += [f"        {write.source}" for write in self.writes]
        results = ", ".join(expression for expression, _ in self.outputs)
        return "\n".join(
            [
                "class Net(torch.nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *held,
                "",
                f"    def forward(self, {', '.join(self.inputs)}):",
                *body,
                f"        return ({results},)",
            ]
        )

    def module(self) -> nn.Module:
        names = {"torch": torch, "F": F, "given": given, "choose": choose, **HELPERS}
        exec(compile(self.source, "<fuzz>", "exec"), names)
        network: nn.Module = names["Net"]().eval()
        return network.to(getattr(torch, self.dtype))

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any], ...] | None:
        """The dynamic sizes as torch.export takes them; None if all sizes are fixed."""
        shapes: dict[str, dict[int, Any]] = {name: {} for name in self.inputs}
        for each in self.ranges:
            dim = torch.export.Dim(each.dim_name, min=each.least // each.step, max=each.most // each.step)
            for place, at in each.places:
                shapes[place][at] = dim if each.step == 1 else each.step * dim
        return tuple(shapes.values()) if self.ranges else None

    def at(self, sizes: Mapping[str, int]) -> Case:
        """The case at other sizes than those of the example."""
        inputs = dict(self.inputs)
        for each in self.ranges:
            for name, dim in each.places:
                shape = inputs[name].shape
                inputs[name] = replace(
                    inputs[name], shape=(*shape[:dim], sizes[each.name], *shape[dim + 1 :])
                )
        return replace(self, inputs=inputs)

    @property
    def corners(self) -> tuple[Case, ...]:
        """The case at the least and at the most sizes; none if all are fixed."""
        if not self.ranges:
            return ()
        return tuple(
            self.at({each.name: getattr(each, end) for each in self.ranges}) for end in ("least", "most")
        )

    @property
    def calls(self) -> tuple[Case, ...]:
        """The calls, in turn, by which a program is compared: at other sizes, or with other values.

        One is enough for a network of fixed sizes without state.
        """
        rng = random.Random(repr((self.ranges, self.writes)))
        drawn = {each.name: rng.randrange(each.least, each.most + 1, each.step) for each in self.ranges}
        calls = [self, *self.corners, *[self.at(drawn)] * bool(self.ranges)]
        if self.writes or any(step.operator in SEVERAL_CALLS for step in self.steps):
            calls += [self] * max(0, CALLS - len(calls))
        return tuple(call.with_other_values(7 * number) for number, call in enumerate(calls))

    def with_other_values(self, by: int) -> Case:
        inputs = {name: replace(each, seed=each.seed + by) for name, each in self.inputs.items()}
        return replace(self, inputs=inputs)

    def orders(self) -> tuple[list[DimOrder], list[DimOrder]]:
        """The contract's orders; raises where one does not fit its tensor."""
        values = run(self)
        return (
            [_dim_order(each.order, len(each.shape)) for each in self.inputs.values()],
            [_dim_order(order, values[expression].dim()) for expression, order in self.outputs],
        )


def given(shape: Sequence[int], kind: str = "normal", high: int = 0, seed: int = 0) -> Tensor:
    """A tensor of random values, none of them zero or one but of the kinds that say so; a weight's are scaled
    by its fan-in."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "index":
        return torch.randint(high, shape, generator=generator)
    if kind == "places":
        return torch.randperm(high, generator=generator)[: math.prod(shape)].reshape(tuple(shape))
    if kind == "mask":
        return torch.rand(shape, generator=generator) > 0.4
    if kind in ("int8", "uint8"):
        low, high = (-127, 128) if kind == "int8" else (0, 256)
        return torch.randint(low, high, shape, generator=generator).to(getattr(torch, kind))
    if kind in ("zeros", "ones"):
        return torch.full(tuple(shape), float(kind == "ones"))
    if kind == "shared":
        return 0.5 * torch.randn(math.prod(shape), generator=generator).reshape(tuple(shape))
    if kind == "positive":
        return torch.rand(shape, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** (0.25)


def given_source(each: Given) -> str:
    arguments = [str(each.shape)]
    if each.kind != "normal":
        arguments.append(repr(each.kind))
    if each.high:
        arguments.append(str(each.high))
    return f"given({', '.join(arguments)}, seed={each.seed})"


def _dim_order(order: Order, rank: int) -> DimOrder:
    if order == "channels_last":
        return DimOrder.channels_last(rank)
    if order == "contiguous":
        return DimOrder.contiguous(rank)
    if len(order) != rank:
        raise ValueError(f"{order} of rank {rank}")
    return DimOrder(*order)


def pruned(case: Case) -> Case:
    """The case without steps, constants, inputs and writes that no output needs."""
    needed = _names(expression for expression, _ in case.outputs)
    before: set[str] = set()
    while needed != before:  # what a call writes is read by the next one
        before = set(needed)
        needed |= _names(write.expression for write in case.writes if write.buffer in needed)
        for step in reversed(case.steps):
            if step.name in needed:
                needed |= _names(step.reads)
    inputs = {name: each for name, each in case.inputs.items() if name in needed}
    return replace(
        case,
        steps=tuple(step for step in case.steps if step.name in needed),
        constants={name: each for name, each in case.constants.items() if name in needed},
        inputs=inputs,
        ranges=tuple(_of_inputs(case.ranges, inputs)),
        writes=tuple(write for write in case.writes if write.buffer in needed),
    )


def _of_inputs(ranges: Iterable[Range], inputs: Collection[str]) -> Iterator[Range]:
    for each in ranges:
        places = tuple(place for place in each.places if place[0] in inputs)
        if places:
            yield replace(each, places=places)


def _names(expressions: Any) -> set[str]:
    return {expression.split("[")[0] for expression in expressions}


# -- running it in torch


def run(
    case: Case, noise: int | None = None, state: Mapping[str, Tensor] = types.MappingProxyType({})
) -> dict[str, Tensor]:
    """Return every value by its expression, in float64; with a seed, computed ones have noise.

    A network that is quantised, or is to be, is computed in float32. `state` is what an earlier call wrote.
    """
    generator = None if noise is None else torch.Generator().manual_seed(noise)
    held, values = types.SimpleNamespace(), {}
    for name, each in {**case.inputs, **case.constants}.items():
        values[name] = each.tensor if case.quantizer else _double(case.typed(each.tensor))
        values[name] = state.get(name, values[name])
        setattr(held, name.removeprefix("self."), values[name])
    names: dict[str, Any] = {"torch": torch, "F": F, "self": held, "choose": choose, **HELPERS, **values}
    for step in case.steps:
        result = evaluate(step, names)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if generator is not None:
            noise_of = HALF_NOISE if case.is_half else NOISE
            results = [value + _noise(value, noise_of, generator) for value in results]
        several = isinstance(result, (tuple, list))
        names[step.name] = results if several else results[0]
        for i, value in enumerate(results):
            values[f"{step.name}[{i}]" if several else step.name] = value
    return values


def run_calls(case: Case, noise: int | None = None) -> list[dict[str, Tensor]]:
    """Return every value of each call; see `run`."""
    state: dict[str, Tensor] = {}
    found = []
    for call in case.calls:
        values = run(call, noise, state)
        for write in case.writes:
            before, after = values[write.buffer], values[write.expression]
            if before.shape != after.shape:
                raise ValueError(f"{write.source}: {after.shape} for {before.shape}")
            state[write.buffer] = after
        found.append(values)
    return found


def evaluate(step: Step, names: Mapping[str, Any]) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(step.source, dict(names))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _noise(value: Tensor, relative: float, generator: torch.Generator) -> Tensor:
    signs = torch.randint(2, value.shape, generator=generator) * 2 - 1
    return signs * (relative * value.abs().max())


def is_sound(case: Case) -> bool:
    """Whether a case runs, fits its contract, depends on its inputs, and is not upset by rounding.

    Every rounding of a sum upsets some integers. A network in float16 must also be near float64 in PyTorch.
    """
    if not all(each.has(case.inputs) for each in case.ranges):
        return False
    try:
        case.orders()
        exact, noisy = run_calls(case), [run_calls(case, seed) for seed in (1, 2) if not case.quantizer]
        others = run_calls(case.with_other_values(500))
        if case.is_half:
            noisy.append(_eager_calls(case))
    except MISFIT:
        return False
    return all(
        _is_sound_call(case, values, [each[i] for each in noisy], others[i]) for i, values in enumerate(exact)
    )


Values = Mapping[str, Tensor]


def _is_sound_call(case: Case, exact: Values, noisy: Sequence[Values], others: Values) -> bool:
    if not all(is_fit(exact[expression]) for expression, _ in case.outputs):
        return False
    floating = any(each.kind == "normal" for each in case.inputs.values())
    return all(
        max((relative_error(values[e], exact[e]) for values in noisy), default=0.0) < case.tolerance / 4
        and (not floating or relative_error(others[e], exact[e]) > case.tolerance)
        for e, _ in case.outputs
    )


def _eager_calls(case: Case) -> list[dict[str, Tensor]]:
    """The outputs of the module, by their expressions, at each call."""
    module, found = case.module(), []
    for call in case.calls:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = module(*call.args)
        found.append({e: result.clone() for (e, _), result in zip(case.outputs, results, strict=True)})
    return found


def is_fit(value: Tensor) -> bool:
    """Whether a value is small enough, finite, and not the same everywhere."""
    if not (0 < value.numel() <= MAX_ELEMENTS and value.dim() <= MAX_RANK and torch.isfinite(value).all()):
        return False
    value = _double(value) if value.is_floating_point() else value.long()
    largest = value.abs().max().item()
    flat = value.numel() > 1 and (value.max() - value.min()).item() < 1e-2 * largest
    return bool(1e-3 < largest < 1e3 and not flat)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """max |got − wanted| / max |wanted|; infinite where shapes differ or a value is not finite."""
    if got.shape != wanted.shape:
        return math.inf
    got, wanted = got.detach().double(), wanted.detach().double()
    if not (torch.isfinite(got).all() and torch.isfinite(wanted).all()):
        return math.inf
    difference, scale = (got - wanted).abs().max().item(), wanted.abs().max().item()
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)
