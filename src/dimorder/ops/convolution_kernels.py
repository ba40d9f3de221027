"""Lower convolutions to channels-last kernels: to one of the same kind, or to others that add up to it.

The constant weight is permuted at compile time, so that channels of input and output may be in any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.quantized import Scaled
from dimorder.graph.tracing import shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.relation import Token

aten = torch.ops.aten


_TARGETS = {
    (False, 2): OPS.conv2d_nhwc.default,
    (False, 3): OPS.conv3d_ndhwc.default,
    (True, 2): OPS.conv_transpose2d_nhwc.default,
    (True, 3): OPS.conv_transpose3d_ndhwc.default,
}
SUMMED = (aten.add.Tensor, aten.slice.Tensor, aten._to_copy.default)  # to add the results of several kernels


@dataclass(frozen=True)
class Convolution:
    """A convolution as channels-last kernels take it; its weight is (O, kernel…, I / groups)."""

    dims: list[list[Token]]
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int
    transposed: bool

    @staticmethod
    def of(c: Call) -> Convolution:
        """Read the arguments of a call; a 1-D convolution becomes 2-D with height 1."""
        *_, stride, padding, dilation, transposed, output_padding, groups = args_of(c.node)
        weight, bias = c.weight(1), c.weight(2)
        assert weight is not None
        spatial = [f"s.{i}" for i in range(weight.dim() - 2)]
        if len(spatial) == 1:
            weight, spatial = weight.unsqueeze(2), ["", *spatial]
        stride, padding, dilation, output_padding = (
            [fill] * (len(spatial) - len(values)) + list(values)
            for values, fill in ((stride, 1), (padding, 0), (dilation, 1), (output_padding, 0))
        )
        outputs, inputs = c.permutation(c.result, "g", "c"), c.permutation(0, "g", "c")
        return Convolution(
            c.by_label("n", *spatial, "g c"),
            _relaid_weight(weight, inputs, outputs, groups, transposed),
            None if bias is None else bias[outputs],
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            transposed,
        )

    def plane(self, tap: int, bias: torch.Tensor | None) -> Convolution:
        """Return the 2-D convolution of one depth tap of a 3-D convolution."""
        return replace(
            self,
            weight=self.weight[:, tap],
            bias=bias,
            stride=self.stride[1:],
            padding=self.padding[1:],
            dilation=self.dilation[1:],
            output_padding=self.output_padding[1:],
        )

    def write(
        self, c: Call, x: torch.fx.Node, sides: Sequence[int] | None = None, **others: Any
    ) -> torch.fx.Node:
        """Write a 2-D or 3-D convolution of `x` that differs from this one in the fields `others`.

        `sides` is the padding before and after each dimension (above, below, left and right in 2-D), by
        default `padding` on both sides.
        """
        conv = replace(self, **others)
        target = _TARGETS[conv.transposed, len(conv.stride)]
        constants = c.constant(conv.weight, 1), c.constant(conv.bias, 2)
        windows: tuple[list[int], ...]
        if conv.transposed:
            windows = (conv.stride, conv.padding, conv.output_padding, conv.dilation)
        else:
            both = [side for amount in conv.padding for side in (amount, amount)]
            windows = (conv.stride, both if sides is None else list(sides), conv.dilation)
        return c.b.call(target, x, *constants, *windows, conv.groups)


def _relaid_weight(
    weight: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, groups: int, transposed: bool
) -> torch.Tensor:
    """Re-lay a weight to (O, kernel…, I / groups) for channels in other orders; groups move as wholes."""
    grouped = weight.unflatten(0, (groups, -1))  # of (O, I / groups, kernel…)
    if transposed:  # of (I, O / groups, kernel…)
        grouped = grouped.transpose(1, 2)
    per_out, per_in = grouped.shape[1], grouped.shape[2]
    blocks = outputs.reshape(groups, per_out)
    group, within_out = blocks[:, 0] // per_out, blocks[0] % per_out
    within_in = inputs.reshape(groups, per_in)[0] % per_in
    relaid: torch.Tensor = grouped[group][:, within_out][:, :, within_in]
    return relaid.flatten(0, 1).movedim(1, -1).contiguous()


def write_depthwise_in_parts(c: Call, most_taps: int) -> None:
    """Split a depthwise kernel into kernels of at most `most_taps` taps, and add their results.

    A part has every n-th row or column, with n times the dilation. If the padding is "same", a part needs no
    more padding than the whole kernel. Parts of consecutive rows would have to crop the input. A part that
    reads nothing but padding is left out.
    """
    c.compute_in_float32()
    conv = Convolution.of(c)
    x, size = c.take(0, conv.dims), [c.size(0, group) for group in conv.dims]
    height, width = conv.weight.shape[1:3]
    down, across = _split(height, width, most_taps)

    def parts() -> Iterator[torch.fx.Node]:
        bias = conv.bias
        for i, j in itertools.product(range(down), range(across)):
            part = conv.weight[:, i::down, j::across]
            rows = part_padding(i, down, height, part.shape[1], conv.dilation[0], conv.padding[0])
            columns = part_padding(j, across, width, part.shape[2], conv.dilation[1], conv.padding[1])
            kept = [_kept(old, *around) for old, around in zip(size[1:], (rows, columns), strict=False)]
            if not all(begin < end for begin, end in kept):
                continue
            yield conv.write(
                c,
                _cropped(c, x, size, [rows, columns]),
                [max(amount, 0) for amount in (*rows, *columns)],
                weight=part,
                bias=bias,
                dilation=[conv.dilation[0] * down, conv.dilation[1] * across],
            )
            bias = None

    c.give(c.b.combine(aten.add.Tensor, parts()), conv.dims)


def depth_by_taps(c: Call) -> None:
    """Lower a 3-D convolution to one 2-D convolution per depth tap; the depth joins the batch."""
    c.compute_in_float32()
    conv = Convolution.of(c)
    x, sizes = c.take(0, conv.dims), [c.size(0, group) for group in conv.dims]
    batch, depth, *plane = (c.size(c.result, group) for group in conv.dims)
    if conv.padding[0]:
        x = c.b.call(aten.constant_pad_nd.default, x, [0] * 6 + [conv.padding[0]] * 2, 0.0)
        sizes[1] += 2 * conv.padding[0]

    def taps() -> Iterator[torch.fx.Node]:
        for tap in range(conv.weight.shape[1]):
            images = c.b.every(x, sizes, 1, tap * conv.dilation[0], depth, conv.stride[0])
            images = c.b.call(aten.view.default, images, [batch * depth, *sizes[2:]])
            yield conv.plane(tap, None if tap else conv.bias).write(c, images)

    total = c.b.combine(aten.add.Tensor, taps())
    c.give(c.b.call(aten.view.default, total, [batch, depth, *plane]), conv.dims)


def depth_in_channels(c: Call) -> None:
    """Lower a 3-D convolution to one 2-D convolution that reads what all depth taps read as channels.

    A depthwise convolution of 0 and 1 puts them there. Unlike slices, it takes any dynamic depth.
    """
    conv = Convolution.of(c)
    batch, depth, *plane = (c.size(0, group) for group in conv.dims)
    new_depth, taps = c.size(c.result, conv.dims[1]), conv.weight.shape[1]
    channels = plane[-1]
    x = c.b.call(aten.view.default, c.take(0, conv.dims), [batch, depth, math.prod(plane[:-1]), channels])
    along: dict[str, Any] = {
        "weight": torch.eye(taps, dtype=conv.weight.dtype)
        .reshape(taps, taps, 1, 1)
        .repeat(channels, 1, 1, 1),
        "bias": None,
        "stride": [conv.stride[0], 1],
        "padding": [conv.padding[0], 0],
        "dilation": [conv.dilation[0], 1],
    }
    x = conv.write(c, x, groups=channels, **along)
    images = c.b.call(aten.view.default, x, [batch * new_depth, *plane[:-1], channels * taps])
    weight = conv.weight.movedim(1, -1).flatten(-2)  # of (O, kernel…, I / groups · taps)
    y = conv.plane(0, conv.bias).write(c, images, weight=weight)
    _, *rest = (c.size(c.result, group) for group in conv.dims)
    c.give(c.b.call(aten.view.default, y, [batch, *rest]), conv.dims)


def transposed_depth_by_taps(c: Call) -> None:
    """Lower a 3-D transposed convolution to one 2-D transposed convolution per depth tap.

    Each tap writes its planes to their places, with zeros between them. Then the results of all taps are
    added. If that would cut planes of a dynamic depth, a transposed convolution of 0 and 1 adds them instead.
    """
    c.compute_in_float32()
    conv = Convolution.of(c)
    batch, depth, *rest = (c.size(0, group) for group in conv.dims)
    _, new_depth, *plane = (c.size(c.result, group) for group in conv.dims)
    images = c.b.call(aten.view.default, c.take(0, conv.dims), [batch * depth, *rest])
    step, taps = conv.stride[0], conv.weight.shape[1]
    # How many steps, and how many planes besides, a tap's results are moved by.
    moves = [divmod(tap * conv.dilation[0] - conv.padding[0], step) for tap in range(taps)]

    def results() -> Iterator[torch.fx.Node]:
        for tap, (steps, planes) in enumerate(moves):
            y = conv.plane(tap, None).write(c, images)
            if step > 1:
                rows = c.b.call(aten.view.default, y, [batch * depth, 1, math.prod(plane)])
                y = c.b.call(aten.constant_pad_nd.default, rows, [0, 0, planes, step - 1 - planes], 0.0)
            y = c.b.call(aten.view.default, y, [batch, depth * step, *plane])
            before, after = steps * step, new_depth - (steps + depth) * step
            if before < 0 or after < 0:
                y = c.b.slice(y, 1, max(-before, 0), depth * step - max(-after, 0))
            if before > 0 or after > 0:
                y = c.b.call(aten.constant_pad_nd.default, y, [0] * 6 + [max(before, 0), max(after, 0)], 0.0)
            yield y

    cuts = any(steps < 0 or new_depth < (steps + depth) * step for steps, _ in moves)
    if cuts and 2 in dynamic_dims(c.node):
        c.give(_depth_joined(c, conv, images, [batch, depth], [new_depth, *plane]), conv.dims)
        return
    total = c.b.combine(aten.add.Tensor, results())
    if conv.bias is not None:
        total = c.b.call(aten.add.Tensor, total, c.constant(conv.bias, 2))
    c.give(total, conv.dims)


def _depth_joined(
    c: Call, conv: Convolution, images: torch.fx.Node, sizes: Sequence[int], result: Sequence[int]
) -> torch.fx.Node:
    """Return the planes of all depth taps, each tap in channels of its own, added where they belong."""
    taps, channels = conv.weight.shape[1], result[-1]
    y = conv.plane(0, None).write(c, images, weight=conv.weight.flatten(0, 1))
    y = c.b.call(aten.view.default, y, [*sizes, math.prod(result[1:-1]), channels * taps])
    along: dict[str, Any] = {
        "weight": torch.eye(taps).reshape(taps, 1, taps).repeat(channels, 1, 1, 1),
        "stride": [conv.stride[0], 1],
        "padding": [conv.padding[0], 0],
        "dilation": [conv.dilation[0], 1],
        "output_padding": [conv.output_padding[0], 0],
    }
    y = conv.write(c, y, groups=channels, **along)
    return c.b.call(aten.view.default, y, [sizes[0], *result])


def transposed_in_phases(c: Call) -> None:
    """Lower a transposed convolution to ordinary convolutions, row by row of a step.

    With a step of s, result q·s + r is `Σ x[q + (r + padding) // s - j] · w[(r + padding) % s + j·s]`. The
    columns of a step are computed as channels of one pixel, which lie in memory as the columns do. One
    convolution computes all columns that have equally many taps and begin at the same pixel.
    """
    conv = Convolution.of(c)
    x = c.take(0, conv.dims)
    _, height, width, _ = (c.size(0, group) for group in conv.dims)
    batch, *space, channels = (c.size(c.result, group) for group in conv.dims)
    (down, across), (top, left) = conv.stride, conv.padding
    weight = _with_taps(conv.weight, top + down, left + across)
    before = _columns_before(weight.shape[2], across, left)
    rows, columns = -(-space[0] // down), -(-(space[1] + before) // across)
    starts, lines = [divmod(column + left - before, across) for column in range(across)], []
    for row in range(down):
        begin, tap = divmod(row + top, down)
        of_row, parts = weight[:, tap::down], []
        phases = [(first, range(tap, weight.shape[2], across)) for first, tap in starts]
        for (first, taps), alike in itertools.groupby(phases, key=lambda phase: (phase[0], len(phase[1]))):
            each = of_row[:, :, torch.tensor([list(columns) for _, columns in alike])]
            weights = each.permute(2, 0, 1, 3, 4).flatten(0, 1).flip(1, 2)
            above, ahead = of_row.shape[1] - 1 - begin, taps - 1 - first
            sides = [above, rows + begin - height, ahead, columns + first - width]
            bias = None if conv.bias is None else conv.bias.repeat(len(weights) // channels)
            same = {"stride": [1, 1], "transposed": False}
            parts.append(conv.write(c, x, sides, weight=weights, bias=bias, **same))
        line = [batch * rows, 1, columns * across, channels]
        y = c.b.call(aten.view.default, c.b.cat(parts, 3), line)
        lines.append(_cropped(c, y, line, [(0, 0), (-before, before + space[1] - line[2])]))
    whole = [batch, rows * down, space[1], channels]
    y = c.b.call(aten.view.default, c.b.cat(lines, 1), whole)
    c.give(_cropped(c, y, whole, [(0, space[0] - whole[1])]), conv.dims)


def _with_taps(weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return a weight (O, height, width, I) with at least so many taps: those that it lacks are zero."""
    _, rows, columns, _ = weight.shape
    down, across = (
        torch.arange(max(sizes), device=weight.device) for sizes in ((height, rows), (width, columns))
    )
    taken = weight[:, down.clamp(max=rows - 1)][:, :, across.clamp(max=columns - 1)]
    beyond = (down >= rows)[:, None, None] | (across >= columns)[:, None]
    if not isinstance(taken, Scaled):
        return taken.masked_fill(beyond, 0)
    integers = taken.integers
    values = integers.values.masked_fill(beyond, integers.zero_point)
    return Scaled.of(values, integers.scales, integers.zero_point)


def _columns_before(taps: int, stride: int, padding: int) -> int:
    """Return how many columns the phases compute and cut off: with them, equal phases begin at one pixel."""
    return 0 if taps % stride else padding % stride


def cuts_phases(node: torch.fx.Node) -> list[bool]:
    """Return, for each spatial dimension, whether a transposed convolution in phases cuts results off."""
    _, weight, _, stride, padding, *_ = args_of(node)
    cuts = [size % step > 0 for size, step in zip(shape_of(node)[2:], stride, strict=True)]
    cuts[-1] |= _columns_before(shape_of(weight)[-1], stride[-1], padding[-1]) > 0
    return cuts


def has_phases(node: torch.fx.Node) -> bool:
    """Return whether a transposed convolution of floats splits into phases that crop no operand."""
    _, weight, _, stride, padding, *_ = args_of(node)
    taps = shape_of(weight)[2:]
    enough = all(left <= size - step for size, step, left in zip(taps, stride, padding, strict=True))
    return enough and not is_scaled(weight) and _splits_into_phases(node)


def has_quantized_phases(node: torch.fx.Node) -> bool:
    """Return whether a transposed convolution of integers splits so; its phases may have taps of zero."""
    x, weight, _, stride, padding, *_ = args_of(node)
    sizes = zip(shape_of(x)[2:], shape_of(node)[2:], stride, padding, strict=True)
    whole = all(math.ceil(new / step) + left // step >= old for old, new, step, left in sizes)
    return whole and is_scaled(weight) and _splits_into_phases(node)


def is_scaled(weight: torch.fx.Node) -> bool:
    constant = weight.op == "get_attr"
    return constant and isinstance(getattr(weight.graph.owning_module, str(weight.target)), Scaled)


def _splits_into_phases(node: torch.fx.Node) -> bool:
    _, weight, _, _, _, dilation, transposed, _, groups = args_of(node)
    plain = groups == 1 and set(dilation) == {1} and weight.op == "get_attr"
    return bool(transposed and plain and len(shape_of(weight)) < 5)


def is_deep(node: torch.fx.Node) -> bool:
    """Return whether a call is a 3-D convolution that is not transposed."""
    return len(shape_of(node)) == 5 and not args_of(node)[6]


def has_dynamic_depth(node: torch.fx.Node) -> bool:
    """Return whether a call is a 3-D convolution that is not transposed, of a dynamic depth."""
    return is_deep(node) and 2 in dynamic_dims(node)


def is_deep_transposed(node: torch.fx.Node) -> bool:
    return len(shape_of(node)) == 5 and bool(args_of(node)[6])


def _split(height: int, width: int, most_taps: int) -> tuple[int, int]:
    """Return how many kernels share the rows, and how many the columns: as few as the taps allow."""
    return min(
        (
            (down, across)
            for down in range(1, height + 1)
            for across in range(1, width + 1)
            if math.ceil(height / down) * math.ceil(width / across) <= most_taps
        ),
        key=lambda parts: (math.prod(parts), parts),
    )


def part_padding(first: int, step: int, size: int, taps: int, dilation: int, padding: int) -> tuple[int, int]:
    """Return the padding before and after a kernel of every `step`-th of `size` taps; negative is a crop."""
    last = first + (taps - 1) * step
    return padding - first * dilation, padding - (size - 1 - last) * dilation


def _kept(size: int, before: int, after: int) -> tuple[int, int]:
    """Return what negative padding leaves of a dimension: its beginning and its end."""
    return max(-before, 0), size - max(-after, 0)


def _cropped(
    c: Call, x: torch.fx.Node, size: Sequence[int], padding: Sequence[tuple[int, int]]
) -> torch.fx.Node:
    """Crop the rows and columns of NHWC `x` that negative padding removes."""
    for dim, around in enumerate(padding, start=1):
        begin, end = _kept(size[dim], *around)
        if (begin, end) != (0, size[dim]):
            x = c.b.slice(x, dim, begin, end)
    return x
