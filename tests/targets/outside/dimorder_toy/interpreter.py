"""Run a .toy file: each call is a function of dense tensors."""

import io

import numpy as np
import torch
import torch.nn.functional as F
import toy_format

from dimorder.targets.base import Artifact


def _conv2d(x, weight, bias, padding, **options):
    top, bottom, left, right = padding
    padded = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
    return F.conv2d(padded, weight.permute(0, 3, 1, 2), bias, **options).permute(0, 2, 3, 1)


CALLS = {
    "conv2d": _conv2d,
    "max_pool2d": lambda x, **window: F.max_pool2d(x.permute(0, 3, 1, 2), **window).permute(0, 2, 3, 1),
    "linear": F.linear,
    "add": torch.add,
    "mean": torch.mean,
    "relu": torch.relu,
    "hardtanh": F.hardtanh,
    "quantize": lambda x, scale, zero_point: (
        (x * (1 / scale)).round().add(zero_point).clamp(-128, 127).char()
    ),
    "dequantize": lambda x, scale, zero_point: (x.float() - zero_point) * scale,
    "scaled": lambda x, scales, dim: (x.float().movedim(dim, -1) * scales).movedim(-1, dim),
    "reshape": torch.reshape,
    "transpose": lambda x, order: x.permute(order),
}


class ToyProgram(Artifact):
    """A file, and how it is run."""

    def __init__(self, data):
        self.data = data
        self.head, body = toy_format.decode(data)
        self.constants = {int(i): torch.from_numpy(x) for i, x in np.load(io.BytesIO(body)).items()}

    def run(self, inputs):
        values = {**self.constants, **dict(zip(self.head["inputs"], inputs, strict=True))}
        for name, result, read, options in self.head["calls"]:
            values[result] = CALLS[name](*(None if i is None else values[i] for i in read), **options)
        return [values[i].contiguous() for i in self.head["outputs"]]
