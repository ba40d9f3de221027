"""Define convolutions, which run channels-last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.convolution_kernels import (
    SUMMED,
    Convolution,
    depth_by_taps,
    depth_in_channels,
    has_dynamic_depth,
    has_phases,
    has_quantized_phases,
    is_deep,
    is_deep_transposed,
    transposed_depth_by_taps,
    transposed_in_phases,
    write_depthwise_in_parts,
)
from dimorder.ops.convolution_taps import has_many_taps, has_outer_taps, without_outer_taps
from dimorder.ops.dialect import OPS
from dimorder.ops.indexed import pad
from dimorder.ops.moves import squeeze, unsqueeze
from dimorder.ops.operator import Implementation, Operator, Spell, filled, ordered_operands, several, spelling
from dimorder.ops.relation import Dims, Relation, dims_of

aten = torch.ops.aten
_WEIGHTS = ("weight", "bias")


def _conv(rank: int, transposed: bool) -> Spell:
    def conv(n: Tracer, x: Value, w: Value, *given: Value) -> Value:
        if transposed:
            defaults = (None, 1, 0, 0, 1, 1)
            b, stride, padding, output_padding, groups, dilation = filled(given, defaults)
        else:
            b, stride, padding, dilation, groups = filled(given, (None, 1, 0, 1, 1))
            output_padding = 0
        unbatched = len(shape_of(x)) == rank + 1
        if unbatched:
            x = unsqueeze(n, x, 0)
        if isinstance(padding, str):
            x, padding = _named_padding(n, x, w, padding, several(dilation, rank))
        y = _convolution(n, x, w, b, stride, padding, dilation, transposed, output_padding, groups)
        return squeeze(n, y, 0) if unbatched else y

    return conv


def _convolution(n: Tracer, x: Value, w: Value, b: Value, *options: Any) -> Value:
    """Write a convolution with one number per spatial dimension in each argument."""
    *windows, transposed, output_padding, groups = options
    count = len(shape_of(w)) - 2
    *windows, output_padding = (several(value, count) for value in (*windows, output_padding))
    return n.emit(aten.convolution.default, x, w, b, *windows, transposed, output_padding, groups)


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
    if len(ordered_operands(node, _WEIGHTS)) != 1:
        return "a weight or a bias that is computed"
    source, out = shape_of(x), shape_of(node)
    spatial = [f"s.{i}" for i in range(len(source) - 2)]
    kernel = shape_of(weight)[2:]
    pointwise = (
        not transposed and all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not any(padding)
    )

    def dims(shape: tuple[int, ...]) -> Dims:
        channels = [("g", groups), ("c", shape[1] // groups)]
        n, *rest = dims_of([("n", shape[0]), *zip(spatial, shape[2:], strict=True)])
        return (n, tuple(label for label in channels if label[1] != 1), *rest)

    blocks = frozenset() if pointwise else frozenset(spatial)
    return Relation("contraction", (dims(source),), (dims(out),), blocks=blocks, absorbed=frozenset({"c"}))


def _channels_last(c: Call) -> None:
    conv = Convolution.of(c)
    c.give(conv.write(c, c.take(0, conv.dims)), conv.dims)


_FORM = "n s.0 s.1 s.2 g c"
_IN_PHASES = (OPS.conv2d_nhwc.default, aten.slice.Tensor, aten.cat.default)


def dilate_kernel(weight: torch.Tensor, dilation: Sequence[int]) -> torch.Tensor:
    """Return a 2-D kernel, channels last, with zeros between its taps instead of a dilation."""
    o, height, width, i = weight.shape
    down, across = dilation
    dilated = weight.new_zeros(o, (height - 1) * down + 1, (width - 1) * across + 1, i)
    dilated[:, ::down, ::across] = weight
    return dilated


def depthwise_in_parts(most_taps: int) -> Implementation:
    """Return the implementation of depthwise kernels in parts of at most `most_taps` taps.

    A target lists it as its own, with the number of taps for which its kernels are fast. It also lists
    "without outer taps", which a kernel takes if no more taps than that read the input.
    """
    return Implementation(
        "depthwise in parts",
        _FORM,
        partial(write_depthwise_in_parts, most_taps=most_taps),
        (OPS.conv2d_nhwc.default, *SUMMED),
        partial(has_many_taps, most_taps=most_taps),
    )


OPERATORS = (
    Operator(
        (aten.convolution.default,),
        _relate_convolution,
        (  # the first three have other kernels than the network's, and are chosen if they cost the same
            Implementation(
                "without outer taps",
                _FORM,
                without_outer_taps,
                (OPS.conv2d_nhwc.default, OPS.conv3d_ndhwc.default),
                has_outer_taps,
            ),
            Implementation("transposed in phases", _FORM, transposed_in_phases, _IN_PHASES, has_phases),
            Implementation(  # the phases are quantized one by one: see `quantize_before_join`
                "quantized, transposed in phases",
                _FORM,
                transposed_in_phases,
                _IN_PHASES,
                has_quantized_phases,
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
                "depth tap by tap",
                _FORM,
                depth_by_taps,
                (OPS.conv2d_nhwc.default, *SUMMED, aten.constant_pad_nd.default),
                is_deep,
            ),
            Implementation(
                "depth in channels",
                _FORM,
                depth_in_channels,
                (OPS.conv2d_nhwc.default,),
                has_dynamic_depth,
            ),
            Implementation(
                "transposed depth tap by tap",
                _FORM,
                transposed_depth_by_taps,
                (OPS.conv_transpose2d_nhwc.default, *SUMMED, aten.constant_pad_nd.default),
                is_deep_transposed,
            ),
        ),
        spelling=_convolution,
        weights=_WEIGHTS,
        plain=("channels last",),
        elements=Elements.CONTRACTS,
    ),
    spelling(_conv(1, False), aten.conv1d.default, aten.conv1d.padding, fresh=True),
    spelling(_conv(2, False), aten.conv2d.default, aten.conv2d.padding, fresh=True),
    spelling(_conv(3, False), aten.conv3d.default, aten.conv3d.padding, fresh=True),
    spelling(_conv(1, True), aten.conv_transpose1d.default, fresh=True),
    spelling(_conv(2, True), aten.conv_transpose2d.input, fresh=True),
    spelling(_conv(3, True), aten.conv_transpose3d.input, fresh=True),
)
