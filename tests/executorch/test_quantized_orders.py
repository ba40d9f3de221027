"""Quantised channels-last networks that ExecuTorch lowers with `guarded`, against PT2E's network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from dimorder.executorch import XNNPACK, canonicalize, conversions_in, guarded

LAST = torch.channels_last


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Shares(nn.Module):
    """A softmax between two convolutions, which XNNPACK computes right in contiguous tensors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).softmax(1))


@torch.no_grad()
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("kind", [Plain, Shares])
def test_a_channels_last_network_gives_the_numbers_of_pt2e(kind, is_dynamic: bool, tmp_path: Path) -> None:
    """Conversions around the quantizes once gave a file that refused each call."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 10).to(memory_format=LAST)
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    prepared = prepare_pt2e(
        torch.export.export(kind().eval(), (x,)).module(), XNNPACKQuantizer().set_global(config)
    )
    for _ in range(4):
        prepared(torch.randn_like(x))
    net = convert_pt2e(prepared)
    program = canonicalize(torch.export.export(net, (x,)))
    edge = to_edge_transform_and_lower(program, partitioner=[guarded(XnnpackPartitioner(), XNNPACK)])
    path = tmp_path / "net.pte"
    path.write_bytes(edge.to_executorch().buffer)
    for order in (LAST, torch.contiguous_format):
        x = torch.randn(2, 3, 8, 10).to(memory_format=order)
        given, wanted = dimorder.load(path)(x), net(x)
        assert (given - wanted).abs().max() < 0.03 * wanted.abs().max()
    if kind is Plain:
        assert conversions_in(path.read_bytes()).conversion_count == 0
