"""Define attention: as one operator where a target has it, else as matmuls and a softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, may_resize
from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.masks import fully_masked_rows, hidden_by, split_mask
from dimorder.ops.moves import transpose
from dimorder.ops.operator import Implementation, Operator
from dimorder.ops.relation import Dims, Relation, dims_of

aten = torch.ops.aten

ATTENTION = aten.scaled_dot_product_attention.default
FUSED_ATTENTION = "aten.scaled_dot_product_attention/heads inside"  # the implementation as one operator
_REPEAT = aten.repeat_interleave.self_int


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
    """Write attention as it is if the target has it and heads share their mask, else in simpler operators."""
    if dropout_p:
        raise UnsupportedError(
            "aten.scaled_dot_product_attention", f"dropout_p={dropout_p}", "export in eval mode"
        )
    if enable_gqa:
        heads = shape_of(q)[-3]
        k, v = (n.write(_REPEAT, each, heads // shape_of(each)[-3], -3) for each in (k, v))
    shapes = [shape_of(each) for each in (q, k, v)]
    has_one_batch = len(shapes[0]) == 4 and len({shape[:-2] for shape in shapes}) == 1
    if ATTENTION in n.fused and has_one_batch and _is_shared_by_heads(mask):
        return n.emit(ATTENTION, q, k, v, mask, 0.0, is_causal, scale=scale)
    return in_float32(_in_matmuls)(n, q, k, v, mask, is_causal, scale)


def _is_shared_by_heads(mask: Value) -> bool:
    return mask is None or len(shape_of(mask)) < 3 or shape_of(mask)[-3] == 1


def _in_matmuls(
    n: Tracer, q: Value, k: Value, v: Value, mask: Value, is_causal: bool, scale: float | None
) -> Value:
    """Write attention in float32 if it is of half precision: scores can exceed the range of float16."""
    factor = 1.0 / math.sqrt(shape_of(q)[-1]) if scale is None else scale
    scaled = n.write(aten.mul.Tensor, q, factor)
    scores = n.write(aten.matmul.default, scaled, transpose(n, k, -2, -1))
    if is_causal:
        mask = torch.ones(shape_of(q)[-2], shape_of(k)[-2], dtype=torch.bool).tril()
    if isinstance(mask, torch.fx.Node) and dtype_of(mask) != torch.bool:
        parts = split_mask(n, mask)
        if parts is not None:
            mask, numbers = parts
            scores = scores if numbers is None else n.write(aten.add.Tensor, scores, numbers)
    seen: Value = None  # factor of the weights, 0 in fully masked rows
    if isinstance(mask, torch.fx.Node) and dtype_of(mask) == torch.bool:
        lowest = torch.tensor(torch.finfo(dtype_of(q)).min, dtype=dtype_of(q))
        scores = n.write(aten.where.self, mask, scores, lowest)
        seen, mask = n.write(aten._to_copy.default, mask, dtype=dtype_of(q)), None
    elif isinstance(mask, torch.Tensor):
        hidden, rows = hidden_by(mask), ~fully_masked_rows(mask)
        mask = torch.zeros(mask.shape, dtype=dtype_of(q)) if mask.dtype == torch.bool else mask
        if not rows.all():
            seen = rows.to(dtype_of(q))
            mask = mask.masked_fill(~rows, 0.0)
        mask = mask.masked_fill(hidden & rows, float("-inf"))
    if mask is not None and (may_resize(n.node) or not _hides_nothing(mask, shape_of(scores))):
        scores = n.write(aten.add.Tensor, scores, mask)
    weights = n.write(aten.softmax.int, scores, -1)
    if seen is not None:  # torch returns 0 for a fully masked row
        weights = n.write(aten.mul.Tensor, weights, seen)
    return n.write(aten.matmul.default, weights, v)


def _hides_nothing(mask: Value, scores: tuple[int, ...]) -> bool:
    """Return whether a mask is a constant 0 for all scores, as for a batch without padding."""
    known = isinstance(mask, torch.Tensor) and torch.broadcast_shapes(mask.shape, scores) == scores
    return known and not mask.any()


def _relate_attention(node: torch.fx.Node) -> Relation:
    def dims(shape: Sequence[int], *last: str) -> Dims:
        names = ("b.0", "b.1", *last)[4 - len(shape) :]
        return dims_of(
            (name, size if size == sizes[name] else 1) for name, size in zip(names, shape, strict=True)
        )

    q, k, v, mask, *_ = args_of(node)
    shapes = [shape_of(each) for each in (q, k, v)]
    batch, (rows, inner), (keys, features) = shapes[0][:2], shapes[0][2:], shapes[2][2:]
    sizes = dict(zip(("b.0", "b.1", "m", "n", "e", "f"), (*batch, rows, keys, inner, features), strict=True))
    reads = [dims(shape, *last) for shape, last in zip(shapes, ("me", "ne", "nf"), strict=True)]
    if mask is not None:
        reads.append(dims(shape_of(mask), "m", "n"))
    return Relation("contraction", tuple(reads), (dims(shape_of(node), "m", "f"),))


def _write_attention(c: Call) -> None:
    """Lower to attention with the heads of a row beside each other, as a linear leaves them."""
    *_, mask, _, is_causal = args_of(c.node)
    n, m, s, h, e, f = c.by_label("b.0", "m", "n", "b.1", "e", "f")
    sides = [[n, m, h, e], [n, s, h, e], [n, s, h, f]]
    masks = [] if mask is None else [[n, [], m, s]]
    operands = [*c.operands_in([*sides, *masks]), None][:4]
    scale = c.node.kwargs["scale"]
    c.give(c.b.call(OPS.attention_nlhe.default, *operands, is_causal, scale), [n, m, h, f])


OPERATORS = (
    Operator(
        (ATTENTION,),
        _relate_attention,
        (Implementation("heads inside", "b.0 m n b.1 e f", _write_attention, (OPS.attention_nlhe.default,)),),
        spelling=_attention,
        elements=Elements.MIXES,
    ),
)
