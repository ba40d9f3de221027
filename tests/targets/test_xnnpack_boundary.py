"""The boundary of an emitted program: dim orders in the .pte, what stays outside, and refusals."""

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
from dimorder.errors import UnsupportedError
from dimorder.executorch import conversions_in
from dimorder.executorch.pte import method_of
from dimorder.targets.xnnpack import run
from dimorder.targets.xnnpack.emit import emit
from dimorder.targets.xnnpack.ops import OPERATORS
from tests.targets.cases import Net, aten, dense, r
from tests.targets.test_xnnpack_ops import assert_close, compare, compare_lowered, emitted

D = torch.ops.dimorder
NCHW, NHWC = [0, 1, 2, 3], [0, 2, 3, 1]


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def to_nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def to_nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


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
    assert boundary(result.pte) == ([([3, 2, 7, 9], NHWC)], [([3, 5, 7, 9], NHWC)])
    assert result.transposes == 0


def test_nhwc_output_has_channels_last_strides() -> None:
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(5, 3, 3, 2),))
    x = channels_last(r(3, 2, 7, 9))
    assert run(emitted(module, (x,)).pte, [x])[0].is_contiguous(memory_format=torch.channels_last)


def test_contiguous_boundary_costs_a_transpose_each() -> None:
    module = Net(lambda x, w: dense(conv(dense(x, 0, 2, 3, 1), w), 0, 3, 1, 2), (r(5, 3, 3, 2),))
    result = compare(module, (r(3, 2, 7, 9),))
    assert boundary(result.pte) == ([([3, 2, 7, 9], NCHW)], [([3, 5, 7, 9], NCHW)])
    assert result.transposes == 2


@pytest.mark.parametrize("shape", [(3, 1, 7, 9), (3, 2, 1, 1), (1, 1, 7, 9), (1, 1, 1, 1), (3, 1, 1, 1)])
@pytest.mark.parametrize("as_channels_last", [True, False])
def test_ambiguous_orders_are_said_contiguous(shape: tuple[int, ...], as_channels_last: bool) -> None:
    x = channels_last(r(*shape)) if as_channels_last else r(*shape)
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(shape[1], 3, 3, shape[1]),))
    result = emitted(module, (x,))
    assert boundary(result.pte) == ([(list(shape), NCHW)], [(list(shape), NCHW)])
    assert result.transposes == 0
    torch.testing.assert_close(run(result.pte, [x.contiguous()])[0], module(x))


@pytest.mark.parametrize("shape", [(1, 2, 7, 9), (1, 2, 1, 9), (3, 2, 7, 1)])
def test_sizes_of_one_that_leave_the_order_certain(shape: tuple[int, ...]) -> None:
    module = Net(lambda x, w: to_nchw(conv(to_nhwc(x), w)), (r(5, 3, 3, 2),))
    result = compare(module, (channels_last(r(*shape)),))
    assert [order for side in boundary(result.pte) for _, order in side] == [NHWC, NHWC]


IMAGE = r(3, 2, 7, 9)

# What is returned, how often, and in which order: name -> function, input, orders promised, conversions
RESULTS: dict[str, tuple[Callable[..., Any], Tensor, dict[str, Any], int]] = {
    "both orders of one value": (
        lambda x: (lambda y: (to_nhwc(y), y))(x * 2),
        IMAGE,
        {"input_orders": "NHWC", "output_orders": [None, "NHWC"]},
        0,
    ),
    "both orders of one value, one converted": (
        lambda x: (lambda y: (y, y))(x * 2),
        IMAGE,
        {"input_orders": "NHWC", "output_orders": [None, "NHWC"]},
        1,
    ),
    "one value twice": (lambda x: (lambda y: (y, y))(x * 2), r(3, 2, 7), {}, 0),
    "one value in two nodes": (lambda x: (lambda y: (y.clone(), y.view(3, 14)))(x * 2), r(3, 2, 7), {}, 0),
    "its input": (lambda x: (x, x * 2), r(3, 2, 7), {}, 0),
    "its input alone": (lambda x: x, r(3, 2, 7), {}, 0),
    "its NHWC input": (lambda x: (x, x * 2), IMAGE, {"input_orders": "NHWC", "output_orders": "NHWC"}, 0),
    "a view of its input": (lambda x: x.view(6, 7), r(3, 2, 7), {}, 0),
    "a view of its NHWC input": (to_nhwc, IMAGE, {"input_orders": "NHWC"}, 0),
    "its NHWC input, converted": (lambda x: x, IMAGE, {"input_orders": "NHWC"}, 1),
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
        IMAGE,
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
    torch.testing.assert_close(run(emitted(module, (x,)).pte, [x.contiguous()])[0], x * 2)


NHWC_BOTH = {"input_orders": "NHWC", "output_orders": "NHWC"}
LONG = r(3, 2, 7, 70)  # so long a running sum is not built from others
WHOLE = torch.arange(3 * 2 * 7 * 9).view(3, 2, 7, 9)

# What stays outside: name -> function, inputs, orders promised, constants, delegates, outside, conversions
Outside = tuple[
    Callable[..., Any], tuple[Tensor, ...], dict[str, Any], tuple[Tensor, ...], int, dict[str, int], int
]
OUTSIDE: dict[str, Outside] = {
    "between delegates": (
        lambda x: torch.cumsum(x * 2, 1) * 3,
        (r(3, 70, 7),),
        {},
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "at the end": (lambda x: torch.topk(x * 2, 3), (r(3, 2, 7),), {}, (), 1, {"aten::topk.values": 1}, 0),
    "nothing to delegate": (
        lambda x: torch.cumsum(x, 1),
        (r(3, 70, 7),),
        {},
        (),
        0,
        {"aten::cumsum.out": 1},
        0,
    ),
    "beside a delegate": (
        lambda x: torch.cumsum(x, 1) + torch.relu(x * 2),
        (r(3, 70, 7),),
        {},
        (),
        1,
        {"aten::cumsum.out": 1},
        0,
    ),
    "on an NHWC input": (
        lambda x: torch.cumsum(x, 3) * 2,
        (LONG,),
        {"input_orders": "NHWC"},
        (),
        2,
        {"aten::cumsum.out": 1},
        1,
    ),
    "on an NHWC input, row-major": (
        lambda x: torch.topk(x, 9, 3)[0] * 2,
        (IMAGE,),
        {"input_orders": "NHWC"},
        (),
        2,
        {"aten::topk.values": 1},
        1,
    ),
    "from NHWC to NHWC": (
        lambda x: torch.cumsum(x, 3),
        (LONG,),
        NHWC_BOTH,
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "to an NHWC output": (
        lambda x: to_nchw(torch.cumsum(x * 2, 2)),
        (r(3, 7, 70, 2),),
        {"output_orders": "NHWC"},
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "on an NHWC output": (
        lambda x: (lambda y: (y, torch.cumsum(y, 3)))(to_nchw(x * 2)),
        (r(3, 7, 70, 2),),
        {"output_orders": ["NHWC", None]},
        (),
        1,
        {"aten::cumsum.out": 1},
        1,
    ),
    "on an NHWC output, row-major": (
        lambda x: (lambda y: (y, torch.topk(y, 2, 1)[0]))(to_nchw(x * 2)),
        (r(3, 7, 9, 2),),
        {"output_orders": ["NHWC", None]},
        (),
        1,
        {"aten::topk.values": 1},
        1,
    ),
    "to a delegate that reads an NHWC output": (
        lambda x, z: (lambda y: (y, torch.cumsum(z * 2, 3) * y))(to_nchw(x * 2)),
        (r(3, 7, 70, 2), LONG),
        {"output_orders": ["NHWC", None]},
        (),
        2,
        {"aten::cumsum.out": 1},
        1,
    ),
    "a lookup": (
        lambda i, c: F.embedding(i, c) * 2,
        (torch.tensor([[1, 4, 2], [0, 3, 3]]),),
        {},
        (r(5, 7),),
        1,
        {"aten::embedding.out": 1},
        0,
    ),
    "positions of 32 bits": (
        lambda x, i: torch.scatter_add((x * 2).gather(1, i), 1, i, x),
        (r(3, 4, 7),),
        {},
        (torch.randint(4, (3, 4, 7), generator=torch.Generator().manual_seed(1)).int(),),
        1,
        {"aten::gather.out": 1, "aten::scatter_add.out": 1},
        0,
    ),
    "positions of 32 bits, computed": (
        lambda x: (lambda i: torch.gather(x, 2, i) + torch.gather(x.sin(), 2, i))(x.argmax(2, True).int()),
        (r(3, 4, 7),),
        {},
        (),
        2,
        {"aten::argmax.out": 1, "aten::gather.out": 2, "dim_order_ops::_to_dim_order_copy.out": 2},
        0,
    ),
    "round": (lambda x: torch.round(x * 9) * 2, (r(3, 2, 7),), {}, (), 2, {"aten::round.out": 1}, 0),
    "nearest, to no multiple": (
        lambda x: F.interpolate(x * 2, (10, 13)),
        (IMAGE,),
        {"input_orders": "NHWC"},
        (),
        1,
        {"aten::upsample_nearest2d.vec_out": 1},
        1,
    ),
    "a weight computed at run time": (
        lambda x, w: F.conv2d(x * 2, w + x.mean()),
        (IMAGE,),
        {},
        (r(5, 2, 3, 3),),
        1,
        {"aten::convolution.out": 1},
        0,
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name: str) -> None:
    function, inputs, promised, constants, delegates, outside, conversions = OUTSIDE[name]
    lowered = compare_lowered(Net(function, constants), inputs, **promised)
    found = lowered.artifact.delegates, lowered.artifact.outside, len(lowered.plan.conversions)
    assert found == (delegates, outside, conversions)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x * 2, 1) * 2,
        lambda x: (x * 2)[..., ::2] * 2,
        lambda x: F.max_pool2d(x * 2, 2, 1, dilation=2),
        lambda x: torch.cumsum(x * 2, 3),
        lambda x: (x * 2).amax(3),
    ],
    ids=["softmax", "slice", "dilated pool", "running sum", "maximum"],
)
def test_configuration_that_xnnpack_lacks_is_built_from_what_it_has(function: Callable[..., Any]) -> None:
    artifact = compare_lowered(Net(function), (IMAGE,), input_orders="NHWC").artifact
    assert (artifact.delegates, artifact.outside) == (1, {})


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
        (IMAGE, IMAGE > 0),
        "NHWC",
        "NHWC",
        {"aten::where.self_out": 1},
        0,
    ),
    "a mask out": (lambda x: x * 2 > 0.5, (IMAGE,), "NHWC", "NHWC", {"aten::gt.Scalar_out": 1}, 0),
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


def test_views_between_outside_operators_get_no_delegate() -> None:
    module = Net(lambda x: torch.cumsum(dense(torch.cumsum(x, 1), 0, 2, 1).view(3, 14), 1))
    result = compare(module, (r(3, 2, 7),))
    assert (result.delegates, conversions_in(result.pte).conversion_count) == (0, 1)


def test_a_constant_is_stored_once() -> None:
    weight = r(64, 257)
    shared = Net(
        lambda x, a, b: torch.cumsum(F.linear(x, a), 1)[:, :1] * F.linear(x, b), (weight, weight.clone())
    )
    result = compare(shared, (r(3, 257),))
    assert result.delegates == 2
    assert weight.nbytes < len(result.pte) < 1.5 * weight.nbytes


def test_clamps_vanish_into_the_node_before() -> None:
    from dimorder.targets.xnnpack.backend import XnnWriter

    writer = XnnWriter()
    x = writer.input((3, 7))
    y = writer.node("Add", (3, 7), input1_id=x.id, input2_id=x.id)
    writer.output(writer.clamp(y, 0, 6))
    writer.finish()
    [node] = writer._nodes
    assert (node.output_min_max.output_min, node.output_min_max.output_max) == (0, 6)


def test_texts_are_embedded() -> None:
    from executorch.runtime import Runtime

    module = Net(lambda x: x * 2)
    pte = emit(
        torch.export.export(module, (r(3, 7),)), constant_methods={"dimorder_contract": '{"a": 1}'}
    ).pte
    assert list(Runtime.get().load_program(pte).load_method("dimorder_contract").execute([])) == ['{"a": 1}']


def test_run_takes_a_path(tmp_path: Any) -> None:
    x = r(3, 7)
    path = tmp_path / "double.pte"
    path.write_bytes(emitted(Net(lambda x: x * 2), (x,)).pte)
    torch.testing.assert_close(run(path, [x])[0], x * 2)


def node_of(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> torch.fx.Node:
    program = torch.export.export(Net(function), inputs)
    return [node for node in program.graph.nodes if node.op == "call_function"][-1]


FLOAT64 = "torch.float64 where this target computes in torch.float32; convert with .float()"


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (torch.relu, r(3, 7), None),
        (lambda x: torch.cumsum(x, 1), r(3, 7), "XNNPACK has no aten.cumsum.default"),
        (lambda x: torch.softmax(x, 0), r(3, 7), "softmax over dimension 0 of 2, not the last"),
        (lambda x: x[::2], r(3, 7), "a slice of step 2; XNNPACK has step 1"),
        (torch.relu, r(3, 7).double(), FLOAT64),
        (torch.relu, r(1, 2, 1, 2, 1, 2, 3), "7 dimensions where XNNPACK has at most 6"),
        (torch.relu, torch.empty(0, 3), "the empty shape (0, 3)"),
        (
            lambda x: D.upsample_nearest2d_nhwc(x, [5, 9], None, None),
            r(1, 3, 7, 2),
            "nearest from 3 to 5, which is no whole multiple",
        ),
        (lambda x: torch.topk(x, 2)[0], r(3, 7), "its source: XNNPACK has no aten.topk.default"),
    ],
)
def test_supports_says_why_not(function: Callable[..., Any], x: Tensor, reason: str | None) -> None:
    assert OPERATORS.supports(node_of(function, (x,))) == reason


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


def refusal(program: torch.export.ExportedProgram) -> str:
    with pytest.raises(UnsupportedError) as caught:
        emit(program)
    return str(caught.value)


def test_state_of_a_program_of_another_origin_is_kept() -> None:
    program = torch.export.export(Counter(), (r(3),)).run_decompositions({})
    started = method_of(emit(program).pte)
    assert [started([torch.zeros(3)])[0].tolist() for _ in range(3)] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_input_that_is_no_tensor_is_refused() -> None:
    program = torch.export.export(Net(lambda x, n: x * n), (r(3), 2))
    assert refusal(program).startswith("input 'inputs_1'\n  found: ")


def test_symbolic_shape_is_refused() -> None:
    module = torch.nn.ReLU()
    program = torch.export.export(module, (r(3, 7),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert refusal(program).startswith("input 'input'\n  found: the symbolic shape (")


def test_refusal_names_the_operator_that_has_no_kernel_alone() -> None:
    program = torch.export.export(Net(lambda x: torch.max_pool3d(torch.cumsum(x, 1), 2)), (r(2, 3, 4, 5, 6),))
    message = refusal(program)
    assert message.startswith("aten.max_pool3d.default (cases.py:")
    assert "cumsum" not in message


def test_operator_without_any_kernel_is_refused_by_name_and_line() -> None:
    program = torch.export.export(Net(lambda x: torch.linalg.inv(x) * 2), (r(3, 3),))
    message = refusal(program)
    assert "linalg_inv" in message
    assert "(cases.py:" in message


@pytest.mark.parametrize(
    ("function", "inputs", "operator", "found"),
    [
        (
            lambda x, w: aten.convolution(x, w, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
            (r(1, 2, 4, 5, 6), r(3, 2, 2, 3, 1)),
            "aten.convolution.default",
            "the portable kernel convolves in one and two dimensions",
        ),
        (lambda i: i % 3, (torch.arange(-8, 9),), "aten.remainder.Scalar", "the sign that C gives it"),
        (lambda x: x.unfold(0, 1, 1), (torch.tensor(3.0),), "aten.unfold.default", "ends the process"),
        (lambda x: torch.fft.rfft(x).abs(), (torch.randn(2, 8),), "aten.fft_rfft.default", "complex numbers"),
        (
            lambda x: x.log_softmax(1, dtype=torch.float64),
            (torch.randn(2, 8),),
            "aten.log_softmax.int",
            "refuses torch.float64",
        ),
    ],
)
def test_operator_whose_kernel_is_wrong_is_refused(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], operator: str, found: str
) -> None:
    message = refusal(torch.export.export(Net(function), inputs))
    assert message.startswith(f"{operator} (")
    assert found in message


def test_two_runs_write_the_same_file() -> None:
    function, inputs, _, constants, *_ = OUTSIDE["a lookup"]
    first, second = (emitted(Net(function, constants), inputs).pte for _ in range(2))
    assert first == second


def test_finding_the_target_takes_no_executorch() -> None:
    code = "import sys, dimorder.targets.xnnpack.target; sys.exit('executorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_repeated_in_more_dimensions_than_xnnpack_has() -> None:
    """Outside, an expanded value is copied, for nothing can view it in fewer dimensions."""
    lowered = compare_lowered(Net(lambda x: x.repeat(2, 3, 4, 2)), (r(2, 3, 2, 5),))
    assert "aten::expand_copy.out" in lowered.artifact.outside
