"""Observe softmaxes on examples: the range of the scores that count, and the values far outside it.

A score that is lower than the largest one of its row by 20 has no weight. One scale for it and for the scores
that count can make the latter equal. Masks do this, however they are written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.graph.interpreter import GraphRun
from dimorder.graph.nodes import args_of, bound, tensor_of
from dimorder.modules import unchanged, unwritten
from dimorder.quantization.refusals import not_observed

aten = torch.ops.aten

# A score that is lower than the largest of its row by this much has the weight 0: e^-20 is 2e-9.
HIDDEN = 20.0
# A row that is lower than the others by this much has no score that counts.
_APART = 1000.0
# The weights of two softmaxes are equal to this, which is a quarter of a quantum of 8 bits.
_NEAR = 1e-3
ATTENTION = aten.scaled_dot_product_attention.default
SOFTMAXES = (aten.softmax.int, aten._softmax.default, aten._safe_softmax.default)
LOGARITHMS = (aten.log_softmax.int, aten._log_softmax.default)
_PRODUCTS = ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d")


@dataclass(frozen=True)
class Range:
    """The least and the largest number of a value."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """The distance of both, or that of 0 from the one number that all elements are."""
        return self.high - self.low if self.low < self.high else abs(self.low)

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


def scores_of(model: GraphModule) -> dict[Node, Node]:
    """Return the softmaxes of a network with their scores, and attentions with the masks that they add."""
    found: dict[Node, Node] = {}
    for node in model.graph.nodes:
        if node.target in (*SOFTMAXES, *LOGARITHMS):
            found[node] = args_of(node)[0]
        elif node.target is ATTENTION:
            mask = bound(node.target, node.args, node.kwargs)["attn_mask"]
            if mask is not None and tensor_of(mask).is_floating_point():
                found[node] = mask
    return found


class ExampleRun(GraphRun):
    """A run on examples that observes some values, and leaves the network's state as it is.

    Attributes:
        ranges: The range of each value that is `wanted`, over all runs.
    """

    def __init__(self, model: GraphModule, wanted: Collection[Node] = ()) -> None:
        super().__init__(model)
        self.wanted = wanted
        self.ranges: dict[Node, Range] = {}

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        inputs = [(each, value) for each, value in operands.items() if each.op == "placeholder"]
        for each, value in ((node, result), *inputs):
            if each in self.wanted and isinstance(value, Tensor) and value.numel():
                found = Range(float(value.min()), float(value.max()))
                self.ranges[each] = found.joined(self.ranges.get(each, found))
        return result

    def over(self, examples: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the results for all examples, each with an input for each placeholder.

        Raises:
            UnsupportedError: if the network raises on an example.
        """
        results = []
        with unchanged(self.module):
            for index, example in enumerate(examples):
                try:
                    with unwritten(example):
                        results.append(self.run(*example))
                except Exception as error:  # the network's own
                    raise not_observed(index, error) from error
        return results


class ScoreRun(ExampleRun):
    """A run on examples that observes softmaxes, and the values that their scores are computed of.

    Attributes:
        scores: The scores of each softmax.
        rivals: Nodes that may compute a softmax, which is after them. A wrong one is removed.
    """

    def __init__(
        self,
        model: GraphModule,
        examples: Sequence[Sequence[Any]],
        rivals: Mapping[Node, Node] | None = None,
    ) -> None:
        self.scores = scores_of(model)
        super().__init__(model, frozenset(sources_of(self.scores.values())))
        self.rivals = dict(rivals or {})
        self._rows: dict[Node, list[tuple[Tensor, Tensor]]] = {}
        self._weights: dict[Node, Tensor] = {}
        self.over(examples)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        super().result(node, operands, result)
        if node in self.rivals:
            self._weights[node] = _weights(node, result)
        if node in self.scores and result.numel() and result.dim():
            self._observe(node, operands[self.scores[node]], _weights(node, result))
        return result

    def _observe(self, softmax: Node, scores: Tensor, weights: Tensor) -> None:
        dim = -1 if softmax.target is ATTENTION else args_of(softmax)[1]
        largest = scores.amax(dim, keepdim=True)
        counts = (scores >= largest - HIDDEN) & scores.isfinite()
        lowest = scores.where(counts, math.inf).amin(dim, keepdim=True)
        self._rows.setdefault(softmax, []).append((largest, lowest))
        highest = largest.where(largest.isfinite(), -math.inf).amax()
        for rival in [each for each, of in self.rivals.items() if of is softmax]:
            is_near = (self._weights.pop(rival) - weights).abs() <= _NEAR
            if not bool((is_near | ~(largest > highest - _APART)).all()):
                del self.rivals[rival]

    def range_of(self, softmax: Node) -> Range | None:
        """Return the range of the scores that count, or None if there are none."""
        rows = self._rows.get(softmax, [])
        if not rows:
            return None
        largest, lowest = (torch.cat([each.flatten() for each in found]) for found in zip(*rows, strict=True))
        largest, lowest = largest[largest.isfinite()], lowest[largest.isfinite()]
        if not largest.numel():
            return None
        return Range(float(lowest[largest > largest.amax() - _APART].min()), float(largest.amax()))

    def limit(self, softmax: Node) -> float:
        """Return the widest range of a value for which 8 bits still tell the scores apart."""
        found = self.range_of(softmax)
        return math.inf if found is None else 4 * found.width + HIDDEN

    def wide(self, softmax: Node) -> set[Node]:
        """Return the calls whose values are wider than the limit of a softmax.

        They make the hidden scores, and mix them with others.
        """
        limit, found, left = self.limit(softmax), set[Node](), [self.scores[softmax]]
        while left:
            node = left.pop()
            if node not in found and self.is_wide(node, limit) and _is_elementwise(node):
                found.add(node)
                left += node.all_input_nodes
        return found

    def is_wide(self, node: Node, limit: float) -> bool:
        return node in self.ranges and not self.ranges[node].width <= limit


def _weights(softmax: Node, result: Tensor) -> Tensor:
    """Return the weights of a softmax, or of one that gives their logarithms."""
    return result.exp() if softmax.target in LOGARITHMS else result


def is_product(node: Node) -> bool:
    """Return whether a call is a linear, a convolution or a matmul."""
    return getattr(node.target, "_opname", "") in _PRODUCTS


def _is_elementwise(node: Node) -> bool:
    return node.op == "call_function" and not is_product(node)


def sources_of(values: Any) -> Iterator[Node]:
    """Yield values of floats, and what is computed with elementwise calls of floats before them."""
    seen, left = set[Node](), list(values)
    while left:
        node = left.pop()
        value = node.meta.get("val")
        if node not in seen and isinstance(value, Tensor) and value.is_floating_point():
            seen.add(node)
            yield node
            left += node.all_input_nodes if _is_elementwise(node) else []
