"""List the operators of random networks that choose by masks, read or write at given places, or run step by
step."""

from __future__ import annotations

import math

from tests.fuzz.rows import (
    Draw,
    Drawn,
    Operator,
    Shape,
    along,
    binary,
    broadcast,
    broadcasting,
    divisors,
    per_dim,
    plain,
    without,
)

# -- masks: of the caller, constant, or computed


def mask(d: Draw) -> str:
    """A truth value that broadcasts to `x`."""
    fitting = [name for name, shape in d.masks.items() if broadcast(shape, d.shape) == d.shape]
    if fitting and d.chance(0.8):
        return d.rng.choice(fitting)
    shape = tuple(1 if d.chance(0.3) else size for size in d.shape)
    return d.constant(shape[d.rng.randint(0, min(1, d.rank)) :], "mask")


def _ids(d: Draw, shape: Shape, high: int = 5) -> str:
    """Whole numbers that broadcast to a shape."""
    fitting = [name for name, each in d.ids.items() if broadcast(each, shape) == shape]
    return d.rng.choice(fitting) if fitting and d.chance(0.8) else d.constant(shape, "index", high)


def _with_mask(d: Draw) -> Drawn:
    return [d.x, mask(d), broadcasting(d)], {}


def _with_masks(d: Draw) -> Drawn:
    return [d.x, mask(d), mask(d)], {"both": d.rng.choice("&|^")}


def _with_ids(d: Draw) -> Drawn:
    compared = d.rng.choice(["==", "!=", ">", ">=", "<", "<="])
    return [d.x, _ids(d, d.shape), broadcasting(d)], {"compared": compared, "known": d.rng.randint(0, 3)}


def _within_lengths(d: Draw) -> Drawn:
    return [d.x, _ids(d, d.shape[:-1], d.shape[-1] + 1)], {"size": d.shape[-1]}


_HIDDEN = ("float('-inf')", "-1e9", "-1e4", "torch.finfo(torch.float32).min")


def _hidden_scores(d: Draw) -> Drawn:
    return [d.x, mask(d)], {"dim": d.rng.choice([-1, -1, d.dim()]), "value": d.rng.choice(_HIDDEN)}


def _hidden_products(d: Draw) -> Drawn:
    rows = d.shape[-2]
    kind = d.rng.choice(["whole", "keys"])
    return [d.x, d.constant((rows, rows) if kind == "whole" else (rows,), "mask")], {
        "value": d.rng.choice(_HIDDEN)
    }


MASKED = {
    "where_not": Operator("torch.where(~{1}, {0}, {2})", _with_mask, captured=("where",)),
    "where_both": Operator("torch.where({1} {both} {2}, {0}, 0.3)", _with_masks, captured=("where", "mul")),
    "where_ids": Operator("torch.where({1} {compared} {known}, {0}, {2})", _with_ids, captured=("where",)),
    "where_within": Operator(
        "torch.where(({0} > -0.5) & ({0} < 0.75), {0}, {1})",
        lambda d: ([d.x, broadcasting(d)], {}),
        captured=("where",),
    ),
    "within_lengths": Operator(
        "torch.where(torch.arange({size}) < {1}.unsqueeze(-1), {0}, 0.0)",
        _within_lengths,
        captured=("where",),
    ),
    "times_mask": Operator(
        "{0} * {1}.to({0}.dtype)", lambda d: (_with_mask(d)[0][:2], {}), captured=("mul",)
    ),
    "one_of_two": Operator(
        "{0} + torch.where({1}, 0.5, -1.25)", lambda d: (_with_mask(d)[0][:2], {}), captured=("add",)
    ),
    "compared": binary("({0} > {1}).to({0}.dtype)", captured=("gt",)),
    "any": along("({0} > 0.3).any({dim}, keepdim={keep}).to({0}.dtype)", ("any",), keep=[True, False]),
    "all": along("({0} > -0.3).all({dim}, keepdim={keep}).to({0}.dtype)", ("all",), keep=[True, False]),
    "triangle": plain(
        "{0}.{which}({offset})", range(2, 6), ("where",), which=["tril", "triu"], offset=[0, 1, -1]
    ),
    "hidden_scores": Operator(
        "{0}.masked_fill({1}, {value}).softmax({dim})", _hidden_scores, captured=("where", "softmax")
    ),
    "hidden_products": Operator(
        "({0} @ {0}.transpose(-1, -2)).masked_fill({1}, {value}).softmax(-1) @ {0}",
        _hidden_products,
        range(2, 6),
        ("where", "softmax", "matmul"),
    ),
    "causal": Operator(
        "({0} @ {0}.transpose(-1, -2)"
        " + torch.full(({rows}, {rows}), float('-inf')).triu(1).to({0}.dtype)).softmax(-1) @ {0}",
        lambda d: ([d.x], {"rows": d.shape[-2]}),
        range(2, 6),
        ("softmax", "matmul", "add"),
    ),
}


# -- reading and writing at places


def _slice_scattered(d: Draw) -> Drawn:
    dim, step = d.dim(), d.rng.choice([1, 1, 1, 2])
    start = d.rng.randrange(d.shape[dim])
    end = d.rng.randint(start + 1, d.shape[dim])
    count = len(range(start, end, step))
    shape = (*d.shape[:dim], count, *d.shape[dim + 1 :])
    found = d.like(lambda other: other == shape) or d.constant(shape)
    return [d.x, found], {"dim": dim, "start": start, "end": end, "step": step}


def _select_scattered(d: Draw) -> Drawn:
    dim = d.dim()
    shape = without(d.shape, dim)
    found = (d.like(lambda other: other == shape) if shape else None) or d.constant(shape)
    return [d.x, found], {"dim": dim, "index": d.rng.randrange(-d.shape[dim], d.shape[dim])}


def _put(kind: str) -> Operator:
    """Rows written at constant indices; `kind` says whether an index may come twice."""

    def draw(d: Draw) -> Drawn:
        dim = int(d.chance(0.15))
        count = d.rng.randint(1, min(4, d.shape[dim]))
        index = d.constant((count,), kind, d.shape[dim])
        rest = (*d.shape[:dim], count, *d.shape[dim + 1 :])
        values = d.like(lambda other: other == rest) or d.constant(rest)
        return [d.x, *["None"] * dim, index, *["None"] * (1 - dim), values], {}

    source = f"torch.ops.aten.index_put({{0}}, [{{1}}, {{2}}], {{3}}, {kind == 'index'})"
    return Operator(source, draw, range(2, 6), ("index_put",))


def _indexed(d: Draw) -> Drawn:
    """One or two dimensions by constants, which broadcast with one another."""
    dims = sorted(d.rng.sample(range(d.rank), d.rng.choice([1, 1, 2])))
    count = d.rng.randint(1, 4)
    shapes = d.rng.choice([[(count,), (count,)], [(count, 1), (d.rng.randint(2, 3),)]])
    found = ["None"] * d.rank
    for dim, shape in zip(dims, shapes, strict=False):
        found[dim] = d.constant(shape, "index", d.shape[dim])
    return [d.x, *found], {}


def _grid(d: Draw) -> Drawn:
    dim, step = d.dim(), d.rng.choice([1, 2, 3])
    return [d.x], {
        "dim": dim,
        "start": d.rng.randrange(min(step, d.shape[dim])),
        "step": step,
        "size": d.shape[dim],
    }


def _bagged(d: Draw) -> Drawn:
    count = d.rng.randint(2, 6)
    starts = (0, *sorted(d.rng.randint(1, count) for _ in range(d.rng.randint(0, 2))))
    return [d.x, d.constant((count,), "index", d.shape[0])], {
        "offsets": starts,
        "mode": d.rng.choice(["sum", "mean", "max"]),
    }


def _unfolded(d: Draw) -> Drawn:
    kernel, dilation = per_dim(d, 2, (1, 2, 2, 3)), per_dim(d, 2, (1, 1, 2))
    return [d.x], {
        "kernel": kernel,
        "dilation": dilation,
        "padding": per_dim(d, 2, (0, 0, 1)),
        "stride": kernel if d.chance(0.4) else per_dim(d, 2, (1, 2, 3)),
    }


def _folded(d: Draw) -> Drawn | None:
    channels, count = d.shape[-2:]
    kernel = d.rng.choice(
        [k for k in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 1)) if channels % math.prod(k) == 0]
    )
    stride = kernel if d.chance(0.4) else per_dim(d, 2, (1, 2, 3))
    dilation, padding = per_dim(d, 2, (1, 1, 2)), per_dim(d, 2, (0, 0, 1))
    rows = d.rng.choice(divisors(count))
    windows = zip((rows, count // rows), kernel, stride, dilation, padding, strict=True)
    sizes = tuple((n - 1) * s + a * (k - 1) + 1 - 2 * p for n, k, s, a, p in windows)
    if min(sizes) < 1:
        return None
    return [d.x], {
        "sizes": sizes,
        "kernel": kernel,
        "dilation": dilation,
        "padding": padding,
        "stride": stride,
    }


def _windowed(d: Draw) -> Drawn:
    dim = d.dim()
    size = d.rng.randint(1, min(4, d.shape[dim]))
    return [d.x], {"dim": dim, "size": size, "step": d.rng.choice([1, size, 2, 3])}


def _places_of_pool(space: int) -> Operator:
    def draw(d: Draw) -> Drawn:
        kernel = per_dim(d, space, (2, 2, 3))
        return [d.x], {
            "kernel": kernel,
            "stride": d.rng.choice([kernel, per_dim(d, space, (1, 2))]),
            "padding": per_dim(d, space, (0, 0, 1)),
            "dilation": per_dim(d, space, (1, 1, 2)),
            "ceil": d.chance(0.3),
        }

    arguments = "{kernel}, {stride}, {padding}, {dilation}, {ceil}, return_indices=True"
    source = f"F.max_pool{space}d({{0}}, {arguments})[1]"
    name = "max_pool3d" if space == 3 else "max_pool2d"
    return Operator(source, draw, range(space + 1, space + 3), (f"{name}_with_indices",))


def _places_of_adaptive_pool(d: Draw) -> Drawn:
    return [d.x], {"sizes": tuple(d.rng.choice(divisors(size)) for size in d.shape[-2:])}


_STRIDES = "{kernel}, {dilation}, {padding}, {stride}"

PLACED = {
    "slice_scatter": Operator(
        "torch.slice_scatter({0}, {1}, {dim}, {start}, {end}, {step})",
        _slice_scattered,
        captured=("cat", "slice"),
    ),
    "select_scatter": Operator(
        "torch.select_scatter({0}, {1}, {dim}, {index})", _select_scattered, captured=("cat", "slice")
    ),
    "index_put": _put("places"),
    "index_put_added": _put("index"),
    **{
        f"index_of_{rank}": Operator(
            f"torch.ops.aten.index.Tensor({{0}}, [{', '.join(f'{{{i + 1}}}' for i in range(rank))}])",
            _indexed,
            range(rank, rank + 1),
            ("index",),
        )
        for rank in (2, 3, 4)
    },
    "index_grid": Operator(
        "{0}.index_select({dim}, torch.arange({start}, {size}, {step}))", _grid, captured=("slice",)
    ),
    "index_backwards": Operator(
        "{0}.index_select({dim}, torch.arange({start}, {size}, {step}).flip(0))",
        _grid,
        captured=("slice", "flip"),
    ),
    "embedding_bag": Operator(
        "F.embedding_bag({1}, {0}, torch.tensor({offsets}), mode={mode!r})",
        _bagged,
        range(2, 3),
        ("embedding", "matmul", "amax"),
    ),
    "im2col": Operator(f"F.unfold({{0}}, {_STRIDES})", _unfolded, range(4, 5), ("slice", "cat")),
    "col2im": Operator(f"F.fold({{0}}, {{sizes}}, {_STRIDES})", _folded, range(2, 4), ("slice", "add")),
    "unfold_dim": Operator("{0}.unfold({dim}, {size}, {step})", _windowed, captured=("slice", "cat")),
    "median": along("{0}.median({dim}, keepdim={keep}).values", ("median", "where"), keep=[True, False]),
    # Places are left whole numbers, which `lower` does not compare on inputs of many magnitudes: of elements
    # that are equal, or differ by a rounding, any may be the median or the largest.
    # Of equal elements PyTorch names any: what is added leaves none equal that a clamp made so.
    "median_place": along(
        "({0} + torch.linspace(1, 2, {0}.numel()).view({0}.shape)).median({dim}).indices",
        ("median", "argmax"),
    ),
    "median_all": plain("{0}.flatten()[:60].median()", range(1, 6), ("median",)),
    **{f"max_pool{space}d_places": _places_of_pool(space) for space in (1, 2, 3)},
    "adaptive_max_pool2d_places": Operator(
        "F.adaptive_max_pool2d({0}, {sizes}, return_indices=True)[1]",
        _places_of_adaptive_pool,
        range(3, 5),
        ("adaptive_max_pool2d",),
    ),
}


# -- recurrent networks, of one layer


def _recurrent(gates: int, cell: bool) -> Operator:
    name = {1: "rnn_tanh", 3: "gru", 4: "lstm"}[gates]

    def draw(d: Draw) -> Drawn:
        first = d.chance(0.6)  # the batch
        hidden, features, batch = d.rng.randint(2, 5), d.shape[2], d.shape[0 if first else 1]
        weights = [d.constant((gates * hidden, size)) for size in (features, hidden)]
        biases = [d.constant((gates * hidden,)) for _ in range(2)]
        states = [d.constant((1, batch, hidden)) for _ in range(2 if cell else 1)]
        return [d.x, *states, *weights, *biases], {"first": first}

    held = "({1}, {2})" if cell else "{1}"
    begin = 3 if cell else 2
    parameters = ", ".join(f"{{{i}}}" for i in range(begin, begin + 4))
    source = f"torch.{name}({{0}}, {held}, [{parameters}], True, 1, 0.0, False, False, {{first}})[0]"
    return Operator(source, draw, range(3, 4), ("linear", "sigmoid", "tanh", "mul", "add"))


RECURRENT: dict[str, Operator] = {
    "rnn": _recurrent(1, cell=False),
    "gru": _recurrent(3, cell=False),
    "lstm": _recurrent(4, cell=True),
}
