"""Quantised networks and their .tflite: the recipe, files that are loaded again, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import ContractError, UnsupportedError

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import QUANTIZE
from dimorder.targets.litert.file import operators
from tests.targets.quantised import INT16, Between, Net, by_xnnpack

X = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))


def test_the_recipe_quantises_for_the_delegate() -> None:
    quantised = dimorder.quantize(Net(), [X, X.flip(-1)], "int8", target="litert")
    lowered = dimorder.lower(quantised, target="litert", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert lowered.plan.float_islands == ()
    (report,) = [str(each) for each in quantised.compare(lowered)]
    assert "output0" in report


def test_a_file_that_takes_integers_is_loaded_and_guarded(tmp_path: Path) -> None:
    lowered = dimorder.lower(by_xnnpack(Net(), X), (X,), target="litert", input_types="int8")
    lowered.save(tmp_path / "net.tflite")
    program = dimorder.load(tmp_path / "net.tflite")
    (spec,) = lowered.contract.inputs
    held = spec.quantized(X)
    assert torch.equal(program(held), lowered.run(held))
    with pytest.raises(ContractError, match=rf"(?s)torch.float32, where torch.int8, scale {spec.scale:g}"):
        program(X)


def test_operators_of_integers_are_counted(tmp_path: Path) -> None:
    lowered = dimorder.lower(by_xnnpack(Net(), X), (X,), target="litert", input_orders="NHWC")
    counts = operators(lowered.artifact.data)
    assert counts & Counter({"CONV_2D": 9}) == {"CONV_2D": 2} and not counts["TRANSPOSE"]


class OfSixteenBits(Between):
    INTEGERS = INT16


class NarrowIntegers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return QUANTIZE(x, 0.5, 0, -127, 127, torch.int8)


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "int16": (OfSixteenBits(torch.relu, (0.01, 0)), "integers from -32767 to 32767; LiteRT has those of 8"),
    "a narrow range": (NarrowIntegers(), "integers from -127 to 127; LiteRT has those of 8 bits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_integers_are_refused(name: str) -> None:
    module, found = REFUSED[name]
    with pytest.raises(UnsupportedError, match=found):
        dimorder.lower(module, (X,), target="litert")
