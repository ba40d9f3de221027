"""Decides how the tests quantise a network: by PT2E and ExecuTorch's quantizers, or by torchao."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def by_xnnpack(model: nn.Module, *args: Tensor, is_per_channel: bool = True) -> nn.Module:
    """By XNNPACKQuantizer."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer

    config = quantizer.get_symmetric_quantization_config(is_per_channel=is_per_channel)
    return _converted(model, args, quantizer.XNNPACKQuantizer().set_global(config))


def by_xnnpack_per_tensor(model: nn.Module, *args: Tensor) -> nn.Module:
    """By XNNPACKQuantizer, one scale for a weight."""
    return by_xnnpack(model, *args, is_per_channel=False)


def by_xnnpack_dynamically(model: nn.Module, *args: Tensor) -> nn.Module:
    """By XNNPACKQuantizer, the scales of activations being found as the network runs."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer

    config = quantizer.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    return _converted(model, args, quantizer.XNNPACKQuantizer().set_global(config))


def by_torchao(model: nn.Module, config: Any) -> nn.Module:
    """By torchao's `quantize_`, every linear layer."""
    from torchao.quantization import quantize_

    quantize_(model.eval(), config)
    return model


def by_arm(model: nn.Module, *args: Tensor) -> nn.Module:
    """By TOSAQuantizer: biases are int32, and q/dq stand round every operator."""
    from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config
    from executorch.backends.arm.tosa.specification import TosaSpecification

    quantizer = TOSAQuantizer(TosaSpecification.create_from_string("TOSA-1.0+INT"))
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
    return _converted(model, args, quantizer)


def _converted(model: nn.Module, args: Sequence[Tensor], quantizer: Any) -> nn.Module:
    """Calibrated on two calls."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        exported = torch.export.export(model.eval(), tuple(args)).module(check_guards=False)
        prepared = prepare_pt2e(exported, quantizer)
        prepared(*args)
        prepared(*(x.flip(-1) * 1.1 if x.is_floating_point() else x for x in args))
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def stock_pte(quantised: nn.Module, *args: Tensor) -> bytes:
    """The file that ExecuTorch's own lowering to XNNPACK makes of a quantised network."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(quantised, args)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer)
