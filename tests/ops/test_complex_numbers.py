"""Test complex numbers as pairs of real ones: each operator against eager, and networks on targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import dimorder
from dimorder.capture.captured import capture
from dimorder.errors import UnsupportedError
from dimorder.graph.pairs import real_views

TOLERANCE = 1e-4
TARGETS = ("litert", "xnnpack")


class Function(torch.nn.Module):
    """A network that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def relative_error(got: Any, wanted: Any) -> float:
    """The largest error of any result; complex results of eager are compared by torch.view_as_real."""
    pairs = zip(pytree.tree_leaves(got), real_views(pytree.tree_leaves(wanted)), strict=True)
    return max(float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in pairs)


def captured_error(function: Callable[..., Any], *inputs: torch.Tensor) -> float:
    """The error of a function that is captured in pairs; its graph must have no complex value."""
    program = capture(Function(function), inputs, in_pairs=True)
    values = [node.meta["val"] for node in program.nodes if node.op != "output"]
    assert not any(value.is_complex() for value in pytree.tree_leaves(values))
    return relative_error(program.module(*inputs), function(*inputs))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 2, generator=torch.Generator().manual_seed(len(shape)))


CONSTANT = torch.view_as_complex(numbers(3, 5).contiguous())
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y: x + y * 2,
    "add real": lambda x, y: [x + y.real, y.imag - x, x + 2, x - 1.5j],
    "add alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "add of a smaller imaginary part": lambda x, y: x.real + y[:1],
    "mul": lambda x, y: [x * y, x * y.real, y.real * x, x * 3, x * (1 - 2j), x.real * 1j],
    "mul constant": lambda x, y: [x * CONSTANT, y.real * CONSTANT],
    "div": lambda x, y: [x / y, x / y.real.exp(), x.real / y, 2 / y, x / 4, x / (1 + 2j)],
    "conj": lambda x, y: [x.conj() * y, x.mH @ y, -x.conj()],
    "abs": lambda x, y: [x.abs(), x.abs() ** 2, torch.complex(x.real, x.imag).angle()],
    "exponentials": lambda x, y: [x.exp(), y.log(), x.sqrt(), x**2, x**3, x.reciprocal(), y**1.5],
    "hyperbolic": lambda x, y: [x.tanh(), x.sinh(), x.cosh(), x.sin(), y.cos(), y.tan()],
    "tanh of large and small numbers": lambda x, y: torch.cat([(x * 40).tanh(), (x * 1e-3).tanh() * 1e3]),
    "activations": lambda x, y: [x.sigmoid(), torch.nn.functional.silu(x), (x * 60).sigmoid()],
    "logarithms": lambda x, y: [x.log2(), x.log10(), x.log1p(), x.expm1(), x.exp2(), x.rsqrt()],
    "powers": lambda x, y: [2**x, (1 - 2j) ** y, (-3) ** x],
    "norms": lambda x, y: [torch.linalg.vector_norm(x, dim=-1), x.norm(), x.norm(1, dim=0)],
    "variances": lambda x, y: [x.var(), x.var(0), x.std(1, keepdim=True), x.var(1, correction=0)],
    "comparisons": lambda x, y: [
        torch.where(x == torch.cat([x[:1], y[1:]]), 2.0, 3.0),
        torch.where(x != x.real, 2.0, 3.0),
        torch.where(torch.complex(y.real, x.real.log()).isnan(), 2.0, torch.ones_like(x).real * 3),
    ],
    "sgn": lambda x, y: torch.cat([x.sgn(), torch.zeros_like(x).sgn()]),
    "moves": lambda x, y: [x.mT.reshape(-1), x[1:, ::2], torch.cat([x, y]), x.roll(1, 0), *x.unbind(0)],
    "joins of real ones": lambda x, y: [torch.cat([x, y.real]), torch.stack([x.real, y])],
    "sums": lambda x, y: [x.sum(), x.mean(1), x.cumsum(0), y.sum(0, keepdim=True)],
    "matmul": lambda x, y: [x @ y.mT, CONSTANT @ x.mT, torch.einsum("ab,cb->ac", x, y)],
    "addmm": lambda x, y: torch.addmm(x @ y.mT, x, y.mT, beta=2, alpha=0.5),
    "linear": lambda x, y: [
        torch.nn.functional.linear(x, CONSTANT),
        torch.nn.functional.linear(x, y, x[:, 0]),
    ],
    "conv1d": lambda x, y: torch.conv1d(x[None], y.reshape(5, 3, 1), x[0], stride=2),
    "where": lambda x, y: [torch.where(x.real > 0, x, y), torch.where(x.real > 0, x, 0.0)],
    "written slice": lambda x, y: torch.zeros_like(x).slice_scatter(y[:, 1:3], 1, 0, 2),
    "polar": lambda x, y: torch.polar(x.abs(), y.real) * y,
    "types": lambda x, y: [x.real.to(torch.complex64), (x.to(torch.complex128) * y).to(torch.complex64)],
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_on_pairs_computes_what_eager_computes(name: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return CALLS[name](torch.view_as_complex(x), torch.view_as_complex(y))

    assert captured_error(function, numbers(3, 5), numbers(3, 5) * 0.5 + 0.1) < 1e-6


class RotaryEmbedding(torch.nn.Module):
    """Rotate queries and keys by their positions, as Llama does: pairs of channels are complex numbers."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        speeds = 10000 ** -(torch.arange(0, channels, 2) / channels)
        angles = torch.outer(torch.arange(length), speeds)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turns = self.turns[: queries.shape[1], None]
        return self.turned(queries, turns), self.turned(keys, turns)

    def turned(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


@pytest.mark.parametrize("target", TARGETS)
def test_a_rotary_embedding_is_computed_by_the_target(target: str) -> None:
    network, inputs = RotaryEmbedding(9, 8), (torch.randn(2, 7, 4, 8), torch.randn(2, 7, 3, 8))
    lowered = dimorder.lower(network, inputs, target=target)
    assert not lowered.plan.outside
    assert relative_error(lowered.run(*inputs), network(*inputs)) < TOLERANCE


def test_a_complex_result_is_returned_as_view_as_real_has_it() -> None:
    inputs = (torch.rand(2, 3), torch.randn(2, 3))
    lowered = dimorder.lower(Function(torch.polar), inputs, target="litert")
    assert [(spec.dtype, spec.shape) for spec in lowered.contract.outputs] == [("float32", (2, 3, 2))]
    assert relative_error(lowered.run(*inputs), torch.polar(*inputs)) < TOLERANCE


def test_target_torch_keeps_complex_numbers() -> None:
    x = torch.randn(2, 3, dtype=torch.complex64)
    lowered = dimorder.lower(Function(lambda x: x * 2j), (x,), target="torch")
    assert torch.equal(lowered.run(x), x * 2j)


def test_a_complex_input_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedError) as refused:
        dimorder.lower(Function(torch.abs), (torch.ones(2, 3, dtype=torch.complex64),), target="litert")
    assert str(refused.value).splitlines() == [
        "input tensors_0",
        "  found: torch.complex64: the target has no such type",
        "  fix: pass torch.view_as_real(tensors_0), and begin with torch.view_as_complex",
    ]


def test_an_operator_without_a_rule_for_complex_numbers_is_named() -> None:
    function = Function(lambda x: torch.view_as_complex(x).atanh().real)
    with pytest.raises(UnsupportedError, match=r"^aten.atanh .*\n.*complex numbers"):
        dimorder.lower(function, (numbers(2, 3),), target="litert")
