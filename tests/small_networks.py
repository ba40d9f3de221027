"""Networks of one function, which most tests of one mechanism use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Net(nn.Module):
    """A network that is one function of itself and its inputs; modules and constants are its attributes."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            self.register_buffer(name, value) if isinstance(value, Tensor) else setattr(self, name, value)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class OneInput(Net):
    """Such a network of one input, which is called x."""

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)
