"""torch's flex_attention becomes attention, or products and a softmax, with its two functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dimorder
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import errors


class Flexible(nn.Module):
    """Attention of four heads to two, whose scores get a slope by distance and lie within bounds.

    A row sees what comes before it, and the next place, within the length of its text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.slopes = nn.Linear(8, 32), nn.Parameter(torch.rand(4))
        self.register_buffer("lengths", torch.tensor([7, 5, 9, 3, 2]))

    def forward(self, x: Tensor) -> Any:
        heads = self.linear(x).unflatten(2, (8, 4)).transpose(1, 2)
        query, key, value = heads.split([4, 2, 2], 1)

        def changed(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return torch.tanh(score / 5) * 5 - self.slopes[head] * (row - column).abs()

        def shown(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (column < self.lengths[batch]) & (row - column > -2)

        size = x.shape[1]
        mask = create_block_mask(shown, x.shape[0], None, size, size, device="cpu")
        return flex_attention(query, key, value, changed, mask, enable_gqa=True, return_lse=True)


class Causal(nn.Module):
    """Attention with a mask alone, which torch's own attention computes."""

    def forward(self, x: Tensor) -> Any:
        size = x.shape[1]
        mask = create_block_mask(
            lambda b, h, row, column: row >= column, None, None, size, size, device="cpu"
        )
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        return flex_attention(heads, heads * 0.5, heads.relu(), block_mask=mask, scale=0.3)


@pytest.mark.parametrize("target", slow_but(["torch", "xnnpack", "litert"], ["xnnpack"]))
@pytest.mark.parametrize("kind", slow_but([Flexible, Causal], [Causal]))
def test_scores_are_changed_and_hidden_at_all_sizes(kind: type[nn.Module], target: str) -> None:
    require_runtime(target)
    module = kind().eval()
    dims = ({0: Dim("N", min=1, max=5), 1: Dim("L", min=2, max=40)},)
    lowered = dimorder.lower(module, (torch.randn(2, 9, 8),), target=target, dynamic_shapes=dims)
    for sizes in ((2, 9), (1, 2), (5, 9), (3, 17)):
        assert max(errors(lowered, module, torch.randn(*sizes, 8))) <= 1e-5


def test_an_exported_program_may_hold_it() -> None:
    module, x = Flexible().eval(), torch.randn(3, 9, 8)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
    assert max(errors(dimorder.lower(program, target="xnnpack"), module, torch.randn(3, 9, 8))) <= 1e-5
