"""Draw what makes a network dynamic: sizes that vary between calls, and buffers that a call writes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.fuzz.description import MISFIT, Case, Given, Range, Step, Write, run
from tests.fuzz.rows import Shape, Size

END = 2**63 - 1  # of a slice, as torch has it: whatever the size
# The attributes that are sizes of a result, or that end where a size does.
SIZES = ("sizes", "size", "end", "rows")

# -- ranges


def with_ranges(rng: random.Random, case: Case) -> Case:
    """The case with one to three dynamic sizes of its first input; other inputs have those that align."""
    shape = case.inputs["x0"].shape
    dims = [dim for dim, size in enumerate(shape) if size > 1]
    count = min(len(dims), rng.choice([1, 1, 1, 2, 2, 3]))
    likely = [3 if dim == 0 else 1 if dim == 1 else 4 for dim in dims]
    chosen = sorted(dict.fromkeys(rng.choices(dims, likely)[0] for _ in range(count)))
    ranges = tuple(_range(rng, case, dim) for dim in chosen)
    return replace(case, ranges=ranges)


def _range(rng: random.Random, case: Case, dim: int) -> Range:
    shape = case.inputs["x0"].shape
    size = shape[dim]
    step = rng.choice([n for n in (1, 1, 1, 2, 4) if size % n == 0 and size > n])
    least = rng.choice([n for n in (step, *range(size // 2, size)) if 0 < n < size and n % step == 0])
    most = size + step * rng.randint(1, max(1, size // step))
    places = [("x0", dim)]
    for name, each in case.inputs.items():
        aligned = dim - len(shape) + len(each.shape)
        if name != "x0" and aligned >= 0 and each.shape[aligned] == size:
            places.append((name, aligned))
    return Range("NCHWDE"[dim], least, most, step, tuple(places))


def spellings(case: Case) -> Iterator[Case]:
    """The case, then with its last step written so that it may fit other sizes: by -1, or by a size of
    its operand."""
    yield case
    if not case.ranges:
        return
    step = case.steps[-1]
    try:
        shapes = [_shape(each, step) for each in (case, case.corners[1])]
    except MISFIT:
        return
    if shapes[0] is None or shapes[1] is None:
        return
    varying = {a: dim for dim, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b}
    for name in SIZES:
        value = step.attributes.get(name)
        if isinstance(value, tuple):
            yield _with(case, **{name: tuple(_size(each, varying) for each in value)})
            for i in range(len(value)):
                yield _with(case, **{name: (*value[:i], -1, *value[i + 1 :])})
        elif value is not None:
            yield _with(case, **{name: _size(value, varying)})


def _shape(case: Case, step: Step) -> Shape | None:
    """The shape of a step's first operand."""
    value = run(replace(case, steps=case.steps[:-1])).get(step.reads[0])
    return None if value is None else tuple(value.shape)


def _size(value: Any, varying: Mapping[int, int]) -> Any:
    return Size(varying[value]) if isinstance(value, int) and value in varying else value


def _with(case: Case, **attributes: Any) -> Case:
    last = replace(case.steps[-1], attributes={**case.steps[-1].attributes, **attributes})
    return replace(case, steps=(*case.steps[:-1], last))


def varies_as_sizes_do(least: Shape, middle: Shape, most: Shape) -> bool:
    """Whether each size is the same everywhere, or grows: a slice that ends early does neither.

    >>> varies_as_sizes_do((2, 3), (2, 5), (2, 8)), varies_as_sizes_do((3,), (4,), (4,))
    (True, False)
    """
    if not len(least) == len(middle) == len(most):
        return False
    return all(a == b == c or a < b < c for a, b, c in zip(least, middle, most, strict=True))


# -- state


def with_state(rng: random.Random, case: Case) -> Case | None:
    """The case with a buffer, the steps that read it, and what the call writes into it."""
    values = {
        name: tuple(value.shape)
        for name, value in run(case).items()
        if value.is_floating_point() and not name.startswith("self.")
    }
    x = list(values)[-1] if rng.random() < 0.6 else rng.choice(list(values))
    shape = values[x]
    if not shape:
        return None
    alike = [name for name, other in values.items() if other == shape]
    kind = rng.choice(["window", "window", "decays", "delays", "counts", "rows"])
    if kind == "window":  # the last steps of what came, as a streaming convolution keeps them
        dim, kept = rng.randrange(len(shape)), rng.randint(1, 3)
        case, held = _held(rng, case, (*shape[:dim], kept, *shape[dim + 1 :]))
        case = _followed(case, "cat", (held, x), dim=dim)
        if rng.random() < 0.3:
            case = _followed(case, "relu", (_last(case),))
        case = _followed(case, "slice", (_last(case),), dim=dim, start=-kept, end=END, step=1)
        written = _last(case)
    elif kind == "decays":
        case, held = _held(rng, case, shape, zeros=False)
        case = _followed(case, "scale", (held,), factor=rng.choice([0.75, -0.5]))
        case = _followed(case, "add", (_last(case), x))
        written = _last(case)
    elif kind == "delays":
        case, held = _held(rng, case, shape)
        case = _followed(case, rng.choice(["add", "subtract", "maximum"]), (held, x))
        written = rng.choice(alike)
    elif kind == "counts":
        case, held = _held(rng, case, rng.choice([(), (1,), (shape[-1],)]), zeros=False)
        case = _followed(case, "add", (x, held))
        case = _followed(case, "shift", (held,), term=0.75)
        written = _last(case)
    else:  # some rows of a cache
        dim, more = rng.randrange(len(shape)), rng.randint(1, 3)
        size, start = shape[dim] + more, rng.randint(0, more)
        case, held = _held(rng, case, (*shape[:dim], size, *shape[dim + 1 :]))
        place = {"dim": dim, "start": start, "end": start + shape[dim], "step": 1}
        case = _followed(case, "slice_scatter", (held, x), **place)
        written = _last(case)
    return replace(case, writes=(*case.writes, Write(held, written, rng.random() < 0.7)))


def _held(rng: random.Random, case: Case, shape: Shape, zeros: bool = True) -> tuple[Case, str]:
    """The case with one more buffer, and its name; a call may begin with zeros where they are fit to read."""
    kind = "zeros" if zeros and rng.random() < 0.5 else "state"
    name = f"self.c{len(case.constants)}"
    each = Given(shape, kind, seed=100 + len(case.constants))
    return replace(case, constants={**case.constants, name: each}), name


def _followed(case: Case, operator: str, reads: tuple[str, ...], **attributes: Any) -> Case:
    step = Step(f"v{len(case.steps)}", operator, reads, attributes)
    return replace(case, steps=(*case.steps, step))


def _last(case: Case) -> str:
    return case.steps[-1].name
