"""Test comparisons of quantised values on target tosa: their truth is PyTorch's, also of equal numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("tosa_serializer")
pytest.importorskip("tosa_reference_model")

import dimorder
from dimorder.errors import DimorderError
from tests.small_networks import Net
from tests.targets import quantised
from tests.targets.quantised import Between

X, Y = (2 * torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
LEVEL = float(quantised.quantised(torch.tensor(0.4), 0.0247, 5))  # which many elements have
RESULT = (0.0311, -7)
COMPARISONS = [torch.eq, torch.ne, torch.gt, torch.lt, torch.ge, torch.le]


class OneScale(Between):
    SCALES = ((0.0247, 5), (0.0247, 5))


class Shifted(Between):
    """The second scale is a third of the first: some numbers are equal."""

    SCALES = ((0.06, 5), (0.02, -17))


class Short(Between):
    SCALES, INTEGERS = ((1.13e-4, 0), (1.13e-4, 0)), quantised.INT16


def integers_of(net: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers that the program computes, and those of the network in PyTorch."""
    made = dimorder.lower(net, inputs, target="tosa", run_artifact=True)
    read = [spec.quantized(x) for spec, x in zip(made.contract.inputs, inputs, strict=True)]
    (found,), (wanted,) = made.run(*read), net(*inputs)
    return found, made.contract.outputs[0].quantized(wanted)


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("between", [Between, OneScale, Shifted, Short])
def test_a_comparison_of_two_values(compare: Any, between: type[Between]) -> None:
    result = RESULT if between is not Short else (1.71e-4, 0)
    net = between(lambda x, y: torch.where(compare(x, y), x, 0.5 * y), result)
    y = torch.where(X.abs() > 1, X, Y)
    found, wanted = integers_of(net, X, y)
    assert (found - wanted.int()).abs().max() <= 1  # rounded halves


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("number", [0, LEVEL, 0.4, -9.0, 9.0])
def test_a_comparison_with_a_number(compare: Any, number: float) -> None:
    net = Between(lambda x: torch.where(compare(x, number), 0.7 * x, -x), RESULT)
    found, wanted = integers_of(net, X)
    assert (found - wanted.int()).abs().max() <= 1


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "number first": (lambda x: torch.where(torch.tensor(LEVEL) > x, x, 0.3 * x), (X,)),
    "a constant of each channel": (
        lambda x: torch.where(x >= quantised.quantised(Y[0, :, :1, :1], 0.0247, 5), x, 0.3 * x),
        (X,),
    ),
    "a function that goes up and down": (lambda x: torch.where((3 * x).sin() > 0.3, x, -x), (X,)),
    "a function and a value": (lambda x, y: torch.where(x.sigmoid() * 2 < y, x, y), (X, Y)),
    "a sum": (lambda x, y: torch.where(x + y > 0.5, x, y), (X, Y)),
    "broadcast": (lambda x, y: torch.where(x > y, x, y), (X, Y[:, :, :1, :1].contiguous())),
    "times the truth": (lambda x: x * (x > 0.3), (X,)),
    "filled where it holds": (lambda x: x.masked_fill(x < -0.3, 0.25), (X,)),
    "logic of two": (lambda x, y: torch.where((x > 0) & ~(y > 0.2), x, y), (X, Y)),
    "moved": (lambda x: torch.where(x.transpose(1, 3) > 0, 0.4, -0.6).flatten(1), (X,)),
    "rounded": (lambda x: torch.round(3.7 * x) * 0.25, (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_reads_a_comparison(name: str) -> None:
    compute, inputs = CASES[name]
    found, wanted = integers_of(Between(compute, RESULT), *inputs)
    off = (found - wanted.int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() < 0.02


def test_a_network_returns_a_comparison() -> None:
    class Positive(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return quantised.quantised(x, 0.0247, 5) > 0.4

    made = dimorder.lower(Positive(), (X,), target="tosa", run_artifact=True)
    found = made.run(made.contract.inputs[0].quantized(X))
    assert found.dtype == torch.bool
    assert torch.equal(found, Positive()(X))
    assert 0.1 < found.float().mean() < 0.9


@pytest.mark.parametrize("name", ["few", "none", "one"])
def test_a_function_of_16_bits_passes_a_number_a_few_times(name: str) -> None:
    compares = {"few": lambda x: (3 * x).sin() > 0.3, "none": lambda x: x.exp() < 0, "one": lambda x: x == 0}
    net = Short(lambda x: torch.where(compares[name](x), x, 0.5 * x), (1.71e-4, 0))
    made = dimorder.lower(net, (X,), target="tosa", run_artifact=True)
    (found,) = made.run(made.contract.inputs[0].quantized(X))
    wanted = made.contract.outputs[0].quantized(net(X)[0])
    assert (found.int() - wanted.int()).abs().max() <= 1


def test_16_bits_have_no_table_of_truths() -> None:
    net = Short(lambda x: torch.where((30 * x).sin() > 0.3, x, -x), (1.71e-4, 0))
    with pytest.raises(DimorderError, match=r"a comparison that a function of 16 bits passes \d\d times"):
        dimorder.lower(net, (X,), target="tosa")


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
def test_a_quantised_network_compares(target: str) -> None:
    pytest.importorskip("executorch")
    torch.manual_seed(0)

    def compute(m: Any, x: Tensor) -> Tensor:
        y, z = m.first(x), m.second(x)
        return torch.where(y > z, y, 0.5 * z) * (y > 0.1)

    net = Net(compute, first=torch.nn.Conv2d(3, 8, 3), second=torch.nn.Conv2d(3, 8, 3)).eval()
    examples = [torch.randn(1, 3, 12, 10) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target=target)
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target=target))
    assert found.snr_db is not None
    assert found.snr_db > 20
