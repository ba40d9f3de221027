"""The boundary of an emitted program: dim orders and types in the .pte, and what the file holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")

from executorch.exir._serialize._program import deserialize_pte_binary

import dimorder
from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract
from dimorder.targets.xnnpack import run
from dimorder.targets.xnnpack.emit import emit
from tests.targets.cases import Net, dense, r
from tests.targets.xnnpack_runs import (
    PICTURE,
    assert_close,
    channels_last,
    compare,
    compare_lowered,
    emitted,
    to_nchw,
    to_nhwc,
)

D = torch.ops.dimorder
NCHW, NHWC = [0, 1, 2, 3], [0, 2, 3, 1]


def boundary(pte: bytes) -> tuple[list[tuple[list[int], list[int]]], ...]:
    """Sizes and dim order of each input and of each output, as the file says them."""
    plan = deserialize_pte_binary(pte).program.execution_plan[0]
    return tuple(
        [(list(plan.values[i].val.sizes), list(plan.values[i].val.dim_order)) for i in ids]
        for ids in (plan.inputs, plan.outputs)
    )


def conv(x: Tensor, weight: Tensor) -> Tensor:
    return D.conv2d_nhwc(x, weight, None, [1, 1], [1] * 4, [1, 1], 1)


def test_nhwc_input_and_output_are_promised_and_cost_nothing() -> None:
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(5, 3, 3, 2),))
    result = compare(module, (channels_last(r(3, 2, 7, 9)),))
    assert boundary(result.data) == ([([3, 2, 7, 9], NHWC)], [([3, 5, 7, 9], NHWC)])
    assert result.transposes == 0


def test_nhwc_output_has_channels_last_strides() -> None:
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(5, 3, 3, 2),))
    x = channels_last(r(3, 2, 7, 9))
    assert run(emitted(module, (x,)).data, [x])[0].is_contiguous(memory_format=torch.channels_last)


def test_contiguous_boundary_costs_a_transpose_each() -> None:
    module = Net(lambda x, w: dense(conv(dense(x, 0, 2, 3, 1), w), 0, 3, 1, 2), (r(5, 3, 3, 2),))
    result = compare(module, (r(3, 2, 7, 9),))
    assert boundary(result.data) == ([([3, 2, 7, 9], NCHW)], [([3, 5, 7, 9], NCHW)])
    assert result.transposes == 2


@pytest.mark.parametrize("shape", [(3, 1, 7, 9), (3, 2, 1, 1), (1, 1, 7, 9), (1, 1, 1, 1), (3, 1, 1, 1)])
@pytest.mark.parametrize("as_channels_last", [True, False])
def test_ambiguous_orders_are_said_contiguous(shape: tuple[int, ...], as_channels_last: bool) -> None:
    x = channels_last(r(*shape)) if as_channels_last else r(*shape)
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(shape[1], 3, 3, shape[1]),))
    result = emitted(module, (x,))
    assert boundary(result.data) == ([(list(shape), NCHW)], [(list(shape), NCHW)])
    assert result.transposes == 0
    torch.testing.assert_close(run(result.data, [x.contiguous()])[0], module(x))


@pytest.mark.parametrize("shape", [(1, 2, 7, 9), (1, 2, 1, 9), (3, 2, 7, 1)])
def test_sizes_of_one_that_leave_the_order_certain(shape: tuple[int, ...]) -> None:
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(5, 3, 3, 2),))
    result = compare(module, (channels_last(r(*shape)),))
    assert [order for side in boundary(result.data) for _, order in side] == [NHWC, NHWC]


# What is returned, how often, and in which order: name -> function, input, orders promised, conversions
RESULTS: dict[str, tuple[Callable[..., Any], Tensor, dict[str, Any], int]] = {
    "both orders of one value": (
        lambda x: (lambda y: (to_nhwc(y), y))(x * 2),
        PICTURE,
        {"input_orders": "NHWC", "output_orders": [None, "NHWC"]},
        0,
    ),
    "both orders of one value, one converted": (
        lambda x: (lambda y: (y, y))(x * 2),
        PICTURE,
        {"input_orders": "NHWC", "output_orders": [None, "NHWC"]},
        1,
    ),
    "one value twice": (lambda x: (lambda y: (y, y))(x * 2), r(3, 2, 7), {}, 0),
    "one value in two nodes": (lambda x: (lambda y: (y.clone(), y.view(3, 14)))(x * 2), r(3, 2, 7), {}, 0),
    "its input": (lambda x: (x, x * 2), r(3, 2, 7), {}, 0),
    "its input alone": (lambda x: x, r(3, 2, 7), {}, 0),
    "its NHWC input": (lambda x: (x, x * 2), PICTURE, {"input_orders": "NHWC", "output_orders": "NHWC"}, 0),
    "a view of its input": (lambda x: x.view(6, 7), r(3, 2, 7), {}, 0),
    "a view of its NHWC input": (to_nhwc, PICTURE, {"input_orders": "NHWC"}, 0),
    "its NHWC input, converted": (lambda x: x, PICTURE, {"input_orders": "NHWC"}, 1),
    "a strided view of three dims": (lambda x: (x * 2).permute(0, 2, 1), r(3, 2, 7), {}, 1),
    "a strided view of three dims, promised": (
        lambda x: (x * 2).permute(0, 2, 1),
        r(3, 2, 7),
        {"output_orders": DimOrder(0, 2, 1)},
        0,
    ),
    "a strided view of five dims": (
        lambda x: (x * 2).permute(0, 4, 1, 2, 3),
        r(3, 2, 7, 4, 5),
        {"output_orders": "NDHWC"},
        0,
    ),
    "an order of its own": (lambda x: (x * 2).permute(3, 1, 2, 0), r(3, 2, 7, 4), {}, 1),
    "an order of its own, promised": (
        lambda x: (x * 2).permute(3, 1, 2, 0),
        r(3, 2, 7, 4),
        {"output_orders": DimOrder(3, 1, 2, 0)},
        0,
    ),
    "input in logical and in NHWC form": (
        lambda x: (x.mean((2, 3)), to_nhwc(x) * 2),
        PICTURE,
        {"input_orders": "NHWC"},
        0,
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    function, x, promised, conversions = RESULTS[name]
    lowered = compare_lowered(Net(function), (x,), **promised)
    assert (lowered.artifact.outside, len(lowered.plan.conversions)) == ({}, conversions)


def test_constant_is_returned() -> None:
    lowered = compare_lowered(Net(lambda x, c: (x * 2, c, c.view(10), c + 1), (r(2, 5),)), (r(3, 7),))
    assert lowered.artifact.outside == {}


def test_input_that_nothing_reads_keeps_its_place() -> None:
    compare(Net(lambda x, y, z: x - z), (r(3, 7), r(2, 5), r(7)))


def test_strides_of_an_input_that_no_pte_can_say_become_contiguous() -> None:
    x = r(3, 7, 2).transpose(1, 2)
    module = Net(lambda x: x * 2)
    torch.testing.assert_close(run(emitted(module, (x,)).data, [x.contiguous()])[0], x * 2)


WHOLE = torch.arange(3 * 2 * 7 * 9).view(3, 2, 7, 9)

# Types that XNNPACK has not, in NHWC: name -> function, inputs, orders promised, outside, conversions
OTHER_TYPES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Any, Any, dict[str, int], int]] = {
    "whole numbers in and out": (
        lambda x: (torch.cumsum(x, 1), x.float() * 2),
        (WHOLE,),
        "NHWC",
        "NHWC",
        {"aten::cumsum.out": 1, "dim_order_ops::_to_dim_order_copy.out": 1},
        0,
    ),
    "whole numbers in NHWC views": (
        lambda x: (to_nchw(torch.cumsum(to_nhwc(x), 3)), to_nhwc(x).float() * 2),
        (WHOLE,),
        "NHWC",
        ["NHWC", None],
        {"aten::cumsum.out": 1, "dim_order_ops::_to_dim_order_copy.out": 1},
        0,
    ),
    "whole numbers, converted": (
        lambda x: (x + 1, x.float() * 2),
        (WHOLE,),
        "NHWC",
        [None, "NHWC"],
        {"aten::add.out": 1, "aten::permute_copy.out": 1, "dim_order_ops::_to_dim_order_copy.out": 1},
        1,
    ),
    "a mask beside an image": (
        lambda x, m: torch.where(m, x * 2, torch.zeros(())),
        (PICTURE, PICTURE > 0),
        "NHWC",
        "NHWC",
        {"aten::where.self_out": 1},
        0,
    ),
    "a mask out": (lambda x: x * 2 > 0.5, (PICTURE,), "NHWC", "NHWC", {"aten::gt.Scalar_out": 1}, 0),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_other_types_in_nhwc_cost_what_the_plan_says(name: str, tmp_path: Path) -> None:
    function, inputs, input_orders, output_orders, outside, conversions = OTHER_TYPES[name]
    lowered = compare_lowered(
        Net(function),
        tuple(map(channels_last, inputs)),
        input_orders=input_orders,
        output_orders=output_orders,
    )
    assert (lowered.artifact.outside, len(lowered.plan.conversions)) == (
        outside,
        conversions,
    )
    assert_close(dimorder.load(lowered.save(tmp_path / "net.pte"))(*inputs), Net(function)(*inputs))
    for spec in (*lowered.contract.inputs, *lowered.contract.outputs):
        plain = spec.dtype == "float32" or spec.dim_order.is_contiguous
        assert spec.boundary == ("logical" if plain else "physical")


def test_an_older_contract_keeps_its_logical_boundary_of_another_type() -> None:
    module = Net(lambda x: x + 1)
    promised = dimorder.plan(
        module, (channels_last(WHOLE),), input_orders="NHWC", output_orders="NHWC"
    ).contract
    assert [spec.boundary for spec in (*promised.inputs, *promised.outputs)] == ["logical", "logical"]
    assert Contract.from_json(promised.to_json()) == promised


def test_a_constant_is_stored_once() -> None:
    weight = r(64, 257)
    shared = Net(
        lambda x, a, b: torch.cumsum(F.linear(x, a), 1)[:, :1] * F.linear(x, b), (weight, weight.clone())
    )
    result = compare(shared, (r(3, 257),))
    assert result.delegates == 2
    assert weight.nbytes < len(result.data) < 1.5 * weight.nbytes


def test_corrections_vanish_into_the_node_before() -> None:
    from dimorder.targets.xnnpack.builder import XnnBuilder
    from dimorder.targets.xnnpack.passes import finish

    builder = XnnBuilder()
    x = builder.input((3, 7))
    y = builder.node("Add", (3, 7), input1_id=x.id, input2_id=x.id)
    builder.output(builder.clamp(y, 0, 6))
    finish(builder.graph)
    [node] = builder.graph.nodes
    assert (node.output_min_max.output_min, node.output_min_max.output_max) == (0, 6)


def test_texts_are_embedded() -> None:
    from executorch.runtime import Runtime

    module = Net(lambda x: x * 2)
    pte = emit(
        torch.export.export(module, (r(3, 7),)), constant_methods={"dimorder_contract": '{"a": 1}'}
    ).data
    assert list(Runtime.get().load_program(pte).load_method("dimorder_contract").execute([])) == ['{"a": 1}']


def test_run_takes_a_path(tmp_path: Any) -> None:
    x = r(3, 7)
    path = tmp_path / "double.pte"
    path.write_bytes(emitted(Net(lambda x: x * 2), (x,)).data)
    torch.testing.assert_close(run(path, [x])[0], x * 2)


def test_two_runs_write_the_same_file() -> None:
    looked_up = Net(lambda i, c: F.embedding(i, c) * 2, (r(5, 7),))
    ids = torch.tensor([[1, 4, 2], [0, 3, 3]])
    first, second = (emitted(looked_up, (ids,)).data for _ in range(2))
    assert first == second


def test_finding_the_target_takes_no_executorch() -> None:
    code = "import sys, dimorder.targets.xnnpack.target; sys.exit('executorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
