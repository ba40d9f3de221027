"""A target's rows and the operator table's implementations are of the same physical operators, both ways.

Everything is found by lowering the targets' cases; only the operators of views and conversions are listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.ops.operator import Implementation
from dimorder.ops.row_major import ROW_MAJOR
from dimorder.ops.table import OPERATORS, find
from dimorder.physical.dry_run import physical_calls
from dimorder.plans.network_plan import NetworkPlan
from dimorder.targets.litert.ops import OPERATORS as LITERT
from dimorder.targets.table import Table
from dimorder.targets.tosa.integers.forms import Forms
from dimorder.targets.tosa.integers.ops import OPERATORS as TOSA_INT
from dimorder.targets.tosa.ops import OPERATORS as TOSA
from dimorder.targets.xnnpack.ops import OPERATORS as XNNPACK
from dimorder.targets.xnnpack.target import target as xnnpack
from tests.targets import (
    test_tosa_forms,
    test_tosa_integer_functions,
    test_tosa_integer_indices,
    test_tosa_integer_positions,
    test_tosa_integers,
    test_tosa_ops,
    test_xnnpack_ops,
)
from tests.targets.cases import Case, Net, aten, r
from tests.targets.halves import halved
from tests.targets.litert import test_litert_ops
from tests.targets.quantised import Product
from tests.targets.reached import called, unreached

# Of which implementations from several operators compute what is in half precision in float32.
IN_PARTS = (
    *("log_softmax", "layer_norm of channels", "prod", "running sum and product"),
    *("depthwise, 7x7", "conv, 3-D", "conv, transposed, 3-D"),
    *("adaptive pools that do not divide", "adaptive pools of a line"),
    *("bilinear, by a factor", "bicubic", "bilinear, antialias", "bicubic, antialias"),
    "softmax and log_softmax over two dimensions with another between them",
)
FREE = {aten.view.default, aten.permute.default, aten.clone.default}
TABLES: Mapping[str, tuple[Any, ...]] = {
    "xnnpack": (XNNPACK, test_xnnpack_ops),
    "tosa": (TOSA, test_tosa_ops),
    "litert": (LITERT, test_litert_ops),
    "tosa, integers": (
        TOSA_INT,
        test_tosa_integers,
        test_tosa_integer_functions,
        test_tosa_integer_indices,
        test_tosa_integer_positions,
    ),
}

# Networks of operators that neither table computes, and of those that only some orders call for.
TORCH: dict[str, Case] = {
    "running sum": (lambda x: torch.cumsum(x, 1), (r(2, 70, 7),), ()),
    "floor division": (
        lambda x, y: (aten.floor_divide(x, y), aten.floor_divide.Scalar(x, 2)),
        (r(2, 5, 7), r(7) + 3),
        (),
    ),
    "adaptive pools": (
        lambda x, v: (F.adaptive_avg_pool2d(x, 4), F.adaptive_avg_pool3d(v, 4)),
        (r(2, 3, 5, 7), r(2, 3, 5, 6, 7)),
        (),
    ),
    "transposed convolution in three dimensions": (
        lambda x, w: F.conv_transpose3d(x, w),
        (r(2, 3, 5, 6, 7),),
        (r(3, 4, 2, 3, 1),),
    ),
    "softmax and log_softmax over two dimensions with another between them": (
        lambda x: (apart(x, lambda y: y.softmax(2)), apart(x, lambda y: y.log_softmax(2))),
        (r(2, 7, 5, 10),),
        (),
    ),
    "softmax and log_softmax over them, in another type": (
        lambda x: (
            apart(x, lambda y: y.softmax(2, dtype=torch.float64)),
            apart(x, lambda y: y.log_softmax(2, dtype=torch.float64)),
        ),
        (r(2, 7, 5, 10),),
        (),
    ),
}


def apart(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of (N, C, HW) on what lies in the order N, H, C, W."""
    y = function(x.permute(0, 2, 1, 3).flatten(2))
    return y.unflatten(2, (x.shape[1], x.shape[3])).permute(0, 2, 1, 3)


def networks(target: str) -> list[tuple[Any, str]]:
    """The cases of a table, each with its module."""
    return [(module, name) for module in TABLES[target][1:] for name in module.CASES]


@cache
def plans() -> tuple[NetworkPlan, ...]:
    """Return the plans of every case for its target, and for torch, which computes any implementation."""
    without_linear = xnnpack(XNNPACK.without("linear", "conv2d_nhwc"))
    cases = {**test_xnnpack_ops.CASES, **test_tosa_ops.CASES, **TORCH}
    return (
        *(module.lowered(name).plan for target in TABLES for module, name in networks(target)),
        *(dimorder.plan(Net(f, constants), inputs) for f, inputs, constants in cases.values()),
        dimorder.plan(torch.nn.Linear(7, 3), (r(2, 7),), target=without_linear),
        dimorder.plan(torch.nn.AdaptiveAvgPool3d((3, 17, 1)), (r(2, 3, 5, 6, 7).half(),), target="tosa"),
        dimorder.plan(
            Net(lambda x, w: F.conv3d(x, w, padding=(1, 0, 0)), (r(4, 3, 3, 2, 2),)),
            (r(2, 3, 1, 6, 7),),
            target="tosa",
        ),
        *(
            dimorder.plan(
                Net(lambda x, w: F.conv3d(x, w), (r(4, 3, 3, 2, 2).to(dtype),)),
                (r(2, 3, 5, 6, 7).to(dtype),),
                target="xnnpack",
                dynamic_shapes=(({2: torch.export.Dim("D", min=3, max=9)},),),
            )
            for dtype in (torch.float32, torch.float16)
        ),
        test_tosa_forms.lower(
            Product(lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1), (6, 12, 3, 3), 1),
            (r(2, 6, 5, 7),),
            Forms(),
            more=test_tosa_forms.IN_PHASES,
        ).plan,
        dimorder.plan(
            Net(lambda x: x + torch.arange(x.shape[1]), ()),
            (r(2, 9),),
            dynamic_shapes=(({1: torch.export.Dim("L", min=4, max=40)},),),
        ),
        *(
            dimorder.plan(*halved(cases[name]), target=target)
            for name in IN_PARTS
            for target in ("torch", "xnnpack")
        ),
    )


def offered(plan: NetworkPlan) -> Iterator[tuple[Any, Implementation, set[Any]]]:
    """Each operator of a network, each implementation it was offered, and what that emits."""
    extracted = plan.extracted
    for site, arrangements in zip(extracted.sites, extracted.arrangements, strict=True):
        for arrangement in arrangements if site.implementations else ():
            calls = physical_calls(site, arrangement, extracted.buffers)
            yield site.node.target, site.implementations[arrangement.implementation], called(calls) - FREE


def chosen(plan: NetworkPlan) -> Iterator[tuple[Any, str]]:
    """Each operator of a network, and the implementation that the plan takes."""
    extracted = plan.extracted
    for site, arrangements, choice in zip(
        extracted.sites, extracted.arrangements, plan.layout_plan.choice, strict=True
    ):
        if site.implementations:
            yield site.node.target, site.implementations[arrangements[choice].implementation].name


@pytest.mark.parametrize("target", TABLES)
def test_each_row_is_what_an_implementation_is_made_of(target: str) -> None:
    table: Table = TABLES[target][0]
    declared = {p for operator in OPERATORS.values() for p in operator.physical} | FREE
    # an operator that no rule knows runs as it is
    declared |= {name for name in table.rows if (known := find(name)) is None or name in known.physical}
    assert {str(name) for name in set(table.rows) - declared} == set()


@pytest.mark.slow  # the tests of each operator lower the same networks, and two of them ask this too
@pytest.mark.parametrize("target", TABLES)
def test_each_row_is_reached_by_a_network(target: str) -> None:
    assert unreached(TABLES[target][0], (module.lowered(name) for module, name in networks(target))) == set()


@pytest.mark.slow
def test_each_implementation_of_the_table_is_taken_by_some_plan() -> None:
    """All but that of a permute, which relabels a buffer's axes and is no operator of a plan."""
    declared = {(n, i.name) for n, operator in OPERATORS.items() for i in operator.implementations}
    taken = {pair for plan in plans() for pair in chosen(plan)}
    missing = {f"{name}/{way}" for name, way in declared - taken}
    assert missing == {"aten.permute.default/same memory"}


@pytest.mark.slow
def test_an_implementation_emits_what_it_declares() -> None:
    """Over all networks, orders and plans: nothing else, and each of them."""
    emitted: dict[tuple[Any, str], set[Any]] = defaultdict(set)
    declared: dict[tuple[Any, str], set[Any]] = {}
    for plan in plans():
        for operator, implementation, calls in offered(plan):
            emitted[operator, implementation.name] |= calls
            itself = implementation is ROW_MAJOR  # of any operator that no table knows
            declared[operator, implementation.name] = {operator} if itself else set(implementation.physical)
    for way, operators in declared.items():
        assert emitted[way] == operators, way
