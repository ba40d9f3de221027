"""Test operators whose operands are both repeated, for which Vela may end the process on an Ethos-U55."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")
pytest.importorskip("ethosu")

import dimorder
from tests.small_networks import Net

SHAPES = [
    ((1, 5, 6, 1), (1, 1, 1, 4)),
    ((1, 5, 1, 4), (1, 1, 6, 1)),
    ((3, 5, 1, 7), (3, 1, 6, 7)),
    ((3, 5, 6, 1), (3, 1, 1, 4)),
    ((2, 5, 1, 4), (1, 1, 7, 4)),
]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_a_difference_of_operands_that_are_both_repeated(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], target: str
) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(shape, generator=generator) for shape in shapes)
    net = Net(lambda m, x, y: (x - y) * 0.7)
    quantized = dimorder.quantize(net, [(x, y), (0.8 * x, y)], target=target)
    lowered = dimorder.lower(quantized, (x, y), target=target)
    (found,) = quantized.compare(lowered)
    assert found.quanta <= 1 and found.snr_db is not None and found.snr_db > 30


def test_distances_on_an_ethos_u55() -> None:
    x, y = torch.randn(3, 5, 7), torch.randn(3, 6, 7)
    quantized = dimorder.quantize(Net(lambda m, x, y: torch.cdist(x, y)), [(x, y)], target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (x, y), target="ethos-u55-128")
    (found,) = quantized.compare(lowered)
    assert found.quanta <= 1
