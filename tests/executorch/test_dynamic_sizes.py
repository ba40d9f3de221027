"""Dynamic sizes stay dynamic in networks that ExecuTorch lowers with `guarded` or `legalize`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from dimorder.executorch import XNNPACK, canonicalize, guarded, legalize
from dimorder.executorch.passes import size_hint

LAST = torch.channels_last


class Shares(nn.Module):
    """Channels-last convolutions around a softmax, whose kernel takes contiguous tensors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).softmax(1))


class Attention(nn.Module):
    """Tokens of an image, with reshapes and expansions to dynamic sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attend = nn.Conv2d(3, 8, 2, 2), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        return tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]


def by_guarded(program: ExportedProgram) -> bytes:
    edge = to_edge_transform_and_lower(program, partitioner=[guarded(XnnpackPartitioner(), XNNPACK)])
    return bytes(edge.to_executorch().buffer)


def by_legalize(program: ExportedProgram) -> bytes:
    return bytes(to_edge_transform_and_lower(program, transform_passes=[legalize]).to_executorch().buffer)


BATCH = ({0: Dim("N", min=1, max=4)}, [(1, 8, 10), (4, 8, 10)])
PLANE = ({2: Dim("H", min=4, max=16), 3: Dim("W", min=4, max=16)}, [(2, 4, 6), (2, 16, 16)])


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "sizes", "order", "lowered"),
    [
        (Shares, PLANE, LAST, by_guarded),
        (Shares, PLANE, torch.contiguous_format, by_legalize),
        (Attention, BATCH, LAST, by_guarded),
        (Attention, PLANE, torch.contiguous_format, by_guarded),
        (Attention, PLANE, LAST, by_legalize),
    ],
)
def test_every_size_of_the_ranges_is_right(kind, sizes, order, lowered, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = kind().eval(), torch.randn(2, 3, 8, 10).to(memory_format=order)
    ranges, shapes = sizes
    path = tmp_path / "net.pte"
    path.write_bytes(lowered(canonicalize(torch.export.export(net, (x,), dynamic_shapes=(ranges,)))))
    program = dimorder.load(path)
    for batch, height, width in (*shapes, (2, 8, 10), *shapes):
        x = torch.randn(batch, 3, height, width)
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-5)


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero()


def test_a_size_of_the_example_or_of_2_stands_for_a_dynamic_one() -> None:
    x = torch.randn(2, 3, 8, 10)
    program = torch.export.export(Shares(), (x,), dynamic_shapes=(PLANE[0],))
    (given,) = program.graph_signature.user_inputs
    value = next(node.meta["val"] for node in program.graph.nodes if node.name == given)
    assert [size_hint(size) for size in (*value.shape, *value.stride())] == [2, 3, 8, 10, 240, 80, 10, 1]
    found = next(iter(torch.export.export(Nonzero(), (x,)).graph.output_node().args[0]))
    assert size_hint(found.meta["val"].shape[0]) == 2
