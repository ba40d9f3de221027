"""Contracts with integers: what a program takes and gives as int8 or uint8, on target xnnpack.

Each lowering is verified bit for bit against the model of its kernels: a test looks at the boundary alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.errors import ContractError, UnsupportedError, UsageError

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE
from dimorder.targets.xnnpack.backend import XnnWriter

INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)
PHOTO = (1 / 128, -1)  # in int8, of a byte b that stands for (b - 127) / 128


class Photo(nn.Module):
    """A network that quantises first and dequantises last, as PT2E's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randint(-127, 128, (5, 3, 3, 3)).to(torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = DEQUANTIZE(QUANTIZE(x, *PHOTO, *INT8), *PHOTO, *INT8)
        weight = DEQUANTIZE(self.weight, 0.004, 0, -127, 127, torch.int8)
        y = F.relu(F.conv2d(x, weight))
        return DEQUANTIZE(QUANTIZE(y, 0.021, -128, *INT8), 0.021, -128, *INT8)


X = torch.rand(1, 3, 7, 9, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kinds of the nodes in the graphs that are written."""
    found: Counter[str] = Counter()
    finish = XnnWriter.finish

    def finished(writer: XnnWriter) -> Any:
        blob = finish(writer)
        found.update(kind for kind, _, _ in writer.model().nodes)
        return blob

    monkeypatch.setattr(XnnWriter, "finish", finished)
    return found


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("taken", "given", "converts"),
    [
        (None, None, 2),
        ("int8", None, 1),
        (None, "int8", 1),
        ("int8", "int8", 0),
        ("uint8", "uint8", 2),
        ("uint8", "int8", 1),
    ],
)
def test_integers_at_the_boundary(
    taken: str, given: str, converts: int, order: str, kinds: Counter[str]
) -> None:
    lowered = dimorder.lower(
        Photo(),
        (X,),
        target="xnnpack",
        input_orders=order,
        output_orders="NHWC",
        input_types=taken,
        output_types=given,
    )
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert len(lowered.plan.conversions) == (order == "NCHW")
    assert (kinds["Convert"], kinds["Conv2d"]) == (converts, 1)
    (x,), (y,) = lowered.contract.inputs, lowered.contract.outputs
    assert (x.dtype, y.dtype) == (taken or "float32", given or "float32")
    integers = x.quantised(X)
    got = y.real(lowered.run(integers))
    wanted = Photo()(x.real(integers))
    assert (got - wanted).abs().max() <= 0.021 * 1.01


def test_a_photo_goes_in_as_its_bytes(tmp_path: Path, kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Photo(), (X,), target="xnnpack", input_orders="NHWC", input_types="uint8")
    program = dimorder.load(lowered.save(tmp_path / "photo.pte"), on_mismatch="error")
    (x,) = program.contract.inputs
    assert (x.dtype, x.scale, x.zero_point) == ("uint8", 1 / 128, 127)
    assert str(program.contract).splitlines()[0] == (
        "input   input1   1 x 3 x 7 x 9  uint8, scale 0.0078125, zero point 127  NHWC (0, 2, 3, 1)"
    )
    photo = torch.arange(7 * 9 * 3).to(torch.uint8).reshape(7, 9, 3)  # rows of pixels, as a camera gives them
    got = program(photo[None].permute(0, 3, 1, 2))
    assert program.stats.conversions == 0
    assert kinds["StaticTranspose"] == 0
    real = (photo.float()[None].permute(0, 3, 1, 2) - 127) / 128
    assert (got - Photo()(real)).abs().max() <= 0.021 * 1.01
