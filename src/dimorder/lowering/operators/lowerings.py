"""Decides how each operator runs on physical tensors: one small function per treatment, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.lowering.annotate import results_of
from dimorder.lowering.building import Call, args_of, is_named, shape_of
from dimorder.lowering.extract import Token, token_axes
from dimorder.lowering.operators import dialect as _dialect  # noqa: F401  (registers torch.ops.dimorder)
from dimorder.lowering.operators.op_rules import is_pointwise, operands

aten = torch.ops.aten


def refuses(node: torch.fx.Node) -> str | None:
    """Why a call has no physical form other than row-major, or None."""
    if node.target is aten.convolution.default and len(shape_of(node)) > 4 and args_of(node)[6]:
        return "3-D transposed convolution has no channels-last form"
    if node.target in _SPATIAL and len(shape_of(node)) != 4:
        return "only 2-D pooling and resizing has a channels-last form"
    if is_pointwise(node) or node.target in _LOWERINGS:
        return None
    return "no physical form is known"


def lower(c: Call) -> None:
    """Append the operator to the graph, on operands in their planned orders."""
    (_opaque if c.site.kind == "opaque" else _LOWERINGS.get(c.target, _elementwise))(c)


def _opaque(c: Call) -> None:
    """Row-major operands in their logical shapes, the operator as it is."""
    dynamic = iter(range(len(c.site.reads)))

    def take(source: torch.fx.Node) -> torch.fx.Node:
        if source.op == "get_attr":
            return c.b.constant(str(source.target), c.b.program.constant(source))
        i = next(dynamic)
        view = c.site.views[i]
        return c.b.shaped(view.buffer, c.dynamic[i], c.b.dimensions(view, shape_of(source)))

    args, kwargs = pytree.tree_map_only(torch.fx.Node, take, (args_of(c.node), c.node.kwargs))
    node = c.b.call(c.target, *args, **kwargs)
    several = isinstance(c.node.meta["val"], (list, tuple))
    for index, _ in enumerate(results_of(c.node)):
        view = c.site.writes[index]
        value = c.node.meta["val"][index] if several else c.node.meta["val"]
        runs = c.b.dimensions(view, tuple(value.shape))
        picked = c.b.graph.call_function(_getitem, (node, index)) if several else node
        dense = c.b.call(aten.clone.default, picked, memory_format=torch.contiguous_format)
        c.b.store(view.buffer, c.orders[c.result + index], dense, tuple(runs))


def _elementwise(c: Call) -> None:
    groups = c.split()
    feed = iter(c.all_operands(groups))
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda _: next(feed), (args_of(c.node), c.node.kwargs))
    c.give(c.b.call(c.target, *args, **kwargs), groups)


def _prelu(c: Call) -> None:
    """The slope lies along the last physical dimension, or is spelt out."""
    groups = c.split()
    x, slope = c.all_operands(groups)
    held = token_axes(c.tensors[1], c.relation) if len(c.site.reads) == 1 else {}
    inner = [group for group in groups if any(token in held for token in group)]
    if held and inner == groups[-1:]:
        slope = c.b.call(aten.view.default, slope, [c.size(0, groups[-1])])
        c.give(c.b.call(torch.ops.dimorder.prelu_last.default, x, slope), groups)
        return
    negative = c.b.call(aten.mul.Tensor, c.b.call(aten.clamp.default, x, None, 0.0), slope)
    c.give(c.b.call(aten.add.Tensor, c.b.call(aten.relu.default, x), negative), groups)


def _expand(c: Call) -> None:
    groups = c.split()
    groups = (
        [[t] for t in c.arrangement.tokens]
        if any(len({c.has(t, 0) for t in g}) > 1 for g in groups)
        else groups
    )
    c.give_dense(
        c.b.call(aten.expand.default, c.take(0, groups), [c.size(c.result, group) for group in groups]),
        groups,
    )


def _relabel(c: Call) -> None:
    """A view with blocks: the same memory; its dimensions are found when it is read."""
    view = c.site.writes[0]
    c.b.store(view.buffer, c.orders[c.result], c.dynamic[0].node, None)


def _reduce(c: Call) -> None:
    reduced = set(c.labelled("r"))
    groups = _or_size_1(c.split(alone=reduced), reduced)
    dims = [d for d, group in enumerate(groups) if group and set(group) <= reduced] or [len(groups) - 1]
    node = c.b.call(c.target, c.take(0, groups), dims, True, **c.node.kwargs)
    c.give(node, [[] if d in dims else group for d, group in enumerate(groups)])


def _or_size_1(groups: list[list[Token]], wanted: Iterable[Token]) -> list[list[Token]]:
    """Physical dimensions with one more, of size 1, for an operator whose own dimension has no axes."""
    return groups if any(wanted) else [*groups, []]


def _index_reduce(c: Call) -> None:
    reduced = c.labelled("r")
    groups = _or_size_1(c.split(alone=reduced), reduced)
    dim = next((d for d, group in enumerate(groups) if group and group[0] in reduced), len(groups) - 1)
    c.give(
        c.b.call(c.target, c.take(0, groups), dim, True),
        [[] if d == dim else g for d, g in enumerate(groups)],
    )


def _softmax(c: Call) -> None:
    """The operator itself along one physical dimension; from parts where its dimension lies in several."""
    k = set(c.labelled("k"))
    groups = _or_size_1(c.split(alone=k), k)
    dims = [d for d, group in enumerate(groups) if group and group[0] in k] or [len(groups) - 1]
    x, log = c.take(0, groups), c.target is aten.log_softmax.int
    if len(dims) == 1:
        c.give(c.b.call(c.target, x, dims[0], *args_of(c.node)[2:]), groups)
        return
    if args_of(c.node)[2:] and args_of(c.node)[2] is not None:
        x = c.b.call(aten._to_copy.default, x, dtype=args_of(c.node)[2])
    shifted = c.b.call(aten.sub.Tensor, x, c.b.call(aten.amax.default, x, dims, True))
    powers = c.b.call(aten.exp.default, shifted)
    total = c.b.call(aten.sum.dim_IntList, powers, dims, True)
    scaled = (
        (aten.sub.Tensor, shifted, c.b.call(aten.log.default, total))
        if log
        else (aten.div.Tensor, powers, total)
    )
    c.give(c.b.call(*scaled), groups)


def _cumulative(c: Call) -> None:
    k = c.labelled("k")
    groups = _or_size_1(c.split(alone=k, together=k), k)
    dim = next((d for d, group in enumerate(groups) if group and group[0] in k), len(groups) - 1)
    c.give(c.b.call(c.target, c.take(0, groups), dim, *args_of(c.node)[2:], **c.node.kwargs), groups)


def _layer_norm(c: Call) -> None:
    """The operator itself over the last physical dimension; from parts where its dimensions lie elsewhere."""
    k = c.labelled("k")
    order = c.permutation(0, "k")
    weight, bias = (None if w is None else w.reshape(-1)[order] for w in (c.weight(2), c.weight(3)))
    eps = args_of(c.node)[4] if len(args_of(c.node)) > 4 else 1e-5
    if not k or set(c.arrangement.tokens[-len(k) :]) == set(k):
        groups = _ending_in_k(c)
        c.give(
            c.b.call(
                c.target, c.take(0, groups), [len(order)], c.constant(weight, 2), c.constant(bias, 3), eps
            ),
            groups,
        )
        return
    groups = c.split(alone=k)
    dims = [d for d, group in enumerate(groups) if group and group[0] in k]
    shape = [c.size(0, group) if d in dims else 1 for d, group in enumerate(groups)]
    x = c.take(0, groups)
    centred = c.b.call(aten.sub.Tensor, x, c.b.call(aten.mean.dim, x, dims, True))
    variance = c.b.call(aten.mean.dim, c.b.call(aten.mul.Tensor, centred, centred), dims, True)
    y = c.b.call(
        aten.mul.Tensor, centred, c.b.call(aten.rsqrt.default, c.b.call(aten.add.Tensor, variance, eps))
    )
    if weight is not None:
        y = c.b.call(aten.mul.Tensor, y, c.constant(weight.reshape(shape), 2))
    if bias is not None:
        y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(shape), 3))
    c.give(y, groups)


def _ending_in_k(c: Call) -> list[list[Token]]:
    """Physical dimensions of which the last is label k, whole (of size 1 where k has no axes)."""
    k = c.labelled("k")
    groups = c.split(alone=k, together=k)
    return [*(group for group in groups if not (k and group and group[0] in k)), k] if k else [*groups, []]


def _cat(c: Call) -> None:
    cut = c.labelled("cut")
    groups = c.split(leads=cut)
    dim = next(d for d, group in enumerate(groups) if group and group[0] in cut)
    c.give(c.b.call(c.target, c.all_operands(groups), dim), groups)


def _slice(c: Call) -> None:
    dim, start, end, step = args_of(c.node)[1:5]
    lead = c.labelled("cut", "step")
    fine = step != 1 and lead and lead[0][0] != "step"
    groups = c.split(leads=lead, alone=lead if fine else ())
    position = next(d for d, group in enumerate(groups) if group and group[0] in lead)
    rest = c.size(0, groups[position]) // c.token_size(lead[0], 0)
    x = c.take(0, groups)
    if fine:
        c.give_dense(c.b.call(c.target, x, position, start, end, step), groups)
        return
    if step != 1:
        begin, length = start * rest, rest
    else:
        inner = shape_of(args_of(c.node)[0])[dim] // c.token_size(lead[0], 0)
        begin, length = start // inner * rest, (end - start) // inner * rest
    c.give_dense(c.b.call(c.target, x, position, begin, begin + length, 1), groups)


def _pad(c: Call) -> None:
    rank, pads = len(shape_of(c.node)), list(args_of(c.node)[1])
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts)
    amounts = [0] * (2 * len(groups))
    for i in range(0, len(pads), 2):
        name = f"cut.{rank - 1 - i // 2}"
        if not (pads[i] or pads[i + 1]):
            continue
        position = next(d for d, group in enumerate(groups) if group and is_named(group[0], name))
        inner = math.prod(
            size for label, size in _labels_of(c, rank - 1 - i // 2) if not is_named((label, 0), name)
        )
        rest = c.size(c.result, groups[position]) // c.token_size(groups[position][0], c.result)
        slot = 2 * (len(groups) - 1 - position)
        amounts[slot : slot + 2] = [pads[i] // inner * rest, pads[i + 1] // inner * rest]
    while len(amounts) > 2 and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    c.give(c.b.call(c.target, c.take(0, groups), amounts, *args_of(c.node)[2:]), groups)


def _labels_of(c: Call, dim: int) -> Sequence[tuple[str, int]]:
    return c.relation.reads[0][dim]


def _flip(c: Call) -> None:
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts, alone=cuts)
    dims = [d for d, group in enumerate(groups) if group and group[0] in cuts]
    c.give(c.b.call(c.target, c.take(0, groups), dims), groups)


def _linear(c: Call) -> None:
    """x Wᵀ with the features innermost, or W x with the features outermost."""
    weight, bias = c.weight(1), c.weight(2)
    assert weight is not None
    rows, columns = c.permutation(c.result, "k"), c.permutation(0, "k")
    weight, bias = weight[rows][:, columns], None if bias is None else bias[rows]
    k, tokens = c.labelled("k"), list(c.arrangement.tokens)
    if k and tokens[0] in k and len(tokens) > len(k):
        groups = [k, [token for token in tokens if token not in k]]
        y = c.b.call(aten.matmul.default, c.constant(weight, 1), c.take(0, groups))
        if bias is not None:
            y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(-1, 1), 2))
    else:
        groups = _ending_in_k(c)
        y = c.b.call(c.target, c.take(0, groups), c.constant(weight, 1), c.constant(bias, 2))
    c.give(y, groups)


def _matmul(c: Call) -> None:
    """One batch dimension where both operands have the same batch, else one per axis so that they broadcast.

    Where the arrangement puts n before m, this is (AB)ᵀ = BᵀAᵀ: the operands change sides.
    """
    batch = c.labelled("b")
    same = len(c.site.reads) == 2 and all(c.has(t, 0) == c.has(t, 1) for t in batch)
    heads = [batch] if same else [[token] for token in batch] or [[]]
    m, k, n = c.by_label(["m"], ["k"], ["n"])
    place = {token: p for p, token in enumerate(c.arrangement.tokens)}

    def precedes(a: list[Token], b: list[Token], unless: bool) -> bool:
        return place[a[0]] < place[b[0]] if a and b else unless

    straight = precedes(m, n, True)
    a_first, b_first = precedes(m, k, straight), precedes(k, n, straight)
    sides = ([*heads, m, k] if a_first else [*heads, k, m], [*heads, k, n] if b_first else [*heads, n, k])
    taken, dynamic = [], 0
    for position, source in enumerate(operands(c.node)):
        constant = source.op == "get_attr"
        taken.append(
            c.take_constant(position, sides[position]) if constant else c.take(dynamic, sides[position])
        )
        dynamic += not constant
    if not straight:
        taken, (a_first, b_first) = taken[::-1], (not b_first, not a_first)
    rank = len(heads) + 2
    swap = [*range(rank - 2), rank - 1, rank - 2]
    left, right = (
        node if first else c.b.call(aten.permute.default, node, swap)
        for node, first in zip(taken, (a_first, b_first), strict=True)
    )
    c.give(c.b.call(aten.matmul.default, left, right), [*heads, m, n] if straight else [*heads, n, m])


def _convolution(c: Call) -> None:
    """1-D convolutions are 2-D with a height of 1."""
    _, _, _, stride, padding, dilation, transposed, output_padding, groups = args_of(c.node)
    weight, bias = c.weight(1), c.weight(2)
    assert weight is not None
    spatial = [[f"s.{i}"] for i in range(weight.dim() - 2)]
    if len(spatial) == 1:
        weight, spatial = weight.unsqueeze(2), [[], *spatial]
    shape = c.by_label(["n"], *spatial, ["g", "c"])
    stride, padding, dilation, output_padding = (
        _spread(value, fill, len(spatial))
        for value, fill in ((stride, 1), (padding, 0), (dilation, 1), (output_padding, 0))
    )
    outputs, inputs = c.permutation(c.result, "g", "c"), c.permutation(0, "g", "c")
    physical = _relaid_weight(weight, inputs, outputs, groups, bool(transposed))
    operands_ = (
        c.take(0, shape),
        c.constant(physical, 1),
        c.constant(None if bias is None else bias[outputs], 2),
    )
    dialect = torch.ops.dimorder
    if transposed:
        rest: tuple[Any, ...]
        target, rest = (
            dialect.conv_transpose2d_nhwc.default,
            (stride, padding, output_padding, dilation, groups),
        )
    else:
        sides = [side for amount in padding for side in (amount, amount)]
        target = dialect.conv2d_nhwc.default if len(spatial) == 2 else dialect.conv3d_ndhwc.default
        rest = (stride, sides, dilation, groups)
    c.give(c.b.call(target, *operands_, *rest), shape)


def _relaid_weight(
    weight: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, groups: int, transposed: bool
) -> torch.Tensor:
    """The weight (O, kernel…, I / groups) for channels that lie in another order; groups move as wholes."""
    if transposed:  # (I, O / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    else:  # (O, I / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1))
    per_out, per_in = grouped.shape[1], grouped.shape[2]
    blocks = outputs.reshape(groups, per_out)
    group, within_out = blocks[:, 0] // per_out, blocks[0] % per_out
    within_in = inputs.reshape(groups, per_in)[0] % per_in
    relaid: torch.Tensor = grouped[group][:, within_out][:, :, within_in]
    return relaid.flatten(0, 1).movedim(1, -1).contiguous()


def _spatial(c: Call) -> None:
    shape = c.by_label(["n"], ["s.0"], ["s.1"], ["c"])
    target, arguments = _SPATIAL[c.target](c.node)
    c.give(c.b.call(target, c.take(0, shape), *arguments), shape)


def _max_pool_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    kernel, stride, padding, dilation, ceil_mode = _filled(args_of(node)[1:], (None, None, 0, 1, False))
    kernel = _spread(kernel, 1, 2)
    return torch.ops.dimorder.max_pool2d_nhwc.default, [
        kernel,
        _spread(stride, 1, 2) if stride else kernel,
        _spread(padding, 0, 2),
        _spread(dilation, 1, 2),
        ceil_mode,
    ]


def _avg_pool_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    kernel, stride, padding, ceil_mode, include, divisor = _filled(
        args_of(node)[1:], (None, None, 0, False, True, None)
    )
    kernel = _spread(kernel, 1, 2)
    return torch.ops.dimorder.avg_pool2d_nhwc.default, [
        kernel,
        _spread(stride, 1, 2) if stride else kernel,
        _spread(padding, 0, 2),
        ceil_mode,
        include,
        divisor,
    ]


def _bilinear_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    size = list(shape_of(node)[2:])
    return torch.ops.dimorder.upsample_bilinear2d_nhwc.default, [size, args_of(node)[2], *_scales(node)]


def _nearest_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    return torch.ops.dimorder.upsample_nearest2d_nhwc.default, [list(shape_of(node)[2:]), *_scales(node)]


def _scales(node: torch.fx.Node) -> list[float | None]:
    """The scale factors that the `.vec` overloads carry last; sizes alone decide where there are none."""
    factors = args_of(node)[-1] if str(node.target).endswith(".vec") else None
    return list(factors) if factors else [None, None]


_SPATIAL: dict[Any, Callable[[torch.fx.Node], tuple[Any, list[Any]]]] = {
    aten.max_pool2d.default: _max_pool_arguments,
    aten.avg_pool2d.default: _avg_pool_arguments,
    aten.upsample_bilinear2d.vec: _bilinear_arguments,
    aten.upsample_nearest2d.vec: _nearest_arguments,
}

_LOWERINGS: dict[Any, Callable[[Call], None]] = {
    aten._prelu_kernel.default: _prelu,
    aten.expand.default: _expand,
    aten.reshape.default: _relabel,
    aten.permute.default: _relabel,
    **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default), _reduce),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default), _index_reduce),
    **dict.fromkeys((aten.softmax.int, aten.log_softmax.int), _softmax),
    aten.cumsum.default: _cumulative,
    aten.layer_norm.default: _layer_norm,
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    aten.convolution.default: _convolution,
    **dict.fromkeys(_SPATIAL, _spatial),
}


def _getitem(value: Any, index: int) -> Any:
    return value[index]


def _spread(value: Any, fill: int, rank: int) -> list[int]:
    """One value per spatial dimension; a dimension that was added in front gets `fill`."""
    values = [value] * rank if isinstance(value, int) else list(value)
    return [fill] * (rank - len(values)) + values


def _filled(given: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    return [*given, *defaults[len(given) :]]
