"""Test strides above 3 on Ethos-U55, whose convolutions with padding or by channel have none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("ethosu.vela")
pytest.importorskip("executorch")

import dimorder

IMAGES = (2, 3, 23, 31)
SOUNDS = (1, 3, 54)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a stem": (lambda: nn.Conv2d(3, 5, 7, stride=4, padding=(2, 3)), IMAGES),
    "after a tanh, of zero point 0": (
        lambda: nn.Sequential(nn.Tanh(), nn.Conv2d(3, 5, (5, 3), stride=(4, 1), padding=(1, 0))),
        IMAGES,
    ),
    "depthwise": (lambda: nn.Conv2d(3, 6, (5, 4), stride=(4, 5), padding=2, groups=3), IMAGES),
    "in groups": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 5, stride=4, padding=1, groups=2)),
        IMAGES,
    ),
    "a mean of the whole": (lambda: nn.AvgPool1d(54), SOUNDS),
    "means": (lambda: nn.Sequential(nn.Conv1d(3, 5, 1), nn.AvgPool1d(6, padding=3)), SOUNDS),
    "means of what is inside": (lambda: nn.AvgPool2d(5, padding=2, count_include_pad=False), IMAGES),
}


@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
@pytest.mark.parametrize("name", NETS)
def test_a_long_stride_is_compiled_for_u55(name: str, recipe: str) -> None:
    make, sizes = NETS[name]
    torch.manual_seed(1)
    net, examples = make().eval(), [torch.randn(sizes) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, recipe, target="ethos-u55-128")
    lowered = dimorder.lower(quantized, target="ethos-u55-128", run_artifact=True)
    (found,) = quantized.compare(lowered)
    assert found.snr_db is not None and found.snr_db > (28 if recipe == "int8" else 45)


def test_both_forms_give_the_same_integers() -> None:
    make, sizes = NETS["depthwise"]
    torch.manual_seed(2)
    net, examples = make().eval(), [torch.randn(sizes) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target="ethos-u85-256")

    def run(target: str) -> Tensor:
        lowered = dimorder.lower(quantized, target=target)
        y = lowered.run(lowered.contract.inputs[0].quantized(examples[0]))
        assert isinstance(y, Tensor)
        return y

    assert torch.equal(run("ethos-u55-128"), run("ethos-u85-256"))
