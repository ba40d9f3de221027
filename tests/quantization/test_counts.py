"""Test counts of truth values that float arithmetic reads, as in means of what a mask keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.counts import count_in_floats
from tests.quantization.rewriting import rewritten
from tests.small_networks import Net

X = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(5))
MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divided": lambda x, kept: (x * kept).sum(1) / kept.sum(1),
    "divided by a cast": lambda x, kept: (x * kept).sum(1) / kept.sum(1).float().clamp(min=1e-9),
    "at least 1": lambda x, kept: (x * kept).sum() / kept.sum().clamp(min=1),
    "not 0": lambda x, kept: (x * kept).sum((0, 2)) / (kept.count_nonzero((0, 2)) + 1),
    "of numbers": lambda x, kept: (x * kept).sum(1) / (kept.to(torch.int64) * 2).sum(1),
    "a share": lambda x, kept: kept.sum() / 70,
}


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


@pytest.mark.parametrize("name", MEANS)
def test_a_count_in_floats_is_the_same(name: str) -> None:
    net = Net(lambda m, x: MEANS[name](x, x > -0.5))
    model = rewritten(net, X, count_in_floats)
    operands = [each for node in model.graph.nodes if is_float(node) for each in node.all_input_nodes]
    assert not any(each.meta["val"].dtype == torch.int64 for each in operands)
    torch.testing.assert_close(model(X), net(X))


def test_a_mean_of_what_a_mask_keeps_in_8_bits() -> None:
    torch.manual_seed(0)
    net = Net(
        lambda m, x, kept: MEANS["divided"](m.linear(x), kept[..., None]), linear=nn.Linear(7, 6)
    ).eval()
    examples = [(torch.randn(2, 5, 7), torch.rand(2, 5) > 0.3) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, examples[0], target="tosa"))
    assert found.snr_db is not None and found.snr_db > 28
