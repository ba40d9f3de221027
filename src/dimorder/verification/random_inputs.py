"""Draw random inputs in the shapes of examples: of one magnitude, of many, or near the examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def random_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: standard normal if floating point, else the examples."""
    return _drawn(examples, seed, lambda x, generator: torch.randn(x.shape, generator=generator))


def uniform_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: between 0 and 1 if floating point, else the examples."""
    return _drawn(examples, seed, lambda x, generator: torch.rand(x.shape, generator=generator))


def copies(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples themselves, whatever the seed."""
    return tuple(x.clone() for x in examples)


def near_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the examples, with each number changed by about a hundredth of itself."""
    return changed(examples, 1e-2, seed)


def steep_like(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs of the examples' shapes: of either sign, from 1e-3 to 1e3, every eighth of them zero.

    In float16 they reach to 256, for a larger number has no square there.
    """

    def steep(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        most = min(3.0, math.log10(torch.finfo(x.dtype).max) / 2)
        magnitude = 10 ** ((3 + most) * torch.rand(x.shape, generator=generator) - 3)
        value = torch.randn(x.shape, generator=generator).sign() * magnitude
        return value * (torch.rand(x.shape, generator=generator) > 1 / 8)

    return _drawn(examples, seed, steep)


def changed(inputs: Sequence[torch.Tensor], share: float, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return inputs with each number changed by about this share of itself."""
    return _drawn(
        inputs, seed, lambda x, generator: x * (1 + share * torch.randn(x.shape, generator=generator))
    )


def scaled(draw: Callable[..., tuple[torch.Tensor, ...]], share: float) -> Callable[..., Any]:
    """Return a function that draws as `draw` does, and multiplies the floats by `share`."""

    def drawn(examples: Sequence[torch.Tensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
        return tuple(x * share if x.is_floating_point() else x for x in draw(examples, seed))

    return draw if share == 1 else drawn


def is_normal(example: torch.Tensor) -> bool:
    """Return whether numbers look like standard normal ones; integers are none that are drawn.

    >>> is_normal(torch.randn(3, 50)), is_normal(torch.rand(3, 50)), is_normal(torch.ones(3, 50))
    (True, False, False)
    """
    if not example.is_floating_point():
        return True
    numbers = example.double()
    return bool(numbers.mean().abs() < 0.3 and 0.6 < numbers.abs().mean() < 1.1)


def _drawn(
    examples: Sequence[torch.Tensor],
    seed: int,
    draw: Callable[[torch.Tensor, torch.Generator], torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Return numbers that `draw` gives in place of each example of floats, and copies of the others."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(draw(x, generator).to(x.dtype) if x.is_floating_point() else x.clone() for x in examples)
