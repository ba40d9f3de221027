"""Decides what a random network is, what must hold of its lowering, and how a failing one is made small.

A network is data (`Case`), drawn from a seed; its source is a readable module, and that is lowered. Run
`python -m tests.fuzz --count 100 --seed 0 --target xnnpack`; what fails is printed as a script of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import math
import random
import re
import sys
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dimorder
from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.lowering.ability import Ability
from dimorder.targets.base import Target
from tests import fuzz_record
from tests.fuzz_draw import MAX_ELEMENTS, MAX_RANK, Draw, Shape
from tests.fuzz_operators import FAMILIES, LEFT_OUT, OPERATORS, VIEWS, WEIGHTS

TARGETS = ("physical", "torch", "xnnpack", "tosa")  # physical: target torch, where nothing is emitted
TOLERANCE = 1e-4  # as `lower` itself has it
NOISE = 3e-6  # relative: what a long sum in float32 is off by

Order = str | tuple[int, ...]  # "contiguous", "channels_last", or the dimensions from slowest to fastest

# What torch raises of operands that do not fit.
_MISFIT = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ZeroDivisionError)


# -- the description


@dataclass(frozen=True)
class Given:
    """A tensor that is not computed: "normal" values, "positive" ones, a "mask", an "index" below `high`, or
    "places", of which none comes twice."""

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
        return OPERATORS[self.operator].source.format(*self.reads, **self.attributes)


@dataclass(frozen=True)
class Case:
    """A network, the contract it is lowered under, and the ATen operators (`softmax`) that are refused."""

    inputs: Mapping[str, Given]
    constants: Mapping[str, Given]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Order], ...]
    objective: str = "bytes"
    refused: tuple[str, ...] = ()

    @property
    def args(self) -> tuple[Tensor, ...]:
        return tuple(each.tensor for each in self.inputs.values())

    @property
    def source(self) -> str:
        """The network as a module's source."""
        held = [
            f"        self.register_buffer({name[5:]!r}, {_given_source(each)})"
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
        names = {"torch": torch, "F": F, "given": given}
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
    """A tensor of random values, none of them zero or one; a weight's are scaled by its fan-in."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "index":
        return torch.randint(high, shape, generator=generator)
    if kind == "places":
        return torch.randperm(high, generator=generator)[: math.prod(shape)].reshape(tuple(shape))
    if kind == "mask":
        return torch.rand(shape, generator=generator) > 0.4
    if kind == "positive":
        return torch.rand(shape, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** (0.25)


def _given_source(each: Given) -> str:
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


# -- running a description in torch


def run(case: Case, noise: int | None = None) -> dict[str, Tensor]:
    """Every value by its expression, in float64; with a seed, each computed one with relative `NOISE`."""
    generator = None if noise is None else torch.Generator().manual_seed(noise)
    held, values = types.SimpleNamespace(), {}
    for name, each in {**case.inputs, **case.constants}.items():
        values[name] = _double(each.tensor)
        setattr(held, name.removeprefix("self."), values[name])
    names: dict[str, Any] = {"torch": torch, "F": F, "self": held, **values}
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
    """Whether a case runs, fits its contract, depends on its inputs, and is not upset by rounding."""
    try:
        case.orders()
        exact, noisy = run(case), [run(case, seed) for seed in (1, 2)]
        changed = {name: replace(each, seed=each.seed + 500) for name, each in case.inputs.items()}
        others = run(replace(case, inputs=changed))
    except _MISFIT:
        return False
    if not all(_is_fit(exact[expression]) for expression, _ in case.outputs):
        return False
    floating = any(each.kind == "normal" for each in case.inputs.values())
    return all(
        max(relative_error(values[e], exact[e]) for values in noisy) < TOLERANCE / 4
        and (not floating or relative_error(others[e], exact[e]) > TOLERANCE)
        for e, _ in case.outputs
    )


def _is_fit(value: Tensor) -> bool:
    """Whether a value is small enough, finite, and not the same everywhere."""
    if not (0 < value.numel() <= MAX_ELEMENTS and value.dim() <= MAX_RANK and torch.isfinite(value).all()):
        return False
    largest = value.abs().max().item()
    flat = value.numel() > 1 and (value.max() - value.min()).item() < 1e-2 * largest
    return 1e-3 < largest < 1e3 and not flat


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """max |got − wanted| / max |wanted|; infinite where shapes differ or a value is not finite."""
    if got.shape != wanted.shape:
        return math.inf
    got, wanted = got.detach().double(), wanted.detach().double()
    if not (torch.isfinite(got).all() and torch.isfinite(wanted).all()):
        return math.inf
    difference, scale = (got - wanted).abs().max().item(), wanted.abs().max().item()
    return difference / scale if scale else (0.0 if difference == 0 else math.inf)


# -- drawing


def generate(seed: int, target: str = "physical") -> Case:
    """The random network of a seed: 3 to 12 operators, one to three inputs, one to six outputs.

    Most are of operators that the target is known to compute: a refusal shows little.

    >>> generate(3) == generate(3)
    True
    """
    for attempt in range(1000):
        rng = random.Random(f"{target}.{seed}.{attempt}")
        left_out = LEFT_OUT.get(target, frozenset()) if rng.random() < 0.85 else frozenset()
        case = _drawn(rng, left_out)
        if case is not None and is_sound(case):
            return case
    raise AssertionError(f"no network fits seed {seed}")


def _drawn(rng: random.Random, left_out: Collection[str]) -> Case | None:
    case = Case(_inputs(rng), {}, (), ())
    wanted = rng.randint(3, 12)
    for _ in range(12 * wanted):
        if len(case.steps) == wanted:
            break
        case = _with_step(rng, case, left_out) or case
    case = replace(case, outputs=_outputs(rng, case))
    if rng.random() < 0.15:
        case = _with_view_of_input(rng, case)
    case = pruned(case)
    if len(case.steps) < 3 or not any(each.kind == "normal" for each in case.inputs.values()):
        return None
    refused: tuple[str, ...] = ()
    if rng.random() < 0.3:
        names = {name for step in case.steps for name in captured(step.operator) if name not in VIEWS}
        refused = tuple(name for name in sorted(names) if rng.random() < 0.4)
    return replace(case, objective=rng.choice(["bytes", "bytes", "count"]), refused=refused)


def captured(operator: str) -> tuple[str, ...]:
    """The ATen operators that a row becomes.

    >>> captured("conv2d"), captured("relu")
    (('convolution',), ('relu',))
    """
    return OPERATORS[operator].captured or (operator,)


def _inputs(rng: random.Random) -> dict[str, Given]:
    rank = rng.choice([4, 4, 4, 4, 3, 3, 5, 2])
    shape = _shape(rng, rank)
    found = {"x0": Given(shape, seed=1, order=_order(rng, rank))}
    for number in range(1, rng.choice([1, 1, 1, 2, 2, 3])):
        kind = rng.choice(["same", "broadcasts", "channels", "other", "index", "mask", "ids"])
        some = tuple(1 if rng.random() < 0.4 else size for size in shape)
        if kind == "index":
            each = Given((rng.randint(1, 3), rng.randint(2, 5)), "index", rng.randint(3, 7))
        elif kind == "mask":
            each = Given(some[rng.choice([0, 0, 1, 2]) :], "mask")
        elif kind == "ids":
            each = Given(some[: rng.choice([rank, rank - 1])], "index", rng.randint(3, 7))
        elif kind == "broadcasts":
            each = Given(some)
        elif kind == "channels":
            place = rng.randrange(rank)
            each = Given((*shape[:place], rng.randint(1, 9), *shape[place + 1 :]))
        else:
            each = Given(shape if kind == "same" else _shape(rng, rng.choice([2, 3, 4])))
        order = "contiguous" if kind in ("index", "ids", "mask") else _order(rng, len(each.shape))
        found[f"x{number}"] = replace(each, seed=number + 1, order=order)
    return found


def _shape(rng: random.Random, rank: int) -> Shape:
    """Sizes that mostly all differ: the batch, then some that divide and some that do not."""
    if rank == 2:
        return rng.choice([1, 2, 3, 6]), rng.choice([5, 8, 12, 24])
    channels = rng.choice([3, 4, 6, 8, 12])
    among = {3: (7, 8, 10, 14), 4: (5, 6, 7, 8, 9, 10), 5: (4, 5, 6, 7)}[rank]
    space = rng.sample([size for size in among if size != channels], rank - 2)
    if rng.random() < 0.08:
        space[-1] = space[0]
    if rng.random() < 0.05:
        space[rng.randrange(rank - 2)] = 1
    return rng.choice([1, 2, 2]), channels, *space


def _order(rng: random.Random, rank: int) -> Order:
    if rng.random() < 0.1:
        return tuple(rng.sample(range(rank), rank))
    return rng.choice(["contiguous", "channels_last"]) if rank > 2 else "contiguous"


def _with_step(rng: random.Random, case: Case, left_out: Collection[str]) -> Case | None:
    """The case with one more step, or None where what was drawn does not fit."""
    values = run(case)
    shapes = {
        name: tuple(value.shape)
        for name, value in values.items()
        if value.is_floating_point() and not name.startswith("self.")
    }
    constants = dict(case.constants)

    def constant(shape: Shape, kind: str = "normal", high: int = 0) -> str:
        alike = [n for n, g in constants.items() if (g.shape, g.kind, g.high) == (shape, kind, high)]
        if alike and rng.random() < 0.4:
            return rng.choice(alike)
        name = f"self.c{len(constants)}"
        constants[name] = Given(tuple(shape), kind, high, seed=100 + len(constants))
        return name

    indices = [name for name, each in case.inputs.items() if each.kind == "index"]
    read = {expression for step in case.steps for expression in step.reads}
    unread = [name for name in indices if name not in read]
    name = f"v{len(case.steps)}"
    if unread and rng.random() < 0.3 and "embedding" not in left_out:
        table = constant((case.inputs[unread[0]].high, rng.randint(3, 6)))
        step = Step(name, "embedding", (table, unread[0]), {})
    else:
        x = list(shapes)[-1] if rng.random() < 0.6 else rng.choice(list(shapes))
        family = rng.choices(FAMILIES, WEIGHTS)[0]
        rank = len(shapes[x])
        fitting = [row for row, each in family.items() if rank in each.ranks and row not in left_out]
        if not fitting:
            return None
        operator = rng.choice(fitting)
        masks = {name: each.shape for name, each in case.inputs.items() if each.kind == "mask"}
        ids = {name: case.inputs[name].shape for name in indices}
        drawn = OPERATORS[operator].draw(Draw(rng, x, shapes, constant, masks, ids))
        if drawn is None:
            return None
        step = Step(name, operator, tuple(drawn[0]), dict(drawn[1]))
    extended = replace(case, constants=constants, steps=(*case.steps, step))
    try:
        results = [value for key, value in run(extended).items() if key not in values and key[0] == "v"]
    except _MISFIT:
        return None
    return extended if results and all(map(_is_fit, results)) else None


def _outputs(rng: random.Random, case: Case) -> tuple[tuple[str, Order], ...]:
    """The last values that nothing reads, and some that are used inside too, or are inputs, or come twice."""
    values = {name: v for name, v in run(case).items() if name[0] == "v"}
    read = {expression for step in case.steps for expression in step.reads}
    read |= {expression.split("[")[0] for expression in read}
    chosen = [name for name in values if name not in read][-4:]
    chosen += [name for name in values if name in read and rng.random() < 0.07]
    chosen += [name for name, each in case.inputs.items() if each.kind == "normal" and rng.random() < 0.03]
    chosen += chosen[:1] * (rng.random() < 0.04)
    ranks = {**{name: v.dim() for name, v in values.items()}}
    ranks |= {name: len(each.shape) for name, each in case.inputs.items()}
    rng.shuffle(chosen)
    return tuple((name, _order(rng, ranks[name])) for name in chosen)


def _with_view_of_input(rng: random.Random, case: Case) -> Case:
    name, each = rng.choice([(n, g) for n, g in case.inputs.items() if g.kind == "normal"])
    draw = Draw(rng, name, {name: each.shape}, lambda *_: "")
    operator = rng.choice(["permute", "reshape", "unsqueeze"])
    drawn = OPERATORS[operator].draw(draw)
    if drawn is None:
        return case
    step = Step("view", operator, tuple(drawn[0]), dict(drawn[1]))
    return replace(case, steps=(*case.steps, step), outputs=(*case.outputs, ("view", "contiguous")))


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


# -- what must hold


@dataclass(frozen=True)
class Outcome:
    """`kind` is "right", "refused", or what kind of fault was found; `detail` is for people."""

    kind: str
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("right", "refused")


@dataclass(frozen=True)
class Physical:
    """What target "physical" emits: the physical program as it is, which takes a third of the time."""

    module: Callable[..., Any]
    data: bytes = b""
    delegates: int = 0
    outside: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, bytes] = field(default_factory=dict)
    float_islands: tuple[()] = ()

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(self.module(*inputs))


def refusing(target: str, names: Sequence[str] = ()) -> Target:
    """The target of that name, without the physical operators that these ATen operators are made of."""
    from dimorder.targets import find

    if target in ("physical", "torch"):
        found = find("torch")
        if target == "physical":
            found = replace(found, emit=lambda program, contract: Physical(program.module()), runs_fast=False)
        return replace(
            found, ability=Ability(lambda call, constants: _refused(call, names), lambda call: None)
        )
    module = importlib.import_module(f"dimorder.targets.{target}.target")
    rows = importlib.import_module(f"dimorder.targets.{target}.ops").OPERATORS.rows
    left_out = [row._opname for row in rows if row._opname not in MOVES and _is_made_of(row, names)]
    return module.target(module.OPERATORS.without(*left_out))


MOVES = ("view", "permute", "clone")  # which every target has


def _refused(call: torch.fx.Node, names: Sequence[str]) -> str | None:
    return f"{call.target} is refused by the fuzzer" if _is_made_of(call.target, names) else None


def _is_made_of(physical: Any, names: Sequence[str]) -> bool:
    """Whether an implementation of one of these ATen operators is, in some way, this physical operator."""
    return _is_named(getattr(physical, "_opname", ""), names)


def _is_named(physical: str, names: Sequence[str]) -> bool:
    stem = physical.removesuffix("_nhwc").removesuffix("_ndhwc")
    return stem in names or (stem.startswith("conv") and "convolution" in names)


def conversions_in_file(lowered: Any) -> int | None:
    """How many conversions the emitted file holds; None where nobody can tell."""
    if lowered.plan.target == "tosa":
        from dimorder.targets.tosa.graph import inspect_tosa

        return inspect_tosa(lowered.artifact.data).transposes
    if lowered.plan.target == "xnnpack":
        from dimorder.executorch import conversions_in

        return conversions_in(lowered.artifact.data).conversion_count
    return None


def examine(case: Case, target: str) -> Outcome:
    """Lower a case for a target, and say what is wrong with what comes back."""
    start = time.perf_counter()
    outcome = _examined(case, target)
    return replace(outcome, seconds=time.perf_counter() - start)


def _examined(case: Case, target: str) -> Outcome:
    module, args = case.module(), case.args
    inputs, outputs = case.orders()
    try:
        with _quiet():
            lowered = dimorder.lower(
                module,
                args,
                target=refusing(target, case.refused),
                input_orders=inputs,
                output_orders=outputs,
                objective=case.objective,
            )
            return _faults(case, module, lowered)
    except UnsupportedError as error:
        return _refusal(error)
    except VerificationError as error:
        return Outcome(f"wrong numbers: {error.where}", str(error))
    except Exception as error:
        return _crash(error)


def _faults(case: Case, module: nn.Module, lowered: Any) -> Outcome:
    from tests.lowering.index_checker import check

    plan = lowered.plan
    if faults := plan.check():
        return Outcome("plan fault", "\n".join(faults))
    if not plan.certificate.optimal:
        return Outcome("not optimal", str(plan))
    if faults := check(plan.extracted, plan.layout_plan, plan.contract):
        return Outcome("index fault", "\n".join(faults))
    # Other values than those that `lower` compared, and in strides that the contract may not promise.
    again = replace(case, inputs={n: replace(each, seed=each.seed + 50) for n, each in case.inputs.items()})
    fed = [each.tensor for each in again.inputs.values()]
    with torch.no_grad():
        wanted = module(*fed)
    got = lowered.run(*map(_channels_last, fed))
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if g.dtype != w.dtype or g.shape != w.shape:
            return Outcome("wrong type", f"output {i}: {g.dtype} {g.shape} for {w.dtype} {w.shape}")
        if not relative_error(g, w) <= TOLERANCE and is_sound(again):
            return Outcome("wrong numbers: unnoticed", f"output {i} differs by {relative_error(g, w):.1e}")
        promised = lowered.contract.outputs[i].dim_order.strides(tuple(w.shape))
        if any(a != b for a, b, size in zip(g.stride(), promised, w.shape, strict=True) if size > 1):
            return Outcome("broken promise", f"output {i} has strides {g.stride()}, not {promised}")
    found = conversions_in_file(lowered)
    if found is not None and found != len(plan.conversions):
        more = "more" if found > len(plan.conversions) else "fewer"
        return Outcome(
            f"{more} conversions in the file", f"{found} in the file, {len(plan.conversions)} in\n{plan}"
        )
    return Outcome("right")


def _channels_last(x: Tensor) -> Tensor:
    order = DimOrder.channels_last(x.dim()) if x.dim() > 2 else DimOrder.contiguous(x.dim())
    return torch.empty_strided(x.shape, order.strides(tuple(x.shape)), dtype=x.dtype).copy_(x)


def _refusal(error: UnsupportedError) -> Outcome:
    """A refusal is clear if it says where, what was found, and something that the user can do."""
    unclear = not (error.where and error.found and error.fix) or "report" in error.fix
    return Outcome(f"unclear refusal: {error.where}" if unclear else "refused", str(error))


def _crash(error: Exception) -> Outcome:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dimorder/" in f.filename]
    last = frames[-1] if frames else None
    place = f"{Path(last.filename).name}:{last.name}" if last else "outside dimorder"
    said = re.sub(r"\d+", "n", str(error).splitlines()[0] if str(error) else "")[:70]
    return Outcome(f"{type(error).__name__} in {place}: {said}", "".join(traceback.format_exception(error)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# -- making a failing case small


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 400) -> Case:
    """The smallest case found that still `fails`; each candidate costs a try."""
    improved = True
    while improved:
        improved = False
        for candidate in _smaller(case):
            candidate = pruned(candidate)
            if _size(candidate) >= _size(case) or not is_sound(candidate):
                continue
            tries -= 1
            if fails(candidate):
                case, improved = candidate, True
                break
            if tries <= 0:
                return case
    return case


def _size(case: Case) -> tuple[int, ...]:
    """What a smaller case has less of, most telling first."""
    givens = [*case.inputs.values(), *case.constants.values()]
    attributes = [leaf for step in case.steps for leaf in _leaves(step.attributes)]
    return (
        len(case.steps),
        len(case.outputs) + len(case.inputs),
        len(case.constants),
        len(case.refused),
        sum(order != "contiguous" for _, order in case.outputs)
        + sum(each.order != "contiguous" for each in case.inputs.values())
        + (case.objective != "bytes"),
        sum(len(each.shape) for each in givens),
        sum(math.prod(each.shape) for each in givens),
        sum(_weight(leaf) for leaf in attributes),
    )


def _weight(leaf: Any) -> int:
    if isinstance(leaf, bool) or not isinstance(leaf, (int, float)):
        return 2 * bool(leaf)
    return 4 * abs(int(leaf)) + (leaf < 0)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, tuple):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them, the boldest first; not all of them fit together."""
    if len(case.outputs) > 1:
        for output in case.outputs:
            yield replace(case, outputs=(output,))
        for i in range(len(case.outputs)):
            yield replace(case, outputs=case.outputs[:i] + case.outputs[i + 1 :])
    values = run(case)
    for step in case.steps[:-1]:
        for name in (n for n in values if n.split("[")[0] == step.name):
            yield replace(case, outputs=((name, "contiguous"),))
    for step in case.steps:
        yield from _without_step(case, step, values)
    if case.refused:
        for i in range(len(case.refused)):
            yield replace(case, refused=case.refused[:i] + case.refused[i + 1 :])
    yield replace(case, objective="bytes")
    for i, (name, _) in enumerate(case.outputs):
        changed = (*case.outputs[:i], (name, "contiguous"), *case.outputs[i + 1 :])
        yield replace(case, outputs=changed)
    for name, each in case.inputs.items():
        yield replace(case, inputs={**case.inputs, name: replace(each, order="contiguous")})
    for i, step in enumerate(case.steps):
        for simpler in _simpler_steps(step):
            yield replace(case, steps=(*case.steps[:i], simpler, *case.steps[i + 1 :]))
    yield from _with_smaller_sizes(case)


def _without_step(case: Case, step: Step, values: Mapping[str, Tensor]) -> Iterator[Case]:
    """A step's result replaced by an operand of its shape, or by an input."""
    results = [name for name in values if name.split("[")[0] == step.name]
    left = replace(case, steps=tuple(other for other in case.steps if other is not step))
    for operand in step.reads:
        fits = operand in values and values[operand].is_floating_point()
        if fits and len(results) == 1 and values[operand].shape == values[results[0]].shape:
            yield _renamed(left, {results[0]: operand})
    new = {name: f"x{_unused(case) + i}" for i, name in enumerate(results)}
    inputs = {new[name]: Given(tuple(values[name].shape), seed=len(case.inputs) + 10) for name in results}
    yield _renamed(replace(left, inputs={**case.inputs, **inputs}), new)


def _unused(case: Case) -> int:
    return 1 + max(int(name[1:]) for name in case.inputs)


def _renamed(case: Case, names: Mapping[str, str]) -> Case:
    steps = tuple(
        replace(step, reads=tuple(names.get(read, read) for read in step.reads)) for step in case.steps
    )
    return replace(case, steps=steps, outputs=tuple((names.get(n, n), order) for n, order in case.outputs))


def _simpler_steps(step: Step) -> Iterator[Step]:
    for i, read in enumerate(step.reads):
        if read.startswith("self.") and i >= 2:
            yield replace(step, reads=(*step.reads[:i], "None", *step.reads[i + 1 :]))
    for name, value in step.attributes.items():
        for simpler in _simpler_values(value):
            yield replace(step, attributes={**step.attributes, name: simpler})


def _simpler_values(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        yield from (simpler for simpler in (0, 1, 2) if abs(simpler) < abs(value) or value < 0)
    elif isinstance(value, tuple):
        yield from ((simpler,) * len(value) for simpler in (0, 1))
        if sorted(value) == list(range(len(value))):
            yield tuple(range(len(value)))
        for i, each in enumerate(value):
            yield from ((*value[:i], simpler, *value[i + 1 :]) for simpler in _simpler_values(each))


def _with_smaller_sizes(case: Case) -> Iterator[Case]:
    """One size made smaller everywhere; then one dimension of one tensor. Sizes of 1 would hide the order."""
    givens = {**case.inputs, **case.constants}
    sizes = sorted({size for each in givens.values() for size in each.shape if size > 1}, reverse=True)
    for size in sizes:
        for smaller in sorted({2, 3, size // 2, size - 1}):
            if 1 < smaller < size:
                yield _resized(case, size, smaller)
    for name, each in givens.items():
        for i, size in enumerate(each.shape):
            for smaller in sorted({2, size // 2, size - 1}):
                if 1 < smaller < size:
                    shape = (*each.shape[:i], smaller, *each.shape[i + 1 :])
                    side = "inputs" if name in case.inputs else "constants"
                    changed = {**getattr(case, side), name: replace(each, shape=shape)}
                    yield replace(case, **{side: changed})


def _resized(case: Case, size: int, smaller: int) -> Case:
    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return smaller if value == size and not isinstance(value, bool) else value

    def givens(among: Mapping[str, Given]) -> dict[str, Given]:
        return {
            name: replace(each, shape=changed(each.shape), high=changed(each.high))
            for name, each in among.items()
        }

    steps = tuple(
        replace(step, attributes={name: changed(value) for name, value in step.attributes.items()})
        for step in case.steps
    )
    return replace(case, inputs=givens(case.inputs), constants=givens(case.constants), steps=steps)


# -- scripts


def script(case: Case, target: str, outcome: Outcome, seed: int) -> str:
    """A program of its own that shows the fault."""
    inputs, outputs = case.orders()
    args = "".join(f"{_given_source(each)}, " for each in case.inputs.values())
    call = [
        "lowered = dimorder.lower(",
        "    network,",
        "    args,",
        f"    target={target!r},",
        f"    input_orders={_orders_source(inputs)},",
        f"    output_orders={_orders_source(outputs)},",
        f"    objective={case.objective!r},",
        ")",
    ]
    hooked = bool(case.refused) or target == "physical"
    if hooked:
        call[3] = f"    target=refusing({target!r}, {case.refused!r}),"
    first = "\n".join(f"# {line}" for line in outcome.detail.strip().splitlines()[-12:])
    return "\n".join(
        [
            f"# {outcome.kind} (target {target}, seed {seed})",
            first,
            "import math",
            "from collections.abc import Sequence",
            "",
            "import torch",
            "from torch import Tensor",
            "from torch.nn import functional as F",
            "",
            "import dimorder",
            "from dimorder import DimOrder",
            *(["from tests.fuzz import refusing"] if hooked else []),
            "",
            "",
            inspect.getsource(given),
            "",
            case.source,
            "",
            "",
            f"network, args = Net().eval(), ({args})",
            *call,
            "print(lowered.plan)",
            "for got, wanted in zip(lowered.run(*args), network(*args), strict=True):",
            '    print("error", ((got - wanted).abs().max() / wanted.abs().max()).item())',
            "",
        ]
    )


def _orders_source(orders: Sequence[DimOrder]) -> str:
    return f"[{', '.join(f'DimOrder{tuple(order)}' for order in orders)}]"


# -- the command


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="networks per target")
    parser.add_argument("--seed", type=int, default=0, help="of the first network; the next have the next")
    parser.add_argument("--target", choices=TARGETS, action="append", help="repeatable; all by default")
    parser.add_argument(
        "--out", type=Path, help="the folder for scripts of what fails; else they are printed"
    )
    parser.add_argument("--keep-going", action="store_true", help="after the first fault of a kind, too")
    parser.add_argument(
        "--record", type=Path, help="the file (JSON) that keeps what became of each seed; it is added to"
    )
    parser.add_argument("--again", action="store_true", help="those seeds that the record has as faults")
    parser.add_argument("--tries", type=int, default=200, help="lowerings that making one small may take")
    given_options = parser.parse_args(argv)
    if given_options.again and given_options.record is None:
        parser.error("--again needs --record")
    faults = 0
    for target in given_options.target or TARGETS:
        faults += _campaign(target, given_options)
    return min(faults, 1)


RECORD_EVERY = 20  # networks


def _campaign(target: str, options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    unrecorded: dict[int, tuple[str, str]] = {}
    drawing = lowering = 0.0
    seeds = _seeds(target, options)
    for number, seed in enumerate(seeds, 1):
        start = time.perf_counter()
        case = generate(seed, target)
        drawing += time.perf_counter() - start
        outcome = examine(case, target)
        lowering += outcome.seconds
        counts[outcome.kind] += 1
        if outcome.kind == "refused":
            refusals[_reason(case, outcome)] += 1
        unrecorded[seed] = _recorded(case, outcome)
        if options.record is not None and (number % RECORD_EVERY == 0 or number == len(seeds)):
            fuzz_record.add(options.record, target, unrecorded)
            unrecorded = {}
        if outcome.is_fault:
            print(f"{target} seed {seed}: {outcome.kind}", flush=True)
            if options.keep_going or counts[outcome.kind] == 1:
                _tell(case, target, outcome, seed, options)
    each = max(len(seeds), 1)
    print(f"\n{target}: {len(seeds)} networks, {drawing / each:.2f} s to draw one, ", end="")
    print(f"{lowering / each:.2f} s to lower and examine it")
    for counted in (counts, refusals):
        for kind, count in counted.most_common():
            print(f"  {count:5} {kind}")
    return sum(count for kind, count in counts.items() if Outcome(kind).is_fault)


def _seeds(target: str, options: argparse.Namespace) -> Sequence[int]:
    if not options.again:
        return range(options.seed, options.seed + options.count)
    recorded = fuzz_record.read(options.record).get(target, {})
    return [seed for seed, (kind, _) in recorded.items() if kind == "fault"]


def _recorded(case: Case, outcome: Outcome) -> tuple[str, str]:
    """What the record keeps of an outcome."""
    if outcome.is_fault:
        return "fault", outcome.kind
    return outcome.kind, _reason(case, outcome) if outcome.kind == "refused" else ""


def _reason(case: Case, refusal: Outcome) -> str:
    """Why a case is refused, without figures."""
    found = refusal.detail.split("\n  ")[1].removeprefix("found: ")
    lacks = re.search(r"has no (?:aten|dimorder)\.(\w+)", found)
    if lacks and _is_named(lacks[1], case.refused):
        return "an operator that the fuzzer withholds from the target"
    return re.sub(r"\d+", "n", found) + " (the fuzzer withholds some operators)" * bool(case.refused)


def _tell(case: Case, target: str, outcome: Outcome, seed: int, options: argparse.Namespace) -> None:
    small = shrink(case, lambda c: examine(c, target).kind == outcome.kind, options.tries)
    text = script(small, target, examine(small, target), seed)
    if options.out is None:
        print(text)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "_", outcome.kind.lower()).strip("_")[:60]
    path = options.out / f"{target}_{seed}_{slug}.py"
    path.write_text(text)
    print(f"  → {path}, {len(small.steps)} operators", flush=True)


if __name__ == "__main__":
    sys.exit(main())
