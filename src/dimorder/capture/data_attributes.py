"""Let a network read and replace tensors by their `.data`, as torch.export traces it.

torch 2.13 takes `x.data` for a constant without elements, and refuses the program. Autoregressive networks
mask their weights so: `self.weight.data *= self.mask`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dimorder.capture.call_mode import CallMode

_READ, _REPLACE = Tensor.data.__get__, Tensor.data.__set__  # type: ignore[attr-defined]


class DataAttributes(CallMode):
    """Write `x.data` as `x.detach()`, and read the new value of a tensor whose `.data` was replaced.

    A weight keeps what a call writes to it, and the program does not: the program computes it in each call.
    Both are the same if to write twice is to write once. The comparison with the network shows whether it is.
    A buffer is state.

    >>> import torch
    >>> class Masked(nn.Linear):
    ...     def forward(self, x):
    ...         self.weight.data *= torch.ones(2, 3).triu()
    ...         return super().forward(x)
    >>> model = Masked(3, 2, bias=False)
    >>> with torch.no_grad(), DataAttributes(model):
    ...     program = torch.export.export(model, (torch.ones(3, 3),))
    >>> bool(torch.equal(program.module()(torch.eye(3)), model.weight.triu().T))
    True
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        # By the id of a tensor, which is kept alive: the tensor, and the one that is read in its place.
        self.replaced: dict[int, tuple[Tensor, Tensor]] = {}

    def begin(self) -> None:
        self.replaced.clear()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function == _REPLACE:
            self._replace(*args)
            return None
        if function == _READ:
            (x,) = args
            if id(x) not in self.replaced and any(x is each for each in self.model.parameters()):
                self._replace(x, x.clone())  # what is written to it is not written to the weight
            return self._current(x).detach()
        args, kwargs = pytree.tree_map_only(Tensor, self._current, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    def _replace(self, x: Tensor, value: Tensor) -> None:
        if any(x is each for each in self.model.buffers()):
            x.copy_(value)
        else:
            self.replaced[id(x)] = x, value

    def _current(self, x: Tensor) -> Tensor:
        return self.replaced[id(x)][1] if id(x) in self.replaced else x
