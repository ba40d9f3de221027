"""Whole networks in half precision: as near to float64 as PyTorch's own, on XNNPACK in one delegate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder
from tests import zoo
from tests.targets.halves import share_of_allowed

NETWORKS = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_128")


class Mixed(nn.Module):
    """Convolutions in float16 between a float32 stem and a float32 head, as autocast makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(8, 10, 3, stride=2), nn.GELU(), nn.Conv2d(10, 12, 1)).half()
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(torch.relu(self.stem(x)).to(self.inner[0].weight.dtype))
        return self.head(inner.mean((2, 3)).to(self.head.weight.dtype))


class Autocast(nn.Module):
    """Computes in bfloat16 within an autocast, and gives float32."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = small(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.convs(x)
        return y.float()


class Attended(nn.Module):
    """A patch embedding, and one layer of attention and a feed-forward part over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, stride=4)
        self.layer = nn.TransformerEncoderLayer(24, 4, 40, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def image(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def small(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, (2, 3), padding=1))
    return zoo.perturb(net.eval()).to(dtype)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_convolutions_are_one_delegate_and_conversions_cost_half(order: str) -> None:
    pytest.importorskip("executorch")
    lowered = {
        dtype: dimorder.lower(small(dtype), (image(dtype, 2, 3, 9, 7),), target="xnnpack", input_orders=order)
        for dtype in (torch.float16, torch.float32)
    }
    half, full = lowered[torch.float16], lowered[torch.float32]
    assert (half.artifact.delegates, half.artifact.outside) == (1, {})
    assert [2 * c.bytes for c in half.plan.conversions] == [c.bytes for c in full.plan.conversions] != []
    x = image(torch.float16, 2, 3, 9, 7)
    for fed in (x, x.contiguous(memory_format=torch.channels_last)):
        assert share_of_allowed(half.run(fed), small(torch.float16), (fed,)) <= 1
    assert [spec.dtype for spec in (*half.contract.inputs, *half.contract.outputs)] == ["float16", "float16"]


@pytest.mark.parametrize("make", [Mixed, Autocast, Attended])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "tosa"])
def test_casts_and_attention(make: type[nn.Module], target: str) -> None:
    pytest.importorskip({"xnnpack": "executorch", "tosa": "tosa_serializer"}.get(target, "torch"))
    torch.manual_seed(0)
    net = zoo.perturb(make().eval())
    net = net.half() if make is Attended else net
    x = image(torch.float16 if make is Attended else torch.float32, 2, 3, 12, 8)
    lowered = dimorder.lower(net, (x,), target=target)
    assert not lowered.artifact.outside or target == "torch"
    assert share_of_allowed(lowered.run(x), net, (x,)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("xnnpack", torch.float16),
        *((target, dtype) for target in ("torch", "tosa") for dtype in (torch.float16, torch.bfloat16)),
    ],
)
def test_networks(name: str, target: str, dtype: torch.dtype) -> None:
    pytest.importorskip({"xnnpack": "executorch", "tosa": "tosa_serializer"}.get(target, "torch"))
    net = zoo.network(name).build().to(dtype)
    x = image(dtype, 1, 3, 64, 64)
    lowered = dimorder.lower(net, (x,), target=target)
    if target == "xnnpack":
        assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})
    assert share_of_allowed(lowered.run(x), net, (x,)) <= 1
