"""Transformers and ConvNeXts, as targets get them: nothing is scaled, and what is cut is a view."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.lowered import Lowered
from dimorder.verification.relative_error import relative_error
from tests.capture.linears import norm, physical, values
from tests.zoo.vision import load_torchvision


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
    assert found["mul"] == 0
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
