"""Operators written in parts: what is traced computes what the operator does, also of special values."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dimorder.capture.captured import Captured, capture
from dimorder.ops.parts import PARTS
from dimorder.ops.parts_bits import BITS
from dimorder.ops.parts_elementary import ELEMENTARY
from dimorder.ops.parts_gamma import GAMMA, INCOMPLETE
from dimorder.ops.parts_special import SPECIAL
from tests.targets.cases import Net, aten
from tests.targets.litert.parts_cases import CASES

VALUES = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, 1e30, -1e30, 0.5, 1, -1, 1.5, -2.5])
OF_ROWS = {aten.topk.default, aten.diagonal.default}
FUNCTIONS = {**SPECIAL, **GAMMA, **BITS, **{op: f for op, f in ELEMENTARY.items() if op not in OF_ROWS}}
TENSORS = {target: sum("Tensor" in str(a.type) for a in target._schema.arguments) for target in FUNCTIONS}
FIRST: dict[Any, tuple[Any, ...]] = {
    aten.xlogy.Scalar_Self: (1.5,),
    aten.special_xlog1py.self_scalar: (1.5,),
    aten.float_power.Scalar: (1.5,),
    aten.polygamma.default: (1,),
}
LAST: dict[Any, tuple[Any, ...]] = {
    aten.copysign.Scalar: (-0.0,),
    aten.lerp.Scalar: (0.75,),
    aten.xlogy.Scalar_Other: (1.5,),
    aten.special_xlog1py.other_scalar: (1.5,),
    aten.mvlgamma.default: (2,),
    aten.float_power.Tensor_Scalar: (2.5,),
}


@cache
def captured(name: str) -> Captured:
    function, inputs, constants = CASES[name]
    return capture(Net(function, constants), inputs, in_parts=PARTS)


def assert_same(got: Any, wanted: Any) -> None:
    for mine, theirs in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_what_is_traced_computes_the_same(name: str) -> None:
    function, inputs, constants = CASES[name]
    assert_same(list(captured(name).module(*inputs)), Net(function, constants)(*inputs))


@pytest.mark.slow
def test_each_operator_in_parts_is_in_a_network() -> None:
    met = set()

    class Asked(dict[Any, Any]):
        def __contains__(self, name: object) -> bool:
            met.add(name)
            return super().__contains__(name)

    for function, inputs, constants in CASES.values():
        capture(Net(function, constants), inputs, in_parts=Asked(PARTS))
    assert {str(name) for name in set(PARTS) - met} == set()


@pytest.mark.parametrize("target", FUNCTIONS, ids=str)
def test_special_values(target: Any) -> None:
    """Powers of two infinities are left out: ldexp has none in whole numbers."""
    grids = torch.meshgrid(*[VALUES] * TENSORS[target], indexing="ij")
    args = (*FIRST.get(target, ()), *(grid.reshape(-1) for grid in grids), *LAST.get(target, ()))
    assert_same(FUNCTIONS[target](*args), target(*args))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_limits_of_numbers_are_those_of_their_type(dtype: torch.dtype) -> None:
    x = VALUES.to(dtype)
    module = capture(Net(torch.nan_to_num), (x,), in_parts=ELEMENTARY).module
    assert torch.equal(module(x)[0], torch.nan_to_num(x))


@pytest.mark.parametrize("n", range(2, 7))
def test_derivatives_of_digamma(n: int) -> None:
    x = torch.linspace(-7.13, 9.21, 301)
    assert_same(GAMMA[aten.polygamma.default](n, x), torch.polygamma(n, x.double()).float())


@pytest.mark.parametrize("target", INCOMPLETE, ids=str)
def test_incomplete_gamma_functions(target: Any) -> None:
    """In float64 torch has no edge at numbers below the least normal float32."""
    numbers = torch.cat([VALUES, torch.logspace(-2, 4, 61)])
    a, x = torch.meshgrid(numbers, numbers, indexing="ij")
    near = torch.logspace(-2, 4, 601)
    a = torch.cat([a.reshape(-1), near, near, near])
    x = torch.cat([x.reshape(-1), near, near + near.sqrt(), near - near.sqrt() * 0.9])
    torch.testing.assert_close(
        INCOMPLETE[target](a, x), target(a.double(), x.double()).float(), rtol=0, atol=6e-6, equal_nan=True
    )


def test_the_tail_of_ndtri() -> None:
    p = torch.logspace(-38, -0.001, 301)
    assert_same(SPECIAL[aten.special_ndtri.default](p), torch.special.ndtri(p.double()).float())


def test_half_precision_is_rounded_once() -> None:
    x = torch.linspace(-3, 3, 77).half()
    module = capture(Net(torch.erfc), (x,), in_parts=PARTS).module
    assert torch.equal(module(x)[0], torch.erfc(x.float()).half())


@pytest.mark.parametrize(
    ("function", "size", "left"),
    [
        (torch.linalg.svdvals, 5, []),
        (torch.linalg.eigvalsh, 5, []),
        (lambda x: torch.linalg.svd(x)[:2], 5, [aten._linalg_svd.default]),
        (lambda x: torch.linalg.eigh(x)[1], 5, [aten._linalg_eigh.default]),
        (torch.linalg.svdvals, 9, [aten._linalg_svd.default]),
        (torch.linalg.inv, 17, [aten.linalg_inv_ex.default]),
    ],
)
def test_vectors_and_large_matrices_stay_whole(function: Any, size: int, left: list[Any]) -> None:
    nodes = capture(Net(function), (torch.randn(2, size, size),), in_parts=PARTS).nodes
    assert [node.target for node in nodes if "linalg" in str(node.target)] == left


def test_a_target_that_lists_none_keeps_the_operator() -> None:
    nodes = capture(Net(torch.erfc), (VALUES,)).nodes
    assert aten.erfc.default in [node.target for node in nodes]


@pytest.mark.parametrize("name", ["atan", "asin", "sinh", "tan", "expm1"])
def test_an_odd_function_keeps_the_sign_of_zero(name: str) -> None:
    zeros = torch.tensor([0.0, -0.0])
    got = FUNCTIONS[getattr(aten, name).default](zeros)
    assert torch.equal(got, zeros) and torch.equal(got.signbit(), zeros.signbit())
