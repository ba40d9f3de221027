"""Define convolutions, which run channels-last.

The constant weight is re-laid, so that the channels lie in any order on either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.quantized_constant import Scaled
from dimorder.graph.tracing import Tracer, Value, max_shape_of, shape_of
from dimorder.ops.builder import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.indexed import pad
from dimorder.ops.moves import squeeze, unsqueeze
from dimorder.ops.operator import (
    Dims,
    Implementation,
    Operator,
    Relation,
    args_of,
    dims_of,
    filled,
    operands,
    several,
    spelt,
)
from dimorder.ops.tokens import Token

aten = torch.ops.aten
_WEIGHTS = ("weight", "bias")


def _conv(rank: int, transposed: bool) -> Callable[..., Value]:
    def spread(value: Value) -> list[int]:
        return several(value, rank)

    def conv(
        n: Tracer,
        x: Value,
        w: Value,
        b: Value = None,
        stride: Value = 1,
        padding: Value = 0,
        *rest: Value,
    ) -> Value:
        if transposed:
            output_padding, groups, dilation = filled(rest, (0, 1, 1))
        else:
            output_padding, (dilation, groups) = 0, filled(rest, (1, 1))
        unbatched = len(shape_of(x)) == rank + 1
        if unbatched:
            x = unsqueeze(n, x, 0)
        if isinstance(padding, str):
            x, padding = _named_padding(n, x, w, padding, spread(dilation))
        y = n.emit(
            aten.convolution.default,
            x,
            w,
            b,
            spread(stride),
            spread(padding),
            spread(dilation),
            transposed,
            spread(output_padding),
            groups,
        )
        return squeeze(n, y, 0) if unbatched else y

    return conv


def _convolution(
    n: Tracer,
    x: Value,
    w: Value,
    b: Value,
    stride: Value,
    padding: Value,
    dilation: Value,
    transposed: bool,
    output_padding: Value,
    groups: int,
) -> Value:
    """Write a convolution with one number per spatial dimension in each argument."""
    count = len(shape_of(w)) - 2
    spread = (several(value, count) for value in (stride, padding, dilation, output_padding))
    stride, padding, dilation, output_padding = spread
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    return n.emit(aten.convolution.default, x, w, b, *rest)


def _named_padding(
    n: Tracer, x: Value, w: Value, padding: str, dilation: list[int]
) -> tuple[Value, list[int]]:
    totals = [
        0 if padding == "valid" else d * (k - 1) for d, k in zip(dilation, shape_of(w)[2:], strict=True)
    ]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    pads = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return pad(n, x, pads), [0] * len(totals)


def _relate_convolution(node: torch.fx.Node) -> Relation | str:
    x, weight, _, stride, padding, _, transposed, _, groups = args_of(node)
    if len(operands(node, _WEIGHTS)) != 1:
        return "a weight or a bias that is computed"
    source, out = shape_of(x), shape_of(node)
    spatial = [f"s.{i}" for i in range(len(source) - 2)]
    kernel = shape_of(weight)[2:]
    pointwise = (
        not transposed and all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not any(padding)
    )

    def dims(shape: tuple[int, ...]) -> Dims:
        channels = ((("g", groups),) if groups != 1 else ()) + (
            (("c", shape[1] // groups),) if shape[1] != groups else ()
        )
        n, *rest = dims_of([("n", shape[0]), *zip(spatial, shape[2:], strict=True)])
        return (n, channels, *rest)

    return Relation(
        "contraction",
        (dims(source),),
        (dims(out),),
        blocks=frozenset() if pointwise else frozenset(spatial),
        absorbed=frozenset({"c"}),
    )


@dataclass(frozen=True)
class _Convolution:
    """A convolution with channels-last operands and results; its weight is (O, kernel…, I / groups)."""

    dims: list[list[Token]]
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int

    @staticmethod
    def of(c: Call) -> _Convolution:
        """Read the arguments of a call; a 1-D convolution becomes 2-D with height 1."""
        _, _, _, stride, padding, dilation, transposed, output_padding, groups = args_of(c.node)
        weight, bias = c.weight(1), c.weight(2)
        assert weight is not None
        spatial = [[f"s.{i}"] for i in range(weight.dim() - 2)]
        if len(spatial) == 1:
            weight, spatial = weight.unsqueeze(2), [[], *spatial]
        stride, padding, dilation, output_padding = (
            [fill] * (len(spatial) - len(values)) + list(values)
            for values, fill in ((stride, 1), (padding, 0), (dilation, 1), (output_padding, 0))
        )
        outputs, inputs = c.permutation(c.result, "g", "c"), c.permutation(0, "g", "c")
        return _Convolution(
            c.by_label(["n"], *spatial, ["g", "c"]),
            _relaid_weight(weight, inputs, outputs, groups, bool(transposed)),
            None if bias is None else bias[outputs],
            stride,
            padding,
            dilation,
            output_padding,
            groups,
        )


def _channels_last(c: Call) -> None:
    conv = _Convolution.of(c)
    operands_ = c.take(0, conv.dims), c.constant(conv.weight, 1), c.constant(conv.bias, 2)
    if args_of(c.node)[6]:
        rest = (conv.stride, conv.padding, conv.output_padding, conv.dilation, conv.groups)
        transpose = OPS.conv_transpose2d_nhwc if len(conv.stride) == 2 else OPS.conv_transpose3d_ndhwc
        c.give(c.b.call(transpose.default, *operands_, *rest), conv.dims)
        return
    sides = [side for amount in conv.padding for side in (amount, amount)]
    target = OPS.conv2d_nhwc.default if len(conv.stride) == 2 else OPS.conv3d_ndhwc.default
    c.give(c.b.call(target, *operands_, conv.stride, sides, conv.dilation, conv.groups), conv.dims)


def _depthwise_in_parts(c: Call) -> None:
    """Split a depthwise kernel into kernels of few taps, and add their results.

    A part has every n-th row or column, with n times the dilation. If the padding is "same", a part needs no
    more padding than the whole kernel. Parts of consecutive rows would have to crop the input.
    """
    c.compute_in_float32()
    conv = _Convolution.of(c)
    x, total = c.take(0, conv.dims), None
    size = [c.size(0, group) for group in conv.dims]
    height, width = conv.weight.shape[1:3]
    down, across = _split(height, width)
    for i in range(down):
        for j in range(across):
            part = conv.weight[:, i::down, j::across]
            rows = _part_padding(i, down, height, part.shape[1], conv.dilation[0], conv.padding[0])
            columns = _part_padding(j, across, width, part.shape[2], conv.dilation[1], conv.padding[1])
            y = c.b.call(
                OPS.conv2d_nhwc.default,
                _cropped(c, x, size, [rows, columns]),
                c.constant(part, 1),
                c.constant(conv.bias, 2) if total is None else None,
                conv.stride,
                [max(amount, 0) for amount in (*rows, *columns)],
                [conv.dilation[0] * down, conv.dilation[1] * across],
                conv.groups,
            )
            total = y if total is None else c.b.call(aten.add.Tensor, total, y)
    assert total is not None
    c.give(total, conv.dims)


def _depth_by_taps(c: Call) -> None:
    """Lower a 3-D convolution to one 2-D convolution per depth tap; the depth joins the batch."""
    c.compute_in_float32()
    conv = _Convolution.of(c)
    x = c.take(0, conv.dims)
    sizes = [c.size(0, group) for group in conv.dims]
    batch, depth, *plane = (c.size(c.result, group) for group in conv.dims)
    if conv.padding[0]:
        x = c.b.call(aten.constant_pad_nd.default, x, [0] * 6 + [conv.padding[0]] * 2, 0.0)
        sizes[1] += 2 * conv.padding[0]
    sides = [side for amount in conv.padding[1:] for side in (amount, amount)]
    total = None
    for tap in range(conv.weight.shape[1]):
        images = c.b.every(x, sizes, 1, tap * conv.dilation[0], depth, conv.stride[0])
        images = c.b.call(aten.view.default, images, [batch * depth, *sizes[2:]])
        y = c.b.call(
            OPS.conv2d_nhwc.default,
            images,
            c.constant(conv.weight[:, tap], 1),
            c.constant(conv.bias, 2) if total is None else None,
            conv.stride[1:],
            sides,
            conv.dilation[1:],
            conv.groups,
        )
        total = y if total is None else c.b.call(aten.add.Tensor, total, y)
    c.give(c.b.call(aten.view.default, total, [batch, depth, *plane]), conv.dims)


def _transposed_depth_by_taps(c: Call) -> None:
    """Lower a 3-D transposed convolution to one 2-D transposed convolution per depth tap.

    Each tap writes its planes to their places, with zeros between them. Then the results of all taps are
    added.
    """
    c.compute_in_float32()
    conv = _Convolution.of(c)
    batch, depth, *rest = (c.size(0, group) for group in conv.dims)
    _, new_depth, *plane = (c.size(c.result, group) for group in conv.dims)
    images = c.b.call(aten.view.default, c.take(0, conv.dims), [batch * depth, *rest])
    step, total = conv.stride[0], None
    for tap in range(conv.weight.shape[1]):
        y = c.b.call(
            OPS.conv_transpose2d_nhwc.default,
            images,
            c.constant(conv.weight[:, tap], 1),
            None,
            conv.stride[1:],
            conv.padding[1:],
            conv.output_padding[1:],
            conv.dilation[1:],
            conv.groups,
        )
        if step > 1:
            rows = c.b.call(aten.view.default, y, [batch * depth, 1, math.prod(plane)])
            y = c.b.call(aten.constant_pad_nd.default, rows, [0, 0, 0, step - 1], 0.0)
        y = c.b.call(aten.view.default, y, [batch, depth * step, *plane])
        before = tap * conv.dilation[0] - conv.padding[0]
        after = new_depth - before - depth * step
        y = c.b.slice(y, 1, max(-before, 0), depth * step - max(-after, 0))
        if before > 0 or after > 0:
            y = c.b.call(aten.constant_pad_nd.default, y, [0] * 6 + [max(before, 0), max(after, 0)], 0.0)
        total = y if total is None else c.b.call(aten.add.Tensor, total, y)
    if conv.bias is not None:
        total = c.b.call(aten.add.Tensor, total, c.constant(conv.bias, 2))
    c.give(total, conv.dims)  # type: ignore[arg-type]  # a kernel has at least one tap


def _transposed_in_phases(c: Call) -> None:
    """Lower a transposed convolution to ordinary convolutions, row by row of a step.

    With a step of s, result q·s + r is Σ x[q + (r + padding) // s - j] · w[(r + padding) % s + j·s]. The
    columns of a step are the channels of one pixel, side by side; in memory these are the columns. One
    convolution computes all columns that have equally many taps and begin at the same pixel.
    """
    conv = _Convolution.of(c)
    x = c.take(0, conv.dims)
    _, height, width, _ = (c.size(0, group) for group in conv.dims)
    batch, *space, channels = (c.size(c.result, group) for group in conv.dims)
    (down, across), (top, left) = conv.stride, conv.padding
    before = _columns_before(conv.weight.shape[2], across, left)
    rows, columns = -(-space[0] // down), -(-(space[1] + before) // across)
    starts, lines = [divmod(column + left - before, across) for column in range(across)], []
    for row in range(down):
        begin, tap = divmod(row + top, down)
        of_row, parts = conv.weight[:, tap::down], []
        phases = [(first, of_row[:, :, tap::across]) for first, tap in starts]
        for (first, shape), alike in groupby(phases, key=lambda phase: (phase[0], phase[1].shape)):
            weights = torch.cat([weight for _, weight in alike]).flip(1, 2)
            above, ahead = shape[1] - 1 - begin, shape[2] - 1 - first
            sides = [above, rows + begin - height, ahead, columns + first - width]
            bias = None if conv.bias is None else conv.bias.repeat(len(weights) // channels)
            operands_ = x, c.constant(weights, 1), c.constant(bias, 2)
            parts.append(c.b.call(OPS.conv2d_nhwc.default, *operands_, [1, 1], sides, [1, 1], 1))
        line = [batch * rows, 1, columns * across, channels]
        y = c.b.call(aten.view.default, c.b.cat(parts, 3), line)
        lines.append(_cropped(c, y, line, [(0, 0), (-before, before + space[1] - line[2])]))
    whole = [batch, rows * down, space[1], channels]
    y = c.b.call(aten.view.default, c.b.cat(lines, 1), whole)
    c.give(_cropped(c, y, whole, [(0, space[0] - whole[1])]), conv.dims)


def _columns_before(taps: int, stride: int, padding: int) -> int:
    """Return how many columns before the first one the phases compute and then cut off.

    If all columns have equally many taps, this number makes them begin at the same pixel. Otherwise it is 0.
    """
    return 0 if taps % stride else padding % stride


def cuts_phases(node: torch.fx.Node) -> list[bool]:
    """Return, for each spatial dimension, whether a transposed convolution in phases cuts results off."""
    _, weight, _, stride, padding, *_ = args_of(node)
    cuts = [size % step > 0 for size, step in zip(shape_of(node)[2:], stride, strict=True)]
    cuts[-1] |= _columns_before(shape_of(weight)[-1], stride[-1], padding[-1]) > 0
    return cuts


def _without_outer_taps(c: Call) -> None:
    """Lower a convolution without the first and last taps that read only padding.

    A kernel whose dilation is as large as its image keeps one tap.
    """
    conv = _Convolution.of(c)
    weight, padding, taps = conv.weight, list[int](), _inner_taps(c.node)
    for d, kept in enumerate([range(1)] * (2 - len(taps)) + taps):
        count = weight.shape[d + 1]
        weight = weight.narrow(d + 1, kept.start, len(kept))
        padding += _part_padding(kept.start, 1, count, len(kept), conv.dilation[d], conv.padding[d])
    operands_ = c.take(0, conv.dims), c.constant(weight, 1), c.constant(conv.bias, 2)
    rest = (conv.stride, padding, conv.dilation, conv.groups)
    c.give(c.b.call(OPS.conv2d_nhwc.default, *operands_, *rest), conv.dims)


def _inner_taps(node: torch.fx.Node) -> list[range]:
    """Return, for each dimension, the taps that a convolution needs.

    Outer taps stay if their removal would crop the input instead of reducing the padding.
    """
    x, weight, _, stride, padding, dilation, *_ = args_of(node)
    sizes, results, kernel = (shape[2:] for shape in (max_shape_of(x), max_shape_of(node), shape_of(weight)))
    read = read_taps(sizes, results, kernel, stride, padding, dilation)
    fewer = [before // apart for before, apart in zip(padding, dilation, strict=True)]
    return [
        range(min(taps.start, some), max(taps.stop, count - some))
        for taps, some, count in zip(read, fewer, kernel, strict=True)
    ]


def read_taps(
    sizes: Sequence[int],
    results: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[range]:
    """Return, for each dimension, the range of taps that read more than padding.

    If all taps read only padding, the range has all taps. Each argument has one number per spatial dimension.

    Args:
        sizes: The sizes of the input.
        results: The sizes of the result.
        kernel: The numbers of taps.
        stride: The steps between two windows.
        padding: The padding before the input.
        dilation: The distances between two taps.
    """
    found = []
    for size, windows, taps, step, before, apart in zip(
        sizes, results, kernel, stride, padding, dilation, strict=True
    ):
        # Each tap's place in the first window, and the first window in which that place can be in the input.
        first = ((at, max(0, -(at // step))) for at in (tap * apart - before for tap in range(taps)))
        reads = [window < windows and at + window * step < size for at, window in first]
        found.append(range(reads.index(True), taps - reads[::-1].index(True)) if any(reads) else range(taps))
    return found


def _has_outer_taps(node: torch.fx.Node) -> bool:
    kernel, transposed = shape_of(args_of(node)[1])[2:], args_of(node)[6]
    return not transposed and len(kernel) < 3 and list(kernel) != [len(taps) for taps in _inner_taps(node)]


def has_phases(node: torch.fx.Node) -> bool:
    """Return whether a transposed convolution splits into phases that crop no operand.

    A convolution of integers stays whole: it rounds its results at once, not where they are joined.
    """
    _, weight, _, stride, padding, dilation, transposed, _, groups = args_of(node)
    taps = shape_of(weight)[2:]
    if not transposed or len(taps) > 2 or groups != 1 or set(dilation) != {1} or weight.op != "get_attr":
        return False
    if isinstance(getattr(node.graph.owning_module, str(weight.target)), Scaled):
        return False
    return all(left <= size - step for size, step, left in zip(taps, stride, padding, strict=True))


def _is_deep(node: torch.fx.Node) -> bool:
    """Return whether a call is a 3-D convolution that is not transposed."""
    return len(shape_of(node)) == 5 and not args_of(node)[6]


def _is_deep_transposed(node: torch.fx.Node) -> bool:
    return len(shape_of(node)) == 5 and bool(args_of(node)[6])


# A depthwise kernel of more taps has no fast XNNPACK kernel: 7 x 7 takes 10.1 ms at 56 x 56 x 96. Three
# kernels of at most 25 taps and two additions take under 2 ms.
PART_TAPS = 25


def _has_many_taps(node: torch.fx.Node) -> bool:
    """Return whether a call is a 1-D or 2-D depthwise convolution of more than `PART_TAPS` taps."""
    x, weight, _, _, _, _, transposed, _, groups = args_of(node)
    kernel = shape_of(weight)[2:]
    depthwise = groups == shape_of(x)[1] > 1 and not transposed and len(kernel) < 3
    return depthwise and math.prod(kernel) > PART_TAPS


def _split(height: int, width: int) -> tuple[int, int]:
    """Return how many kernels share the rows, and how many the columns: as few as the taps allow."""
    return min(
        (
            (down, across)
            for down in range(1, height + 1)
            for across in range(1, width + 1)
            if math.ceil(height / down) * math.ceil(width / across) <= PART_TAPS
        ),
        key=lambda parts: (math.prod(parts), parts),
    )


def _part_padding(
    first: int, step: int, size: int, taps: int, dilation: int, padding: int
) -> tuple[int, int]:
    """Return the padding before and after a kernel with every `step`-th of `size` taps.

    Negative padding is a crop.
    """
    last = first + (taps - 1) * step
    return padding - first * dilation, padding - (size - 1 - last) * dilation


def _cropped(
    c: Call, x: torch.fx.Node, size: Sequence[int], padding: Sequence[tuple[int, int]]
) -> torch.fx.Node:
    """Crop the rows and columns of NHWC `x` that negative padding removes."""
    for dim, (before, after) in enumerate(padding, start=1):
        begin, end = max(-before, 0), size[dim] - max(-after, 0)
        if (begin, end) != (0, size[dim]):
            x = c.b.slice(x, dim, begin, end)
    return x


def _relaid_weight(
    weight: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, groups: int, transposed: bool
) -> torch.Tensor:
    """Re-lay a weight to (O, kernel…, I / groups) for channels in other orders; groups move as wholes."""
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


_FORM = "n s.0 s.1 s.2 g c"
_SUMMED = (aten.add.Tensor, aten.slice.Tensor, aten._to_copy.default)  # to add the results of several kernels

OPERATORS = (
    Operator(
        (aten.convolution.default,),
        _relate_convolution,
        (  # the first two have other kernels than the network's, and are chosen if they cost the same
            Implementation(
                "without outer taps",
                _FORM,
                _without_outer_taps,
                (OPS.conv2d_nhwc.default,),
                _has_outer_taps,
            ),
            Implementation(
                "transposed in phases",
                _FORM,
                _transposed_in_phases,
                (OPS.conv2d_nhwc.default, aten.slice.Tensor, aten.cat.default),
                has_phases,
            ),
            Implementation(
                "channels last",
                _FORM,
                _channels_last,
                (
                    OPS.conv2d_nhwc.default,
                    OPS.conv3d_ndhwc.default,
                    OPS.conv_transpose2d_nhwc.default,
                    OPS.conv_transpose3d_ndhwc.default,
                ),
            ),
            Implementation(
                "depthwise in parts",
                _FORM,
                _depthwise_in_parts,
                (OPS.conv2d_nhwc.default, *_SUMMED),
                _has_many_taps,
            ),
            Implementation(
                "depth tap by tap",
                _FORM,
                _depth_by_taps,
                (OPS.conv2d_nhwc.default, *_SUMMED, aten.constant_pad_nd.default),
                _is_deep,
            ),
            Implementation(
                "transposed depth tap by tap",
                _FORM,
                _transposed_depth_by_taps,
                (OPS.conv_transpose2d_nhwc.default, *_SUMMED, aten.constant_pad_nd.default),
                _is_deep_transposed,
            ),
        ),
        spelt=_convolution,
        weights=_WEIGHTS,
        plain=("channels last",),
        elements=Elements.CONTRACTS,
    ),
    spelt(_conv(1, False), aten.conv1d.default, aten.conv1d.padding, fresh=True),
    spelt(_conv(2, False), aten.conv2d.default, aten.conv2d.padding, fresh=True),
    spelt(_conv(3, False), aten.conv3d.default, aten.conv3d.padding, fresh=True),
    spelt(_conv(1, True), aten.conv_transpose1d.default, fresh=True),
    spelt(_conv(2, True), aten.conv_transpose2d.input, fresh=True),
    spelt(_conv(3, True), aten.conv_transpose3d.input, fresh=True),
)
