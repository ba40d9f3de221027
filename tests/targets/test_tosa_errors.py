"""Test that what TOSA cannot say is an error of three lines, with the operator and its source line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("tosa_serializer")

import dimorder
from tests.targets.cases import Net

TYPES = (
    "this target has torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.bool, "
    "torch.float16, torch.bfloat16, torch.float64"
)
REPLACE = "replace it in the module, or choose another target"
CHANGE = "change its type or shape, or choose another target"
r = torch.randn


# Where every function below is called from, which torch.export gives as the source of its operators.
CALLED = f"{Path(inspect.getfile(Net)).name}:{inspect.getsourcelines(Net.forward)[1] + 1}"


def refused(function: Callable[..., Any], inputs: tuple[Tensor, ...], *constants: Tensor) -> str:
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Net(function, constants), inputs, target="tosa")
    return str(raised.value)


# name -> function, inputs, constants, and of the error: the operator, and what was found
Case = tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...], str, str]
OPERATORS: dict[str, Case] = {
    "indices, a mask": (
        lambda x, mask, y: torch.index_put(x, (mask,), y),
        (r(5), torch.tensor([True, False, True, True, False]), r(1)),
        (),
        "aten.index_put",
        "a mask instead of indices",
    ),
    "truth values at indices": (
        lambda x, i: (x > 0)[i],
        (r(5, 3), torch.tensor([0, 2])),
        (),
        "aten.index.Tensor",
        "a GATHER of torch.bool",
    ),
    "an exponent": (
        lambda x: x**17,
        (r(5, 3),),
        (),
        "aten.pow.Tensor_Scalar",
        "the exponent 17: TOSA's POW takes no negative base, and torch does",
    ),
    "an infinite exponent": (
        lambda x: x**math.inf,
        (r(5, 3),),
        (),
        "aten.pow.Tensor_Scalar",
        "the exponent inf: TOSA's POW takes no negative base, and torch does",
    ),
    "exponentials that grow": (
        lambda x: F.celu(x, -1.0),
        (r(5, 3),),
        (),
        "aten.elu",
        "elu with an input scale that is not positive",
    ),
    "a quotient by 0": (
        lambda x: F.softplus(x, beta=0),
        (r(5, 3),),
        (),
        "aten.softplus",
        "softplus with a beta of 0",
    ),
    "padding beyond the kernel": (
        lambda x, w: F.conv_transpose2d(x, w, padding=3),
        (r(1, 2, 9, 11),),
        (r(2, 5, 3, 4),),
        "aten.convolution",
        "padding [3, 3] that is not below the kernel [3, 4]",
    ),
    "dilation of a pool of integers": (
        lambda x: F.max_pool2d(x, 2, dilation=2),
        (torch.arange(198).reshape(1, 2, 9, 11),),
        (),
        "aten.max_pool2d",
        "dilation [2, 2]; TOSA's MAX_POOL2D has none",
    ),
    "type, arithmetic on bytes": (
        lambda x: x + x,
        (torch.arange(5, dtype=torch.uint8),),
        (),
        "aten.add.Tensor",
        f"torch.uint8; {TYPES}",
    ),
    "shift, computed": (
        lambda x, y: x << y,
        (torch.arange(5), torch.arange(5)),
        (),
        "aten.bitwise_left_shift.Tensor",
        "a shift by computed places",
    ),
    "shift, far": (
        lambda x: x << 40,
        (torch.arange(5),),
        (),
        "aten.bitwise_left_shift.Tensor",
        "int64 to the left by over 31 places",
    ),
    "type, arithmetic on narrow integers": (
        lambda x: x + x,
        (torch.arange(5, dtype=torch.int8),),
        (),
        "aten.add.Tensor",
        "arithmetic on torch.int8, which TOSA does in torch.float32 or torch.int32",
    ),
    "type, a product of integers": (
        lambda x, y: x @ y,
        (torch.arange(15).reshape(3, 5), torch.arange(35).reshape(5, 7)),
        (),
        "aten.matmul",
        "torch.int64, where TOSA computes this in torch.float32",
    ),
    "integers beyond 32 bits, in a constant": (
        lambda x, c: x + c,
        (torch.arange(5),),
        (torch.tensor([1, 2, -(2**40), 3, 4]),),
        "aten.add.Tensor",
        "the integer -1099511627776, which is beyond INT32",
    ),
    "integers beyond 32 bits, in a comparison": (
        lambda x: x > 2**31,
        (torch.arange(5),),
        (),
        "aten.gt.Scalar",
        "the integer 2147483648, which is beyond INT32",
    ),
    "bytes added up at places": (
        lambda x: torch.index_put(x, (torch.tensor([2, 0, 2]),), x[:1], accumulate=True),
        (torch.arange(21, dtype=torch.int8).reshape(3, 7),),
        (),
        "aten.index_put",
        "3 indices added up in a torch.int8 tensor of 21 elements",
    ),
    "an operator that TOSA lacks": (
        lambda x: x.view(torch.int32),
        (r(3, 7),),
        (),
        "aten.view.dtype",
        "TOSA has no aten.view.dtype",
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_cannot_be_written_is_named_with_its_line(name: str) -> None:
    function, inputs, constants, operator, found = OPERATORS[name]
    told = refused(function, inputs, *constants)
    assert told.splitlines() == [f"{operator} ({CALLED})", f"  found: {found}", f"  fix: {REPLACE}"]


BOUNDARIES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...], str, str]] = {
    "rank": (
        lambda x: x * 2,
        (r(2, 3, 2, 4, 2, 5, 2),),
        (),
        "input 'inputs_0'",
        "7 dimensions (2, 3, 2, 4, 2, 5, 2), where TOSA has at most 6",
    ),
    "rank of an output": (
        lambda x: (x * 2).reshape(2, 3, 2, 4, 2, 5, 2),
        (r(48, 20),),
        (),
        "output 'output0'",
        "7 dimensions (2, 3, 2, 4, 2, 5, 2), where TOSA has at most 6",
    ),
    "a constant beyond 32 bits": (
        lambda x, c: (x * 2, c),
        (r(3, 5),),
        (torch.tensor([7, 2**40]),),
        "output 'output1'",
        "the integer 1099511627776, which is beyond INT32",
    ),
    "no elements": (lambda x: x[:, :0], (r(3, 5),), (), "output 'output0'", "the empty shape (3, 0)"),
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_an_input_or_output_that_cannot_be_written_is_named(name: str) -> None:
    function, inputs, constants, place, found = BOUNDARIES[name]
    told = refused(function, inputs, *constants)
    assert told.splitlines() == [place, f"  found: {found}", f"  fix: {CHANGE}"]


def test_an_input_beyond_32_bits_is_refused_when_it_is_fed() -> None:
    lowered = dimorder.lower(Net(lambda x: x * 2), (torch.arange(5),), target="tosa")
    assert lowered.run(torch.arange(5)).tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(dimorder.DimorderError) as raised:
        lowered.run(torch.tensor([1, 2, 3, 4, 2**31]))
    assert str(raised.value).splitlines() == [
        "input 'inputs_0'",
        "  found: values beyond 32 bits",
        "  fix: TOSA 1.0 has no wider integers",
    ]


def test_constants_of_other_types_that_do_not_promote_are_taken() -> None:
    function, x = (lambda x, c, d: x * c > d), r(3, 5)
    constants = torch.tensor(2.5, dtype=torch.float64), torch.tensor(1, dtype=torch.uint8)
    lowered = dimorder.lower(Net(function, constants), (x,), target="tosa")
    assert torch.equal(lowered.run(x), function(x, *constants))
