"""Arm's reference model runs the graphs of small networks as they are lowered, and says nothing meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("tosa_reference_model")

import dimorder
from dimorder.errors import VerificationError
from dimorder.targets import find
from dimorder.targets.tosa import target as tosa

r = torch.randn


class Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**1.7


def test_an_input_without_a_defined_result_is_refused_if_a_run_was_asked_for() -> None:
    x = r(5, 3).abs()
    lowered = dimorder.lower(Power(), (x,), target="tosa")
    assert not lowered.verified.artifact_ran and torch.allclose(lowered(x), x**1.7)
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Power(), (x,), target="tosa", run_artifact=True)
    assert str(raised.value).splitlines()[1] == "  found: an input for which TOSA defines no result"


@pytest.mark.parametrize(("most", "runs"), [(1e9, True), (100, False)])
def test_a_small_graph_is_run_by_default(most: float, runs: bool, capfd: Any) -> None:
    own = find("tosa")
    limited = replace(own, runtime=replace(own.runtime, most_operations=most), quantized=None)
    lowered = dimorder.lower(nn.Conv2d(3, 5, 2).eval(), (r(1, 3, 7, 9),), target=limited)
    assert lowered.verified.artifact_ran == runs and capfd.readouterr().out == ""


def test_graphs_of_many_sizes_are_run_if_all_together_are_small() -> None:
    sizes = ({2: torch.export.Dim("H", min=5, max=7)},)
    conv, x = nn.Conv2d(3, 5, 2).eval(), r(1, 3, 6, 9)
    lowered = dimorder.lower_sizes(conv, (x,), target="tosa", dynamic_shapes=sizes)
    assert [each.verified.artifact_ran for each in lowered.values()] == [True] * 3


def test_a_wrong_result_is_found_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tosa._logical
    monkeypatch.setattr(tosa, "_logical", lambda array, spec: right(array, spec) + 1)
    with pytest.raises(VerificationError):
        dimorder.lower(nn.ReLU(), (r(3, 5),), target="tosa")
