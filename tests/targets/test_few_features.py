"""Test linears of few features, such as those that mix the heads of attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from tests.marks import require_runtime


class MixedHeads(nn.Module):
    """The scores of attention heads, mixed by a linear over the heads before softmax and after."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(heads, heads), nn.Linear(heads, heads)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scores = self.before((q @ k).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        mixed: Tensor = self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return mixed


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize(("heads", "is_few"), [(4, True), (16, True), (17, False)])
def test_few_features_stay_outermost(target: str, heads: int, is_few: bool) -> None:
    require_runtime(target)
    inputs = (torch.randn(1, heads, 7, 5), torch.randn(1, heads, 5, 9))
    lowered = dimorder.lower(MixedHeads(heads).eval(), inputs, target=target)
    assert lowered.plan.certificate.optimal
    assert (not lowered.plan.conversions) == is_few


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_few_features_stay_outermost_beside_one_dynamic_size(target: str) -> None:
    require_runtime(target)
    module, keys = MixedHeads(4).eval(), Dim("K", min=2, max=40)
    inputs = (torch.randn(1, 4, 7, 5), torch.randn(1, 4, 5, 9))
    lowered = dimorder.lower(module, inputs, target=target, dynamic_shapes=({}, {3: keys}))
    assert not lowered.plan.conversions
    assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})
    for count in (2, 3, 40):
        q, k = torch.randn(1, 4, 7, 5), torch.randn(1, 4, 5, count)
        torch.testing.assert_close(lowered.run(q, k), module(q, k), rtol=1e-4, atol=1e-5)
