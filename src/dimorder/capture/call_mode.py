"""Follow the functions of torch that a network calls, as torch.export traces it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class CallMode(TorchFunctionMode):
    """A mode that begins anew with each call of a network: torch.export calls it several times.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __enter__(self) -> Any:
        self.hook = self.model.register_forward_pre_hook(lambda *call: self.begin(), prepend=True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.hook.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Forget what was found in an earlier call."""
        raise NotImplementedError
