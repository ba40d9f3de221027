"""Write torch's flex_attention in plain operators.

torch.export keeps a call of it, with the graphs of two functions: one changes a score, one tells whether a
score is visible. Each reads the places of the score: in the batch, of the head, of the row and of the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_FLEX = torch.ops.higher_order.flex_attention


def decompose_flex_attention(program: ExportedProgram) -> ExportedProgram:
    """Return the program with each call of flex_attention as torch's attention, or as products and a softmax.

    >>> from torch.nn.attention.flex_attention import flex_attention
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, x):
    ...         return flex_attention(x, x, x)
    >>> program = torch.export.export(Attention(), (torch.ones(1, 2, 5, 4),))
    >>> [str(node.target) for node in decompose_flex_attention(program).graph.nodes][-2:-1]
    ['aten.scaled_dot_product_attention.default']
    """
    if not program.graph.find_nodes(op="call_function", target=_FLEX):
        return program
    with patch.object(type(_FLEX), "__call__", _compute):
        decomposed: ExportedProgram = program.run_decompositions({})
    return decomposed


def _compute(
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    change: GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    options: Any,
    score_buffers: tuple[Tensor, ...] = (),
    mask_buffers: tuple[Tensor, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what flex_attention does: the sums of values, and of each row its logarithm and largest score.

    The last two are in base 2. The program leaves out what nobody reads.
    """
    show, groups = block_mask[-1], query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    places = [torch.arange(size) for size in (*query.shape[:3], key.shape[2])]
    visible = None
    if _returned(show).target is not aten.new_ones.default:
        read = [place if node.users else place[:1] for place, node in zip(places, _given(show), strict=False)]
        visible = _for_each_place(show, (), len(mask_buffers))(*read, *mask_buffers)
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(2, 3) * scale
    changes = _returned(change).op != "placeholder"
    if changes:
        scores = _for_each_place(change, (0,), len(score_buffers))(scores, *places, *score_buffers)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if changes:
        result = torch._safe_softmax(scores, -1).to(query.dtype) @ value
    else:
        attention = torch.nn.functional.scaled_dot_product_attention
        result = attention(query, key, value, visible, scale=scale)
    return result, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _given(function: GraphModule) -> list[Node]:
    return list(function.graph.find_nodes(op="placeholder"))


def _returned(function: GraphModule) -> Node:
    (returned,) = function.graph.output_node().args
    assert isinstance(returned, Node)
    return returned


def _for_each_place(
    function: Callable[..., Tensor], scores: tuple[int, ...], buffers: int
) -> Callable[..., Tensor]:
    """Return a function of all places along each of the four dimensions, from one of a single place."""
    for dim in reversed(range(4)):
        places = [0 if d == dim else None for d in range(4)]
        function = torch.vmap(function, (*scores, *places, *[None] * buffers))
    return function
