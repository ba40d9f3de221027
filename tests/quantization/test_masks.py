"""Test that masks leave the scores of attention apart, in the integers of each target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.quantization.masks import Masks
from tests.marks import require_runtime
from tests.quantization.masked_networks import LOWEST, NETWORKS, RARE, Attention, example


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize("name", [*NETWORKS, *RARE])
def test_masked_scores_are_not_quantized(name: str, target: str) -> None:
    require_runtime(target)
    torch.manual_seed(0)
    net = {**NETWORKS, **RARE}[name]().eval()
    quantized = dimorder.quantize(net, [example() for _ in range(4)], target=target)
    (fidelity,) = quantized.compare(dimorder.lower(quantized, example(), target=target))
    assert fidelity.snr_db is not None and fidelity.snr_db > 28


class Sum(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill

    def forward(self, scores: Tensor, other: Tensor, kept: Tensor) -> Tensor:
        return (scores + other + torch.where(kept, 0.0, self.fill)).softmax(-1)


def masks_of(net: nn.Module, *inputs: Tensor) -> tuple[Masks, torch.fx.Node]:
    model = torch.export.export(net, inputs).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    (softmax,) = model.graph.find_nodes(op="call_function", target=torch.ops.aten.softmax.int)
    return Masks(model), softmax.args[0]


def test_a_sum_has_its_scores_and_masks() -> None:
    inputs = (torch.randn(3, 5), torch.randn(5), torch.ones(3, 5, dtype=torch.bool))
    masks, value = masks_of(Sum(LOWEST), *inputs)
    found = masks.of(value)
    assert [str(score.value) for score in found.scores] == ["add"]
    (mask,) = found.masks
    assert (str(mask.truth.value), mask.keeps, mask.fill) == ("kept", True, LOWEST)


class Doubled(nn.Module):
    """A softmax of a sum, of which each operand is twice the sum before, and so on."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(200):
            x = (x + x.flip(-1)) * 0.5
        return (x + x.flip(-1)).softmax(-1)


def test_sums_of_sums_end() -> None:
    masks, value = masks_of(Doubled(), torch.randn(3, 5))
    assert not masks.of(value).masks


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_examples_without_padding_are_enough(target: str) -> None:
    """The calibration hides no score, so only the calls show that some can be hidden."""
    require_runtime(target)
    torch.manual_seed(0)
    net, (x, kept) = Attention("a sum with a product").eval(), example()
    examples = [(torch.randn_like(x), torch.ones_like(kept)) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target=target)
    expected, unmasked = net(x, kept), net(x, torch.ones_like(kept))
    assert (quantized.module(x, kept) - expected).norm() < 0.5 * (unmasked - expected).norm()


class Joined(nn.Module):
    """Joins the truth values of a prefix, which all scores see, with those of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        seen = torch.cat([torch.ones(3, 2, dtype=torch.bool), kept], 1)
        y: Tensor = self.linear(x).masked_fill(~seen, -1e9).softmax(-1)
        return y


@pytest.mark.parametrize("target", ["xnnpack", "tosa"])
def test_truth_values_are_not_observed(target: str) -> None:
    torch.manual_seed(0)
    examples = [(torch.randn(3, 5), torch.rand(3, 3) > 0.4) for _ in range(3)]
    quantized = dimorder.quantize(Joined().eval(), examples, target=target)
    (fidelity,) = quantized.compare(dimorder.lower(quantized, examples[0], target=target))
    assert fidelity.snr_db is not None and fidelity.snr_db > 28


def test_a_choice_of_a_small_number_is_no_mask() -> None:
    inputs = (torch.randn(3, 5), torch.randn(5), torch.ones(3, 5, dtype=torch.bool))
    masks, value = masks_of(Sum(-3.0), *inputs)
    assert not masks.of(value).masks
