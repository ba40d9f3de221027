"""Keep sizes dynamic as a network is exported, where torch.export would fix them.

1. Equal parts of a dynamic size are a view. torch 2.13 divides by rounding: `chunk(2)` of 2·N elements takes
   parts of N, of which (3·N - 1) // N are needed. It cannot prove that these are 2 for every N, and fixes N.
   A network that stacks two batches, or that computes with and without guidance at once, would have one size
   of its batch.
2. The places of `torch.linspace` are those of `arange`, of which torch.export keeps the number dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.overrides import TorchFunctionMode


class KeepDynamic(TorchFunctionMode):
    """Write `chunk`, `split` and `linspace` of dynamic sizes in functions that keep them dynamic.

    >>> class Both(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cat([x, -x]).relu().chunk(2)
    >>> sizes = ({0: torch.export.Dim("N", min=1, max=4)},)
    >>> with KeepDynamic():
    ...     program = torch.export.export(Both(), (torch.ones(2, 3),), dynamic_shapes=sizes)
    >>> targets = [str(node.target) for node in program.graph.nodes]
    >>> "aten.unbind.int" in targets, "aten.chunk.default" in targets
    (True, False)
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond
            return function(*args, **kwargs)
        if function in _DIVIDED_BY:
            x, count, dim = _DIVIDED_BY[function](*args, **kwargs)
            dim %= max(x.dim(), 1)
            if x.dim() and _is_known(x.shape[dim]) and count and x.shape[dim] % count == 0:
                return x.unflatten(dim, (count, x.shape[dim] // count)).unbind(dim)
        line = _line(*args, **kwargs) if function is torch.linspace else None
        return function(*args, **kwargs) if line is None else line


def _line(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Tensor | None:
    """Return what `torch.linspace` does, if the number of its places is dynamic.

    One place is the start. `sym_max` says so: torch takes a size that may be 1 for at least 2.
    """
    dtype = dtype or torch.get_default_dtype()
    if not (_is_known(steps) and dtype.is_floating_point):
        return None
    places = torch.arange(steps, dtype=dtype, **options) * (end - start)
    line: Tensor = places / torch.sym_max(steps - 1, 1) + start
    return line


def _is_known(size: int | SymInt) -> bool:
    """Return whether a size is dynamic, and is not decided by data."""
    return isinstance(size, SymInt) and not free_unbacked_symbols(size)


def _by_count(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, int, int]:
    return input, chunks, dim


def _by_size(tensor: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, int, int]:
    """Return the count of parts of a dynamic size; 0 for parts of a fixed size, and of several sizes."""
    if not isinstance(split_size, SymInt):
        return tensor, 0, dim
    return tensor, int(tensor.shape[dim] // split_size), dim


_DIVIDED_BY: Mapping[Any, Callable[..., tuple[Tensor, int, int]]] = MappingProxyType(
    {
        torch.chunk: _by_count,
        Tensor.chunk: _by_count,
        torch.split: _by_size,
        Tensor.split: _by_size,
    }
)
