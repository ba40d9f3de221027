"""Test logarithms of quantised values on target tosa: log_softmax, and a logarithm of 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("tosa_serializer")
pytest.importorskip("tosa_reference_model")

import dimorder
from dimorder.targets.tosa.graph import inspect_tosa
from tests.targets.quantised import INT16, Between

X = 2 * torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(1))
MANY = torch.randn(3, 2500, generator=torch.Generator().manual_seed(2))
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "log_softmax": (lambda x: x.log_softmax(-1), X),
    "log_softmax over channels": (lambda x: x.log_softmax(1), X),
    "log_softmax of one row": (lambda x: x.log_softmax(0), X[1, 2, 3]),
    "log_softmax of many classes": (lambda x: x.log_softmax(-1), MANY),
    "log_softmax with one class far above the others": (
        lambda x: x.log_softmax(-1),
        X + 9.0 * (torch.arange(7) == 3),
    ),
    "log_softmax of equal numbers": (lambda x: x.log_softmax(-1), torch.full((3, 5), 0.71)),
    "log_softmax, moved": (lambda x: x.transpose(1, 3).log_softmax(2)[:, 1:], X),
    "log of 0": (lambda x: x.relu().log(), X),
}


class Short(Between):
    SCALES, INTEGERS = ((2.13e-4, 0),), INT16


@pytest.mark.parametrize("name", CASES)
def test_a_logarithm_in_8_bits(name: str) -> None:
    compute, x = CASES[name]
    net = Between(compute, (0.0389, 101), (0.0713, 127))
    made = dimorder.lower(net, (x,), target="tosa", run_artifact=True)
    assert {tensor.dtype for tensor in inspect_tosa(made.artifact.data).outputs} == {"INT8"}
    for found, wanted, spec in zip(
        made.run(made.contract.inputs[0].quantized(x)), net(x), made.contract.outputs, strict=True
    ):
        off = (found.int() - spec.quantized(wanted).int()).abs()
        assert off.max() <= 1
        assert (off > 0).float().mean() < 0.01


@pytest.mark.parametrize("name", [name for name in CASES if name != "log of 0"])
def test_a_logarithm_in_16_bits(name: str) -> None:
    compute, x = CASES[name]
    net = Short(compute, (4.13e-4, 0))
    made = dimorder.lower(net, (x,), target="tosa", run_artifact=True)
    (wanted,), found = net(x), made.run(made.contract.inputs[0].quantized(x))
    found = found[0] if isinstance(found, (tuple, list)) else found
    off = (found.int() - made.contract.outputs[0].quantized(wanted).int()).abs()
    assert off.max() <= 3
