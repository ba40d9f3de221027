"""The orders of buffers that a network writes, lowered by ExecuTorch with `guarded` or `legalize`."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from dimorder.executorch import XNNPACK, canonicalize, guarded, legalize

LAST = torch.channels_last


class Sum(nn.Module):
    """Returns the value that it keeps. Stock ExecuTorch begins with zeros, whatever the buffer has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("last", torch.zeros(2, 4, 6, 5).to(memory_format=LAST))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) + self.last
        self.last.copy_(y)
        return y


class Rows(nn.Module):
    """Keeps the last rows of its input, and the softmax of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=(0, 1))
        self.register_buffer("rows", torch.zeros(2, 3, 2, 5))
        self.register_buffer("shares", torch.zeros(2, 4, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.rows, x], 2)
        self.rows.copy_(rows[:, :, -2:])
        y = self.conv(rows) * (1 + self.shares)
        self.shares.copy_(y.softmax(1))
        return y


def by_guarded(program: ExportedProgram) -> bytes:
    edge = to_edge_transform_and_lower(program, partitioner=[guarded(XnnpackPartitioner(), XNNPACK)])
    return bytes(edge.to_executorch().buffer)


def by_legalize(program: ExportedProgram) -> bytes:
    return bytes(to_edge_transform_and_lower(program, transform_passes=[legalize]).to_executorch().buffer)


@torch.no_grad()
@pytest.mark.parametrize("lowered", [by_guarded, by_legalize])
@pytest.mark.parametrize("order", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("kind", [Sum, Rows])
def test_a_buffer_is_written_in_the_order_that_it_has(kind, order, lowered, tmp_path: Path) -> None:
    """A channels-last sum once ended in a `copy_` into a row-major buffer, which ExecuTorch refuses."""
    torch.manual_seed(0)
    net, x = kind().eval(), torch.randn(2, 3, 6, 5).to(memory_format=order)
    data = lowered(canonicalize(torch.export.export(copy.deepcopy(net), (x,))))
    path = tmp_path / "net.pte"
    path.write_bytes(data)
    program = dimorder.load(path)
    for seed in range(3):
        x = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-5)
