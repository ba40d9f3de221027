"""Share ranges among the tests of dynamic sizes, and lower networks and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.contract import Symbol
from dimorder.errors import UnsupportedError, UsageError
from dimorder.lowered import Lowered
from dimorder.verification.relative_error import relative_error

TARGETS = ("torch", "xnnpack")
RANGES = {
    "N": Symbol("N", 1, 16),
    "H": Symbol("H", 32, 96, 16),
    "W": Symbol("W", 48, 112, 16),
    "T": Symbol("T", 60, 130),
}
PICTURES = [
    {"N": n, "H": h, "W": w}
    for n, h, w in ((1, 32, 48), (2, 96, 112), (1, 96, 48), (3, 32, 112), (2, 64, 64), (16, 48, 80))
]
TIMES = [{"T": t} for t in (60, 61, 77, 96, 129, 130)]


def dynamic_shapes(shape: str) -> tuple[dict[int, Any], ...]:
    """Return the dynamic shapes for torch.export of one input of such a shape: `Nx3x64x64`."""
    dims = {}
    for d, size in enumerate(shape.split("x")):
        if size in RANGES:
            symbol = RANGES[size]
            root = Dim(size, min=symbol.minimum // symbol.step, max=(symbol.maximum or 0) // symbol.step)
            dims[d] = root if symbol.step == 1 else symbol.step * root
    return (dims,)


def sized(shape: str, sizes: Mapping[str, int]) -> torch.Tensor:
    return torch.randn([sizes.get(size) or int(size) for size in shape.split("x")])


def lower(module: nn.Module, shape: str, **options: Any) -> Lowered:
    example = sized(shape, {name: symbol.minimum + symbol.step for name, symbol in RANGES.items()})
    return dimorder.lower(module, (example,), dynamic_shapes=dynamic_shapes(shape), **options)


def errors(lowered: Lowered, module: nn.Module, x: torch.Tensor) -> list[float]:
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(x))
    return [relative_error(*pair) for pair in zip(pytree.tree_leaves(lowered.run(x)), wanted, strict=True)]


# What is computed of sizes before a delegate: how much of its constants it reads.
OF_SIZES = {
    *("aten::slice_copy.Tensor_out", "aten::sym_size.int"),
    *(f"executorch_prim::{name}.Scalar" for name in ("add", "floordiv", "mul")),
}


class Gated(nn.Module):
    """A convolution of stride 2, times a gate of its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        gate: torch.Tensor = self.gate(y.mean((2, 3))).sigmoid()
        return y * gate[:, :, None, None]


def refusal(module: nn.Module, example: torch.Tensor, dims: Any, **options: Any) -> list[str]:
    with pytest.raises((UnsupportedError, UsageError)) as refused:
        dimorder.lower(module, (example,), dynamic_shapes=dims, **options)
    return str(refused.value).splitlines()


BATCH = ({0: Dim("N", min=1, max=16)},)
