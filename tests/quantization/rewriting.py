"""Rewrite the calls of an exported network in place, as quantizers' preparations do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx import GraphModule


def rewritten(net: nn.Module, x: Tensor, rewrite: Callable[[GraphModule], None]) -> GraphModule:
    """Return a network as the graph that a function makes of its export."""
    model = torch.export.export(net, (x,)).module(check_guards=False)
    assert isinstance(model, GraphModule)
    rewrite(model)
    model.recompile()
    return model
