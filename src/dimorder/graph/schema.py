"""Decides how the arguments of a call are named: as its operator's schema does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def bound(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their schema's names, defaults filled in.

    >>> import torch
    >>> bound(torch.ops.aten.softmax.int, ("x", 1), {})
    {'self': 'x', 'dim': 1, 'dtype': None}
    """
    names = [argument.name for argument in target._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in target._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
