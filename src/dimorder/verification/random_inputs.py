"""Draw random inputs in the shapes of examples: of one magnitude, of many, or near the examples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def random_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: standard normal if floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


def uniform_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: between 0 and 1 if floating point, else the examples."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.rand(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x.clone()
        for x in examples
    )


def copies(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples themselves, whatever the seed."""
    return tuple(x.clone() for x in examples)


def near_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples, with each number changed by about a hundredth of itself."""
    return changed(examples, 1e-2, seed)


def steep_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: of either sign, from 1e-3 to 1e3, every eighth of them zero.

    In float16 they reach to 256, for a larger number has no square there. A kernel may make NaN of infinity.
    """
    generator = torch.Generator().manual_seed(seed)

    def steep(x: torch.Tensor) -> torch.Tensor:
        most = min(3.0, math.log10(torch.finfo(x.dtype).max) / 2)
        magnitude = 10 ** ((3 + most) * torch.rand(x.shape, generator=generator) - 3)
        value = torch.randn(x.shape, generator=generator).sign() * magnitude
        return (value * (torch.rand(x.shape, generator=generator) > 1 / 8)).to(x.dtype)

    return tuple(steep(x) if x.is_floating_point() else x.clone() for x in examples)


def changed(inputs: Sequence[torch.Tensor], share: float, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs with each number changed by about this share of itself."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        (x * (1 + share * torch.randn(x.shape, generator=generator))).to(x.dtype)
        if x.is_floating_point()
        else x
        for x in inputs
    )
