"""Draw the random network of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.fuzz.constants import (
    PACKING,
    Constant,
    alike_constant,
    random_constant,
    reads_packed_bytes,
    with_reader_of_packed,
    with_small_weight,
)
from tests.fuzz.description import (
    FEATURES,
    MISFIT,
    STANDS_FOR,
    Case,
    Given,
    Order,
    Step,
    is_fit,
    is_sound,
    pruned,
    run,
)
from tests.fuzz.features import spellings, varies_as_sizes_do, with_ranges, with_state
from tests.fuzz.fourier import FOURIER
from tests.fuzz.integer_operators import MOVES, USUAL, WEIGHTED
from tests.fuzz.operators import BRANCHES, FAMILIES, LEFT_OUT, OPERATORS, VIEWS, WEIGHTS
from tests.fuzz.rows import Draw, Operator, Shape

# The case with one more step; the names are of rows that are not drawn.
WithStep = Callable[[random.Random, Case, Collection[str]], "Case | None"]
# The case that is drawn for a target of the fuzzer, or None where what was drawn does not fit.
Drawing = Callable[[random.Random, str], "Case | None"]


def generate(seed: int, target: str = "physical") -> Case:
    """The random network of a seed: 3 to 12 operators, one to three inputs, one to six outputs.

    Most are of operators that the target is known to compute: a refusal shows little.

    >>> generate(3) == generate(3)
    True
    """
    for attempt in range(1000):
        rng = random.Random(f"{target}.{seed}.{attempt}")
        case = _DRAWN.get(target, _of_floats)(rng, target)
        if case is not None and is_sound(case):
            return case
    raise AssertionError(f"no network fits seed {seed}")


def _begun(rng: random.Random) -> Case:
    return Case(_inputs(rng), {}, (), ())


def _of_floats(
    rng: random.Random,
    target: str,
    with_step: WithStep | None = None,
    begun: Callable[[random.Random], Case] = _begun,
) -> Case | None:
    with_step = with_step or _with_step
    left_out = (
        LEFT_OUT.get(STANDS_FOR.get(target, target), frozenset()) if rng.random() < 0.85 else frozenset()
    )
    case = begun(rng)
    wanted = rng.randint(3, 12)
    for _ in range(12 * wanted):
        if len(case.steps) == wanted:
            break
        case = with_step(rng, case, left_out) or case
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


def _with_step(
    rng: random.Random,
    case: Case,
    left_out: Collection[str],
    families: Sequence[Mapping[str, Operator]] = FAMILIES,
    weights: Sequence[float] = WEIGHTS,
    made: Constant = random_constant,
) -> Case | None:
    """The case with one more step, or None where what was drawn does not fit."""
    values = run(case)
    shapes = {
        name: tuple(value.shape)
        for name, value in values.items()
        if value.is_floating_point() and not name.startswith("self.")
    }
    constants = dict(case.constants)

    def constant(shape: Shape, kind: str = "normal", high: int = 0) -> str:
        return made(rng, constants, tuple(shape), kind, high)

    indices = [name for name, each in case.inputs.items() if each.kind == "index"]
    read = {expression for step in case.steps for expression in step.reads}
    unread = [name for name in indices if name not in read]
    name = f"v{len(case.steps)}"
    if unread and rng.random() < 0.3 and "embedding" not in left_out:
        table = constant((case.inputs[unread[0]].high, rng.randint(3, 6)))
        step = Step(name, "embedding", (table, unread[0]), {})
    else:
        x = list(shapes)[-1] if rng.random() < 0.6 else rng.choice(list(shapes))
        family = rng.choices(families, weights)[0]
        rank = len(shapes[x])
        fitting = [row for row, each in family.items() if rank in each.ranks and row not in left_out]
        if not fitting:
            return None
        operator = rng.choice(fitting)
        masks = {name: each.shape for name, each in case.inputs.items() if each.kind == "mask"}
        ids = {name: case.inputs[name].shape for name in indices}
        drawn = family[operator].draw(Draw(rng, x, shapes, constant, masks, ids))
        if drawn is None:
            return None
        step = Step(name, operator, tuple(drawn[0]), dict(drawn[1]))
    return _fitting(replace(case, constants=constants, steps=(*case.steps, step)))


def _fitting(case: Case, steps: int = 1) -> Case | None:
    """The case, if what its last steps compute is fit for another, in the first spelling that fits."""
    return next((each for each in spellings(case) if _fits(each, steps)), None)


def _fits(case: Case, steps: int) -> bool:
    names = [step.name for step in case.steps[-steps:]]
    try:
        results, *others = (
            {key: value for key, value in run(each).items() if key.split("[")[0] in names}
            for each in (case, *case.corners)
        )
    except MISFIT:
        return False
    if not results or not all(map(is_fit, results.values())):
        return False
    if any(each.keys() != results.keys() for each in others):  # cut into more or fewer parts
        return False
    return not others or all(
        varies_as_sizes_do(*(tuple(each[key].shape) for each in (others[0], results, others[1])))
        for key in results
    )


def _outputs(rng: random.Random, case: Case) -> tuple[tuple[str, Order], ...]:
    """The last values that nothing reads, and some that are used inside too, or are inputs, or come twice."""
    values = {name: v for name, v in run(case).items() if name[0] == "v"}
    read = {expression for step in case.steps for expression in step.reads}
    read |= {write.expression for write in case.writes}
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


# -- networks whose constants are alike

_PACKING = {row: OPERATORS[row] for row in PACKING}


def _of_alike_constants(rng: random.Random, target: str) -> Case | None:
    """A network whose constants are as constructors leave them, or equal to one another."""
    case = _of_floats(rng, target, _with_alike_step)
    if case is None or not (reads_packed_bytes(case) or rng.random() < 0.1):
        return None
    return replace(case, refused=())


def _with_alike_step(rng: random.Random, case: Case, left_out: Collection[str]) -> Case | None:
    """The case with a step that packs a constant, one that reads what another packs, or any."""
    kind = rng.choices(["packs", "packs little", "reads", "any"], (3, 2, 5, 3))[0]
    if kind == "packs":
        return _with_step(rng, case, left_out, (_PACKING,), (1,), alike_constant)
    if kind == "packs little":
        found = with_small_weight(rng, case)
        return found and _fitting(found)
    if kind == "any":
        return _with_step(rng, case, left_out, made=alike_constant)
    cases = with_reader_of_packed(rng, case)
    return cases[-1] if cases and all(map(_fitting, cases)) else None


# -- networks with features


# All but networks in float16 are drawn for the whole target: little is left of it for some features.


def _of_halves(rng: random.Random, target: str) -> Case | None:
    return _of_floats(rng, target, begun=_half)


def _half(rng: random.Random) -> Case:
    return replace(_begun(rng), dtype="float16")


def _of_ranges(rng: random.Random, target: str) -> Case | None:
    case = _of_floats(rng, target, _with_step_of_any_size, begun=_ranged)
    return replace(case, refused=()) if case is not None and case.ranges else None


def _ranged(rng: random.Random) -> Case:
    case = _half(rng) if rng.random() < 0.15 else _begun(rng)
    return with_ranges(rng, case)


def _with_step_of_any_size(rng: random.Random, case: Case, left_out: Collection[str]) -> Case | None:
    """A recurrent operator does not check the batch of its state, and may read beyond it."""
    return _with_step(rng, case, left_out, FAMILIES[:-1], WEIGHTS[:-1])


def _of_state(rng: random.Random, target: str) -> Case | None:
    case = _of_floats(rng, target, _with_step_or_state, begun=_streamed)
    return replace(case, refused=()) if case is not None and case.writes else None


def _streamed(rng: random.Random) -> Case:
    chance = rng.random()
    return _ranged(rng) if chance < 0.3 else _half(rng) if chance < 0.4 else _begun(rng)


def _with_step_or_state(rng: random.Random, case: Case, left_out: Collection[str]) -> Case | None:
    if len(case.writes) < 3 and rng.random() < 0.25:
        found = with_state(rng, case)
        return found and _fitting(found, len(found.steps) - len(case.steps))
    return _with_step_of_any_size(rng, case, left_out)


def _with(family: Mapping[str, Operator], begun: Callable[[random.Random], Case]) -> Drawing:
    """Networks some of whose operators, one at least, are of this family."""

    def with_step(rng: random.Random, case: Case, left_out: Collection[str]) -> Case | None:
        if rng.random() < 0.3:
            return _with_step(rng, case, left_out, (family,), (1,))
        return _with_step_of_any_size(rng, case, left_out)

    def draw(rng: random.Random, target: str) -> Case | None:
        case = _of_floats(rng, target, with_step, begun)
        has_one = case is not None and any(step.operator in family for step in case.steps)
        return replace(case, refused=()) if case is not None and has_one else None

    return draw


def _sometimes_ranged(rng: random.Random) -> Case:
    return _ranged(rng) if rng.random() < 0.25 else _begun(rng)


def _of_integer_ranges(rng: random.Random, target: str) -> Case | None:
    case = _by_hand(rng, ranged=True)
    return case if case.ranges and len(case.steps) >= 3 else None


_FEATURES: Mapping[str, Drawing] = {
    "float16": _of_halves,
    "ranges": _of_ranges,
    "int8-ranges": _of_integer_ranges,
    "state": _of_state,
    "cond": _with(BRANCHES, _sometimes_ranged),
    "fourier": _with(FOURIER, _begun),
}


# -- networks of integers

_LEFT_OUT = frozenset(("sort", "rnn"))
QUANTIZERS = ("by_xnnpack", "by_xnnpack_per_tensor", "by_arm")


def _quantised(rng: random.Random, target: str) -> Case | None:
    """A network that a quantizer of PT2E makes one of integers, or whose steps do."""
    case = _of_numbers(rng) if rng.random() < 0.6 else _by_hand(rng)
    if len(case.steps) < 3:
        return None
    if rng.random() < 0.12:
        taken, given = (rng.choice([None, "int8", "uint8"]) for _ in range(2))
        case = replace(case, types=(taken, given))
    return replace(case, objective=rng.choice(["bytes", "bytes", "count"]))


def _of_numbers(rng: random.Random) -> Case:
    rank = rng.choice([4, 4, 4, 4, 3, 2])
    shape = _shape(rng, rank)
    inputs = {"x0": Given(shape, seed=1, order=_order(rng, rank))}
    if rng.random() < 0.3:
        inputs["x1"] = Given(shape, seed=2, order=_order(rng, rank))
    case = Case(inputs, {}, (), (), quantizer=rng.choice(QUANTIZERS))
    wanted = rng.randint(3, 9)
    for _ in range(12 * wanted):
        if len(case.steps) == wanted:
            break
        case = (
            _with_step(rng, case, _LEFT_OUT, (USUAL, VIEWS, *FAMILIES[:-1]), (60, 5, *WEIGHTS[:-1])) or case
        )
    return pruned(replace(case, outputs=_outputs(rng, case)))


def _by_hand(rng: random.Random, ranged: bool = False) -> Case:
    """Steps, most of whose results are quantised and dequantised; here and there integers are moved."""
    rank = rng.choice([4, 4, 4, 4, 3, 2])
    shape = _shape(rng, rank)
    inputs = {
        f"x{i}": Given(shape, seed=i + 1, order=_order(rng, rank)) for i in range(rng.choice([1, 1, 2]))
    }
    if rng.random() < 0.3:
        kind = rng.choice(["int8", "uint8"])
        inputs["x0"] = replace(inputs["x0"], kind=kind)
    case = Case(inputs, {}, (), (), quantizer="by_hand")
    case = with_ranges(rng, case) if ranged else case
    for name, each in inputs.items():
        if each.kind != "normal":
            zero = rng.randint(-20, 20) + 128 * (each.kind == "uint8")
            case = _followed(case, "dequantised", name, scale=0.0173, zero=zero, dtype=each.kind) or case
        elif rng.random() < 0.9:
            case = _requantised(rng, case, name) or case
    if not case.steps:
        return case
    wanted = len(case.steps) + rng.randint(4, 12)
    for _ in range(12 * wanted):
        if len(case.steps) >= wanted:
            break
        if rng.random() < 0.2:
            case = _moved(rng, case) or case
            continue
        before = set(run(case))
        case = _with_step(rng, case, _LEFT_OUT, (USUAL, WEIGHTED, VIEWS), (6, 3, 1.5)) or case
        for name in [name for name in run(case) if name not in before and name[0] == "v"]:
            if rng.random() < 0.75:
                case = _requantised(rng, case, name) or case
    case = replace(case, outputs=_outputs(rng, case))
    if rng.random() < 0.25:
        name, order = case.outputs[0]
        if run(case)[name].is_floating_point():
            last = _followed(case, "quantised", name, **_scale(rng, case, name))
            if last is not None:
                case = replace(last, outputs=((last.steps[-1].name, order), *case.outputs[1:]))
    return pruned(case)


def _followed(case: Case, operator: str, *reads: str, **attributes: Any) -> Case | None:
    """The case with that step, or None where it does not fit."""
    return _fitting(
        replace(case, steps=(*case.steps, Step(f"v{len(case.steps)}", operator, reads, attributes)))
    )


def _scale(rng: random.Random, case: Case, name: str) -> dict[str, Any]:
    """A scale for a value: one that another has, or one of which few values are clamped."""
    held = [step.attributes for step in case.steps if "dtype" in step.attributes]
    if held and rng.random() < 0.3:
        return dict(rng.choice(held))
    dtype = "uint8" if rng.random() < 0.04 else "int8"
    value = run(case)[name]
    low, high = min(float(value.min()), 0.0), max(float(value.max()), 0.0)
    scale = float(f"{(high - low) / 255 * rng.choice([1.0, 0.8, 1.5, 3.0]):.4g}")
    zero = round(-low / scale) + rng.choice([0, 0, -7, 11])
    zero = rng.choice([zero, zero, zero, 128, 3])
    zero = min(max(zero, 0), 255)
    return {"scale": scale, "zero": zero - 128 * (dtype == "int8"), "dtype": dtype}


def _requantised(rng: random.Random, case: Case, name: str) -> Case | None:
    if not run(case)[name].is_floating_point():
        return None
    return _followed(case, "requantised", name, **_scale(rng, case, name))


def _moved(rng: random.Random, case: Case) -> Case | None:
    """A value is quantised, the integers are moved once or more, and dequantised."""
    values = run(case)
    x = rng.choice([n for n, value in values.items() if n[0] == "v" and value.is_floating_point()])
    scale = _scale(rng, case, x)
    made = _followed(case, "quantised", x, **scale)
    last: list[str] = [made.steps[-1].name] if made else []
    for _ in range(rng.choice([1, 1, 2, 3])):
        if made is None:
            return None
        values = run(made)
        name = rng.choice(last)
        row = rng.choice([row for row, each in MOVES.items() if values[name].dim() in each.ranks])
        alike = {n: tuple(v.shape) for n, v in values.items() if v.dtype == values[name].dtype}
        drawn = MOVES[row].draw(Draw(rng, name, alike, lambda *_: ""))
        if drawn is None or "" in drawn[0]:  # a constant, of which integers have none
            return None
        made = _followed(made, row, *drawn[0], **drawn[1])
        last = [n for n in run(made) if n not in values] if made else []
    for name in last[: rng.choice([1, 2, 3])]:
        other = _scale(rng, made, x) if rng.random() < 0.1 else scale
        made = (made and _followed(made, "dequantised", name, **{**other, "dtype": scale["dtype"]})) or made
    return made


_DRAWN: Mapping[str, Drawing] = {
    "int8": _quantised,
    "int8-litert": _quantised,
    "constants": _of_alike_constants,
    **{f"{target}-{feature}": _FEATURES[feature] for feature, among in FEATURES.items() for target in among},
}
