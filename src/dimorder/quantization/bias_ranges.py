"""Give each channel of a weight a scale in which its bias fits into 32 bits.

A bias counts in the scale of the operand times that of the weight. The scale of a channel of zeros is tiny,
as an initialised norm or pruning leaves it. So is that of an operand which is 0 in all examples.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

# Half of the range of int32. `correct_biases` adds to a bias.
_LARGEST = 2.0**30


def fit_biases(prepared: GraphModule) -> None:
    """Widen the observed range of each channel of a weight whose bias would not fit, in place."""
    from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize

    for node in prepared.graph.nodes:
        if node.op != "call_module":
            continue
        observer = prepared.get_submodule(str(node.target))
        (source,) = node.all_input_nodes
        if not isinstance(observer, DerivedObserverOrFakeQuantize) or source.op != "get_attr":
            continue
        if observer.dtype != torch.int32 or len(observer.obs_or_fqs) != 2:
            continue
        bias: Tensor = attrgetter(str(source.target))(prepared)
        scales, weight = observer.calculate_qparams()[0], observer.obs_or_fqs[1]
        steps = bias.detach().abs() / (scales * _LARGEST)
        if bool((steps > 1).any()):
            _widen(weight, steps)


def _widen(weight: Any, factors: Tensor) -> None:
    """Multiply the scales of a weight's observer by factors above 1, one for each bias.

    Groups may share a scale.
    """
    held = weight.calculate_qparams()[0]
    each = factors.reshape(-1, held.numel()).amax(0)
    wanted = torch.where(each > 1, held * each * weight.quant_max, weight.max_val)
    weight.max_val = torch.maximum(weight.max_val, wanted)
