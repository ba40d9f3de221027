"""Draw convolutions, linears, products of matrices and attention."""

from __future__ import annotations

from tests.fuzz.rows import (
    Draw,
    Drawn,
    Operator,
    Shape,
    broadcast,
    divisors,
    per_dim,
    plain,
    without,
)


def _conv(space: int, named: bool = False) -> Operator:
    def draw(d: Draw) -> Drawn | None:
        place = d.rank - space - 1  # 0 without a batch
        channels, sizes = d.shape[place], d.shape[place + 1 :]
        groups = d.rng.choice([1, 1, channels, d.rng.choice(divisors(channels))])
        outputs = groups * (d.rng.randint(1, 3) if groups > 1 else d.rng.choice([2, 3, 5, 6, 8]))
        stride, dilation, padding = (per_dim(d, space, most) for most in ((1, 1, 2, 3), (1, 1, 2), (0, 1, 2)))
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
        stride, dilation = per_dim(d, space, (1, 2, 2, 3)), per_dim(d, space, (1, 1, 2))
        padding = per_dim(d, space, (0, 0, 1))
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
    size = (d.shape[-2], d.values[keys][-2])
    given = [name for name, shape in d.masks.items() if broadcast(shape, size) == size]
    hidden = d.rng.choice(given) if given else d.constant(size, d.rng.choice(["normal", "mask"]))
    return [d.x, keys, values, hidden if masked else "None"], {"causal": causal}


def _grouped_attention(d: Draw) -> Drawn:
    return [d.x], {"step": d.rng.choice(divisors(d.shape[-3]))}


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
    "self_attention": plain(
        "({0} @ {0}.transpose(-1, -2) / 3).softmax(-1) @ {0}", range(2, 6), ("matmul", "softmax", "div")
    ),
    "attention": Operator(
        "F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3}, is_causal={causal})",
        _attention,
        range(3, 5),
        ("matmul", "softmax"),
    ),
    "grouped_attention": Operator(
        "F.scaled_dot_product_attention({0}, {0}[:, ::{step}], {0}[:, ::{step}], enable_gqa=True)",
        _grouped_attention,
        range(4, 5),
        ("matmul", "softmax"),
    ),
}
