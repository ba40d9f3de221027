"""Describe the outcome for a random network, and check the type and the order of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import TensorSpec


@dataclass(frozen=True)
class Outcome:
    """`kind` is "right", "refused", or what kind of fault was found; `detail` is for people."""

    kind: str
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("right", "refused")


def channels_last(x: Tensor) -> Tensor:
    order = DimOrder.channels_last(x.dim()) if x.dim() > 2 else DimOrder.contiguous(x.dim())
    return torch.empty_strided(x.shape, order.strides(tuple(x.shape)), dtype=x.dtype).copy_(x)


def type_fault(i: int, got: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Outcome | None:
    if got.dtype == dtype and tuple(got.shape) == tuple(shape):
        return None
    return Outcome("wrong type", f"output {i}: {got.dtype} {got.shape} for {dtype} {shape}")


def promise_fault(i: int, got: Tensor, spec: TensorSpec) -> Outcome | None:
    promised = spec.dim_order.strides(tuple(got.shape))
    if all(a == b for a, b, size in zip(got.stride(), promised, got.shape, strict=True) if size > 1):
        return None
    return Outcome("broken promise", f"output {i} has strides {got.stride()}, not {promised}")
