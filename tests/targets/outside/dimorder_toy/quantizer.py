"""The recipe of target toy: what convolutions and linears read is int8."""

import torch
from torchao.quantization.pt2e import HistogramObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

_VALUES = QuantizationSpec(torch.int8, HistogramObserver, -128, 127, torch.per_tensor_affine)
_WEIGHTS = QuantizationSpec(torch.int8, PerChannelMinMaxObserver, -127, 127, torch.per_channel_symmetric, 0)


class ToyQuantizer(Quantizer):
    def annotate(self, model):
        for node in model.graph.nodes:
            if node.target in (torch.ops.aten.conv2d.default, torch.ops.aten.linear.default):
                specs = {node.args[0]: _VALUES, node.args[1]: _WEIGHTS}
                node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(specs, _annotated=True)
        return model

    def validate(self, model): ...
