"""Test means in stock XNNPACK delegates whose sums may lie in too little memory: refused, or kept outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.executorch import XNNPACK, canonicalize, check_file, guarded

CHANNELS = 40
BATCH = {0: Dim("N", min=1, max=8)}
PIXELS = {2: Dim("H", min=2, max=6), 3: Dim("W", min=2, max=7)}


class Gate(nn.Module):
    """A gate for each channel, computed from its mean over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.squeeze = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(CHANNELS, 7, 1)
        self.excite, self.last = nn.Conv2d(7, CHANNELS, 1), nn.Conv2d(CHANNELS, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        gate = self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu())
        return self.last(x * gate.sigmoid())


def picture(count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, 3, 5, 6, generator=torch.Generator().manual_seed(count)).to(dtype)


def network(dtype: torch.dtype, count: int, sizes: dict[int, Any]) -> Any:
    """Return the gate in a type; that of int8 computes with float32 between its integers."""
    if dtype != torch.int8:
        return Gate().to(dtype).eval()
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    x, config = picture(count, torch.float32), xnnpack_quantizer.get_symmetric_quantization_config(True)
    exported = torch.export.export(Gate().eval(), (x,), dynamic_shapes=(sizes,))
    observed = prepare_pt2e(exported.module(), xnnpack_quantizer.XNNPACKQuantizer().set_global(config))
    observed(x)
    return convert_pt2e(observed)


def write(path: Path, network: Any, x: Tensor, sizes: dict[int, Any], *, guard: bool = False) -> str:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program, partitioner = torch.export.export(network, (x,), dynamic_shapes=(sizes,)), XnnpackPartitioner()
    if guard:
        program, partitioner = canonicalize(program), guarded(partitioner, XNNPACK)
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
    path.write_bytes(edge.to_executorch().buffer)
    return str(path)


TYPES = [torch.int8, torch.float16]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mean_of_a_dynamic_batch_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Calls of 3, 2 and 5 pictures gave other numbers for the 5 than a program that was opened for them."""
    x = picture(3, torch.float32 if dtype == torch.int8 else dtype)
    path = write(tmp_path / "net.pte", network(dtype, 3, BATCH), x, BATCH)
    assert [row.operator for row in check_file(path).rows if row.verdict == "wrong"] == [
        "GlobalAvgPooling2d of a dynamic batch in XnnpackBackend"
    ]
    with pytest.raises(UnsupportedError, match="GlobalAvgPooling2d of a dynamic batch in XnnpackBackend"):
        dimorder.load(path)


@pytest.mark.parametrize(
    ("dtype", "count", "sizes"),
    [(torch.float32, 3, BATCH), (torch.float16, 1, PIXELS), (torch.float16, 3, {})],
    ids=["in float32", "of one picture", "of fixed sizes"],
)
def test_other_means_are_right(dtype: torch.dtype, count: int, sizes: dict[int, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "net.pte", network(dtype, count, sizes), picture(count, dtype), sizes)
    assert check_file(path).is_safe


@pytest.mark.parametrize("dtype", TYPES)
def test_guarded_keeps_such_a_mean_outside(dtype: torch.dtype, tmp_path: Path) -> None:
    number, net = torch.float32 if dtype == torch.int8 else dtype, network(dtype, 3, BATCH)
    path = write(tmp_path / "net.pte", net, picture(3, number), BATCH, guard=True)
    assert sum(row.operator == "aten::mean.out" for row in check_file(path).rows) == 1
    program = dimorder.load(path)
    for count in (3, 2, 5, 2, 8, 3):
        x = picture(count, number)
        wanted, found = net(x), program(x)
        assert torch.equal(found, dimorder.load(path)(x))
        assert (found - wanted).abs().max() <= wanted.abs().max() / 50
