"""Decides which operators random networks are made of: one row each, with its Python source and how its
operands and attributes are drawn. A draw may fail to fit: who asks runs it, and draws again where it raises.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ELEMENTS = 3000
MAX_RANK = 6

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    """What a row may draw from: the operand `x`, the shapes of all values so far, new or shared constants."""

    rng: random.Random
    x: str
    values: Mapping[str, Shape]
    constant: Callable[..., str]  # (shape, kind="normal", high=0) → the constant as an expression

    @property
    def shape(self) -> Shape:
        return self.values[self.x]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return self.rng.randrange(self.rank)

    def dims(self, least: int = 1) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(range(self.rank), self.rng.randint(least, self.rank))))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def like(self, fits: Callable[[Shape], bool]) -> str | None:
        """A value of a fitting shape, seldom `x` itself."""
        fitting = [name for name, shape in self.values.items() if fits(shape)]
        others = [name for name in fitting if name != self.x]
        return self.rng.choice(others or fitting) if fitting else None


Drawn = tuple[Sequence[str], Mapping[str, Any]]  # operands and attributes


@dataclass(frozen=True)
class Operator:
    """`source` is an expression of operands `{0}`, `{1}` … and named attributes. `ranks` are those of `{0}`;
    `captured` names the ATen operators that our capture makes of it (default: the row)."""

    source: str
    draw: Callable[[Draw], Drawn | None]
    ranks: range = range(1, MAX_RANK + 1)
    captured: tuple[str, ...] = ()


def _plain(
    source: str, ranks: range = range(MAX_RANK + 1), captured: tuple[str, ...] = (), **choices: Any
) -> Operator:
    """One operand, and each attribute one of its choices."""

    def draw(d: Draw) -> Drawn:
        return [d.x], {name: d.rng.choice(among) for name, among in choices.items()}

    return Operator(source, draw, ranks, captured)


def _along(source: str, captured: tuple[str, ...] = (), **choices: Any) -> Operator:
    """One operand and one of its dimensions, `dim`."""

    def draw(d: Draw) -> Drawn:
        chosen = {name: d.rng.choice(among) for name, among in choices.items()}
        return [d.x], {"dim": d.dim() - d.rank * d.chance(0.3), **chosen}

    return Operator(source, draw, captured=captured)


def _over(source: str, captured: tuple[str, ...] = ()) -> Operator:
    """A reduction over `dims`."""
    return Operator(source, lambda d: ([d.x], {"dims": d.dims(), "keep": d.chance(0.5)}), captured=captured)


# -- pointwise


def _binary(source: str, captured: tuple[str, ...] = ()) -> Operator:
    def draw(d: Draw) -> Drawn | None:
        pair = [d.x, _broadcasting(d)]
        d.rng.shuffle(pair)
        return pair, {}

    return Operator(source, draw, range(MAX_RANK + 1), captured)


def _broadcasting(d: Draw) -> str:
    """A value or a constant that broadcasts with `x`."""
    if d.chance(0.6):
        found = d.like(lambda shape: shape != () and broadcast(shape, d.shape) is not None)
        if found is not None and (found != d.x or d.chance(0.2)):
            return found
    shape = tuple(1 if d.chance(0.35) else size for size in d.shape)
    return d.constant(shape[d.rng.choice([0, 0, d.rng.randint(0, d.rank)]) :])


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape that two broadcast to, or None.

    >>> broadcast((2, 1, 5), (3, 1)), broadcast((2,), (3,))
    ((2, 3, 5), None)
    """
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        return None
    return tuple(max(pair) for pair in pairs)


def _three(d: Draw) -> Drawn:
    return [d.x, _broadcasting(d), _broadcasting(d)], {}


def _masked(d: Draw) -> Drawn:
    shape = tuple(1 if d.chance(0.3) else size for size in d.shape)
    return [d.x, d.constant(shape[d.rng.randint(0, 1) :], "mask"), _broadcasting(d)], {}


def _prelu(d: Draw) -> Drawn:
    return [d.x, d.constant((d.rng.choice([1, d.shape[1]]),))], {}


POINTWISE = {
    "relu": _plain("torch.relu({0})"),
    "relu6": _plain("F.relu6({0})", captured=("hardtanh", "relu6")),
    "hardtanh": _plain("F.hardtanh({0}, {low}, {high})", low=[-0.5, -1.25], high=[0.75, 1.5]),
    "clamp": _plain("{0}.clamp({low}, {high})", low=[-0.75, 0.0], high=[0.5, 1.25, None]),
    "clamp_max": _plain("{0}.clamp(max={high})", captured=("clamp",), high=[0.5]),
    "hardswish": _plain("F.hardswish({0})"),
    "hardsigmoid": _plain("F.hardsigmoid({0})"),
    "silu": _plain("F.silu({0})"),
    "gelu": _plain("F.gelu({0}, approximate={approximate!r})", approximate=["none", "tanh"]),
    "elu": _plain("F.elu({0}, {alpha})", alpha=[1.0, 0.7]),
    "leaky_relu": _plain("F.leaky_relu({0}, {slope})", slope=[0.1, 0.01]),
    "softplus": _plain("F.softplus({0})"),
    "mish": _plain("F.mish({0})"),
    "log_sigmoid": _plain("F.logsigmoid({0})"),
    "sigmoid": _plain("torch.sigmoid({0})"),
    "tanh": _plain("torch.tanh({0})"),
    "erf": _plain("torch.erf({0})"),
    "exp": _plain("torch.exp({0}.clamp(max=2.0))", captured=("exp", "clamp")),
    "sin": _plain("torch.sin({0})"),
    "cos": _plain("torch.cos({0})"),
    "abs": _plain("{0}.abs()"),
    "neg": _plain("-{0}"),
    "square": _plain("torch.square({0})", captured=("square", "pow")),
    "pow": _plain("{0} ** {exponent}", exponent=[2, 3]),
    "sqrt": _plain("torch.sqrt({0}.abs() + 0.5)", captured=("sqrt", "abs", "add")),
    "rsqrt": _plain("torch.rsqrt({0} * {0} + 0.5)", captured=("rsqrt", "mul", "add")),
    "log": _plain("torch.log({0}.abs() + 0.5)", captured=("log", "abs", "add")),
    "reciprocal": _plain("1 / ({0}.abs() + 0.5)", captured=("reciprocal", "abs", "add")),
    "floor": _plain("torch.floor({0} * 4)", captured=("floor", "mul")),
    "round": _plain("torch.round({0} * 4)", captured=("round", "mul")),
    "scale": _plain("{0} * {factor}", captured=("mul",), factor=[1.7, -0.6]),
    "shift": _plain("{0} + {term}", captured=("add",), term=[0.75, -1.5]),
    "rsub": _plain("2.5 - {0}"),
    "divide": _plain("{0} / {by}", captured=("div",), by=[1.75, -3]),
    "in_place": _plain("({0} * 1.5).add_({0})", captured=("mul", "add")),
    "relu_": _plain("torch.relu_({0} + 0.25)", captured=("add", "relu")),
    "clone": _plain("{0}.clone()"),
    "contiguous": _plain("{0}.contiguous()"),
    "dropout": _plain("F.dropout({0}, 0.5, training=False)"),
    "add": _binary("{0} + {1}"),
    "subtract": _binary("{0} - {1}", captured=("sub",)),
    "subtract_scaled": _binary("torch.sub({0}, {1}, alpha=1.5)", captured=("sub",)),
    "multiply": _binary("{0} * {1}", captured=("mul",)),
    "quotient": _binary("{0} / ({1}.abs() + 0.5)", captured=("div", "abs", "add")),
    "maximum": _binary("torch.maximum({0}, {1})"),
    "minimum": _binary("torch.minimum({0}, {1})"),
    "atan2": _binary("torch.atan2({0}, {1})"),
    "select_larger": _binary("torch.where({0} > {1}, {0}, {1} * 0.5)", captured=("where", "gt", "mul")),
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


def _split_dim(d: Draw, least: int = 1) -> tuple[int, int]:
    """A dimension and a divisor of its size."""
    dim = d.dim()
    return dim, d.rng.choice([n for n in divisors(d.shape[dim]) if n >= least] or [1])


def _unflattened(d: Draw) -> Drawn:
    dim, outer = _split_dim(d)
    return [d.x], {"dim": dim, "sizes": (outer, d.shape[dim] // outer)}


def _shuffled(d: Draw) -> Drawn:
    dim, groups = _split_dim(d, 2)
    return [d.x], {"dim": dim, "groups": groups, "next": dim + 1}


def _expanded(d: Draw) -> Drawn:
    place = d.rng.randint(0, d.rank)
    size = d.rng.randint(2, 4)
    return [d.x], {"place": place, "sizes": (*d.shape[:place], size, *d.shape[place:])}


def _windows(d: Draw) -> Drawn | None:
    """Cut into windows and laid out anew, as Swin does."""
    dim, outer = _split_dim(d, 2)
    order = tuple(d.rng.sample(range(d.rank + 1), d.rank + 1))
    return [d.x], {"dim": dim, "sizes": (outer, d.shape[dim] // outer), "order": order}


VIEWS = {
    "reshape": Operator("{0}.reshape({sizes})", _reshaped),
    "permute": Operator("{0}.permute({order})", _permuted),
    "transpose": Operator("{0}.transpose({a}, {b})", _two_dims, range(2, 7)),
    "flatten": Operator("{0}.flatten({first}, {last})", _flattened, range(2, 7)),
    "unflatten": Operator("{0}.unflatten({dim}, {sizes})", _unflattened),
    "unsqueeze": Operator("{0}.unsqueeze({dim})", lambda d: ([d.x], {"dim": d.rng.randint(0, d.rank)})),
    "squeeze": _plain("{0}.squeeze()"),
    "squeeze_dim": _along("{0}.squeeze({dim})"),
    "expand": Operator("{0}.unsqueeze({place}).expand({sizes})", _expanded, captured=("expand",)),
    "repeat": Operator(
        "{0}.repeat({times})",
        lambda d: ([d.x], {"times": tuple(d.rng.choice([1, 1, 2, 3]) for _ in d.shape)}),
    ),
    "repeat_interleave": _along("{0}.repeat_interleave({times}, {dim})", times=[2, 3]),
    "shuffle": Operator(
        "{0}.unflatten({dim}, ({groups}, -1)).transpose({dim}, {next}).flatten({dim}, {next})", _shuffled
    ),
    "channel_shuffle": Operator(
        "F.channel_shuffle({0}, {groups})",
        lambda d: ([d.x], {"groups": d.rng.choice(divisors(d.shape[1]))}),
        range(3, 6),
    ),
    "windows": Operator("{0}.unflatten({dim}, {sizes}).permute({order})", _windows),
    "pixel_shuffle": _plain("F.pixel_shuffle({0}, 2)", range(4, 5)),
    "pixel_unshuffle": _plain("F.pixel_unshuffle({0}, {by})", range(4, 5), by=[2, 3]),
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
    dim, step = _split_dim(d, 2)
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
    "cat_self": _along("torch.cat([{0}, {0} * 2, {0}], {dim})", captured=("cat", "mul")),
    "stack": Operator("torch.stack([{0}, {1}], {dim})", _stack, captured=("cat",)),
    "split": Operator("{0}.split({sizes}, {dim})", _split, captured=("slice",)),
    "chunk": _along("{0}.chunk({count}, {dim})", captured=("slice",), count=[2, 2, 3]),
    "unbind": _along("{0}.unbind({dim})", captured=("slice",)),
    "glu": _along("F.glu({0}, {dim})"),
    "slice": Operator("torch.ops.aten.slice.Tensor({0}, {dim}, {start}, {end}, {step})", _sliced),
    "every_other": Operator(
        "torch.ops.aten.slice.Tensor({0}, {dim}, {start}, {end}, {step})", _strided, captured=("slice",)
    ),
    "select": Operator("{0}.select({dim}, {index})", _selected, captured=("slice",)),
    "pad": Operator("F.pad({0}, {pads}, value={value})", _padded, captured=("constant_pad_nd",)),
    "pad_mode": Operator("F.pad({0}, {pads}, mode={mode!r})", _padded_from_itself, range(3, 6), ("pad",)),
    "flip": Operator("{0}.flip({dims})", lambda d: ([d.x], {"dims": d.dims()})),
    "roll": Operator("{0}.roll({shifts}, {dims})", _rolled, captured=("slice", "cat")),
    "roll_flat": _plain("{0}.roll({shift})", captured=("slice", "cat"), shift=[1, -2]),
    "index_select": Operator("{0}.index_select({dim}, {1})", _index_selected),
    "gather": Operator("{0}.gather({dim}, {1})", _gathered),
    "embedding": Operator("F.embedding({1}, {0})", _looked_up, range(2, 3)),
    "cumsum": _along("{0}.cumsum({dim}) / 3", captured=("cumsum", "div")),
    "cumprod": _along("({0} * 0.3 + 1).cumprod({dim})", captured=("cumprod", "mul", "add")),
    "topk": _along("{0}.topk(2, {dim}).values"),
    "sort": _along("{0}.sort({dim}).values"),
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
    "sum": _over("{0}.sum({dims}, keepdim={keep})"),
    "mean": _over("{0}.mean({dims}, keepdim={keep})"),
    "amax": _over("{0}.amax({dims}, keepdim={keep})"),
    "amin": _over("{0}.amin({dims}, keepdim={keep})"),
    "prod": _along("({0} * 0.3 + 1).prod({dim}, keepdim={keep})", ("prod", "mul", "add"), keep=[True, False]),
    "var": _over("{0}.var({dims}, correction=0, keepdim={keep})"),
    "logsumexp": _over("{0}.logsumexp({dims}, keepdim={keep})"),
    "norm": _over("torch.linalg.vector_norm({0}, dim={dims}, keepdim={keep})", ("linalg_vector_norm",)),
    "max": _along("{0}.max({dim}).values"),
    "argmax": _along("{0}.argmax({dim}, keepdim={keep}).to({0}.dtype)", keep=[True, False]),
    "argmin": _along("{0}.argmin({dim}, keepdim={keep}).to({0}.dtype)", keep=[True, False]),
    "argmax_flat": _plain("{0}.argmax().to({0}.dtype)", range(1, 7), ("argmax",)),
    "mean_all": _plain("{0}.mean()", captured=("mean",)),
    "sum_all": _plain("{0}.sum()", captured=("sum",)),
    "amax_all": _plain("{0}.amax()", captured=("amax",)),
    "softmax": _along("{0}.softmax({dim})"),
    "log_softmax": _along("F.log_softmax({0}, {dim})"),
    "layer_norm": Operator("F.layer_norm({0}, {shape}, {1}, {2})", _layer_norm),
    "rms_norm": Operator(
        "F.rms_norm({0}, {shape})", lambda d: ([d.x], {"shape": d.shape[-1:]}), captured=("mean", "rsqrt")
    ),
    "group_norm": Operator("F.group_norm({0}, {groups}, {1}, {2})", _group_norm, range(2, 6)),
    "instance_norm": Operator(
        "F.instance_norm({0}, weight={1}, bias={2})", lambda d: ([d.x, *_affine(d)], {}), range(3, 6)
    ),
    "batch_norm": Operator("F.batch_norm({0}, {1}, {2}, {3}, {4})", _batch_norm, range(2, 6)),
    "normalize": _along("F.normalize({0}, dim={dim})"),
}


# -- contractions


def _conv(space: int, named: bool = False) -> Operator:
    def draw(d: Draw) -> Drawn | None:
        place = d.rank - space - 1  # 0 without a batch
        channels, sizes = d.shape[place], d.shape[place + 1 :]
        groups = d.rng.choice([1, 1, channels, d.rng.choice(divisors(channels))])
        outputs = groups * (d.rng.randint(1, 3) if groups > 1 else d.rng.choice([2, 3, 5, 6, 8]))
        stride, dilation, padding = (
            _per_dim(d, space, most) for most in ((1, 1, 2, 3), (1, 1, 2), (0, 1, 2))
        )
        kernel = tuple(d.rng.randint(1, min(4, size)) for size in sizes)
        operands = [d.x, d.constant((outputs, channels // groups, *kernel)), _bias(d, outputs)]
        if named:
            padding = d.rng.choice(["same", "valid"])  # type: ignore[assignment]
            stride = (1,) * space
        attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return operands, attributes

    shown = "stride={stride}, padding={padding!r}, dilation={dilation}, groups={groups}"
    source = f"F.conv{space}d({{0}}, {{1}}, {{2}}, {shown})"
    return Operator(source, draw, range(space + 1 + named, space + 3), ("convolution",))


def _conv_transpose(space: int) -> Operator:
    def draw(d: Draw) -> Drawn:
        channels = d.shape[d.rank - space - 1]
        groups = d.rng.choice([1, 1, channels, d.rng.choice(divisors(channels))])
        each = d.rng.randint(1, 3)
        stride, dilation = _per_dim(d, space, (1, 2, 2, 3)), _per_dim(d, space, (1, 1, 2))
        padding = _per_dim(d, space, (0, 0, 1))
        extra = tuple(d.rng.randint(0, max(s, r) - 1) for s, r in zip(stride, dilation, strict=True))
        kernel = tuple(d.rng.randint(1, 3) for _ in range(space))
        operands = [d.x, d.constant((channels, each, *kernel)), _bias(d, groups * each)]
        attributes = {"stride": stride, "padding": padding, "extra": extra, "dilation": dilation}
        return operands, {**attributes, "groups": groups}

    shown = "stride={stride}, padding={padding}, output_padding={extra}, groups={groups}, dilation={dilation}"
    source = f"F.conv_transpose{space}d({{0}}, {{1}}, {{2}}, {shown})"
    return Operator(source, draw, range(space + 2, space + 3), ("convolution",))


def _bias(d: Draw, size: int) -> str:
    return d.constant((size,)) if d.chance(0.7) else "None"


def _per_dim(d: Draw, space: int, among: Sequence[int]) -> tuple[int, ...]:
    if d.chance(0.6):
        return (d.rng.choice(among),) * space
    return tuple(d.rng.choice(among) for _ in range(space))


def _linear(d: Draw) -> Drawn:
    out = d.rng.randint(1, 9)
    return [d.x, d.constant((out, d.shape[-1])), _bias(d, out)], {}


def _matmul_right(d: Draw) -> Drawn:
    batch = d.shape[:-2] if d.chance(0.3) else ()
    return [d.x, d.constant((*batch, d.shape[-1], d.rng.randint(1, 7)))], {}


def _matmul_left(d: Draw) -> Drawn:
    batch = d.shape[:-2] if d.chance(0.3) else ()
    return [d.constant((*batch, d.rng.randint(1, 7), d.shape[-2])), d.x], {}


def _matmul(d: Draw) -> Drawn | None:
    found = d.like(
        lambda shape: (
            len(shape) > 1 and shape[-2] == d.shape[-1] and broadcast(shape[:-2], d.shape[:-2]) is not None
        )
    )
    return None if found is None else ([d.x, found], {})


def _matmul_transposed(d: Draw) -> Drawn | None:
    found = d.like(
        lambda shape: len(shape) == d.rank and shape[-1] == d.shape[-1] and shape[:-2] == d.shape[:-2]
    )
    return None if found is None else ([d.x, found], {})


def _attention(d: Draw) -> Drawn | None:
    def fits(shape: Shape) -> bool:
        return len(shape) == d.rank and without(shape, d.rank - 2) == without(d.shape, d.rank - 2)

    keys = d.like(fits)
    if keys is None:
        return None
    values = d.like(lambda shape: shape[:-1] == d.values[keys][:-1] and len(shape) == d.rank) or keys
    causal = d.chance(0.3)
    masked = not causal and d.chance(0.5)
    mask = (
        d.constant((d.shape[-2], d.values[keys][-2]), d.rng.choice(["normal", "mask"])) if masked else "None"
    )
    return [d.x, keys, values, mask], {"causal": causal}


CONTRACTED = {
    **{f"conv{space}d": _conv(space) for space in (1, 2, 3)},
    **{f"conv{space}d_named": _conv(space, named=True) for space in (1, 2, 3)},
    **{f"conv_transpose{space}d": _conv_transpose(space) for space in (1, 2, 3)},
    "linear": Operator("F.linear({0}, {1}, {2})", _linear),
    "matmul": Operator("{0} @ {1}", _matmul, range(2, 6)),
    "matmul_right": Operator("{0} @ {1}", _matmul_right, range(1, 6), ("matmul", "linear")),
    "matmul_left": Operator("{0} @ {1}", _matmul_left, range(2, 6), ("matmul",)),
    "matmul_transposed": Operator(
        "{0} @ {1}.transpose(-1, -2)", _matmul_transposed, range(2, 6), ("matmul",)
    ),
    "bmm": Operator("torch.bmm({0}, {1}.transpose(1, 2))", _matmul_transposed, range(3, 4), ("matmul",)),
    "einsum": Operator(
        "torch.einsum('bik,bjk->bij', {0}, {1})", _matmul_transposed, range(3, 4), ("matmul",)
    ),
    "self_attention": _plain(
        "({0} @ {0}.transpose(-1, -2) / 3).softmax(-1) @ {0}", range(2, 6), ("matmul", "softmax", "div")
    ),
    "attention": Operator(
        "F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3}, is_causal={causal})",
        _attention,
        range(3, 5),
        ("matmul", "softmax"),
    ),
}


# -- windows over space


def _pool(space: int, kind: str) -> Operator:
    def draw(d: Draw) -> Drawn:
        kernel, stride = _per_dim(d, space, (2, 2, 3)), _per_dim(d, space, (1, 2, 2, 3))
        padding = _per_dim(d, space, (0, 0, 1))
        attributes: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
        attributes["ceil"] = d.chance(0.4)
        if kind == "max":
            attributes["dilation"] = _per_dim(d, space, (1, 1, 2))
        else:
            attributes["counted"] = d.chance(0.5)
        return [d.x], attributes

    more = "dilation={dilation}" if kind == "max" else "count_include_pad={counted}"
    source = f"F.{kind}_pool{space}d({{0}}, {{kernel}}, {{stride}}, {{padding}}, ceil_mode={{ceil}}, {more})"
    return Operator(source, draw, range(space + 1, space + 3))


def _adaptive(space: int, kind: str) -> Operator:
    def draw(d: Draw) -> Drawn:
        return [d.x], {"sizes": tuple(d.rng.choice([1, 2, 3, s]) for s in d.shape[-space:])}

    return Operator(f"F.adaptive_{kind}_pool{space}d({{0}}, {{sizes}})", draw, range(space + 1, space + 3))


def _resize(d: Draw, modes: Sequence[str]) -> dict[str, Any]:
    mode = d.rng.choice(modes)
    corners = d.rng.choice([True, False]) if mode != "nearest" else None
    return {"mode": mode, "corners": corners}


_MODES = {
    3: ("nearest", "linear"),
    4: ("nearest", "bilinear", "bilinear", "bicubic"),
    5: ("nearest", "trilinear"),
}


def _scaled(d: Draw) -> Drawn:
    return [d.x], {"by": d.rng.choice([2, 2, 3, 0.5]), **_resize(d, _MODES[d.rank])}


def _resized(d: Draw) -> Drawn:
    size = tuple(d.rng.randint(1, 2 * s) for s in d.shape[2:])
    return [d.x], {"size": size, **_resize(d, _MODES[d.rank])}


_UPSAMPLES = tuple(
    f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "bilinear2d", "linear1d")
)
_INTERPOLATE = "F.interpolate({0}, %s, mode={mode!r}, align_corners={corners})"

SPATIAL = {
    **{f"{kind}_pool{space}d": _pool(space, kind) for kind in ("max", "avg") for space in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{space}d": _adaptive(space, kind)
        for kind in ("max", "avg")
        for space in (1, 2, 3)
    },
    "upsample": Operator(_INTERPOLATE % "scale_factor={by}", _scaled, range(3, 6), _UPSAMPLES),
    "resize": Operator(_INTERPOLATE % "size={size}", _resized, range(3, 6), _UPSAMPLES),
    "max_pool2d_indices": _plain(
        "F.max_pool2d({0}, 2, return_indices=True)[1].to({0}.dtype)",
        range(4, 5),
        ("max_pool2d_with_indices",),
    ),
    "unfold": _plain("F.unfold({0}, 2)", range(4, 5)),
}

FAMILIES: tuple[Mapping[str, Operator], ...] = (POINTWISE, VIEWS, INDEXED, REDUCED, CONTRACTED, SPATIAL)
WEIGHTS = (5, 3, 4, 3, 5, 3)
OPERATORS: Mapping[str, Operator] = {name: row for family in FAMILIES for name, row in family.items()}


def divisors(size: int) -> list[int]:
    """
    >>> divisors(6)
    [1, 2, 3, 6]
    """
    return [n for n in range(1, size + 1) if size % n == 0]


def without(shape: Shape, dim: int) -> Shape:
    """
    >>> without((2, 3, 5), 1)
    (2, 5)
    """
    return shape[:dim] + shape[dim + 1 :]


# Rows that a target refuses, whatever their attributes, for want of an operator or of a kernel.
_XNNPACK = """sort conv_transpose3d adaptive_max_pool3d adaptive_avg_pool3d"""
_TOSA = (
    """atan2 topk sort conv_transpose3d adaptive_max_pool3d adaptive_avg_pool3d max_pool2d_indices unfold"""
)
LEFT_OUT: Mapping[str, frozenset[str]] = {
    "xnnpack": frozenset(_XNNPACK.split()),
    "tosa": frozenset(_TOSA.split()),
}
