"""Test transposed convolutions that are written for Arm's quantizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("torchao")

from dimorder.quantization.transposed import widen_transposed
from tests.quantization.rewriting import rewritten


@pytest.mark.parametrize("sizes", [(2, 3, 7), (3, 7)], ids=["a batch", "no batch"])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_widened_convolution_computes_the_same(sizes: tuple[int, ...], groups: int) -> None:
    torch.manual_seed(1)
    net = nn.ConvTranspose1d(3, 6, 4, stride=2, padding=1, output_padding=1, groups=groups, dilation=2)
    x = torch.randn(sizes)
    model = rewritten(net, x, widen_transposed)
    assert "conv_transpose1d" not in model.code
    torch.testing.assert_close(model(x), net(x))
