"""Let torch.export leave open what only the example's sizes decide, as it does for sizes that data decide.

torch 2.13 asks whether a size is 1, and demands the example's answer of all others. A convolution of 3
columns leaves one of 3, and a ReLU after it would refuse 3 columns. The answer for unknown sizes is right for
all of them. A size is not 1, and is equal to what it must be equal to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental import _config, symbolic_shapes
from torch.overrides import TorchFunctionMode


@contextmanager
def undecided_by_example() -> Iterator[None]:
    """Let torch take its answer for unknown sizes, where its own ranges do not decide.

    >>> class Pairs(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x[1:] + x[:-1]).relu()
    >>> sizes = ({0: torch.export.Dim("N", min=2, max=8)},)
    >>> with undecided_by_example():
    ...     program = torch.export.export(Pairs(), (torch.ones(3, 4),), dynamic_shapes=sizes)
    >>> program.module()(torch.ones(2, 4)).shape
    torch.Size([1, 4])
    """
    unknown = _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    # A convolution's kernel would else be sought for the example.
    with patch.object(symbolic_shapes, "has_guarding_hint", _is_fixed), unknown, _Copies():
        yield


def _is_fixed(size: Any) -> bool:
    return not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool))


class _Copies(TorchFunctionMode):
    """Copy a tensor of dynamic sizes that is made contiguous or reshaped, unless it always is contiguous.

    torch's own calls ask whether they must copy it, with one answer for all sizes.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.Tensor.contiguous and _is_dynamic(args[0]):
            return torch.clone(args[0], memory_format=_order(*args[1:], **kwargs))
        if function in _RESHAPES:
            args = tuple(_contiguous(each) if _is_dynamic(each) else each for each in args)
        return function(*args, **kwargs)


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not all(map(_is_fixed, value.shape))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    if is_contiguous_or_false(tensor):
        return tensor
    return torch.clone(tensor, memory_format=torch.contiguous_format)


def _order(memory_format: torch.memory_format = torch.contiguous_format) -> torch.memory_format:
    return memory_format


# A matmul reshapes operands of more than three dimensions, and a linear those of more than two.
_RESHAPES = frozenset(
    {
        *(torch.reshape, torch.Tensor.reshape, torch.flatten, torch.Tensor.flatten),
        *(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.nn.functional.linear),
    }
)
