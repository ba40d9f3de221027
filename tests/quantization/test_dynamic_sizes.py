"""Quantise networks that compute with dynamic sizes: as modules, as exported programs, from several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError, UsageError

pytest.importorskip("executorch")
pytest.importorskip("torchao")

N, H, W = Dim("N", min=1, max=5), Dim("H", min=4, max=12), Dim("W", min=5, max=13)


class Scaled(nn.Module):
    """Channels scaled by what a linear makes of their means, with a batch that the network reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.gate, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, image: Tensor, *, gain: Tensor) -> Tensor:
        x = self.conv(image).relu()
        gates = self.gate(x.mean((2, 3))).sigmoid().view(image.shape[0], -1, 1, 1)
        return self.head((x * gates).permute(0, 2, 3, 1).reshape(image.shape[0], -1, 8)) * gain


SHAPES: dict[str, Any] = {"image": {0: N, 2: H, 3: W}, "gain": {}}


def call(batch: int, height: int, width: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(batch + height)
    return {
        "image": torch.randn(batch, 3, height, width, generator=draw),
        "gain": torch.rand(5, generator=draw),
    }


CALLS = [call(2, 7, 9), call(1, 4, 13), call(3, 12, 5)]


@pytest.mark.parametrize(("form", "recipe"), [("module", "int8"), ("program", "int8-dynamic")])
def test_a_network_that_reads_sizes_is_quantised_for_all_of_them(form: str, recipe: str) -> None:
    net = Scaled().eval()
    if form == "module":
        quantised = dimorder.quantize(net, CALLS, recipe, dynamic_shapes=SHAPES)
    else:
        exported = torch.export.export(net, (), CALLS[0], dynamic_shapes=SHAPES)
        quantised = dimorder.quantize(exported, CALLS, recipe)
    lowered = dimorder.lower(quantised, target="xnnpack")
    assert [symbol.maximum for symbol in lowered.contract.symbols] == [5, 12, 13]
    (found,) = quantised.compare(lowered)
    assert found.snr_db is not None and found.snr_db > 25
    for sizes in ((1, 4, 5), (5, 12, 13), (1, 12, 5)):
        inputs = call(*sizes)
        wanted = quantised.module(**inputs)
        assert lowered(**inputs).shape == wanted.shape
        torch.testing.assert_close(lowered(**inputs), wanted, atol=0.05, rtol=0)


class Placed(nn.Module):
    """Positions between 0 and 1 as factors, of images that come as one tuple."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, *images: Tensor) -> Tensor:
        first, second = images
        return self.conv(first) * torch.linspace(0, 1, first.shape[2]).view(-1, 1) + second


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_inputs_of_any_number_have_dynamic_sizes(target: str) -> None:
    calls = [(torch.randn(2, 3, h, 9), torch.randn(2, 8, h, 9)) for h in (7, 4, 12)]
    quantised = dimorder.quantize(Placed().eval(), calls, target=target, dynamic_shapes=(({2: H}, {2: H}),))
    lowered = dimorder.lower(quantised, target=target)
    for inputs in calls:
        torch.testing.assert_close(lowered(*inputs), quantised.module(*inputs), atol=0.1, rtol=0)


class Counted(nn.Module):
    """One row added to all rows, as often as there are rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + y[:1].expand(y.shape[0], 4) * y.shape[0]


def test_a_size_may_be_a_factor_beside_a_repeat() -> None:
    sizes = ({0: N},)
    quantised = dimorder.quantize(Counted().eval(), [torch.randn(2, 4)], dynamic_shapes=sizes)
    lowered = dimorder.lower(quantised, target="xnnpack")
    for count in (1, 3, 5):
        x = torch.randn(count, 4)
        torch.testing.assert_close(lowered(x), quantised.module(x), atol=0.2, rtol=0)


def test_the_first_example_may_have_a_size_of_1() -> None:
    quantised = dimorder.quantize(Scaled().eval(), CALLS[1:], dynamic_shapes=SHAPES)
    assert quantised.module(**call(4, 6, 8)).shape == (4, 48, 5)


def test_an_example_has_the_sizes_that_are_fixed() -> None:
    inputs = {**CALLS[0], "image": torch.ones(2, 4, 7, 9)}
    with pytest.raises(
        UsageError,
        match=r"1 of the calibration, input 'image'\n  found: \(2, 4, 7, 9\) of .* takes \(\w+, 3, ",
    ):
        dimorder.quantize(Scaled().eval(), [CALLS[0], inputs], dynamic_shapes=SHAPES)


def test_dynamic_sizes_are_those_of_an_exported_program() -> None:
    exported = torch.export.export(Scaled().eval(), (), CALLS[0], dynamic_shapes=SHAPES)
    with pytest.raises(UsageError, match="dynamic_shapes\n  found: an exported program, which has its own"):
        dimorder.quantize(exported, CALLS, dynamic_shapes=SHAPES)


def test_sizes_that_quantizing_fixed_are_refused_with_where_to_name_them() -> None:
    quantised = dimorder.quantize(Scaled().eval(), CALLS[:1])
    with pytest.raises(
        UnsupportedError, match=r"takes one size alone.*\n  fix: give dynamic_shapes to quantize"
    ):
        dimorder.lower(quantised, (), CALLS[0], dynamic_shapes=SHAPES)


def test_dynamic_shapes_that_name_no_size_leave_all_sizes_fixed() -> None:
    x = torch.randn(1, 3, 7, 9)
    network = dimorder.quantize(nn.Conv2d(3, 8, 3), [x, x / 2], dynamic_shapes=({0: None},))
    assert network.dynamic_shapes is None
    assert network.module(x).shape == (1, 8, 5, 7)
