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
from tests.targets.quantised import Between, quantised

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
    "sign": torch.sign,
    "arctangent": torch.atan,
    "hard shrink": F.hardshrink,
    "soft shrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, -0.7),
    "chosen by a comparison": lambda x: torch.where(x > 0.2, 0.5 * x, x + 0.3),
    "filled": lambda x: x.masked_fill(x.abs() < 0.4, 0.9),
    "truth values as numbers": lambda x: (x >= 0.3).float() * x,
    "truth values of truth values": lambda x: torch.where((x > -0.4) & ~(x > 0.9) | (x > 1.7), x, -0.3),
    "remainder": lambda x: x % 0.7,
    "remainder of C": lambda x: x.fmod(-0.7),
    "remainder of a constant": lambda x: torch.remainder(x, torch.tensor(-0.7)),
    "remainder of C and a constant": lambda x: torch.fmod(x, torch.tensor(0.7)),
    "whole quotient": lambda x: x // 0.7,
    "not a number": lambda x: torch.nan_to_num(x.log(), 0.2, 0.3, -0.4),
}
# The quantizer rounds each step of these to integers.
IN_STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "logarithm of a sum": CASES["log2"],
    "swish": lambda x: x * torch.sigmoid(x),
    "gelu of GPT-2": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))),
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "sign": lambda x: torch.sign(x) * x,
    "chosen by a comparison": lambda x: torch.where(x > 0.2, 0.5 * x, x + 0.3),
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


def test_joined_values_of_one_type_stay_its_integers() -> None:
    net = Between(lambda x: torch.cat([x, x.flip(1)], 1).amax(1), (0.0311, -7))
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    (found,) = made.run(made.contract.inputs[0].quantized(X))
    assert torch.equal(found, made.contract.outputs[0].quantized(net(X)[0]))
    assert {"CONCAT", "REDUCE_MAX"} <= {*inspect_tosa(made.artifact.data).operators}


def test_integers_from_the_least_but_one_on() -> None:
    narrow = (-127, 127, torch.int8)
    net = Between(lambda x: quantised(x.flip(1) + x, 0.0247, 0, narrow).flip(2) - x, (0.0311, -7))
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    (found,) = made.run(made.contract.inputs[0].quantized(X))
    wanted = made.contract.outputs[0].quantized(net(X)[0])
    assert (found.int() - wanted.int()).abs().max() <= 1
    assert "CLAMP" in inspect_tosa(made.artifact.data).operators


def test_a_sum_of_coarse_functions_in_integers_from_the_least_but_one_on() -> None:
    """The possible error of a function's 16 bits is known also after the CLAMP."""
    narrow = (-127, 127, torch.int8)
    net = Between(lambda x: quantised((2 * x).exp() - (2 * x).exp().flip(1), 0.02, 3, narrow), (0.0311, -7))
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    (found,) = made.run(made.contract.inputs[0].quantized(X))
    wanted = made.contract.outputs[0].quantized(net(X)[0])
    assert (found.int() - wanted.int()).abs().max() <= 1


INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "cast": lambda x: (x > 0.2).long().sum(1),
    "product": lambda x: (x > 0.2) * 2,
    "chosen": lambda x: torch.where(x > 0.2, 3, 5),
    "compared": lambda x: (x > 0.2).int() + (x < 0.9).int() == 2,
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_truth_values_are_computed_as_integers(name: str) -> None:
    compute = INTEGERS[name]
    net = Net(lambda m, x: compute(quantised(x, 0.0247, 5)))
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    assert torch.equal(made.run(made.contract.inputs[0].quantized(X)), net(X))


def test_a_choice_of_two_values_selects() -> None:
    made = dimorder.lower(
        Between(lambda x: torch.where(x > 0.2, x, x.flip(1)), (0.0311, -7)), (X,), target="tosa"
    )
    assert "SELECT" in inspect_tosa(made.artifact.data).operators


def test_a_function_of_a_moved_value_and_of_itself_are_two() -> None:
    """Both have one source, of which the elements are in other places."""
    net = Between(
        lambda x: torch.sigmoid(x) * x.flip(1) + torch.tanh(x.transpose(0, 1)).transpose(0, 1), (0.0311, -7)
    )
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    wanted, spec = net(X)[0], made.contract.outputs[0]
    (found,) = made.run(made.contract.inputs[0].quantized(X))
    assert (spec.real(found) - wanted).abs().max() <= 1.01 * spec.scale


@pytest.mark.parametrize("name", IN_STEPS)
@pytest.mark.parametrize("target", ["tosa", "ethos-u55-128"])
def test_a_function_in_rounded_steps_is_a_table(target: str, name: str) -> None:
    pytest.importorskip("executorch")
    net = Net(lambda m, x: IN_STEPS[name](m.conv(x)), conv=torch.nn.Conv2d(6, 5, 3))
    quantized = dimorder.quantize(net.eval(), [X, 0.7 * X, X.flip(1)], target=target)
    made = dimorder.lower(quantized, (X,), target=target)
    artifact = getattr(made.artifact, "graph", made.artifact)
    operators = inspect_tosa(artifact.data).operators
    assert operators["TABLE"] == 1 and not {"MUL", "ADD", "SUB", "SELECT"} & {*operators}
    (found,) = quantized.compare(made)
    assert found.quanta <= 1


@pytest.mark.parametrize("name", CASES)
def test_a_quantised_network_has_the_function(name: str) -> None:
    pytest.importorskip("executorch")
    net = Net(lambda m, x: CASES[name](0.4 * x.abs()))
    quantized = dimorder.quantize(net.eval(), [X, 0.7 * X, X.flip(1)], target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (X,), target="tosa"))
    assert found.quanta <= 1
