"""Contracts with integers: what a program takes and gives as int8 or uint8, on target xnnpack.

Each lowering is verified bit for bit against the model of its kernels: a test looks at the boundary alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
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

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from tests.small_networks import Net
from tests.targets.quantised import INT8, UINT8

PHOTO = (1 / 128, -1)  # in int8, of a byte b that stands for (b - 127) / 128


class Photo(nn.Module):
    """A network that quantises first and dequantises last, as PT2E's do."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stride = stride
        self.weight = nn.Parameter(torch.randint(-127, 128, (5, 3, 3, 3)).to(torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = DEQUANTIZE(QUANTIZE(x, *PHOTO, *INT8), *PHOTO, *INT8)
        weight = DEQUANTIZE(self.weight, 0.004, 0, -127, 127, torch.int8)
        y = F.relu(F.conv2d(x, weight, stride=self.stride))
        return DEQUANTIZE(QUANTIZE(y, 0.021, -128, *INT8), 0.021, -128, *INT8)


X = torch.rand(1, 3, 7, 9, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize(
    ("taken", "given", "converts", "order"),
    [
        ("int8", None, 1, "NCHW"),
        (None, "uint8", 2, "NHWC"),
        ("int8", torch.int8, 0, "NHWC"),
        ("uint8", ["uint8"], 2, "NCHW"),
    ],
)
def test_integers_at_the_boundary(
    taken: Any, given: Any, converts: int, order: str, kinds: Counter[str]
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
    names = {None: "float32", torch.int8: "int8", ("uint8",): "uint8"}
    asked = [tuple(each) if isinstance(each, list) else each for each in (taken, given)]
    assert [x.dtype, y.dtype] == [names.get(each, each) for each in asked]
    integers = x.quantized(X)
    got = y.real(lowered.run(integers))
    wanted = Photo()(x.real(integers))
    assert (got - wanted).abs().max() <= 0.021 * 1.01


def test_a_photo_goes_in_as_its_bytes(tmp_path: Path, kinds: Counter[str]) -> None:
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    lowered = dimorder.lower(Photo(), (X,), target="xnnpack", input_types="uint8", **orders)
    assert lowered.plan.conversions == ()
    program = dimorder.load(lowered.save(tmp_path / "photo.pte"), on_mismatch="error")
    (x,) = program.contract.inputs
    assert (x.dtype, x.scale, x.zero_point) == ("uint8", 1 / 128, 127)
    assert str(program.contract).splitlines()[0] == (
        "input   x        1 x 3 x 7 x 9  uint8, scale 0.0078125, zero point 127  NHWC (0, 2, 3, 1)"
    )
    photo = torch.arange(7 * 9 * 3).to(torch.uint8).reshape(7, 9, 3)  # rows of pixels, as a camera gives them
    got = program(photo[None].permute(0, 3, 1, 2))
    assert program.stats.conversions == 0
    assert kinds["StaticTranspose"] == 0
    real = (photo.float()[None].permute(0, 3, 1, 2) - 127) / 128
    assert (got - Photo()(real)).abs().max() <= 0.021 * 1.01


HEIGHT, WIDTH = 1280, 1664
RUN = """
import sys
from pathlib import Path
import torch
import dimorder

def kilobytes(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])

photo = torch.randint(0, 256, (1, HEIGHT, WIDTH, 3), dtype=torch.uint8)
x = (photo if sys.argv[3] == "uint8" else (photo.float() - 127) / 128).permute(0, 3, 1, 2)
dimorder.load(sys.argv[1])(torch.zeros(1, 3, 7, 9))  # from here on the runtime itself is loaded
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
dimorder.load(sys.argv[2], on_mismatch="error")(x)
print(1024 * (kilobytes("VmHWM") - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system tells no peak of memory")
def test_no_run_holds_a_photos_bytes_as_floats(tmp_path: Path) -> None:
    """Test that a program of uint8 takes less memory besides the photo than the photo as floats. The same
    network for floats takes more."""
    small = dimorder.lower(Photo(), (X,), target="xnnpack").save(tmp_path / "small.pte")
    x, grown = torch.rand(1, 3, HEIGHT, WIDTH) * 2 - 1, {}
    for taken in ("uint8", "float32"):
        orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
        lowered = dimorder.lower(Photo(16), (x,), target="xnnpack", input_types=taken, **orders)
        assert lowered.plan.conversions == ()
        path = lowered.save(tmp_path / f"{taken}.pte")
        script = RUN.replace("HEIGHT", str(HEIGHT)).replace("WIDTH", str(WIDTH))
        command = [sys.executable, "-c", script, str(small), str(path), taken]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        grown[taken] = int(told.stdout.split()[-1])
    as_floats = 4 * x.numel()
    assert grown["uint8"] < as_floats < grown["float32"], (grown, as_floats)


class Bytes(nn.Module):
    """A network that takes unsigned integers of its own accord, and gives such."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3)
        weight = torch.randint(-127, 128, (5, 3, 3, 3)).to(torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = DEQUANTIZE(self.weight, 0.004, 0, -127, 127, torch.int8)
        y = F.conv2d(DEQUANTIZE(x, 1 / 128, 127, *UINT8), weight)
        return QUANTIZE(y, 0.043, 119, *UINT8)


def test_a_network_may_take_and_give_unsigned_integers_itself(kinds: Counter[str]) -> None:
    x = torch.randint(0, 256, (1, 3, 7, 9), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    lowered = dimorder.lower(Bytes(), (x,), target="xnnpack", input_orders="NHWC", output_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.conversions) == (1, (), ())
    assert (kinds["Convert"], kinds["Conv2d"]) == (2, 1)
    told = [
        (spec.dtype, spec.scale, spec.zero_point)
        for spec in (*lowered.contract.inputs, *lowered.contract.outputs)
    ]
    assert told == [("uint8", 1 / 128, 127), ("uint8", 0.043, 119)]
    assert (lowered.run(x).int() - Bytes()(x).int()).abs().max() <= 1


def test_integers_that_are_given_back_stand_for_what_they_stood_for() -> None:
    class Moved(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            real = DEQUANTIZE(x.permute(0, 2, 1), 0.0173, -5, *INT8)
            return real, DEQUANTIZE(QUANTIZE(y, *PHOTO, *INT8), *PHOTO, *INT8)

    x = torch.randint(-128, 128, (2, 3, 5), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    lowered = dimorder.lower(Moved(), (x, X), target="xnnpack", output_types="int8")
    told = [(s.dtype, s.scale, s.zero_point) for s in (lowered.contract.inputs[0], *lowered.contract.outputs)]
    assert told == [("int8", 0.0173, -5), ("int8", 0.0173, -5), ("int8", *PHOTO)]
    assert torch.equal(lowered.run(x, X)[0], x.permute(0, 2, 1))


def test_rows_of_a_constant_that_are_given_back_stand_for_what_they_stood_for() -> None:
    torch.manual_seed(1)
    table = torch.randint(-128, 128, (7, 5), dtype=torch.int8)
    network = Net(lambda m, at: DEQUANTIZE(m.table[at], 0.0173, -5, *INT8), table=table)
    at = torch.tensor([[3, 0, 6], [6, 2, 1]])
    lowered = dimorder.lower(network, (at,), target="xnnpack", output_types="int8")
    (spec,) = lowered.contract.outputs
    assert (spec.dtype, spec.scale, spec.zero_point) == ("int8", 0.0173, -5)
    torch.testing.assert_close(spec.real(lowered.run(at)).float(), network(at))


@pytest.mark.parametrize("first", [True, False])
def test_what_is_joined_with_an_input_and_given_back_leaves_its_type(first: bool) -> None:
    class Joined(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            both = [x, QUANTIZE(y, 0.0173, -5, *INT8)]
            return DEQUANTIZE(torch.cat(both if first else both[::-1], 1), 0.0173, -5, *INT8)

    x = torch.randint(-128, 128, (1, 2, 7, 9), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    lowered = dimorder.lower(Joined(), (x, X), target="xnnpack", output_types="int8")
    assert (lowered.contract.inputs[0].scale, lowered.contract.outputs[0].scale) == (0.0173, 0.0173)


REFUSED: dict[str, tuple[nn.Module, dict[str, Any], str]] = {
    "an input that is read as floats": (
        nn.Conv2d(3, 5, 3),
        {"input_types": "int8"},
        "input 'input', asked for in torch.int8 found: aten.convolution (test_integer_boundaries.py) reads "
        "it as floats fix: quantise the network first: dimorder.quantize, or --quantize and --calibrate",
    ),
    "an output that is computed in floats": (
        nn.Conv2d(3, 5, 3),
        {"output_types": "uint8"},
        "output 'output0', asked for in torch.uint8 found: aten.convolution (test_integer_boundaries.py) "
        "gives floats fix: quantise it last thing, or leave its type out",
    ),
    "16 bits for 8": (
        Photo(),
        {"input_types": "int16"},
        "input 'x', asked for in torch.int16 found: the network has it in torch.int8 "
        "fix: ask for int8 or uint8, or quantise the network by recipe int16x8",
    ),
    "no such type": (
        Photo(),
        {"input_types": "int4"},
        "input type int4 found: no type for a boundary fix: say one of float32, int8, uint8, int16",
    ),
    "too many": (
        Photo(),
        {"output_types": ["int8", "int8"]},
        "output types found: 2 for 1 outputs fix: give one for all, or one per output",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_cannot_be_had(name: str) -> None:
    network, types, text = REFUSED[name]
    with pytest.raises((UnsupportedError, UsageError)) as refused:
        dimorder.plan(network, (X,), target="xnnpack", **types)
    told = " ".join(str(refused.value).split())
    assert re.sub(r"\([^()]*\)", "(test_integer_boundaries.py)", told) == text


class Narrow(nn.Module):
    """Activations of 127 levels to either side, as some quantizers are set to have them."""

    def forward(self, x: Tensor) -> Tensor:
        narrow = (-127, 127, torch.int8)
        return DEQUANTIZE(
            QUANTIZE(F.relu(DEQUANTIZE(QUANTIZE(x, 0.01, 0, *narrow), 0.01, 0, *narrow)), 0.01, 0, *narrow),
            0.01,
            0,
            *narrow,
        )


def test_a_quantizer_with_unsupported_settings() -> None:
    with pytest.raises(
        UnsupportedError, match="integers from -127 to 127; XNNPACK has those of 8 bits"
    ) as refused:
        dimorder.lower(Narrow(), (X,), target="xnnpack")
    assert str(refused.value).count("\n") == 2


def test_a_program_refuses_what_it_was_not_promised() -> None:
    lowered = dimorder.lower(Photo(), (X,), target="xnnpack", input_orders="NHWC", input_types="uint8")
    with pytest.raises(ContractError) as refused:
        lowered.run(X)
    assert str(refused.value) == (
        "input 'x'\n"
        "  found: torch.float32, where torch.uint8, scale 0.0078125, zero point 127 is promised\n"
        "  fix: x = torch.clamp(torch.round(x / 0.0078125) + 127, 0, 255).to(torch.uint8)"
    )
    held = {"x": X, "torch": torch}
    exec(refused.value.fix, held)
    assert torch.equal(held["x"], lowered.contract.inputs[0].quantized(X))


def test_bytes_that_stand_for_themselves_are_no_quantised_value() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x.permute(0, 2, 1).float() - 3)

    x = torch.arange(2 * 5 * 7).to(torch.uint8).reshape(2, 5, 7)
    lowered = dimorder.lower(Scaled(), (x,), target="xnnpack")
    assert lowered.contract.inputs[0].scale is None
    assert torch.equal(lowered.run(x), Scaled()(x))
