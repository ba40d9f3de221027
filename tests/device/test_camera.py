"""The example application passes a camera's pixels as the contract asks, whatever the type of the input."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from tests.device.native_fixture import built
from tests.targets.test_integer_boundaries import Photo

HEIGHT, WIDTH = 7, 9


class Weighted(nn.Module):
    """One number, to which each pixel adds with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))
        self.register_buffer("weight", weight / 100)

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * self.weight).sum((1, 2, 3))


def frame() -> Tensor:
    """The picture that the example draws: 1 x 3 x H x W, uint8."""
    red = (torch.arange(HEIGHT) * 255 // HEIGHT).reshape(HEIGHT, 1).expand(HEIGHT, WIDTH)
    green = (torch.arange(WIDTH) * 255 // WIDTH).expand(HEIGHT, WIDTH)
    return torch.stack([red, green, torch.full((HEIGHT, WIDTH), 128)]).unsqueeze(0).to(torch.uint8)


def camera(path: Path) -> subprocess.CompletedProcess[str]:
    command = [built("camera") / "camera", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("network", "dtype", "options"),
    [
        (Weighted(), torch.float32, {}),
        (Weighted(), torch.uint8, {"input_orders": "NHWC"}),
        (Photo(), torch.float32, {"input_types": "uint8"}),
        (Photo(), torch.float32, {"input_types": "int8"}),
    ],
    ids=["float32", "pixels", "uint8", "int8"],
)
def test_pixels_become_what_the_contract_says(
    network: nn.Module, dtype: torch.dtype, options: dict[str, str], tmp_path: Path
) -> None:
    numbers = frame() / 127.5 - 1
    x = numbers if dtype.is_floating_point else frame()
    program = dimorder.lower(network.eval(), (x,), target="xnnpack", **options)
    (spec,) = program.contract.inputs
    (wanted,) = program.run(spec.quantized(numbers) if spec.scale is not None else x)
    done = camera(program.save(tmp_path / "net.pte"))
    found = re.search(r"the first (\S+);", done.stdout)
    assert done.returncode == 0 and found is not None, done.stderr
    assert float(found[1]) == pytest.approx(wanted.flatten()[0].item(), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_an_input_of_another_type_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    program = dimorder.lower(Weighted(), (frame().to(dtype),), target="xnnpack")
    done = camera(program.save(tmp_path / "net.pte"))
    assert done.returncode == 2 and done.stdout == "" and "an input of float32" in done.stderr
