"""Let torch.export take for contiguous what is so at all sizes.

torch 2.13 asks whether a tensor is contiguous at the example's sizes, and demands the same answer of all
others. `mask[:n, :n]` of a mask of 64² elements could have any size but 64. The answer changes no number: it
decides about copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


@contextmanager
def proven_contiguity() -> Iterator[None]:
    """Let torch take for contiguous what is so at all sizes.

    >>> class Masked(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * torch.ones(8, 8)[: x.shape[0], : x.shape[0]]
    >>> sizes = ({0: torch.export.Dim("N", min=2, max=8)},)
    >>> with proven_contiguity():
    ...     program = torch.export.export(Masked(), (torch.ones(3, 1),), dynamic_shapes=sizes)
    >>> program.module()(torch.ones(8, 1)).shape
    torch.Size([8, 8])
    """
    with patch.multiple(torch._prims_common, **_CHECKS):
        yield


def _is_contiguous(sizes: Sequence[Any], strides: Sequence[Any], false_if_dde: bool = False) -> bool:
    return _is_dense(sizes, strides, reversed(range(len(sizes))))


def _is_channels_last(*dims: int) -> Callable[..., bool]:
    def check(a: torch.Tensor, false_if_dde: bool = False) -> bool:
        return a.dim() == len(dims) and _is_dense(a.shape, a.stride(), dims)

    return check


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any], dims: Iterable[int]) -> bool:
    """Return whether the strides are those of a dense tensor at all sizes, the first dimension innermost."""
    expected: Any = 1
    for dim in dims:
        if statically_known_true(sizes[dim] == 1):
            continue
        if not statically_known_true(strides[dim] == expected):
            return False
        expected = expected * sizes[dim]
    return True


_CHECKS: Mapping[str, Any] = MappingProxyType(
    {
        "check_contiguous_sizes_strides": _is_contiguous,
        "is_channels_last_contiguous_2d": _is_channels_last(1, 3, 2, 0),
        "is_channels_last_contiguous_3d": _is_channels_last(1, 4, 3, 2, 0),
    }
)
