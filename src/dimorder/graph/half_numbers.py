"""Round the numbers of a call to half precision, where PyTorch does so before it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import tensor_of

HALVES = frozenset((torch.float16, torch.bfloat16))  # half-precision types

# PyTorch's other operators, such as mul, div and threshold, compute with the number itself, in float32.
_ARITHMETIC = ("add", "sub", "rsub", "remainder", "fmod", "pow", "xlogy", "hardshrink")
_ROUNDING = frozenset((*_ARITHMETIC, "eq", "ne", "lt", "le", "gt", "ge"))


def round_numbers(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call as PyTorch reads them. Constants without dimensions count as numbers.

    A number that comes first, as in 7 // x, is rounded by all operators.

    Whether x >= 0.1 is true depends on it if x is 0.1 in half precision: a runtime may compare in float32.

    >>> x = torch.tensor([0.1, 0.3]).half()
    >>> (_, number), _ = round_numbers(torch.ops.aten.ge.Scalar, (x, 0.1), {})
    >>> number, x >= 0.1, x.float() >= 0.1
    (0.0999755859375, tensor([True, True]), tensor([False,  True]))
    """
    is_first = bool(args) and type(args[0]) in (int, float)
    if not is_first and getattr(target, "_opname", None) not in _ROUNDING:
        return args, kwargs
    kinds = (torch.fx.Node, torch.Tensor)
    leaves = [tensor_of(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, kinds)]
    floats = [x for x in leaves if x.dtype.is_floating_point]
    types = {x.dtype for x in floats if x.dim()} or {x.dtype for x in floats}
    if len(types) != 1 or not types <= HALVES:
        return args, kwargs
    (half,) = types

    def rounded(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 0 and leaf.is_floating_point():
            return leaf.to(half)
        if type(leaf) not in (int, float):
            return leaf
        number = float(torch.tensor(float(leaf)).to(half))
        return leaf if number == leaf else number

    return pytree.tree_map(rounded, (args, kwargs))  # type: ignore[no-any-return]
