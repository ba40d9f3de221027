"""Write attention as matmuls and a softmax."""

from __future__ import annotations

import math

import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.masks import truth_of_mask
from dimorder.ops.moves import transpose
from dimorder.ops.operator import spelling

aten = torch.ops.aten


def _attention(
    n: Tracer,
    q: Value,
    k: Value,
    v: Value,
    mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p or enable_gqa:
        raise UnsupportedError(
            "aten.scaled_dot_product_attention",
            f"dropout_p={dropout_p}, enable_gqa={enable_gqa}",
            "export in eval mode, repeat the keys",
        )
    factor = 1.0 / math.sqrt(shape_of(q)[-1]) if scale is None else scale
    scaled = n.write(aten.mul.Tensor, q, factor)
    scores = n.write(aten.matmul.default, scaled, transpose(n, k, -2, -1))
    if is_causal:
        mask = torch.ones(shape_of(q)[-2], shape_of(k)[-2], dtype=torch.bool).tril()
    if isinstance(mask, torch.fx.Node) and dtype_of(mask) != torch.bool:
        truth = truth_of_mask(n, mask)
        mask = mask if truth is None else truth
    seen: Value = None  # factor of the weights, 0 in fully masked rows
    if mask is not None and dtype_of(mask) == torch.bool:
        if isinstance(mask, torch.fx.Node):
            lowest = torch.tensor(torch.finfo(dtype_of(q)).min, dtype=dtype_of(q))
            scores = n.write(aten.where.self, mask, scores, lowest)
            seen, mask = n.write(aten._to_copy.default, mask, dtype=dtype_of(q)), None
        else:
            rows = mask.any(-1, keepdim=True)
            seen = None if rows.all() else rows.to(dtype_of(q))
            mask = torch.zeros(mask.shape, dtype=dtype_of(q)).masked_fill(~mask & rows, float("-inf"))
    if mask is not None and not _hides_nothing(mask, shape_of(scores)):
        scores = n.write(aten.add.Tensor, scores, mask)
    weights = n.write(aten.softmax.int, scores, -1)
    if seen is not None:  # torch returns 0 for a fully masked row
        weights = n.write(aten.mul.Tensor, weights, seen)
    return n.write(aten.matmul.default, weights, v)


def _hides_nothing(mask: Value, scores: tuple[int, ...]) -> bool:
    """Return whether a mask is a constant 0 for all scores, as for a batch without padding."""
    known = isinstance(mask, torch.Tensor) and torch.broadcast_shapes(mask.shape, scores) == scores
    return known and not mask.any()


# Scores can exceed the range of float16 even if the weights computed from them do not.
OPERATORS = (spelling(in_float32(_attention), aten.scaled_dot_product_attention.default),)
