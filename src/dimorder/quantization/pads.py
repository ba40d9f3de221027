"""Keep what values are padded with out of their range: zeros, and very low numbers before a maximum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from dimorder.graph.nodes import args_of, bound, set_meta
from dimorder.quantization.scores import ExampleRun

aten = torch.ops.aten

_PADS = (aten.pad.default, aten.constant_pad_nd.default)
# A fill that is farther from the values than 4 times their range leaves them 6 of 8 bits.
_FAR = 4


def write_near_fills(model: GraphModule, examples: Sequence[Sequence[Any]]) -> None:
    """Pad with the lowest value instead of a number far below, or with the highest, in place.

    A fill is replaced if the network's results on all examples stay the same, as after a maximum.
    """
    pads = [(node, given) for node, given in _pads(model) if given["value"]]
    if not pads:
        return
    seen = ExampleRun(model, {args_of(node)[0] for node, _ in pads})
    expected = seen.over(examples)
    for node, given in pads:
        found = seen.ranges.get(args_of(node)[0])
        fill = float(given["value"])
        if found is None or found.low - _FAR * found.width <= fill <= found.high + _FAR * found.width:
            continue
        args, kwargs = node.args, node.kwargs
        names = ("self", "pad", *(["mode"] if "mode" in given else []))
        node.args = (*(given[name] for name in names), found.low if fill < found.low else found.high)
        node.kwargs = {}
        if not _equal(ExampleRun(model).over(examples), expected):
            node.args, node.kwargs = args, kwargs
    model.recompile()


def share_ranges(model: GraphModule) -> None:
    """Let values that are padded with zeros share the range of what is padded, in place, if it has one."""
    for pad, given in _pads(model):
        source: Node = args_of(pad)[0]
        observed = source.meta.get(Q_ANNOTATION_KEY)
        is_observed = observed is not None and observed.output_qspec is not None
        if is_observed and not given["value"] and Q_ANNOTATION_KEY not in pad.meta:
            spec = SharedQuantizationSpec(source)
            set_meta(pad, Q_ANNOTATION_KEY, QuantizationAnnotation({source: spec}, spec, _annotated=True))


def _pads(model: GraphModule) -> Iterator[tuple[Node, dict[str, Any]]]:
    """Yield the calls that pad with a constant, with their arguments."""
    for node in model.graph.nodes:
        given = bound(node.target, node.args, node.kwargs) if node.target in _PADS else None
        if given is not None and given.get("mode", "constant") == "constant":
            yield node, given


def _equal(results: Any, expected: Any) -> bool:
    pairs = zip(pytree.tree_leaves(results), pytree.tree_leaves(expected), strict=True)
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)
