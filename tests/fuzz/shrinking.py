"""Make a failing network small."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.fuzz.description import Case, Given, Step, is_sound, pruned, run


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
    """Return the counts that are less in a smaller case, most telling first."""
    givens = [*case.inputs.values(), *case.constants.values()]
    attributes = [leaf for step in case.steps for leaf in _leaves(step.attributes)]
    return (
        len(case.steps),
        len(case.outputs) + len(case.inputs),
        len(case.constants),
        len(case.ranges) + len(case.writes) + (case.dtype != "float32"),
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
    for field in ("ranges", "writes"):
        held = getattr(case, field)
        for i in range(len(held)):
            yield replace(case, **{field: (*held[:i], *held[i + 1 :])})
    yield replace(case, objective="bytes", dtype="float32")
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
    writes = tuple(
        replace(write, expression=names.get(write.expression, write.expression)) for write in case.writes
    )
    outputs = tuple((names.get(n, n), order) for n, order in case.outputs)
    return replace(case, steps=steps, outputs=outputs, writes=writes)


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
        if {*value} == {*range(len(value))}:
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
