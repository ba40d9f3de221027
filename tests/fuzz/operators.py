"""Decide which operators random networks are made of: one row each, with its Python source and how its
operands and attributes are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tests.fuzz.branches import cond
from tests.fuzz.contracted import CONTRACTED
from tests.fuzz.fourier import FOURIER
from tests.fuzz.placed import MASKED, PLACED, RECURRENT, mask
from tests.fuzz.rows import (
    Draw,
    Drawn,
    Operator,
    along,
    binary,
    broadcasting,
    divisors,
    over,
    plain,
    split_dim,
    without,
)
from tests.fuzz.spatial import SPATIAL

# -- pointwise


def _three(d: Draw) -> Drawn:
    return [d.x, broadcasting(d), broadcasting(d)], {}


def _masked(d: Draw) -> Drawn:
    return [d.x, mask(d), broadcasting(d)], {}


def _prelu(d: Draw) -> Drawn:
    return [d.x, d.constant((d.rng.choice([1, d.shape[1]]),))], {}


POINTWISE = {
    "relu": plain("torch.relu({0})"),
    "relu6": plain("F.relu6({0})", captured=("hardtanh", "relu6")),
    "hardtanh": plain("F.hardtanh({0}, {low}, {high})", low=[-0.5, -1.25], high=[0.75, 1.5]),
    "clamp": plain("{0}.clamp({low}, {high})", low=[-0.75, 0.0], high=[0.5, 1.25, None]),
    "clamp_max": plain("{0}.clamp(max={high})", captured=("clamp",), high=[0.5]),
    "hardswish": plain("F.hardswish({0})"),
    "hardsigmoid": plain("F.hardsigmoid({0})"),
    "silu": plain("F.silu({0})"),
    "gelu": plain("F.gelu({0}, approximate={approximate!r})", approximate=["none", "tanh"]),
    "elu": plain("F.elu({0}, {alpha})", alpha=[1.0, 0.7]),
    "leaky_relu": plain("F.leaky_relu({0}, {slope})", slope=[0.1, 0.01]),
    "softplus": plain("F.softplus({0})"),
    "mish": plain("F.mish({0})"),
    "log_sigmoid": plain("F.logsigmoid({0})"),
    "sigmoid": plain("torch.sigmoid({0})"),
    "tanh": plain("torch.tanh({0})"),
    "erf": plain("torch.erf({0})"),
    "exp": plain("torch.exp({0}.clamp(max=2.0))", captured=("exp", "clamp")),
    "sin": plain("torch.sin({0})"),
    "cos": plain("torch.cos({0})"),
    "abs": plain("{0}.abs()"),
    "neg": plain("-{0}"),
    "square": plain("torch.square({0})", captured=("square", "pow")),
    "pow": plain("{0} ** {exponent}", exponent=[2, 3]),
    "sqrt": plain("torch.sqrt({0}.abs() + 0.5)", captured=("sqrt", "abs", "add")),
    "rsqrt": plain("torch.rsqrt({0} * {0} + 0.5)", captured=("rsqrt", "mul", "add")),
    "log1p": plain("torch.log1p({0}.abs())", captured=("log1p", "abs")),
    "log2": plain("torch.log2({0}.abs() + 0.5)", captured=("log2", "abs", "add")),
    "log10": plain("torch.log10({0}.abs() + 0.5)", captured=("log10", "abs", "add")),
    "powers": plain(
        "({0}.abs() + 0.5) ** {exponent}",
        captured=("pow", "abs", "add"),
        exponent=[0.5, -0.5, -1, -2, 1.5, 4],
    ),
    "softplus_steep": plain("F.softplus({0}, {beta}, 30)", captured=("softplus",), beta=[2.5, 0.5]),
    "threshold": plain("F.threshold({0}, {at}, {value})", captured=("where",), at=[0.25], value=[0.25, -0.5]),
    "round_decimals": plain("torch.round({0}, decimals=1)", captured=("round",)),
    "ceil": plain("torch.ceil({0} * 4)", captured=("ceil", "mul")),
    "trunc": plain("torch.trunc({0} * 4)", captured=("trunc", "mul")),
    # What is divided is no nearer to a multiple of the divisor than a quarter.
    "floor_divide": plain(
        "torch.floor_divide(torch.round({0} * 4) + 0.25, {by})", captured=("floor_divide",), by=[1.5, -2.5]
    ),
    "remainder": plain(
        "torch.remainder(torch.round({0} * 4) + 0.25, {by})", captured=("remainder",), by=[1.5, -2.5]
    ),
    "fmod": plain("torch.fmod(torch.round({0} * 4) + 0.25, {by})", captured=("fmod",), by=[1.5, -2.5]),
    "selu": plain("F.selu({0})", captured=("elu",)),
    "celu": plain("F.celu({0}, 0.8)", captured=("elu",)),
    "softsign": plain("F.softsign({0})", captured=("div", "abs", "add")),
    "log": plain("torch.log({0}.abs() + 0.5)", captured=("log", "abs", "add")),
    "reciprocal": plain("1 / ({0}.abs() + 0.5)", captured=("reciprocal", "abs", "add")),
    "floor": plain("torch.floor({0} * 4)", captured=("floor", "mul")),
    "round": plain("torch.round({0} * 4)", captured=("round", "mul")),
    "scale": plain("{0} * {factor}", captured=("mul",), factor=[1.7, -0.6]),
    "shift": plain("{0} + {term}", captured=("add",), term=[0.75, -1.5]),
    "rsub": plain("2.5 - {0}"),
    "divide": plain("{0} / {by}", captured=("div",), by=[1.75, -3]),
    "in_place": plain("({0} * 1.5).add_({0})", captured=("mul", "add")),
    "relu_": plain("torch.relu_({0} + 0.25)", captured=("add", "relu")),
    "clone": plain("{0}.clone()"),
    "contiguous": plain("{0}.contiguous()"),
    "dropout": plain("F.dropout({0}, 0.5, training=False)"),
    "add": binary("{0} + {1}"),
    "subtract": binary("{0} - {1}", captured=("sub",)),
    "subtract_scaled": binary("torch.sub({0}, {1}, alpha=1.5)", captured=("sub",)),
    "multiply": binary("{0} * {1}", captured=("mul",)),
    "quotient": binary("{0} / ({1}.abs() + 0.5)", captured=("div", "abs", "add")),
    "maximum": binary("torch.maximum({0}, {1})"),
    "minimum": binary("torch.minimum({0}, {1})"),
    "atan2": binary("torch.atan2({0}, {1})"),
    "select_larger": binary("torch.where({0} > {1}, {0}, {1} * 0.5)", captured=("where", "gt", "mul")),
    "addcmul": Operator("torch.addcmul({0}, {1}, {2}, value=0.5)", _three, captured=("mul", "add")),
    "addcdiv": Operator("torch.addcdiv({0}, {1}, {2}.abs() + 0.5)", _three, captured=("div", "abs", "add")),
    "where": Operator("torch.where({1}, {0}, {2})", _masked),
    "masked_fill": Operator(
        "{0}.masked_fill({1}, 0.3)", lambda d: (_masked(d)[0][:2], {}), captured=("where",)
    ),
    "prelu": Operator("F.prelu({0}, {1})", _prelu, range(2, 7), ("_prelu_kernel",)),
    "gate": Operator(
        "{0} * torch.sigmoid({0}.mean({dims}, keepdim=True))",
        lambda d: ([d.x], {"dims": d.dims()}),
        captured=("mul", "sigmoid", "mean"),
    ),
}


# -- views


def _reshaped(d: Draw) -> Drawn:
    """Some dimensions merged, or one split, or both where the cuts conflict, or a size of 1 put in."""
    sizes = list(d.shape)
    kind = d.rng.choice(["merge", "split", "regroup", "regroup", "unsqueeze", "all"])
    if kind == "all":
        return [d.x], {"sizes": (sizes[0], -1)}
    if kind == "unsqueeze":
        sizes.insert(d.rng.randint(0, d.rank), 1)
        return [d.x], {"sizes": tuple(sizes)}
    place = d.dim()
    if kind != "split":
        end = d.rng.randint(place + 1, d.rank)
        sizes[place:end] = [math.prod(sizes[place:end])]
    if kind != "merge":
        outer = d.rng.choice(divisors(sizes[place]))
        sizes[place : place + 1] = [outer, sizes[place] // outer]
    return [d.x], {"sizes": tuple(sizes)}


def _permuted(d: Draw) -> Drawn:
    return [d.x], {"order": tuple(d.rng.sample(range(d.rank), d.rank))}


def _two_dims(d: Draw) -> Drawn:
    a, b = d.rng.sample(range(d.rank), 2)
    return [d.x], {"a": a, "b": b}


def _flattened(d: Draw) -> Drawn:
    first, last = sorted(d.rng.sample(range(d.rank), 2))
    return [d.x], {"first": first, "last": last}


def _unflattened(d: Draw) -> Drawn:
    dim, outer = split_dim(d)
    return [d.x], {"dim": dim, "sizes": (outer, d.shape[dim] // outer)}


def _shuffled(d: Draw) -> Drawn:
    dim, groups = split_dim(d, 2)
    return [d.x], {"dim": dim, "groups": groups, "next": dim + 1}


def _expanded(d: Draw) -> Drawn:
    place = d.rng.randint(0, d.rank)
    size = d.rng.randint(2, 4)
    return [d.x], {"place": place, "sizes": (*d.shape[:place], size, *d.shape[place:])}


def _windows(d: Draw) -> Drawn | None:
    """Cut into windows and laid out anew, as Swin does."""
    dim, outer = split_dim(d, 2)
    order = tuple(d.rng.sample(range(d.rank + 1), d.rank + 1))
    return [d.x], {"dim": dim, "sizes": (outer, d.shape[dim] // outer), "order": order}


VIEWS = {
    "reshape": Operator("{0}.reshape({sizes})", _reshaped),
    "permute": Operator("{0}.permute({order})", _permuted),
    "transpose": Operator("{0}.transpose({a}, {b})", _two_dims, range(2, 7)),
    "flatten": Operator("{0}.flatten({first}, {last})", _flattened, range(2, 7)),
    "unflatten": Operator("{0}.unflatten({dim}, {sizes})", _unflattened),
    "unsqueeze": Operator("{0}.unsqueeze({dim})", lambda d: ([d.x], {"dim": d.rng.randint(0, d.rank)})),
    "squeeze": plain("{0}.squeeze()"),
    "squeeze_dim": along("{0}.squeeze({dim})"),
    "expand": Operator("{0}.unsqueeze({place}).expand({sizes})", _expanded, captured=("expand",)),
    "repeat": Operator(
        "{0}.repeat({times})",
        lambda d: ([d.x], {"times": tuple(d.rng.choice([1, 1, 2, 3]) for _ in d.shape)}),
    ),
    "movedim": Operator("{0}.movedim({a}, {b})", _two_dims, range(2, 7), ("permute",)),
    "tile": plain("{0}.tile({times})", range(1, 6), times=[(2,), (1, 2), (2, 1)]),
    "repeat_interleave": along("{0}.repeat_interleave({times}, {dim})", times=[2, 3]),
    "shuffle": Operator(
        "{0}.unflatten({dim}, ({groups}, -1)).transpose({dim}, {next}).flatten({dim}, {next})", _shuffled
    ),
    "channel_shuffle": Operator(
        "F.channel_shuffle({0}, {groups})",
        lambda d: ([d.x], {"groups": d.rng.choice(divisors(d.shape[1]))}),
        range(3, 6),
    ),
    "windows": Operator("{0}.unflatten({dim}, {sizes}).permute({order})", _windows),
    "pixel_shuffle": plain("F.pixel_shuffle({0}, 2)", range(4, 5)),
    "pixel_unshuffle": plain("F.pixel_unshuffle({0}, {by})", range(4, 5), by=[2, 3]),
}


# -- indexed


def _joined(d: Draw) -> tuple[list[str], int]:
    """`x` and one or two more that a cat along the dimension takes, in any sequence."""
    dim = d.dim()
    rest = without(d.shape, dim)
    parts = [d.x]
    for _ in range(d.rng.choice([1, 1, 2])):
        found = d.like(lambda shape: len(shape) == d.rank and without(shape, dim) == rest)
        if found is None or (found == d.x and d.chance(0.6)):
            found = d.constant((*d.shape[:dim], d.rng.randint(1, 6), *d.shape[dim + 1 :]))
        parts.append(found)
    d.rng.shuffle(parts)
    return parts, dim


def _cat(count: int) -> Callable[[Draw], Drawn | None]:
    def draw(d: Draw) -> Drawn | None:
        parts, dim = _joined(d)
        return (parts, {"dim": dim}) if len(parts) == count else None

    return draw


def _stack(d: Draw) -> Drawn:
    other = d.like(lambda shape: shape == d.shape)
    pair = [d.x, other if other != d.x else d.constant(d.shape)]
    return pair, {"dim": d.rng.randint(0, d.rank)}


def _split(d: Draw) -> Drawn | None:
    dim = d.dim()
    size = d.shape[dim]
    if size < 3:
        return None
    first = d.rng.randint(1, size - 2)
    second = d.rng.randint(1, size - first - 1)
    return [d.x], {"dim": dim, "sizes": (first, second, size - first - second)}


def _sliced(d: Draw) -> Drawn:
    dim = d.dim()
    start = d.rng.randrange(d.shape[dim])
    end = d.rng.randint(start + 1, d.shape[dim])
    return [d.x], {"dim": dim, "start": start, "end": end, "step": d.rng.choice([1, 1, 2, 3])}


def _strided(d: Draw) -> Drawn:
    """Every so-manieth of a dimension that divides by it, as patch merging takes them."""
    dim, step = split_dim(d, 2)
    return [d.x], {"dim": dim, "start": d.rng.randrange(step), "end": d.shape[dim], "step": step}


def _selected(d: Draw) -> Drawn:
    dim = d.dim()
    return [d.x], {"dim": dim, "index": d.rng.randrange(-d.shape[dim], d.shape[dim])}


def _padded(d: Draw) -> Drawn:
    count = d.rng.randint(1, d.rank)
    sides = [d.rng.choice([-1, 0, 0, 1, 2, 3]) for _ in range(2 * count)]
    return [d.x], {"pads": tuple(sides), "value": d.rng.choice([0.0, 0.5, -1.25])}


def _padded_from_itself(d: Draw) -> Drawn:
    count = d.rng.randint(1, d.rank - 2)
    sides = tuple(d.rng.choice([0, 1, 2]) for _ in range(2 * count))
    return [d.x], {"pads": sides, "mode": d.rng.choice(["reflect", "replicate", "circular"])}


def _rolled(d: Draw) -> Drawn:
    dims = d.dims()[:2]
    return [d.x], {"shifts": tuple(d.rng.randint(-3, 3) for _ in dims), "dims": dims}


def _index_selected(d: Draw) -> Drawn:
    dim = d.dim()
    return [d.x, d.constant((d.rng.randint(1, 7),), "index", d.shape[dim])], {"dim": dim}


def _gathered(d: Draw) -> Drawn:
    dim = d.dim()
    shape = tuple(d.rng.randint(1, 5) if i == dim else d.rng.randint(1, s) for i, s in enumerate(d.shape))
    return [d.x, d.constant(shape, "index", d.shape[dim])], {"dim": dim}


def _looked_up(d: Draw) -> Drawn:
    return [d.x, d.constant((d.rng.randint(2, 3), d.rng.randint(2, 5)), "index", d.shape[0])], {}


INDEXED = {
    "cat": Operator("torch.cat([{0}, {1}], {dim})", _cat(2)),
    "cat3": Operator("torch.cat([{0}, {1}, {2}], {dim})", _cat(3), captured=("cat",)),
    "cat_self": along("torch.cat([{0}, {0} * 2, {0}], {dim})", captured=("cat", "mul")),
    "stack": Operator("torch.stack([{0}, {1}], {dim})", _stack, captured=("cat",)),
    "split": Operator("{0}.split({sizes}, {dim})", _split, captured=("slice",)),
    "chunk": along("{0}.chunk({count}, {dim})", captured=("slice",), count=[2, 2, 3]),
    "unbind": along("{0}.unbind({dim})", captured=("slice",)),
    "glu": along("F.glu({0}, {dim})"),
    "slice": Operator("torch.ops.aten.slice.Tensor({0}, {dim}, {start}, {end}, {step})", _sliced),
    "every_other": Operator(
        "torch.ops.aten.slice.Tensor({0}, {dim}, {start}, {end}, {step})", _strided, captured=("slice",)
    ),
    "select": Operator("{0}.select({dim}, {index})", _selected, captured=("slice",)),
    "pad": Operator("F.pad({0}, {pads}, value={value})", _padded, captured=("constant_pad_nd",)),
    "pad_mode": Operator("F.pad({0}, {pads}, mode={mode!r})", _padded_from_itself, range(3, 6), ("pad",)),
    "flip": Operator("{0}.flip({dims})", lambda d: ([d.x], {"dims": d.dims()})),
    "roll": Operator("{0}.roll({shifts}, {dims})", _rolled, captured=("slice", "cat")),
    "roll_flat": plain("{0}.roll({shift})", captured=("slice", "cat"), shift=[1, -2]),
    "index_select": Operator("{0}.index_select({dim}, {1})", _index_selected),
    "gather": Operator("{0}.gather({dim}, {1})", _gathered),
    "embedding": Operator("F.embedding({1}, {0})", _looked_up, range(2, 3)),
    "cumsum": along("{0}.cumsum({dim}) / 3", captured=("cumsum", "div")),
    "cumprod": along("({0} * 0.3 + 1).cumprod({dim})", captured=("cumprod", "mul", "add")),
    "topk": along("{0}.topk(2, {dim}).values"),
    "sort": along("{0}.sort({dim}).values"),
}


# -- reductions and norms


def _layer_norm(d: Draw) -> Drawn:
    shape = d.shape[d.rng.choice([-1, -1, -2]) :] if d.rank > 1 else d.shape
    affine = d.chance(0.7)
    return [d.x, *([d.constant(shape), d.constant(shape)] if affine else ["None"] * 2)], {"shape": shape}


def _affine(d: Draw) -> list[str]:
    return [d.constant((d.shape[1],)) if d.chance(0.7) else "None" for _ in range(2)]


def _group_norm(d: Draw) -> Drawn:
    return [d.x, *_affine(d)], {"groups": d.rng.choice(divisors(d.shape[1]))}


def _batch_norm(d: Draw) -> Drawn:
    running = [d.constant((d.shape[1],)), d.constant((d.shape[1],), "positive")]
    return [d.x, *running, *_affine(d)], {}


REDUCED = {
    "sum": over("{0}.sum({dims}, keepdim={keep})"),
    "mean": over("{0}.mean({dims}, keepdim={keep})"),
    "amax": over("{0}.amax({dims}, keepdim={keep})"),
    "amin": over("{0}.amin({dims}, keepdim={keep})"),
    "prod": along("({0} * 0.3 + 1).prod({dim}, keepdim={keep})", ("prod", "mul", "add"), keep=[True, False]),
    "var": over("{0}.var({dims}, correction=0, keepdim={keep})"),
    "std": over("({0}.std({dims}, correction=1, keepdim={keep}) + 0.1)", ("var", "sqrt", "add")),
    "norm_of_sums": over("torch.linalg.vector_norm({0}, 1, dim={dims}, keepdim={keep})", ("sum", "abs")),
    "norm_of_largest": over(
        "torch.linalg.vector_norm({0}, float('inf'), dim={dims}, keepdim={keep})", ("amax", "abs")
    ),
    "logsumexp": over("{0}.logsumexp({dims}, keepdim={keep})"),
    "norm": over("torch.linalg.vector_norm({0}, dim={dims}, keepdim={keep})", ("linalg_vector_norm",)),
    "max": along("{0}.max({dim}).values"),
    "argmax": along("{0}.argmax({dim}, keepdim={keep}).to({0}.dtype)", keep=[True, False]),
    "argmin": along("{0}.argmin({dim}, keepdim={keep}).to({0}.dtype)", keep=[True, False]),
    "argmax_flat": plain("{0}.argmax().to({0}.dtype)", range(1, 7), ("argmax",)),
    "mean_all": plain("{0}.mean()", captured=("mean",)),
    "sum_all": plain("{0}.sum()", captured=("sum",)),
    "amax_all": plain("{0}.amax()", captured=("amax",)),
    "softmax": along("{0}.softmax({dim})"),
    "log_softmax": along("F.log_softmax({0}, {dim})"),
    "layer_norm": Operator("F.layer_norm({0}, {shape}, {1}, {2})", _layer_norm),
    "rms_norm": Operator(
        "F.rms_norm({0}, {shape})", lambda d: ([d.x], {"shape": d.shape[-1:]}), captured=("mean", "rsqrt")
    ),
    "group_norm": Operator("F.group_norm({0}, {groups}, {1}, {2})", _group_norm, range(2, 6)),
    "instance_norm": Operator(
        "F.instance_norm({0}, weight={1}, bias={2})", lambda d: ([d.x, *_affine(d)], {}), range(3, 6)
    ),
    "batch_norm": Operator("F.batch_norm({0}, {1}, {2}, {3}, {4})", _batch_norm, range(2, 6)),
    "normalize": along("F.normalize({0}, dim={dim})"),
}
FAMILIES: tuple[Mapping[str, Operator], ...] = (
    POINTWISE,
    VIEWS,
    INDEXED,
    REDUCED,
    CONTRACTED,
    SPATIAL,
    MASKED,
    PLACED,
    RECURRENT,
)
WEIGHTS = (5, 3, 4, 3, 5, 3, 2, 4, 0.3)
# What features of networks add.
BRANCHES = {"cond": cond((POINTWISE, REDUCED, CONTRACTED))}
OPERATORS: Mapping[str, Operator] = {
    name: row for family in (*FAMILIES, FOURIER, BRANCHES) for name, row in family.items()
}

# Rows that a target refuses, whatever their attributes, for want of an operator or of a kernel.
LEFT_OUT: Mapping[str, frozenset[str]] = {
    "xnnpack": frozenset(["sort"]),
    "tosa": frozenset(["atan2", "topk", "sort", "selu", "celu"]),
    "litert": frozenset(["topk", "sort"]),
}
