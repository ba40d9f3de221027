"""Number the tokens of values that are quantized dynamically: the elements that share a scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node, map_arg

from dimorder.graph.nodes import bound


def token_numbers(node: Node) -> Tensor:
    """Return the number of the token of each element of a result that is quantized dynamically."""
    given, shape = bound(node.target, node.args, node.kwargs), tuple(node.meta["val"].shape)
    kept = [1 if d in given["dims"] else size for d, size in enumerate(shape)]
    return torch.arange(math.prod(kept)).reshape(kept).expand(shape).contiguous()


def moved_tokens(node: Node, tokens: Mapping[Node, Tensor | None]) -> Tensor | None:
    """Return the tokens of a move's result, or None if an operand has none. Those of two operands differ."""
    moved, end = dict[Node, Tensor](), 0
    for read, each in tokens.items():
        if each is None:
            return None
        moved[read] = each + end
        end = int(moved[read].max()) + 1
    args, kwargs = map_arg((node.args, node.kwargs), moved.__getitem__)
    target: Any = node.target
    result: Tensor = target(*args, **kwargs)
    return result
