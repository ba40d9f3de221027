"""Fuse the nodes of a finished XNNPACK graph.

A clamp becomes part of the node before it. A node between converts reads and writes integers, if XNNPACK
computes it so. What stays in float32 between converts is a float island.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from torch.fx import Node

from dimorder.graph.integer_type import IntegerType
from dimorder.targets.xnnpack.graph import NONE_ID, XnnGraph, kind_of, passes_on, reads_of
from dimorder.targets.xnnpack.integers import DYNAMIC, IN_FLOAT, IN_INT8, OPERANDS, READS, WEIGHTS

_CLAMPED_BY_NODE = (
    schema.XNNConv2d,
    schema.XNNDepthwiseConv2d,
    schema.XNNConvTranspose2d,
    schema.XNNFullyConnected,
    schema.XNNAdd,
    schema.XNNSubtract,
    schema.XNNMultiply,
    schema.XNNDiv,
)
# Nodes that absorb a clamp in XNNPACK of ExecuTorch 1.5.1, if the clamp alone reads their result. They get
# its bounds and its result.
_CLAMPED_BY_XNNPACK = frozenset(
    ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "FullyConnected", "MaxPooling2d")
)


class XnnFusion(XnnGraph):
    """A graph with passes that fuse its nodes after it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._undone: dict[int, str] = {}  # why a node reads floats that were to be quantised, by result

    def fuse(self) -> None:
        """Replace nodes by fewer ones that compute the same."""
        if self._wide:
            self._drop_unread()
        self._fuse_clamps()
        self._fuse_dynamic()
        if self._types:
            self._fuse_integers()
            self._keep_roundings()

    def islands(self) -> dict[Node, str]:
        """Return the program's nodes that are computed in float32, with the reasons.

        In a network with only dynamic quantisation these are linears, matmuls and convolutions.
        """
        found: dict[Node, list[tuple[str, str]]] = {}
        readers = self._readers()
        for node in self._nodes:
            result, origin = node.xnode_union.output_id, self._origins.get(node.xnode_union.output_id)
            kind = kind_of(node)
            if origin is None or result in self._types or passes_on(node) or self._is_dynamic(node):
                continue
            if not self._types and result not in self._undone:
                continue
            reason = self._undone.get(result) or self._in_integers_by(node, readers)
            assert isinstance(reason, str), f"{kind} was not fused"
            found.setdefault(origin, []).append((kind, reason))
        return {origin: _told(reasons) for origin, reasons in found.items()}

    def _fuse_dynamic(self) -> None:
        """Let linears and convolutions read dynamically quantised integers, and other nodes floats."""
        integers: dict[tuple[int, int], int] = {}
        fused = []
        for xnode in self._nodes:
            node, kind = xnode.xnode_union, kind_of(xnode)
            for name in OPERANDS:
                index = getattr(node, name, NONE_ID)
                if index not in self._dynamic:
                    continue
                source, tokens = self._dynamic[index]
                reason = self._not_dynamic(kind, node, tokens)
                if reason is not None:
                    setattr(node, name, source)
                    self._undone[node.output_id] = reason
                    continue
                key = source, DYNAMIC[kind]
                if key not in integers:
                    integers[key] = self._dynamic_integers(*key)
                    convert = schema.XNNConvert(input_id=source, output_id=integers[key], flags=0)
                    fused.append(schema.XNode(convert, debug_handle=xnode.debug_handle))
                in_4_bits = kind == "FullyConnected" and self._unfit_4_bits(node.filter_id) is None
                weight = self._in_4_bits(node.filter_id) if in_4_bits else self._weight(node.filter_id, 0)
                vars(node).update({name: integers[key], "filter_id": weight})
            fused.append(xnode)
        self._nodes = fused

    def _not_dynamic(self, kind: str, node: Any, tokens: torch.Tensor) -> str | None:
        """Return why a node cannot quantise dynamically by steps that are no larger than the tokens'."""
        if kind not in DYNAMIC:
            return f"XNNPACK has no {kind} that quantises dynamically"
        rows = tokens.flatten(-DYNAMIC[kind])
        if not bool((rows == rows[..., :1]).all()):
            return "several scales within what XNNPACK quantises by one"
        if kind == "FullyConnected" and self._unfit_4_bits(node.filter_id) is None:
            return None
        if node.filter_id not in self._integers:
            return "a weight that is not quantised, or by several zero points"
        return self._unfit_weight(node.filter_id, 0)

    def _fuse_integers(self) -> None:
        """Let nodes between converts read and write the integers, if XNNPACK computes them so."""
        done: set[int] | None = None
        while done is None or done:
            self._drop_unread()
            readers, done = self._readers(), set()
            for node in self._nodes:
                if node.xnode_union.output_id in self._types or kind_of(node) == "Convert":
                    continue
                operands = self._in_integers_by(node, readers)
                if not isinstance(operands, str):
                    (convert,) = readers[node.xnode_union.output_id]
                    vars(node.xnode_union).update(operands, output_id=convert.output_id)
                    done.add(id(convert))
            self._nodes = [node for node in self._nodes if id(node.xnode_union) not in done]

    def _keep_roundings(self) -> None:
        """Split each clamp between two scales that XNNPACK would merge into the node before it.

        The merge would round once, where the program rounds twice. Converts are safe, since XNNPACK makes a
        table of them.
        """
        self.origin, readers, kept = None, self._readers(), list[Any]()
        kinds: dict[int, str] = {}  # by result
        for node in self._nodes:
            before = reads_of(node.xnode_union)[0]
            fused = kinds.get(before) in _CLAMPED_BY_XNNPACK and len(readers[before]) == 1
            kept += self._apart(node, before) if fused and self._rescales(node, before) else [node]
            kinds[node.xnode_union.output_id] = kind_of(kept[-1])
        self._nodes = kept

    def _rescales(self, node: Any, before: int) -> bool:
        own, result = self._types.get(before), self._types.get(node.xnode_union.output_id)
        return kind_of(node) == "Clamp" and own is not None and result is not None and own != result

    def _apart(self, clamp: Any, before: int) -> list[Any]:
        """Return a clamp between integers as converts and a clamp of floats.

        A clamp whose bounds cut nothing is omitted.
        """
        result, bounds = clamp.xnode_union.output_id, clamp.output_min_max
        real = self._value(self._values[before].dims)
        made = [schema.XNode(schema.XNNConvert(before, real.id, 0), clamp.debug_handle)]
        if bounds != whole_range(self._types[result]):
            held = self._value(real.shape)
            made.append(schema.XNode(schema.XNNClamp(real.id, held.id, 0), clamp.debug_handle, bounds))
            real = held
        return [*made, schema.XNode(schema.XNNConvert(real.id, result, 0), clamp.debug_handle)]

    def _in_integers_by(self, xnode: Any, readers: dict[int, list[Any]]) -> dict[str, int] | str:
        """Return the integers that a node may read in place of its operands, if its result is quantised next.

        Otherwise return why the node computes in float32.
        """
        kind, node = kind_of(xnode), xnode.xnode_union
        condition = IN_INT8.get(kind)
        if condition is None:
            return IN_FLOAT.get(kind, f"XNNPACK has no int8 {kind}")
        read_by = readers.get(node.output_id, [])
        result = self._types.get(read_by[0].output_id) if len(read_by) == 1 else None
        if result is None or self._values[node.output_id].flags:
            return _BETWEEN[0]
        read = {name: getattr(node, name) for name in READS if getattr(node, name, NONE_ID) != NONE_ID}
        weights = {n: index for n, index in read.items() if n in WEIGHTS and "filter_id" in read}
        sources = {n: self._integers_of(index) for n, index in read.items() if n not in weights}
        if None in sources.values():
            return _BETWEEN[1]
        for index in weights.values():
            reason = self._unfit_weight(index, _outputs(kind, index == weights["filter_id"]))
            if reason is not None:
                return reason
        scales = self._integers[weights["filter_id"]].scales if weights else None
        types = [self._type_of(i) for i in sources.values() if i is not None]
        if any(of.dtype == torch.uint8 for of in (*types, result)):
            return "unsigned integers, which only the boundary has"
        return condition(types, result, scales) or {
            **{n: self._held(i) for n, i in sources.items() if i is not None},
            **{n: self._weight(i, _outputs(kind, n == "filter_id")) for n, i in weights.items()},
        }

    def _readers(self) -> dict[int, list[Any]]:
        readers: dict[int, list[Any]] = {}
        for node in self._nodes:
            for index in reads_of(node.xnode_union):
                readers.setdefault(index, []).append(node.xnode_union)
        return readers

    def _drop_unread(self) -> None:
        """Remove the converts and moves whose results nobody reads."""
        read = set(self._outputs)
        kept = []
        for node in reversed(self._nodes):
            if passes_on(node) and node.xnode_union.output_id not in read:
                continue
            kept.append(node)
            read.update(reads_of(node.xnode_union))
        self._nodes = kept[::-1]

    def _fuse_clamps(self) -> None:
        """Merge the bounds of a clamp into the node before it, also through a cast.

        Nothing else may read that node.
        """
        readers = Counter(index for node in self._nodes for index in reads_of(node.xnode_union))
        producers = {node.xnode_union.output_id: node for node in self._nodes}

        def alone(index: int) -> Any:
            """Return the node whose result one node reads and that is no output."""
            return producers.get(index) if readers[index] == 1 and not self._values[index].flags else None

        kept = []
        for node in self._nodes:
            clamp = node.xnode_union
            last = alone(clamp.input_id) if isinstance(clamp, schema.XNNClamp) else None
            source = last
            if last is not None and kind_of(last) == "Convert" and self._half(clamp.input_id) is not None:
                source = alone(last.xnode_union.input_id)
            if (
                last is None
                or source is None
                or not isinstance(source.xnode_union, _CLAMPED_BY_NODE)
                or source.output_min_max is not None
            ):
                kept.append(node)
                continue
            source.output_min_max = node.output_min_max
            last.xnode_union.output_id = clamp.output_id
            producers[clamp.output_id] = last
        self._nodes = kept


def whole_range(of: IntegerType) -> Any:
    """Return the bounds of a clamp that cuts none of these values."""
    return schema.OutputMinMax(*((bound - of.zero_point) * of.scale for bound in (of.low, of.high)))


# For a node amid others; another node of the same operator may give a better reason.
_BETWEEN = ("a result that is not quantised", "an operand that is not quantised")


def _outputs(kind: str, is_filter: bool) -> int:
    """Return the dimension of a weight's or a bias's output channels."""
    return 3 if is_filter and kind == "DepthwiseConv2d" else 0


def _told(reasons: Sequence[tuple[str, str]]) -> str:
    """Return why an operator is in float32, from the kinds and the reasons of its nodes."""
    if len(reasons) == 1:
        return reasons[0][1]
    unmet = (reason for kind, reason in reasons if kind in IN_INT8 and reason not in _BETWEEN)
    return next(unmet, "no int8 kernel computes it alone")
