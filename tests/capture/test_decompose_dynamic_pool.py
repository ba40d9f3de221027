"""An adaptive pool of a dynamic size has PyTorch's numbers at each size, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import dimorder
from tests.marks import require_runtime
from tests.sizes.symbols import errors, refusal

H, W = Dim("H", min=4, max=19), Dim("W", min=4, max=23)
SIZES = [(4, 5), (5, 23), (19, 5), (8, 12)]


class Pooled(nn.Module):
    """Pools to one element, along one dimension alone, and with places."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.relu() - 0.5
        return (
            F.adaptive_max_pool2d(y, 1),
            F.adaptive_avg_pool2d(y, (1, 3)),
            F.adaptive_max_pool2d(y, (1, 3)),
            F.adaptive_max_pool1d(y[0], 1),
            *F.adaptive_max_pool2d(x, 1, return_indices=True),
        )


class Halved(nn.Module):
    """Pools to windows that an even size fills, and keeps one of the sizes."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pooled = F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_max_pool2d(x, 2)
        return (
            *pooled,
            F.adaptive_avg_pool2d(x, (x.shape[2], 1)),
            F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 2)),
        )


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_windows_that_are_equal_at_every_size_are_reduced(target: str) -> None:
    one = dimorder.lower(Pooled(), (torch.randn(2, 3, 8, 12),), dynamic_shapes=({2: H},), target=target)
    for height, _ in SIZES:
        assert max(errors(one, Pooled(), torch.randn(2, 3, height, 12))) <= 1e-5
    halved = dimorder.lower(
        Halved(),
        (torch.randn(2, 3, 8, 6),),
        dynamic_shapes=({2: 2 * Dim("_H", min=2, max=9)},),
        target=target,
    )
    for height in (4, 6, 18):
        assert max(errors(halved, Halved(), torch.randn(2, 3, height, 6))) <= 1e-5


class Gated(nn.Module):
    """A gate of two global pools, as attention over channels has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        pooled = F.adaptive_max_pool2d(y, 1) + F.adaptive_avg_pool2d(y, 1)
        gated: Tensor = y * self.gate(pooled).sigmoid()
        return gated


def test_a_global_pool_of_two_dynamic_sizes_is_in_any_order() -> None:
    module = Gated().eval()
    lowered = dimorder.lower(
        module,
        (torch.randn(2, 3, 8, 12),),
        target="xnnpack",
        input_orders="NHWC",
        dynamic_shapes=({2: H, 3: W},),
    )
    for height, width in SIZES:
        assert max(errors(lowered, module, torch.randn(2, 3, height, width))) <= 1e-5


def test_nan_is_the_largest_of_its_plane() -> None:
    lowered = dimorder.lower(Pooled(), (torch.randn(2, 3, 8, 12),), dynamic_shapes=({2: H},), target="torch")
    x = torch.randn(2, 3, 7, 12)
    x[1, 2, 4, 5] = float("nan")
    for got, wanted in zip(lowered.run(x), Pooled()(x), strict=True):
        assert torch.allclose(got, wanted, atol=1e-6, equal_nan=True)


class Uneven(nn.Module):
    """Pools one row more than the dynamic size has: windows are equal at odd sizes alone."""

    def __init__(self, pool: type[nn.Module]) -> None:
        super().__init__()
        self.pool = pool(2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pool(F.pad(x, (0, 0, 1, 0)))
        return y


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
def test_windows_that_are_equal_at_some_sizes_alone_stay_a_pool(pool: type[nn.Module]) -> None:
    module, x = Uneven(pool), torch.randn(2, 3, 8, 12)
    lowered = dimorder.lower(module, (x,), dynamic_shapes=({2: H},), target="torch")
    for height, _ in SIZES:
        assert max(errors(lowered, module, torch.randn(2, 3, height, 12))) <= 1e-5


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_target_without_the_pool_refuses_windows_that_differ_between_sizes(target: str) -> None:
    module, x = Uneven(nn.AdaptiveMaxPool2d), torch.randn(2, 3, 8, 12)
    where, _, fix = refusal(module, x, ({2: H},), target=target)
    assert where.startswith("aten.adaptive_max_pool2d") and "replace it in the module" in fix


class Ragged(nn.Module):
    """Pools pictures, a single picture, lines and volumes to windows that differ between sizes."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.relu() - 0.5
        return (
            F.adaptive_avg_pool2d(y, (3, None)),
            F.adaptive_avg_pool2d(y[0], (3, 2)),
            F.adaptive_avg_pool1d(y[..., 0], 3),
            F.adaptive_avg_pool1d(y[0, 0], 2),
            F.adaptive_avg_pool3d(y, (None, 3, 2)),
        )


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_means_of_windows_that_differ_between_sizes_are_matmuls_at_any_rank(target: str) -> None:
    require_runtime(target)
    lowered = dimorder.lower(
        Ragged(), (torch.randn(2, 3, 8, 12),), dynamic_shapes=({2: H, 3: W},), target=target
    )
    assert not any("pool" in name.lower() for name in lowered.artifact.outside)
    for height, width in SIZES:
        assert max(errors(lowered, Ragged(), torch.randn(2, 3, height, width))) <= 1e-5


class Logarithms(nn.Module):
    """Pools logarithms, which are infinite where a pixel is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x.log(), (3, 2)).clamp(min=-5)


def test_an_infinity_that_the_network_makes_stays_in_its_window() -> None:
    """An infinity of the caller becomes NaN in each window of its channel, as docs/limits.md says."""
    x = torch.rand(2, 3, 8, 12) + 0.5
    lowered = dimorder.lower(Logarithms(), (x,), dynamic_shapes=({2: H, 3: W},), target="xnnpack")
    x[0, 1, 0, 0] = 0
    (difference,) = errors(lowered, Logarithms(), x)
    assert difference <= 1e-5
