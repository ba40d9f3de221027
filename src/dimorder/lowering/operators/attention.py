"""Attention, spelt as products and a softmax."""

from __future__ import annotations

import math

import torch

from dimorder.errors import UnsupportedError
from dimorder.lowering.capture.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.lowering.operators.moves import transpose
from dimorder.lowering.operators.operator import spelt

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
    scores = n.call(
        aten.matmul.default, (n.call(aten.mul.Tensor, (q, factor), {}), transpose(n, k, -2, -1)), {}
    )
    if is_causal:
        mask = torch.ones(shape_of(q)[-2], shape_of(k)[-2], dtype=torch.bool).tril()
    if mask is not None and dtype_of(mask) == torch.bool:
        if isinstance(mask, torch.fx.Node):
            blocked = torch.tensor(float("-inf"), dtype=dtype_of(q))
            scores = n.emit(aten.where.self, mask, scores, blocked)
            mask = None
        else:
            mask = torch.zeros(mask.shape, dtype=dtype_of(q)).masked_fill(~mask, float("-inf"))
    if mask is not None:
        scores = n.emit(aten.add.Tensor, scores, mask)
    weights = n.emit(aten.softmax.int, scores, -1)
    return n.call(aten.matmul.default, (weights, v), {})


OPERATORS = (spelt(_attention, aten.scaled_dot_product_attention.default),)
