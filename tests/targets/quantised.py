"""Decides how tests quantise a network: by PT2E and ExecuTorch's quantizers per channel, or by torchao."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def by_xnnpack(model: nn.Module, x: Tensor) -> nn.Module:
    """By XNNPACKQuantizer."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer

    config = quantizer.get_symmetric_quantization_config(is_per_channel=True)
    return _converted(model, x, quantizer.XNNPACKQuantizer().set_global(config))


def by_xnnpack_dynamically(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """By XNNPACKQuantizer, the scales of activations being found as the network runs."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = quantizer.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    with torch.no_grad():
        exported = torch.export.export(model.eval(), inputs).module(check_guards=False)
        prepared = prepare_pt2e(exported, quantizer.XNNPACKQuantizer().set_global(config))
        prepared(*inputs)
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def by_torchao(model: nn.Module, config: Any) -> nn.Module:
    """By torchao's `quantize_`, every linear layer."""
    from torchao.quantization import quantize_

    quantize_(model.eval(), config)
    return model


def by_arm(model: nn.Module, x: Tensor) -> nn.Module:
    """By TOSAQuantizer: biases are int32, and q/dq stand round every operator."""
    from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config
    from executorch.backends.arm.tosa.specification import TosaSpecification

    quantizer = TOSAQuantizer(TosaSpecification.create_from_string("TOSA-1.0+INT"))
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
    return _converted(model, x, quantizer)


def _converted(model: nn.Module, x: Tensor, quantizer: Any) -> nn.Module:
    """Calibrated on two inputs."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        exported = torch.export.export(model.eval(), (x,)).module(check_guards=False)
        prepared = prepare_pt2e(exported, quantizer)
        prepared(x)
        prepared(x.flip(-1) * 1.1)
    converted: nn.Module = convert_pt2e(prepared)
    return converted
