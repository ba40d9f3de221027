"""Decides how the tests quantise a network: by PT2E and ExecuTorch's quantizers, statically, per channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE

INT8 = (-128, 127, torch.int8)


def quantised(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """The numbers that int8 values of that scale and zero point stand for, nearest to these."""
    return DEQUANTIZE(QUANTIZE(x, scale, zero_point, *INT8), scale, zero_point, *INT8)


class Between(nn.Module):
    """What `compute` makes of quantised values of awkward scales and zero points, quantised."""

    SCALES = ((0.0247, 5), (0.0313, -17), (0.0189, 0))

    def __init__(self, compute: Callable[..., Tensor], result: tuple[float, int]) -> None:
        super().__init__()
        self.compute, self.result = compute, result

    def forward(self, *inputs: Tensor) -> Tensor:
        held = [quantised(x, *scale) for x, scale in zip(inputs, self.SCALES, strict=False)]
        return quantised(self.compute(*held), *self.result)


def by_xnnpack(model: nn.Module, x: Tensor) -> nn.Module:
    """By XNNPACKQuantizer."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer

    config = quantizer.get_symmetric_quantization_config(is_per_channel=True)
    return _converted(model, x, quantizer.XNNPACKQuantizer().set_global(config))


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
