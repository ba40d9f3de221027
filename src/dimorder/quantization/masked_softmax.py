"""Write softmaxes of masked scores in parts, so that integers keep the scores apart.

With u = relu(score - lowest) and k = 1 where a score is kept, else 0, the weights are

    e = k · exp(u · k - max(u · k)),   weights = e / max(1, Σ e)

Each of these is a small number. The largest kept score of a row gives e = 1, so a row's sum is 1 at least. A
row that hides everything gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import args_of, bound, replace_node, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.quantization.constants import insert_constant
from dimorder.quantization.masks import VIEWS, Mask, MaskedScores, Masks, Moved
from dimorder.quantization.scores import ATTENTION, HIDDEN, SOFTMAXES, Range, ScoreRun, scores_of
from dimorder.quantization.small_masks import write_with_small_masks
from dimorder.quantization.wrapped import WrappedQuantizer

aten = torch.ops.aten


class MasksInParts(WrappedQuantizer):
    """Another quantizer, for which attentions and softmaxes of masked scores are rewritten first.

    `examples` are some inputs, flat, which show the range of the scores.
    """

    def __init__(self, quantizer: Any, examples: Sequence[Sequence[Any]]) -> None:
        super().__init__(quantizer)
        self.examples = examples

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        rewrite_masks(model, self.examples)
        return super().transform_for_annotation(model)


def rewrite_masks(model: GraphModule, examples: Sequence[Sequence[Any]]) -> None:
    """Write the softmaxes of masked scores in parts, in place.

    Each of `examples` has an input for each placeholder. A score that is lower than all of theirs, by an
    eighth of their range, counts as if it were no lower.

    >>> class Causal(torch.nn.Module):
    ...     def forward(self, scores):
    ...         return scores.masked_fill(~torch.ones(3, 3).tril().bool(), -math.inf).softmax(-1)
    >>> scores = torch.tensor([[1.0, 9, 9], [2, 3, 9], [4, 5, 6]])
    >>> model = torch.export.export(Causal(), (scores,)).module(check_guards=False)
    >>> rewrite_masks(model, [[scores]])
    >>> torch.allclose(model(scores), Causal()(scores)), "softmax" in str(model.graph)
    (True, False)
    """
    for node in model.graph.find_nodes(op="call_function", target=ATTENTION):
        given = bound(node.target, node.args, node.kwargs)
        if not given["dropout_p"]:
            _write_attention(model, node, given)
    softmaxes = [node for node in scores_of(model) if node.target is not ATTENTION and tensor_of(node).dim()]
    if not softmaxes:
        return
    seen, masks, writer = ScoreRun(model, examples), Masks(model), _Writer(model)
    rivals: dict[Node, Node] = {}
    for softmax in softmaxes:
        summed = _before_views(softmax)
        masked = masks.of(summed)
        counted, whole = seen.range_of(softmax), _range_of_sum(masked.scores, seen)
        has_parts = softmax.target in SOFTMAXES and bool(masked.masks)
        if has_parts and counted is not None and whole is not None:
            # The examples may hide no score, and so not show whether the masks would.
            limit = min(counted.low, -whole.width) - HIDDEN
            if all(mask.fill <= limit for mask in masked.masks):
                lowest = whole.low - whole.width / 8
                rivals[writer.write(softmax, summed, masked, lowest)] = softmax
        rivals |= dict.fromkeys(write_with_small_masks(model, softmax, seen), softmax)
    right = ScoreRun(model, examples, rivals).rivals if rivals else {}
    for rival, softmax in right.items():  # a softmax has no readers after its first one
        softmax.replace_all_uses_with(rival)
    model.graph.eliminate_dead_code()
    model.recompile()


def _range_of_sum(scores: Sequence[Moved], seen: ScoreRun) -> Range | None:
    """Return the range that a sum of scores may have, or None without scores or of infinities."""
    ranges = [seen.ranges.get(each.value) for each in scores if isinstance(each.value, Node)]
    if not ranges or None in ranges:
        return None
    whole = Range(*(sum(getattr(each, end) for each in ranges) for end in ("low", "high")))
    return whole if math.isfinite(whole.width) else None


def _before_views(softmax: Node) -> Node:
    """Return the operand of a softmax along the last dimension, before views that keep that dimension."""
    value: Any = softmax.args[0]
    rank = tensor_of(softmax).dim()
    while args_of(softmax)[1] % rank == rank - 1 and value.target in VIEWS:
        source = args_of(value)[0]
        if tensor_of(source).shape[-1:] != tensor_of(value).shape[-1:]:
            break
        value = source
    return value  # type: ignore[no-any-return]


class _Writer:
    """Writes the parts of softmaxes into a graph; masks that softmaxes share are written once."""

    def __init__(self, model: GraphModule) -> None:
        self.model = model
        self._kept: dict[tuple[tuple[Mask, ...], torch.dtype], Node] = {}

    def write(self, softmax: Node, summed: Node, masked: MaskedScores, lowest: float) -> Node:
        """Write a softmax of the sum `summed` in parts, before it."""
        like, dim = tensor_of(softmax), args_of(softmax)[1]
        if summed is not softmax.args[0]:
            dim = -1
        call = partial(computed_before, softmax)
        kept = self._kept_of(masked.masks, softmax, like.dtype)
        scores = [self._placed(each, softmax) for each in masked.scores]
        total = reduce(partial(call, aten.add.Tensor), scores)
        # Both are written as they are: their shapes broadcast to the sum's.
        if tensor_of(total).dtype != like.dtype:
            total = call(aten.to.dtype, total, like.dtype)
        above = call(aten.relu.default, call(aten.sub.Tensor, total, lowest))
        visible = call(aten.mul.Tensor, above, kept)
        largest = call(aten.amax.default, visible, [dim], True)
        exponents = call(aten.exp.default, call(aten.sub.Tensor, visible, largest))
        weights = call(aten.mul.Tensor, exponents, kept)
        sums = call(aten.sum.dim_IntList, weights, [dim], True)
        shares = call(aten.reciprocal.default, call(aten.clamp.default, sums, 1.0))
        result = call(aten.mul.Tensor, weights, shares)
        if tensor_of(result).shape != like.shape:
            result = call(aten.reshape.default, result, list(like.shape))
        return result

    def _kept_of(self, masks: tuple[Mask, ...], place: Node, dtype: torch.dtype) -> Node:
        """Return the numbers 1 and 0 for scores that are kept and hidden, written before `place`."""
        if (masks, dtype) not in self._kept:
            self._kept[masks, dtype] = self._numbers(masks, place, dtype)
        return self._kept[masks, dtype]

    def _numbers(self, masks: tuple[Mask, ...], place: Node, dtype: torch.dtype) -> Node:
        truths = [self._truth(mask, place) for mask in masks]
        known = [truth for truth in truths if isinstance(truth, Tensor)]
        computed = [truth for truth in truths if isinstance(truth, Node)]
        name = "kept_scores"
        if known:
            constant = reduce(torch.logical_and, known)
            if not computed:
                return insert_constant(self.model, name, constant.to(dtype), place)
            computed.append(insert_constant(self.model, name, constant, place))
        kept = reduce(partial(computed_before, place, aten.logical_and.default), computed)
        return computed_before(place, aten.to.dtype, kept, dtype)

    def _truth(self, mask: Mask, place: Node) -> Node | Tensor:
        """Return the truth values that keep a score."""
        held = self._placed(mask.truth, place)
        if isinstance(held, Tensor):
            return held if mask.keeps else ~held
        if tensor_of(held).dtype != torch.bool:
            held = computed_before(place, aten.ne.Scalar, held, 0)
        return held if mask.keeps else computed_before(place, aten.logical_not.default, held)

    @staticmethod
    def _placed(moved: Moved, place: Node) -> Any:
        """Return a value after its moves, which are written before `place`."""
        held = moved.value
        for move in moved.path:
            shape = list(tensor_of(move.all_input_nodes[0]).shape)
            target: Any = aten.reshape.default if move.target in VIEWS else move.target
            if isinstance(held, Tensor):
                held = target(held.expand(shape), *move.args[1:], **move.kwargs)
                continue
            if list(tensor_of(held).shape) != shape:
                held = computed_before(place, aten.expand.default, held, shape)
            held = computed_before(place, target, held, *move.args[1:], **dict[str, Any](move.kwargs))
        return held


def _write_attention(model: GraphModule, node: Node, given: Any) -> None:
    """Write attention as matmuls and a softmax, in place.

    Arm's pass multiplies queries and keys by the root of the scale, and takes no constant one.
    """
    q, k, v = (given[name] for name in ("query", "key", "value"))
    mask, call = given["attn_mask"], partial(computed_before, node)
    if given["enable_gqa"]:
        times = [tensor_of(q).shape[-3] // tensor_of(each).shape[-3] for each in (k, v)]
        k, v = (call(aten.repeat_interleave.self_int, *each, -3) for each in zip((k, v), times, strict=True))
    scale = 1 / math.sqrt(tensor_of(q).shape[-1]) if given["scale"] is None else given["scale"]
    scaled = call(aten.mul.Tensor, q, scale)
    scores = call(aten.matmul.default, scaled, call(aten.transpose.int, k, -2, -1))
    if given["is_causal"]:
        truth = torch.ones(tensor_of(scores).shape[-2:], dtype=torch.bool).tril()
        mask = insert_constant(model, f"causal_{node.name}", truth, node)
    if mask is not None and tensor_of(mask).dtype == torch.bool:
        scores = call(aten.where.ScalarOther, mask, scores, -math.inf)
    elif mask is not None:
        scores = call(aten.add.Tensor, scores, mask)
    weights = call(aten.softmax.int, scores, -1)
    replace_node(node, call(aten.matmul.default, weights, v))
