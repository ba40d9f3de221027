"""Keep what values are padded with out of their range: zeros, and infinities before a maximum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from dimorder.graph.nodes import args_of, bound, drop_meta, set_meta

aten = torch.ops.aten

_PADS = (aten.pad.default, aten.constant_pad_nd.default)
_MAXIMA = (aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
_HUGE = 1e30  # Arm's passes replace infinities, and the limits of float32, by 255


def write_huge_fills(model: GraphModule) -> None:
    """Pad with a huge number, not with an infinity, in place. After it, all integers saturate alike."""
    for node, given in _pads(model):
        if math.isinf(given["value"] or 0):
            names = ("self", "pad", *(["mode"] if "mode" in given else []))
            node.args = (*(given[name] for name in names), math.copysign(_HUGE, given["value"]))
            node.kwargs = {}


def share_ranges(model: GraphModule) -> None:
    """Let values that are padded share the range of what is padded, in place, if that is observed."""
    for pad, given in _pads(model):
        fill = given["value"] or 0
        source: Node = args_of(pad)[0]
        observed = source.meta.get(Q_ANNOTATION_KEY)
        if observed is None or observed.output_qspec is None:
            continue
        spec = SharedQuantizationSpec(source)
        if fill == 0 and Q_ANNOTATION_KEY not in pad.meta:
            set_meta(pad, Q_ANNOTATION_KEY, QuantizationAnnotation({source: spec}, spec, _annotated=True))
        elif abs(fill) >= _HUGE and all(user.target in _MAXIMA for user in pad.users):
            drop_meta(pad, Q_ANNOTATION_KEY)
            for reader in pad.users:
                _share_with(reader, pad, spec)


def _pads(model: GraphModule) -> Iterator[tuple[Node, dict[str, Any]]]:
    """Yield the calls that pad with a constant, with their arguments."""
    for node in model.graph.nodes:
        given = bound(node.target, node.args, node.kwargs) if node.target in _PADS else None
        if given is not None and given.get("mode", "constant") == "constant":
            yield node, given


def _share_with(reader: Node, pad: Node, spec: SharedQuantizationSpec) -> None:
    """Let a maximum of padded values share a range, and read them unobserved."""
    annotation = reader.meta.get(Q_ANNOTATION_KEY)
    if annotation is not None:
        annotation.input_qspec_map.pop(pad, None)
        annotation.output_qspec = spec
