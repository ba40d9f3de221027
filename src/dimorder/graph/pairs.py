"""Define a pair: the real and imaginary parts that stand for a complex tensor while a graph is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
PART = {complex_type: real for real, complex_type in _COMPLEX.items()}  # the type of a complex number's parts


class Pair(NamedTuple):
    """A complex value as two real ones. No `im` means that all imaginary parts are 0.

    >>> z = Pair(torch.ones(2, 3), None)
    >>> tuple(z.shape), z.dtype
    ((2, 3), torch.complex64)
    """

    re: Any
    im: Any

    @property
    def shape(self) -> torch.Size:
        return self._real.shape

    @property
    def dtype(self) -> torch.dtype:
        return _COMPLEX[self._real.dtype]

    @property
    def _real(self) -> torch.Tensor:
        is_node = isinstance(self.re, torch.fx.Node)
        return self.re.meta["val"] if is_node else self.re  # type: ignore[no-any-return]


def is_pair(value: Any) -> bool:
    return isinstance(value, Pair)


def is_complex(leaf: Any) -> bool:
    """Return whether a leaf of a call is complex: a value, a constant, a number or a type."""
    if isinstance(leaf, torch.Tensor):
        return leaf.is_complex()
    if isinstance(leaf, torch.dtype):
        return leaf.is_complex
    return isinstance(leaf, (Pair, complex))


def has_complex(tree: Any) -> bool:
    return any(map(is_complex, pytree.tree_leaves(tree, is_leaf=is_pair)))


def real_views(tensors: Sequence[torch.Tensor], in_pairs: bool = True) -> list[torch.Tensor]:
    """Return tensors with complex ones as torch.view_as_real has them, or unchanged if not `in_pairs`."""
    return [torch.view_as_real(x.resolve_conj()) if in_pairs and x.is_complex() else x for x in tensors]
