"""Draw the constants of random networks: random ones, or zeros, ones and equal ones, as constructors leave.

ExecuTorch frees the data that a convolution or linear packs, and reads all other constants by pointer. Target
"constants" draws networks in which one constant is packed and read, or two constants have the same bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.fuzz.description import Case, Given, Step, run
from tests.fuzz.rows import Shape

# The name of a constant of that shape, kind and `high`, among these constants; a new one is added to them.
Constant = Callable[[random.Random, dict[str, Given], Shape, str, int], str]

# The rows whose weight, `{1}`, and bias, `{2}`, XNNPACK packs.
PACKING = (
    *(f"conv{space}d" for space in (1, 2, 3)),
    *(f"conv{space}d_named" for space in (1, 2, 3)),
    *(f"conv_transpose{space}d" for space in (1, 2, 3)),
    "linear",
)
_BINARY = (
    "add",
    "subtract",
    "subtract_scaled",
    "multiply",
    "quotient",
    "maximum",
    "minimum",
    "select_larger",
)
_BETWEEN = ("tanh", "relu", "sigmoid", "abs", "square", "hardswish")  # else a term is added to the bias


def random_constant(
    rng: random.Random, constants: dict[str, Given], shape: Shape, kind: str, high: int
) -> str:
    """One whose values no other has, or now and then another one itself."""
    alike = [n for n, g in constants.items() if (g.shape, g.kind, g.high) == (shape, kind, high)]
    if alike and rng.random() < 0.4:
        return rng.choice(alike)
    return _added(constants, Given(shape, kind, high, seed=100 + len(constants)))


def alike_constant(
    rng: random.Random, constants: dict[str, Given], shape: Shape, kind: str, high: int
) -> str:
    """One of zeros, of ones, or of numbers that others have too; a weight is mostly random."""
    if kind not in ("normal", "positive"):
        return random_constant(rng, constants, shape, kind, high)
    is_vector = math.prod(shape) == max(shape, default=1)
    if kind == "positive":
        kinds, chances = ("ones", "positive"), (3, 1)
    elif is_vector:
        kinds, chances = ("zeros", "ones", "shared", "normal"), (4, 3, 4, 1)
    else:
        kinds, chances = ("shared", "normal", "ones"), (5, 4, 1)
    kind = rng.choices(kinds, chances)[0]
    alike = [name for name, each in constants.items() if (each.shape, each.kind) == (shape, kind)]
    if alike and rng.random() < 0.4:
        return rng.choice(alike)
    seed = 100 if kind == "shared" else 100 + len(constants)
    return _added(constants, Given(shape, kind, seed=seed))


def with_small_weight(rng: random.Random, case: Case) -> Case | None:
    """Add a convolution or linear whose weight has the bytes and the size of a term or a factor.

    XNNPACK's weight of a convolution is (outputs, *kernel, inputs), or (1, *kernel, outputs) if it is
    depthwise. A constant along the channels may then be the same value.
    """
    shapes = _floats(case)
    x = rng.choice([name for name, shape in shapes.items() if len(shape) > 1] or [""])
    if not x:
        return None
    shape, constants = shapes[x], dict(case.constants)
    case = replace(case, constants=constants)
    kinds = ["to_one", "alike"] + ["depthwise", "pointwise"] * (2 * (len(shape) == 4))
    kind, channels = rng.choice(kinds), shape[1]
    if kind in ("to_one", "alike"):
        outputs = 1 if kind == "to_one" else shape[-2]
        weight, row, attributes = (outputs, shape[-1]), "linear", {}
    else:
        groups, outputs = (channels, channels) if kind == "depthwise" else (1, 1)
        weight, row = (outputs, channels // groups, 1, 1), "conv2d"
        attributes = {"stride": 1, "padding": 0, "dilation": 1, "groups": groups}
    name = _added(constants, Given(weight, rng.choice(["shared", "shared", "ones"]), seed=100))
    bias = alike_constant(rng, constants, (outputs,), "normal", 0) if rng.random() < 0.7 else "None"
    return _followed(case, row, [x, name, bias], **attributes)


def with_reader_of_packed(rng: random.Random, case: Case) -> list[Case]:
    """The case with more and more steps, of which the last reads a constant with the bytes of one that a
    convolution or linear packs. Empty where no value has its size."""
    packed = sorted({read for step in case.steps for read in packed_by(step)})
    if not packed:
        return []
    given = case.constants[rng.choice(packed)]
    shapes = _floats(case)
    places = _places(given, shapes)
    if not places:
        return []
    x, dim = rng.choice(places)
    shape, cases = shapes[x], [case]

    def add(operator: str, **attributes: Any) -> None:
        last = cases[-1].steps[-1].name if len(cases) > 1 else x
        cases.append(_followed(cases[-1], operator, [last], **attributes))

    if rng.random() < 0.6:
        add(rng.choice(_BETWEEN))
    if 0 < dim < len(shape) - 1:
        how = rng.choice(["stays", "mean", "moved", "moved"])
        if how == "mean":
            add("mean", dims=tuple(range(dim + 1, len(shape))), keep=False)
            shape = shape[: dim + 1]
        elif how == "moved":
            add("movedim", a=dim, b=-1)
            shape = (*shape[:dim], *shape[dim + 1 :], shape[dim])
            dim = len(shape) - 1
    x = cases[-1].steps[-1].name if len(cases) > 1 else x
    return [*cases[1:], _read(rng, cases[-1], given, x, shape, dim)]


def packed_by(step: Step) -> tuple[str, ...]:
    """The constants that a step packs."""
    if step.operator not in PACKING:
        return ()
    return tuple(read for read in step.reads[1:3] if read.startswith("self."))


def reads_packed_bytes(case: Case) -> bool:
    """Whether one step packs a constant, and another reads it, or one of its bytes, by pointer."""
    packed = {_bytes(case, name) for step in case.steps for name in packed_by(step)}
    return any(
        _bytes(case, read) in packed
        for step in case.steps
        for read in step.reads
        if read in case.constants and read not in packed_by(step)
    )


def _bytes(case: Case, name: str) -> bytes:
    return case.constants[name].tensor.numpy().tobytes()


def _floats(case: Case) -> dict[str, Shape]:
    """The shapes of inputs and computed values."""
    return {
        name: tuple(value.shape)
        for name, value in run(case).items()
        if value.is_floating_point() and not name.startswith("self.")
    }


def _places(given: Given, shapes: Mapping[str, Shape]) -> Sequence[tuple[str, int]]:
    """The values, and their dimensions, along which a constant of that size lies; 0 for all of them."""
    size = math.prod(given.shape)
    vectors = [
        (name, dim) for name, shape in shapes.items() for dim in range(1, len(shape)) if shape[dim] == size
    ]
    whole = [(name, 0) for name, shape in shapes.items() if shape[-len(given.shape) :] == given.shape]
    return vectors + whole * (len(given.shape) > 1)


def _read(rng: random.Random, case: Case, given: Given, x: str, shape: Shape, dim: int) -> Case:
    """The case with a step that reads the bytes of `given` along a dimension of `x`; 0 for its last ones."""
    constants, last = dict(case.constants), len(shape) - 1
    case = replace(case, constants=constants)
    if dim == 0:
        return _binary(rng, case, x, _same(rng, constants, given, given.shape))
    vector, along = (shape[dim],), (shape[dim],) + (1,) * (last - dim)
    among = ["binary", "binary", "addcmul"]
    among += ["prelu", "batch_norm", "group_norm"] if dim == 1 else []
    among += ["layer_norm"] * 5 if dim == last else []  # the only one that reads (C,), as a bias is
    kind = rng.choice(among)
    if kind == "binary":
        return _binary(rng, case, x, _same(rng, constants, given, along))
    if kind == "prelu":
        return _followed(case, kind, [x, _same(rng, constants, given, vector)])
    pair = [
        _same(rng, constants, given, along if kind == "addcmul" else vector),
        alike_constant(rng, constants, along if kind == "addcmul" else vector, "normal", 0),
    ]
    rng.shuffle(pair)
    if kind == "addcmul":
        return _followed(case, kind, [x, *pair])
    if kind == "layer_norm":
        return _followed(case, kind, [x, *pair], shape=vector)
    if kind == "group_norm":
        return _followed(case, kind, [x, *pair], groups=rng.choice([1, shape[dim]]))
    running = [alike_constant(rng, constants, vector, each, 0) for each in ("normal", "positive")]
    return _followed(case, kind, [x, *running, *pair])


def _binary(rng: random.Random, case: Case, *pair: str) -> Case:
    return _followed(case, rng.choice(_BINARY), rng.sample(pair, 2))


def _same(rng: random.Random, constants: dict[str, Given], given: Given, shape: Shape) -> str:
    """The constant itself, where it has that shape, or another one of its bytes."""
    wanted = replace(given, shape=shape)
    found = [name for name, each in constants.items() if each == wanted]
    if found and rng.random() < 0.6:
        return rng.choice(found)
    return _added(constants, wanted)


def _followed(case: Case, operator: str, reads: Sequence[str], **attributes: Any) -> Case:
    step = Step(f"v{len(case.steps)}", operator, tuple(reads), attributes)
    return replace(case, steps=(*case.steps, step))


def _added(constants: dict[str, Given], each: Given) -> str:
    name = f"self.c{len(constants)}"
    constants[name] = each
    return name
