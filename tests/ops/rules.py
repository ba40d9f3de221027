"""Test operators by numbers: each rule and lowering against eager, under contracts of random orders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dimorder.ops.dialect import OPS
from tests.layout.lowering import lower_everywhere
from tests.small_networks import Net
from tests.zoo import perturb


@dataclass(frozen=True)
class Case:
    """One use of an operator: a function of a `Net` and of inputs of these shapes (or these tensors)."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]

    def tensors(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(7)
        return tuple(x if isinstance(x, Tensor) else torch.randn(x, generator=generator) for x in self.inputs)

    def net(self) -> nn.Module:
        return perturb(Net(self.function, **self.attributes)).eval()


def case(function: Callable[..., Any], *inputs: Any, **attributes: Any) -> Case:
    return Case(function, inputs, attributes)


def conv(layer: nn.Module, *shape: int) -> Case:
    return case(lambda m, x: m.layer(x), shape, layer=layer)


def unary(function: Callable[[Tensor], Any], *shape: int) -> Case:
    return case(lambda m, x: function(x), shape)


class Joined(nn.Module):
    """Several networks side by side, each with inputs of its own."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.nets = nn.ModuleList([c.net() for c in cases])
        self.counts = [len(c.inputs) for c in cases]

    def forward(self, *inputs: Tensor) -> Any:
        feed = iter(inputs)
        return tuple(
            net(*[next(feed) for _ in range(count)])
            for net, count in zip(self.nets, self.counts, strict=True)
        )


X = (2, 6, 5, 7)


def dynamic(dims: list[int], mode: str) -> Case:
    return unary(lambda x: OPS.fake_quantize_dynamic(x, dims, -128, 127, 1e-6, mode), *X)


IMAGE = (2, 12, 9, 7)


def ints(*shape: int, below: int = 10, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def constant(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(cases: Mapping[str, Case], fused: Collection[Any] = ()) -> None:
    """Lower a family of cases together, which takes less time than one after the other."""
    inputs = [x for c in cases.values() for x in c.tensors()]
    lower_everywhere(Joined(list(cases.values())), inputs, fused=fused)
