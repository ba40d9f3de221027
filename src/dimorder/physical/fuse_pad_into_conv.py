"""Fuse zero padding into the convolutions that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from dimorder.graph.nodes import replace_node
from dimorder.graph.quantized_constant import DEQUANTIZE, QUANTIZE
from dimorder.ops.dialect import OPS
from dimorder.ops.quantization import remove_noop_quantize

aten = torch.ops.aten


def fuse_pad_into_conv(graph: Graph) -> None:
    """Let convolutions of a physical program pad, in place, if only they read the zeros.

    Zero is a quantized value of every scale, so a quantize in between needs no zeros either.
    """
    for pad in graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        border, readers = _border(pad), list(_readers(pad))
        if border is None or any(reader.target is not OPS.conv2d_nhwc.default for reader in readers):
            continue
        for convolution in readers:
            padding: Any = convolution.args[4]
            wider = [sum(pair) for pair in zip(padding, border, strict=True)]
            convolution.args = (*convolution.args[:4], wider, *convolution.args[5:])
        (source,) = pad.all_input_nodes
        replace_node(pad, source)
        for reader in list(source.users):
            remove_noop_quantize(reader)


def _border(pad: Node) -> tuple[int, int, int, int] | None:
    """Return the padding above, below, left and right of NHWC images.

    The result is None if it pads with another number than 0, or along other dimensions.
    """
    amounts: list[int] = list(pad.args[1])  # type: ignore[arg-type]
    value = pad.args[2] if len(pad.args) > 2 else 0
    first, last, left, right, top, bottom, *beyond = amounts + [0] * (6 - len(amounts))
    return None if value != 0 or first or last or any(beyond) else (top, bottom, left, right)


def _readers(value: Node) -> Iterator[Node]:
    """Yield the readers of a value, also after a quantize or dequantize."""
    for user in value.users:
        if user.target in (QUANTIZE, DEQUANTIZE):
            yield from _readers(user)
        else:
            yield user
