"""Factors, shifts and affine parts of norms are in weights where that changes no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.capture.captured import capture
from dimorder.capture.rewrite_linears import LinearLimits, rewrite_linears
from dimorder.graph.quantized import Scaled
from tests.capture.linears import aten, batch_norm, heads, norm, operators, rewritten, values
from tests.small_networks import Net

FOLDED: dict[str, tuple[nn.Module, tuple[int, ...], list[str]]] = {
    "a number behind a linear": (Net(lambda m, x: m.a(x) * 0.3, a=nn.Linear(5, 7)), (2, 3, 5), ["linear"]),
    "a number in front of a linear's result": (
        Net(lambda m, x: 0.3 * m.a(x), a=nn.Linear(5, 7, bias=False)),
        (2, 3, 5),
        ["linear"],
    ),
    "a hard sigmoid": (
        Net(lambda m, x: F.hardsigmoid(m.a(x)), a=nn.Conv2d(3, 7, 1)),
        (2, 3, 5, 9),
        ["convolution", "clamp"],
    ),
    "a quotient": (Net(lambda m, x: m.a(x) / 0.3, a=nn.Linear(5, 7)), (2, 3, 5), ["linear"]),
    "a number behind the heads of attention": (
        Net(lambda m, x: heads(m.a(x)) * 0.5, a=nn.Linear(5, 12)),
        (2, 7, 5),
        ["linear"],
    ),
    "a constant of each head": (
        Net(lambda m, x: heads(m.a(x)) * m.c, a=nn.Linear(5, 12), c=values(3, 1, 1)),
        (2, 7, 5),
        ["linear"],
    ),
    "a layer scale": (
        Net(lambda m, x: x + m.a(x.abs()) * m.c, a=nn.Linear(7, 7), c=values(7)),
        (2, 3, 7),
        ["abs", "linear", "add"],
    ),
    "a layer scale of channels that lie last before": (
        Net(lambda m, x: m.c * m.a(x).permute(0, 3, 1, 2), a=nn.Linear(5, 7), c=values(7, 1, 1)),
        (2, 3, 4, 5),
        ["linear"],
    ),
    "shifts": (
        Net(lambda m, x: m.a(x) + m.c - 0.4, a=nn.Linear(5, 7, bias=False), c=values(7)),
        (2, 3, 5),
        ["linear"],
    ),
    "a batch-norm behind a linear": (
        nn.Sequential(nn.Linear(5, 7, bias=False), batch_norm(7)),
        (3, 5),
        ["linear"],
    ),
    "a factor behind a convolution in groups": (
        Net(lambda m, x: m.a(x) * m.c, a=nn.Conv2d(4, 6, 3, groups=2), c=values(6, 1, 1)),
        (2, 4, 5, 7),
        ["convolution"],
    ),
    "a factor behind a transposed convolution in groups": (
        Net(lambda m, x: m.a(x) * m.c + 2, a=nn.ConvTranspose2d(4, 6, 3, groups=2), c=values(6, 1, 1)),
        (2, 4, 5, 7),
        ["convolution"],
    ),
    "a layer-norm in front of several linears": (
        Net(
            lambda m, x: (m.a(y := m.n(x)), m.b(y)),
            n=norm(5),
            a=nn.Linear(5, 7),
            b=nn.Linear(5, 3, bias=False),
        ),
        (2, 6, 5),
        ["layer_norm", "linear", "linear"],
    ),
    "a layer-norm without a bias": (
        nn.Sequential(norm(5, bias=False), nn.Linear(5, 7)),
        (2, 6, 5),
        ["layer_norm", "linear"],
    ),
    "a layer-norm of which a linear reads windows": (
        Net(
            lambda m, x: m.a(m.n(x).roll(1, 1).unflatten(1, (2, 3)).transpose(1, 2).flatten(0, 2)),
            n=norm(5),
            a=nn.Linear(5, 7),
        ),
        (4, 6, 5),
        ["layer_norm", "slice", "slice", "cat", "linear"],
    ),
    "a layer-norm in front of a convolution without padding": (
        Net(lambda m, x: m.a(m.n(x).permute(0, 3, 1, 2)), n=norm(5), a=nn.Conv2d(5, 7, 2, stride=2)),
        (2, 4, 6, 5),
        ["layer_norm", "convolution"],
    ),
    "the weight of an RMS-norm": (
        Net(
            lambda m, x: m.a(x * (x * x).mean(-1, keepdim=True).rsqrt() * m.c), a=nn.Linear(5, 7), c=values(5)
        ),
        (2, 3, 5),
        ["mul", "mean", "rsqrt", "mul", "linear"],
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_weight_takes_what_is_beside_its_product(name):
    model, shape, left = FOLDED[name]
    _, after = rewritten(model, values(*shape, seed=5))
    assert operators(after) == left


def test_a_layer_norm_whose_affine_part_is_in_a_weight_has_none():
    _, after = rewritten(nn.Sequential(norm(5), nn.Linear(5, 7)), values(2, 5))
    (made,) = after.module.graph.find_nodes(op="call_function", target=aten.layer_norm.default)
    assert made.args[2:4] == (None, None)
    assert sorted(tuple(t.shape) for t in after.module.buffers()) == [(7,), (7, 5)]


KEPT: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "another reader": (Net(lambda m, x: [(y := m.a(x)) * 0.3, y], a=nn.Linear(5, 7)), (2, 5)),
    "another reader of a view": (
        Net(lambda m, x: [(y := heads(m.a(x))) * 0.3, y.sin()], a=nn.Linear(5, 12)),
        (2, 3, 5),
    ),
    "a weight that is read twice": (Net(lambda m, x: m.a(m.a(x) * 0.3), a=nn.Linear(5, 5)), (2, 5)),
    "a constant of each row": (Net(lambda m, x: m.a(x) + m.c, a=nn.Linear(5, 7), c=values(3, 1)), (2, 3, 5)),
    "a constant of each pixel": (
        Net(lambda m, x: m.a(x) * m.c, a=nn.Conv2d(4, 6, 3), c=values(6, 3, 5)),
        (2, 4, 5, 7),
    ),
    "a result that grows": (Net(lambda m, x: m.a(x) * m.c, a=nn.Linear(5, 7), c=values(3, 1, 7)), (2, 5)),
    "a factor of 0": (Net(lambda m, x: m.a(x) * 0.0, a=nn.Linear(5, 7)), (2, 5)),
    "a factor below the normal numbers": (Net(lambda m, x: m.a(x) * 1e-40, a=nn.Linear(5, 7)), (2, 5)),
    "a weight that would be 0": (
        Net(lambda m, x: F.linear(x, m.w) * 1e-30, w=values(7, 5) * 1e-20),
        (2, 5),
    ),
    "a weight that would be infinite": (
        Net(lambda m, x: F.linear(x, m.w) * 1e30, w=values(7, 5) * 1e20),
        (2, 5),
    ),
    "a norm that something else reads": (
        Net(lambda m, x: [m.a(y := m.n(x)), y], n=norm(5), a=nn.Linear(5, 7)),
        (2, 5),
    ),
    "a norm of several dimensions": (
        Net(lambda m, x: m.a(m.n(x)), n=norm(3, 5), a=nn.Linear(5, 7)),
        (2, 3, 5),
    ),
    "a norm whose features are no longer together": (
        Net(lambda m, x: m.a(m.n(x).flatten(1)), n=norm(5), a=nn.Linear(15, 7)),
        (2, 3, 5),
    ),
    "a norm in front of another dimension's linear": (
        Net(lambda m, x: m.a(m.n(x).transpose(1, 2)), n=norm(5), a=nn.Linear(3, 7)),
        (2, 3, 5),
    ),
    "a norm in front of a padded convolution": (
        Net(lambda m, x: m.a(m.n(x).permute(0, 3, 1, 2)), n=norm(5), a=nn.Conv2d(5, 7, 3, padding=1)),
        (2, 4, 6, 5),
    ),
    "a norm in front of a depthwise convolution": (
        Net(lambda m, x: m.a(m.n(x).permute(0, 3, 1, 2)), n=norm(5), a=nn.Conv2d(5, 5, 3, groups=5)),
        (2, 4, 6, 5),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_weight_stays_as_it_is_where_there_is(name):
    model, shape = KEPT[name]
    before = capture(model.eval(), (values(*shape),))
    (after,) = rewrite_linears([before], LinearLimits(16))
    assert operators(after) == operators(before)
    assert {name: id(t) for name, t in after.module.named_buffers()} == {
        name: id(t) for name, t in before.module.named_buffers()
    }


def test_embeddings_that_are_a_linear_too_stay_one_constant():
    tied = Net(lambda m, ids: F.linear(m.n(m.e(ids)), m.e.weight) * 0.5, e=nn.Embedding(9, 5), n=norm(5))
    before = capture(tied.eval(), (torch.arange(6).reshape(2, 3),))
    (after,) = rewrite_linears([before], LinearLimits(16))
    assert operators(after) == operators(before) and after.constant_bytes == before.constant_bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_as_it_is(dtype):
    net = Net(lambda m, x: m.b(m.n(x)) * 0.3 + m.a(x).chunk(2, -1)[0], a=nn.Linear(5, 64), b=nn.Linear(5, 32))
    net.n = norm(5)
    before = capture(net.to(dtype).eval(), (values(2, 5).to(dtype),))
    assert operators(rewrite_linears([before], LinearLimits(16))[0]) == operators(before)


def test_weights_of_integers_stay_as_they_are():
    class OfIntegers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            integers, scales = torch.ones(32, 5, dtype=torch.int8), torch.full((32,), 0.5)
            zeros = torch.zeros(32, dtype=torch.int64)
            weight = torch.ops.quantized_decomposed.dequantize_per_channel(
                integers, scales, zeros, 0, -128, 127, torch.int8
            )
            return F.linear(x, weight) * 0.3

    before = capture(OfIntegers(), (values(2, 5),))
    assert any(isinstance(t, Scaled) for t in before.module.buffers())
    (after,) = rewrite_linears([before], LinearLimits(16))
    assert operators(after) == operators(before) and any(
        isinstance(t, Scaled) for t in after.module.buffers()
    )


def test_what_a_size_decides_stays_as_it_is_for_all_sizes():
    """A number that is another one for each size cannot be in one weight."""
    model = Net(lambda m, x: m.a(x) * (1.0 / x.shape[1]), a=nn.Linear(5, 7)).eval()
    programs = [capture(model, (values(2, size, 5),)) for size in (3, 4)]
    assert [operators(each) for each in rewrite_linears(programs, LinearLimits(16))] == [
        ["linear", "mul"]
    ] * 2


def test_sizes_that_are_the_number_of_features_change_nothing() -> None:
    cases: list[Callable[[Any, Tensor], Any]] = [
        lambda m, x: m.a(x) + m.c,
        lambda m, x: m.a(x).transpose(1, 2) * m.c,
    ]
    for function in cases:
        rewritten(Net(function, a=nn.Linear(6, 6), c=values(6)), values(6, 6, 6))
