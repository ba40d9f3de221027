"""Describe a random network, and run it in torch.

A network is data (`Case`); its source is a readable module, and that is lowered.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dimorder.algebra.dim_order import DimOrder
from tests.fuzz.integer_operators import HELPERS, INTEGERS
from tests.fuzz.operators import OPERATORS
from tests.fuzz.rows import MAX_ELEMENTS, MAX_RANK, Shape

TOLERANCE = 1e-4  # as `lower` itself has it
NOISE = 3e-6  # relative: what a long sum in float32 is off by

# The target that a target of the fuzzer stands for, where its name is another.
STANDS_FOR: Mapping[str, str] = types.MappingProxyType(
    {"physical": "torch", "int8": "xnnpack", "int8-litert": "litert", "constants": "xnnpack"}
)

Order = str | tuple[int, ...]  # "contiguous", "channels_last", or the dimensions from slowest to fastest

# What torch raises of operands that do not fit.
MISFIT = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ZeroDivisionError)


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
        return row.source.format(*self.reads, **self.attributes)


@dataclass(frozen=True)
class Case:
    """A network, the contract it is lowered under, and the ATen operators (`softmax`) that are refused.

    `quantizer` is the function of `tests.targets.quantised` that quantises the network. It is "by_hand" if
    steps of the network do. `types` are the types of all inputs and of all outputs in the contract, if they
    are not the network's.
    """

    inputs: Mapping[str, Given]
    constants: Mapping[str, Given]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Order], ...]
    objective: str = "bytes"
    refused: tuple[str, ...] = ()
    quantizer: str = ""
    types: tuple[str | None, str | None] = (None, None)

    @property
    def args(self) -> tuple[Tensor, ...]:
        return tuple(each.tensor for each in self.inputs.values())

    @property
    def source(self) -> str:
        """The network as a module's source."""
        held = [
            f"        self.register_buffer({name[5:]!r}, {given_source(each)})"
            for name, each in self.constants.items()
        ]
        body = [f"        {step.name} = {step.source}" for step in self.steps]
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
        names = {"torch": torch, "F": F, "given": given, **HELPERS}
        exec(compile(self.source, "<fuzz>", "exec"), names)
        network: nn.Module = names["Net"]().eval()
        return network

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
    """The case without steps, constants and inputs that no output needs."""
    needed = _names(expression for expression, _ in case.outputs)
    steps = []
    for step in reversed(case.steps):
        if step.name in needed:
            steps.append(step)
            needed |= _names(step.reads)
    return replace(
        case,
        steps=tuple(reversed(steps)),
        constants={name: each for name, each in case.constants.items() if name in needed},
        inputs={name: each for name, each in case.inputs.items() if name in needed},
    )


def _names(expressions: Any) -> set[str]:
    return {expression.split("[")[0] for expression in expressions}


# -- running it in torch


def run(case: Case, noise: int | None = None) -> dict[str, Tensor]:
    """Return every value by its expression, in float64; with a seed, computed ones have relative `NOISE`.

    A network that is quantised, or is to be, is computed in float32.
    """
    generator = None if noise is None else torch.Generator().manual_seed(noise)
    held, values = types.SimpleNamespace(), {}
    for name, each in {**case.inputs, **case.constants}.items():
        values[name] = each.tensor if case.quantizer else _double(each.tensor)
        setattr(held, name.removeprefix("self."), values[name])
    names: dict[str, Any] = {"torch": torch, "F": F, "self": held, **HELPERS, **values}
    for step in case.steps:
        result = evaluate(step, names)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if generator is not None:
            results = [value + _noise(value, generator) for value in results]
        several = isinstance(result, (tuple, list))
        names[step.name] = results if several else results[0]
        for i, value in enumerate(results):
            values[f"{step.name}[{i}]" if several else step.name] = value
    return values


def evaluate(step: Step, names: Mapping[str, Any]) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(step.source, dict(names))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(2, value.shape, generator=generator) * 2 - 1
    return signs * (NOISE * value.abs().max())


def is_sound(case: Case) -> bool:
    """Whether a case runs, fits its contract, depends on its inputs, and is not upset by rounding.

    Every rounding of a sum upsets some integers.
    """
    try:
        case.orders()
        exact, noisy = run(case), [run(case, seed) for seed in (1, 2) if not case.quantizer]
        changed = {name: replace(each, seed=each.seed + 500) for name, each in case.inputs.items()}
        others = run(replace(case, inputs=changed))
    except MISFIT:
        return False
    if not all(is_fit(exact[expression]) for expression, _ in case.outputs):
        return False
    floating = any(each.kind == "normal" for each in case.inputs.values())
    return all(
        max((relative_error(values[e], exact[e]) for values in noisy), default=0.0) < TOLERANCE / 4
        and (not floating or relative_error(others[e], exact[e]) > TOLERANCE)
        for e, _ in case.outputs
    )


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
