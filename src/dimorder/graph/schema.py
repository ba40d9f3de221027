"""Name the arguments of a call by its operator's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def bound(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names in the operator's schema, defaults included.

    >>> import torch
    >>> bound(torch.ops.aten.softmax.int, ("x", 1), {})
    {'self': 'x', 'dim': 1, 'dtype': None}
    """
    names = [argument.name for argument in target._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in target._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
