"""Write operators that few targets have in simpler operators, for targets that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.half_numbers import HALVES
from dimorder.graph.tracing import Value
from dimorder.ops.parts_bits import BITS
from dimorder.ops.parts_elementary import LIMITS
from dimorder.ops.parts_gamma import GAMMA, INCOMPLETE
from dimorder.ops.parts_grid import GRIDS
from dimorder.ops.parts_grouped import GROUPED, SAME_AS
from dimorder.ops.parts_indexed import INDEXED
from dimorder.ops.parts_linalg import LINALG
from dimorder.ops.parts_normalization import NORMALIZED
from dimorder.ops.parts_remainder import REMAINDERS
from dimorder.ops.parts_sorted import SORTED
from dimorder.ops.parts_special import SPECIAL
from dimorder.ops.parts_values import VALUES

aten = torch.ops.aten

# Each operator's function in plain torch. It returns NotImplemented for a call that stays as it is,
# and None for a result that does.
PARTS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **SPECIAL,
        **GAMMA,
        **INCOMPLETE,
        **BITS,
        **REMAINDERS,
        **INDEXED,
        **SORTED,
        **NORMALIZED,
        **GROUPED,
        **GRIDS,
        **LINALG,
        **VALUES,
    }
)

# These compute nothing that needs another type, and nan_to_num's limits are those of the type.
_AS_THEY_ARE = frozenset(LIMITS)


def parts_of(
    name: Any, args: Sequence[Value], in_parts: Mapping[Any, Callable[..., Any]]
) -> Callable[..., Any] | None:
    """Return the function that writes a call in parts, if its operator is among `in_parts`."""
    name = SAME_AS.get(str(name), name)
    if name not in in_parts:
        return None
    if name is aten.convolution.default and not any(isinstance(each, torch.fx.Node) for each in args[1:3]):
        return None
    return in_parts[name] if name in _AS_THEY_ARE else _in_float32(in_parts[name])


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute half-precision operands in float32, and round each result once."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        half = next((each.dtype for each in tensors if each.dtype in HALVES), None)
        if half is None:
            return function(*args, **kwargs)

        def changed(to: torch.dtype, given: Collection[torch.dtype], tree: Any) -> Any:
            return pytree.tree_map_only(
                torch.Tensor, lambda leaf: leaf.to(to) if leaf.dtype in given else leaf, tree
            )

        args, kwargs = changed(torch.float32, HALVES, (args, kwargs))
        return changed(half, (torch.float32,), function(*args, **kwargs))

    return compute
