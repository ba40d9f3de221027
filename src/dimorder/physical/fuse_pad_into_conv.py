"""Fuse zero padding into the convolutions that read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from dimorder.graph.nodes import may_resize, replace_node
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.ops.dialect import OPS
from dimorder.ops.quantization import remove_noop_quantize

aten = torch.ops.aten


_CONVOLUTIONS = (OPS.conv2d_nhwc.default, OPS.conv3d_ndhwc.default)


def fuse_pad_into_conv(graph: Graph) -> None:
    """Let convolutions of a physical program pad, in place, if only they read the zeros.

    Zero is a quantized value of every scale, so a quantize in between needs no zeros either. A padding
    that changes with a dynamic size stays: kernels have fixed ones.
    """
    pads = graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    for pad in itertools.filterfalse(may_resize, pads):
        readers = list(_readers(pad))
        if any(reader.target not in _CONVOLUTIONS for reader in readers):
            continue
        paddings: list[Any] = [_padding(pad, reader) for reader in readers]
        if None in paddings:
            continue
        for convolution, wider in zip(readers, paddings, strict=True):
            convolution.args = (*convolution.args[:4], wider, *convolution.args[5:])
        (source,) = pad.all_input_nodes
        replace_node(pad, source)
        for reader in list(source.users):
            remove_noop_quantize(reader)


def _padding(pad: Node, convolution: Node) -> list[int] | None:
    """Return the padding of a convolution that pads as `pad` does before it, on each side.

    The result is None if `pad` pads with another number than 0, or along other dimensions than space.
    """
    own: Any = convolution.args[4]
    amounts: list[int] = list(pad.args[1])  # type: ignore[arg-type]
    amounts += [0] * (len(own) + 4 - len(amounts))  # of channels, of space from the last dimension on, of N
    channels, space, batch = amounts[:2], amounts[2:-2], amounts[-2:]
    if any((*pad.args[2:3], *channels, *batch)):
        return None
    first_on = [side for d in reversed(range(len(space) // 2)) for side in space[2 * d : 2 * d + 2]]
    return [sum(pair) for pair in zip(own, first_on, strict=True)]


def _readers(value: Node) -> Iterator[Node]:
    """Yield the readers of a value, also after a quantize or dequantize."""
    for user in value.users:
        if user.target in (QUANTIZE, DEQUANTIZE):
            yield from _readers(user)
        else:
            yield user
