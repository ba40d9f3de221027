"""A buffer of the largest size may be sliced to any dynamic size up to its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.capture.proven_contiguity import proven_contiguity
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime

MOST, HEADS, CHANNELS = 11, 3, 12


class Attention(nn.Module):
    """Attention whose mask or bias is a buffer for the longest text, as in nanoGPT."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project, self.attend = nn.Linear(CHANNELS, CHANNELS), attend
        self.register_buffer("positions", torch.randn(CHANNELS, MOST))
        self.register_buffer("mask", torch.ones(MOST, MOST).tril())
        self.register_buffer("bias", torch.randn(HEADS, MOST, MOST))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x = x + self.positions[:, :length].t()
        q = self.project(x).unflatten(2, (HEADS, -1)).transpose(1, 2)
        y = self.attend(q, self.mask[None, None, :length, :length], self.bias[:, :length, :length])
        return y.transpose(1, 2).flatten(2)


def _by_hand(q: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    scores = (q @ q.transpose(-2, -1) + bias).masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1) @ q


def _fused(q: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask == 1)


def _with_bias(q: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("attend", [_by_hand, _fused, _with_bias])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_buffer_may_be_sliced_up_to_its_own_size(
    target: str, attend: Callable[[Tensor, Tensor, Tensor], Tensor], least: int
) -> None:
    require_runtime(target)
    net, dims = Attention(attend).eval(), {1: Dim("N", min=least, max=MOST)}
    lowered = dimorder.lower(net, (torch.randn(2, 5, CHANNELS),), dynamic_shapes=(dims,), target=target)
    for length in (least, 4, MOST - 1, MOST):
        x = torch.randn(2, length, CHANNELS)
        with torch.no_grad():
            assert relative_error(lowered(x), net(x)) <= 1e-5


def test_torch_is_left_as_it_was() -> None:
    before = dict(vars(torch._prims_common))
    with pytest.raises(ValueError, match="inside"), proven_contiguity():
        assert vars(torch._prims_common) != before
        raise ValueError("inside")
    assert vars(torch._prims_common) == before
