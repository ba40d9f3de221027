"""Quantised networks on target tosa: graphs of integers, each equal on Arm's reference model, bit for bit, to
the model of TOSA's arithmetic (`targets/tosa/int_model.py`), which is held to the exact numbers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from tests.targets.quantised import Between

X, Y, Z = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 3))
RESULTS = ((0.0311, -7), (0.0089, 3), (0.0247, 6))


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "reciprocal": lambda x: (x.abs() + 0.7).reciprocal(),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.7).rsqrt(),
    "exp": torch.exp,
    "log": lambda x: (x.abs() + 0.7).log(),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "leaky relu": lambda x: F.leaky_relu(x, 0.13),
    "power": lambda x: x**3,
    "relu": torch.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.51, 0.77),
    "clamp": lambda x: x.clamp(-0.51, 0.77),
    "clamp_min": lambda x: x.clamp_min(-0.51),
    "clamp_max": lambda x: x.clamp_max(0.77),
    "requantised": lambda x: x,
    "add a number": lambda x: x + 0.37,
    "subtract it": lambda x: x - 0.37,
    "times a number": lambda x: x * -1.83,
    "divided by one": lambda x: x / 1.83,
    "a gate of itself": lambda x: x * torch.sigmoid(x * 1.7) + 0.1,
}
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{name: (compute, (X,)) for name, compute in UNARY.items()},
    "add": (torch.add, (X, Y)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=-0.3), (X, Y)),
    "add, broadcast": (torch.add, (X, Y[:, :1, :1].contiguous())),
    "add of three": (lambda x, y, z: x + y + z, (X, Y, Z)),
    "add of a constant": (lambda x: x + Y[0, :, :1, :1], (X,)),
    "add, then relu": (lambda x, y: torch.relu(x + y), (X, Y)),
    "add, then clamp, then add": (lambda x, y: (x + y).clamp(-0.3, 0.8) + x, (X, Y)),
    "relu, then add": (lambda x, y: torch.relu(x) + y, (X, Y)),
    "sigmoid, then add": (lambda x, y: torch.sigmoid(x) + y, (X, Y)),
    "sub": (torch.sub, (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "mul, broadcast": (torch.mul, (X, Y[:, :, :1, :1].contiguous())),
    "mul by a constant": (lambda x: x * Y[0, :, :1, :1], (X,)),
    "mul of a sum": (lambda x, y, z: (x + y) * z, (X, Y, Z)),
    "mul by a gate": (lambda x, y: x * torch.sigmoid(y), (X, Y)),
    "div": (lambda x, y: x / (y.abs() + 0.9), (X, Y)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "maximum, one scale": (lambda x: torch.maximum(x, x.flip(2)), (X,)),
    "prelu": (lambda x: F.prelu(x, Y[0, :, 0, 0]), (X,)),
    "sum": (lambda x: x.sum((1, 3)) * 0.3, (X,)),
    "mean over space": (lambda x: x.mean((2, 3)), (X,)),
    "mean over space, kept": (lambda x: x.mean((2, 3), keepdim=True), (X,)),
    "mean over channels": (lambda x: x.mean(1), (X,)),
    "mean over the last": (lambda x: x.mean(-1), (X,)),
    "mean of a product": (lambda x, y: (x * y).mean((2, 3)), (X, Y)),
    "amax": (lambda x: x.amax((2, 3)), (X,)),
    "amin": (lambda x: x.amin(1), (X,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "average pool, uncounted": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (X,)),
    "average pool, ceil": (lambda x: F.avg_pool2d(x, (2, 3), 2, ceil_mode=True), (X,)),
    "average pool, divisor": (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), (X,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (X,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), (X,)),
    "reflect pad": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (X,)),
    "transpose": (lambda x: x.transpose(1, 3), (X,)),
    "view": (lambda x: x.reshape(2, 3, 2, 35), (X,)),
    "slice": (lambda x: x[:, 1:4, :, 2:], (X,)),
    "flip": (lambda x: x.flip(2, 3), (X,)),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), (X,)),
    "index": (lambda x: x[:, [3, 0, 5, 0]], (X,)),
    "expand": (lambda x: x[:, :, :1].expand(-1, -1, 3, -1), (X,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "cat of sums": (lambda x, y: torch.cat([x + y, x], 1) * (0.2 * Y[0, :1]), (X, Y)),
    "moved floats": (lambda x, y: (x + y).transpose(1, 2)[:, 1:].flip(2).reshape(2, 4, 42), (X, Y)),
    "padded floats": (lambda x, y: F.pad(x + y, (1, 0, 2, 1)), (X, Y)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "softmax over channels": (lambda x: (x * 0.3).softmax(1), (X,)),
    "layer norm": (lambda x: F.layer_norm(x, (7,)), (X,)),
    "layer norm, affine": (lambda x: F.layer_norm(x, (5, 7), Y[0, 0], Z[0, 0], 1e-3), (X,)),
    "layer norm of rows that are nearly constant": (lambda x: F.layer_norm(x, (7,)), (X * 0.01,)),
    "product of matrices": (lambda x, y: x @ y.transpose(2, 3), (X, Y)),
}


@cache
def lowered(name: str, result: tuple[float, int] = RESULTS[0]) -> Lowered:
    compute, inputs = CASES[name]
    return lower(Between(compute, result), inputs)


def lower(module: nn.Module, inputs: tuple[Tensor, ...]) -> Lowered:
    made = dimorder.lower(module, inputs, target="tosa", run_artifact=True)
    found = inspect_tosa(made.artifact.data)
    assert {tensor.dtype for tensor in (*found.inputs, *found.outputs)} == {"INT8"}
    assert found.transposes == len(made.plan.conversions)
    return made


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_between_quantised_values(name: str, result: tuple[float, int]) -> None:
    assert lowered(name, result).verified.artifact_ran
