"""Test functions of one quantised value on target tosa, each of which is one TABLE."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("tosa_serializer")
pytest.importorskip("tosa_reference_model")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from tests.small_networks import Net
from tests.targets.quantised import Between

X = 2 * torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(1))
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "log1p": lambda x: x.relu().log1p(),
    "log2": lambda x: (x.abs() + 0.3).log2(),
    "log10": lambda x: (x.abs() + 0.3).log10(),
    "log_sigmoid": F.logsigmoid,
    "power of a number": lambda x: 1.7**x,
    "truncated": lambda x: (1.9 * x).trunc(),
    "rounded": lambda x: (1.9 * x).round(),
    "rounded to decimals": lambda x: (0.19 * x).round(decimals=1),
    "fraction": lambda x: (1.9 * x).frac(),
}


@cache
def lowered(name: str) -> Lowered:
    return dimorder.lower(Between(CASES[name], (0.0311, -7)), (X,), target="tosa", run_artifact=True)


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_a_table(name: str) -> None:
    net, made = Between(CASES[name], (0.0311, -7)), lowered(name)
    assert dict(inspect_tosa(made.artifact.data).operators) == {"TABLE": 1}
    (wanted,), found = net(X), made.run(made.contract.inputs[0].quantized(X))
    found = found[0] if isinstance(found, (tuple, list)) else found
    assert torch.equal(found, made.contract.outputs[0].quantized(wanted))


@pytest.mark.parametrize("name", CASES)
def test_a_quantised_network_has_the_function(name: str) -> None:
    pytest.importorskip("executorch")
    net = Net(lambda m, x: CASES[name](0.4 * x.abs()))
    quantized = dimorder.quantize(net.eval(), [X, 0.7 * X, X.flip(1)], target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (X,), target="tosa"))
    assert found.quanta <= 1
