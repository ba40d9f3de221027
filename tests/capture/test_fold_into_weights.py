"""Factors, shifts and affine parts of norms are in weights where that changes no number, and packed products
are cut where slices copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.capture.captured import Captured, capture
from dimorder.capture.fold_into_weights import rewrite_linears
from dimorder.graph.quantized_constant import Scaled
from dimorder.layout import check_program
from dimorder.lowered import Lowered
from dimorder.verification.verify import relative_error
from tests.layout.lowering import Net
from tests.zoo.vision import load_torchvision

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
    (after,) = rewrite_linears([before], cuts)
    assert list(check_program.captured_faults(after)) == []
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
    (after,) = rewrite_linears([before], True)
    assert operators(after) == operators(before)
    assert {name: id(t) for name, t in after.module.named_buffers()} == {
        name: id(t) for name, t in before.module.named_buffers()
    }


def test_embeddings_that_are_a_linear_too_stay_one_constant():
    tied = Net(lambda m, ids: F.linear(m.n(m.e(ids)), m.e.weight) * 0.5, e=nn.Embedding(9, 5), n=norm(5))
    before = capture(tied.eval(), (torch.arange(6).reshape(2, 3),))
    (after,) = rewrite_linears([before], True)
    assert operators(after) == operators(before) and after.constant_bytes == before.constant_bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_as_it_is(dtype):
    net = Net(lambda m, x: m.b(m.n(x)) * 0.3 + m.a(x).chunk(2, -1)[0], a=nn.Linear(5, 64), b=nn.Linear(5, 32))
    net.n = norm(5)
    before = capture(net.to(dtype).eval(), (values(2, 5).to(dtype),))
    assert operators(rewrite_linears([before], True)[0]) == operators(before)


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
    (after,) = rewrite_linears([before], True)
    assert operators(after) == operators(before) and any(
        isinstance(t, Scaled) for t in after.module.buffers()
    )


# -- packed products


def _attention(m: Any, x: Tensor) -> list[Tensor]:
    """As timm has it: three times some heads."""
    return list(m.a(x).unflatten(-1, (3, 2, 9)).permute(2, 0, 3, 1, 4).unbind(0))


def _in_projection(m: Any, x: Tensor) -> list[Tensor]:
    """As torch's own attention has it."""
    packed = m.a(x).unflatten(-1, (3, 18)).unsqueeze(0).transpose(0, -2).squeeze(-2)
    return [packed[0], packed[1], packed[2]]


CUT: dict[str, tuple[nn.Module, tuple[int, ...], list[str]]] = {
    "chunks": (Net(lambda m, x: m.a(x).chunk(3, -1), a=nn.Linear(5, 54)), (2, 3, 5), ["linear"] * 3),
    "pieces of several sizes": (
        Net(lambda m, x: m.a(x).split((16, 20, 18), -1), a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 3,
    ),
    "a piece of a piece": (
        Net(lambda m, x: m.a(x)[..., :40].chunk(2, -1), a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 2,
    ),
    "every second feature": (
        Net(lambda m, x: [(y := m.a(x))[..., ::2], y[..., 1::2]], a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 2,
    ),
    "heads": (Net(_attention, a=nn.Linear(5, 54)), (2, 7, 5), ["linear"] * 3),
    "an inner factor of the features": (
        Net(lambda m, x: m.a(x).unflatten(-1, (9, 3, 2)).transpose(1, 3).unbind(1), a=nn.Linear(5, 54)),
        (2, 7, 5),
        ["linear"] * 3,
    ),
    "torch's attention": (Net(_in_projection, a=nn.Linear(5, 54)), (2, 7, 5), ["linear"] * 3),
    "channels": (
        Net(lambda m, x: m.a(x).chunk(2, 1), a=nn.Conv2d(5, 36, 3, padding=1, stride=2)),
        (2, 5, 8, 9),
        ["convolution"] * 2,
    ),
    "channels behind an activation": (
        Net(lambda m, x: F.silu(m.a(x)).chunk(2, 1), a=nn.Conv2d(5, 36, 3)),
        (2, 5, 8, 9),
        ["convolution", "silu", "convolution", "silu"],
    ),
    "a gate": (
        Net(lambda m, x: F.glu(m.a(x), 1), a=nn.Conv1d(5, 36, 3)),
        (2, 5, 8),
        ["convolution", "convolution", "sigmoid", "mul"],
    ),
    "features that nothing reads": (
        Net(lambda m, x: m.a(x)[..., 7:29], a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"],
    ),
    "a factor behind one piece": (
        Net(lambda m, x: [(y := _attention(m, x))[0] * 0.3, *y[1:]], a=nn.Linear(5, 54)),
        (2, 7, 5),
        ["linear"] * 3,
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_a_product_whose_result_is_only_cut_is_one_for_each_piece(name):
    model, shape, left = CUT[name]
    x = values(*shape, seed=5)
    before, after = rewritten(model, x)
    assert sorted(operators(after)) == sorted(left)
    assert after.constant_bytes <= before.constant_bytes
    assert "slice" in operators(rewritten(model, x, cuts=False)[1])  # where a slice is a view


WHOLE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "pieces that overlap": (
        Net(lambda m, x: [(y := m.a(x))[..., :30], y[..., 20:]], a=nn.Linear(5, 54)),
        (2, 5),
    ),
    "another reader": (Net(lambda m, x: [(y := m.a(x))[..., :30], y.sin()], a=nn.Linear(5, 54)), (2, 5)),
    "a result": (Net(lambda m, x: [(y := m.a(x))[..., :30], y], a=nn.Linear(5, 54)), (2, 5)),
    "a weight that is read twice": (
        Net(lambda m, x: [(y := m.a(x))[..., :20], m.a(y[..., 20:])], a=nn.Linear(20, 40)),
        (2, 20),
    ),
    "a slice of rows": (Net(lambda m, x: m.a(x)[:, 1:], a=nn.Linear(5, 54)), (2, 3, 5)),
    "a slice of rows and features together": (
        Net(lambda m, x: m.a(x).reshape(2, 81, 2).chunk(3, 1), a=nn.Linear(5, 54)),
        (2, 3, 5),
    ),
    "a convolution in groups": (
        Net(lambda m, x: m.a(x).chunk(2, 1), a=nn.Conv2d(4, 36, 3, groups=2)),
        (2, 4, 5, 7),
    ),
    "narrow pieces": (Net(lambda m, x: m.a(x).chunk(4, -1), a=nn.Linear(5, 32)), (2, 5)),
    "a softmax between": (Net(lambda m, x: m.a(x).softmax(-1).chunk(2, -1), a=nn.Linear(5, 54)), (2, 5)),
    "a computed factor between": (
        Net(lambda m, x: (m.a(x) * x.sum()).chunk(2, -1), a=nn.Linear(5, 54)),
        (2, 5),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_product_stays_whole_where_there_is(name):
    model, shape = WHOLE[name]
    before, after = rewritten(model, values(*shape))
    assert operators(after) == operators(before)


# -- whole networks, as targets get them


class Block(nn.Module):
    """A transformer's block as timm writes it, with layer scales."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.first, self.second, self.heads = norm(features), norm(features), heads
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.wide, self.narrow = nn.Linear(features, 2 * features + 6), nn.Linear(2 * features + 6, features)
        self.scales = nn.ParameterList([values(features, seed=1), values(features, seed=2)])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, features = x.shape
        packed = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, features // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y) * self.scales[0]
        return x + self.narrow(F.gelu(self.wide(self.second(x)))) * self.scales[1]


class ConvBlock(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.scale = norm(channels), nn.Parameter(values(channels, 1, 1))
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.scale * self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)


def physical(lowered: Lowered) -> Counter[str]:
    return Counter(
        str(n.target).split(".")[1] for n in lowered.physical.graph.nodes if n.op == "call_function"
    )


def _target(name: str, module: str) -> Any:
    return pytest.param(name, marks=pytest.mark.skipif(not _has(module), reason=f"needs {module}"))


def _has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


TARGETS = ["torch", _target("xnnpack", "executorch"), _target("tosa", "tosa_serializer")]


def lowered_for(model: nn.Module, x: Tensor, target: str) -> Lowered:
    torch.manual_seed(0)
    made = dimorder.lower(model.eval(), (x,), target=target, run_artifact=True)
    with torch.no_grad():
        assert relative_error(made.run(x), model(x)) < 2e-5
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_a_transformer_scales_nothing_and_cuts_where_a_slice_is_a_view(target):
    found = physical(lowered_for(Block(36, 2), values(1, 5, 36), target))
    assert found["mul"] == (target == "torch")  # the scale of q, which is a slice
    assert found["slice"] == 3 * (target == "torch")


@pytest.mark.parametrize("target", TARGETS)
def test_a_convnext_scales_nothing(target):
    assert physical(lowered_for(ConvBlock(6), values(2, 6, 5, 7), target))["mul"] == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_swin_block_cuts_what_it_rolls_alone(target):
    load_torchvision()
    swin = pytest.importorskip("torchvision.models.swin_transformer")
    block = swin.SwinTransformerBlock(36, 2, window_size=[4, 4], shift_size=[2, 2])
    for parameter in block.parameters():
        parameter.data = values(*parameter.shape) / 4
    found = physical(lowered_for(block, values(1, 8, 12, 36), target))
    assert found["slice"] == 8 + 3 * (target == "torch")
    assert found["mul"] == (target == "torch")


def test_a_vision_transformer_of_timm_has_no_slices_of_projections():
    pytest.importorskip("executorch")
    load_torchvision()
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=7)
    found = physical(lowered_for(model, values(1, 3, 32, 32), "xnnpack"))
    assert (found["slice"], found["mul"]) == (1, 0)
    assert (found["linear"], found["matmul"]) == (2 * 3 + 1, 2 * (3 + 2))


def test_one_program_for_every_length_has_them_in_its_weights():
    pytest.importorskip("executorch")
    length = torch.export.Dim("T", min=2, max=40)
    block, x = Block(36, 2).eval(), values(1, 7, 36)
    lowered = dimorder.lower(block, (x,), dynamic_shapes=({1: length},), target="xnnpack")
    assert not physical(lowered).keys() & {"mul", "slice"}
    for size in (2, 36, 37):
        x = values(1, size, 36)
        with torch.no_grad():
            assert relative_error(lowered.run(x), block(x)) < 2e-5


def test_what_a_size_decides_stays_as_it_is_for_all_sizes():
    """A number that is another one for each size cannot be in one weight."""
    model = Net(lambda m, x: m.a(x) * (1.0 / x.shape[1]), a=nn.Linear(5, 7)).eval()
    programs = [capture(model, (values(2, size, 5),)) for size in (3, 4)]
    assert [operators(each) for each in rewrite_linears(programs, True)] == [["linear", "mul"]] * 2


def test_sizes_that_are_the_number_of_features_change_nothing() -> None:
    cases: list[Callable[[Any, Tensor], Any]] = [
        lambda m, x: m.a(x) + m.c,
        lambda m, x: m.a(x).transpose(1, 2) * m.c,
    ]
    for function in cases:
        rewritten(Net(function, a=nn.Linear(6, 6), c=values(6)), values(6, 6, 6))


@pytest.mark.parametrize(("objective", "products"), [("bytes", 3), ("count", 1)])
def test_packed_products_stay_whole_where_conversions_are_counted(objective, products):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed = nn.Linear(6, 3 * 16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each.reshape(2, 5, 2, 8).transpose(1, 2) for each in self.packed(x).chunk(3, -1))
            return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    physical = dimorder.lower(Heads(), (values(2, 5, 6),), target="xnnpack", objective=objective).physical
    assert [node.target for node in physical.graph.nodes].count(aten.linear.default) == products
