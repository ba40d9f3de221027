"""A same padding by `math.ceil` and `max` keeps its sizes short, and may leave a size of 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.capture.export import export
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime

F = nn.functional


class Same(nn.Module):
    """Convolutions of stride 2 with TensorFlow's same padding, as timm computes it."""

    def __init__(self, kernels: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        channels = (3, 5, 4, 6, 7, 8)
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], kernel, 2) for i, kernel in enumerate(kernels)
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            (kernel, _), amounts = conv.kernel_size, list[int]()
            for size in (x.shape[3], x.shape[2]):
                amount = max((math.ceil(size / 2) - 1) * 2 + kernel - size, 0)
                amounts += [amount // 2, amount - amount // 2]
            x = conv(F.pad(x, amounts)).relu()
        return x.mean((2, 3))


def test_sizes_after_many_paddings_are_one_division() -> None:
    sizes = ({2: Dim("H", min=33, max=97), 3: Dim("W", min=33, max=90)},)
    program = export(Same((3, 3, 5, 3)), (torch.randn(2, 3, 65, 53),), None, sizes)
    (last,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default)[-1:]
    assert [len(str(size)) < 20 for size in last.meta["val"].shape[2:]] == [True, True]


@pytest.mark.parametrize("target", ["torch", "litert"])
def test_a_deep_size_that_is_1_at_the_least_size_is_computed_at_all(target: str) -> None:
    if target != "torch":
        require_runtime(target)
    model = Same((3, 3, 5, 3, 5)).eval()
    sizes = ({2: Dim("H", min=32, max=97), 3: Dim("W", min=32, max=97)},)
    lowered = dimorder.lower(model, (torch.randn(2, 3, 65, 53),), target=target, dynamic_shapes=sizes)
    for high, wide in ((32, 32), (97, 97), (32, 97), (97, 32), (64, 65), (33, 48), (32, 32)):
        x = torch.randn(2, 3, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5
