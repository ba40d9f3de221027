"""Sizes that are multiples are known as such when a network is exported."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from dimorder.capture.export import export


def test_a_multiple_lacks_nothing_to_a_whole_window() -> None:
    lacks = list[str]()

    class Windows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                lack = (4 - x.shape[1] % 4) % 4
                lacks.append(str(lack))
                x = F.avg_pool1d(F.pad(x, (0, lack)).unflatten(1, (-1, 4)).softmax(1).flatten(1), 2)
            return x

    dims = ({0: Dim("n", min=1, max=4), 1: 16 * Dim("w", min=2, max=6)},)
    export(Windows(), (torch.randn(2, 48),), {}, dims)
    assert lacks == ["0", "0"]


def test_so_is_a_multiple_of_a_size_of_another_input() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z: Tensor = x.unflatten(0, (-1, 3)).sum(1) + y
            return z

    length = Dim("n", min=2, max=9)
    program = export(Both(), (torch.randn(12, 5), torch.randn(4, 5)), {}, ({0: 3 * length}, {0: length}))
    (sum_,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    (y,) = (node for node in program.graph.find_nodes(op="placeholder") if node.name == "y")
    assert sum_.meta["val"].shape[0].node.expr == y.meta["val"].shape[0].node.expr
