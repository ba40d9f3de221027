"""Networks with linears and norms, and what `rewrite_linears` makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from dimorder.capture import check_captured
from dimorder.capture.captured import Captured, capture
from dimorder.capture.rewrite_linears import LinearLimits, rewrite_linears
from dimorder.lowered import Lowered
from dimorder.verification.relative_error import relative_error

aten = torch.ops.aten


def values(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of both signs, none of which is near 0."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x + x.sign() / 4


def norm(*features: int, **options: Any) -> nn.Module:
    """A layer-norm whose weight and bias are not those that it begins with."""
    made = nn.LayerNorm(features, **options)
    for i, parameter in enumerate(made.parameters()):
        parameter.data = values(*features, seed=i)
    return made


def batch_norm(features: int) -> nn.Module:
    made = nn.BatchNorm1d(features)
    made.weight.data, made.bias.data = values(features, seed=1), values(features, seed=2)
    made.running_mean.copy_(values(features, seed=3))
    made.running_var.copy_(values(features, seed=4).square())
    return made


def rewritten(model: nn.Module, *args: Tensor, cuts: bool = True) -> tuple[Captured, Captured]:
    """A network in normal form, before and after, which are held to the same numbers."""
    torch.manual_seed(0)
    before = capture(model.eval(), args)
    (after,) = rewrite_linears([before], LinearLimits(16 if cuts else None))
    assert list(check_captured.captured_faults(after)) == []
    with torch.no_grad():
        pairs = zip(after.module(*args), before.module(*args), strict=True)
        assert max(relative_error(*pair) for pair in pairs) < 1e-5
    return before, after


def operators(program: Captured) -> list[str]:
    """The calls of a program by name, views and permutes apart."""
    names = [str(node.target).split(".")[1] for node in program.nodes if node.op == "call_function"]
    return [name for name in names if name not in ("reshape", "permute")]


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (3, 4)).transpose(1, 2)


def physical(lowered: Lowered) -> Counter[str]:
    return Counter(
        str(n.target).split(".")[1] for n in lowered.physical.graph.nodes if n.op == "call_function"
    )
