"""The index-level checker finds nothing in a right plan, and every fault that is planted in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract
from dimorder.layout.problem import Extracted
from dimorder.ops.pointwise import relate_pointwise
from dimorder.ops.problem_map import BufferView
from dimorder.ops.row_major import ROW_MAJOR
from dimorder.ops.table import OPERATORS
from dimorder.planning.plan import LayoutPlan
from tests.layout.element_rules import KNOWN
from tests.layout.index_checker import check
from tests.layout.lowering import contract_of, lowering
from tests.small_networks import Net

aten = torch.ops.aten
X = (2, 6, 5, 7)


def planned(
    function: Callable[..., Any], *shapes: tuple[int, ...], **attributes: Any
) -> tuple[Extracted, LayoutPlan]:
    """The plan of a function under contiguous contracts, which the checker finds nothing wrong with."""
    lowered = lowering(Net(function, **attributes), [torch.zeros(shape) for shape in shapes])
    contract = contract_of(lowered.program, DimOrder.contiguous)
    extracted, plan = lowered.plan(contract)
    assert check(extracted, plan, contract) == []
    return extracted, plan


def site_of(extracted: Extracted, target: Any) -> int:
    return next(i for i, site in enumerate(extracted.sites) if site.node.target == target)


def relaid(
    extracted: Extracted, plan: LayoutPlan, index: int, **layouts: dict[int, Sequence[int]]
) -> Extracted:
    """The problem with other layouts in an operator's chosen configuration, as in `reads={0: layout}`."""
    problem, chosen = extracted.problem, plan.choice[index]
    config = problem.steps[index].configs[chosen]
    changed = {}
    for side, new in layouts.items():
        old = getattr(config, side)
        changed[side] = tuple(tuple(new[i]) if i in new else layout for i, layout in enumerate(old))
    step = problem.steps[index]
    configs = (*step.configs[:chosen], replace(config, **changed), *step.configs[chosen + 1 :])
    steps = (
        *problem.steps[:index],
        replace(step, configs=configs),
        *problem.steps[index + 1 :],
    )
    return replace(extracted, problem=replace(problem, steps=steps))


def layouts(extracted: Extracted, plan: LayoutPlan, index: int) -> tuple[tuple[int, ...], ...]:
    config = extracted.problem.steps[index].configs[plan.choice[index]]
    return (*config.reads, *config.writes)  # type: ignore[arg-type]


def swapped(layout: Sequence[int], i: int, j: int) -> tuple[int, ...]:
    order = list(layout)
    order[i], order[j] = order[j], order[i]
    return tuple(order)


def found(extracted: Extracted, plan: LayoutPlan, text: str) -> bool:
    """Whether the checker tells this fault, and not only that the arrangement is another."""
    return any(text in fault for fault in check(extracted, plan))


CONV = nn.Conv2d(6, 4, 3)
WEIGHT = nn.Parameter(torch.randn(3, 5, 1))

# For each: the operator, which of its tensors is laid otherwise, the network, what the checker must say, and
# the layouts that are right too: a reduced axis anywhere, a matrix transposed, a cat in front of or behind.
SPOILT: dict[str, tuple[Any, str, Callable[..., Any], tuple[Any, ...], str, set[tuple[int, ...]]]] = {
    "add": (aten.add.Tensor, "reads", lambda m, x, y: x + y, (X, X), "agnostic", set()),
    "add's result": (aten.add.Tensor, "writes", lambda m, x, y: x + y, (X, X), "agnostic", set()),
    "broadcast": (aten.mul.Tensor, "reads", lambda m, x, y: x * y, ((6, 1, 7), X), "agnostic", set()),
    "expand": (aten.expand.default, "reads", lambda m, x: x.expand(4, 2, 6), ((2, 6),), "agnostic", set()),
    "mean's result": (aten.mean.dim, "writes", lambda m, x: x.mean((1, 3)), (X,), "reduce", set()),
    "mean": (
        aten.mean.dim, "reads", lambda m, x: x.mean(2, keepdim=True), (X,),
        "reduce", {(0, 2, 1, 3), (0, 1, 3, 2)},
    ),
    "softmax": (aten.softmax.int, "writes", lambda m, x: x.softmax(1), (X,), "reduce", set()),
    "norm": (aten.layer_norm.default, "reads", lambda m, x: F.layer_norm(x, (7,)), (X,), "reduce", set()),
    "argmax": (aten.argmax.default, "writes", lambda m, x: x.argmax(1), (X,), "reduce", set()),
    "cumsum": (aten.cumsum.default, "writes", lambda m, x: x.cumsum(3), (X,), "reduce", set()),
    "cat": (aten.cat.default, "reads", lambda m, x, y: torch.cat([x, y], 1), (X, X), "indexed", set()),
    "cat's result": (
        aten.cat.default, "writes", lambda m, x, y: torch.cat([x, y], 1), (X, X),
        "indexed", {(1, 0, 2, 3, 4), (0, 2, 1, 3, 4)},
    ),
    "slice": (aten.slice.Tensor, "reads", lambda m, x: x[:, 1:3], (X,), "indexed", set()),
    "strided slice": (aten.slice.Tensor, "writes", lambda m, x: x[:, 1::2], (X,), "indexed", set()),
    "pad": (
        aten.constant_pad_nd.default, "reads", lambda m, x: F.pad(x, (1, 0, 2, 1)), (X,), "indexed", set()
    ),
    "flip": (aten.flip.default, "writes", lambda m, x: x.flip(2), (X,), "indexed", set()),
    "pool": (aten.max_pool2d.default, "reads", lambda m, x: F.max_pool2d(x, 2), (X,), "indexed", set()),
    "adaptive pool": (
        aten.adaptive_avg_pool2d.default, "reads", lambda m, x: F.adaptive_avg_pool2d(x, (3, 4)), (X,),
        "indexed", set(),
    ),
    "adaptive pool's result": (
        aten.adaptive_avg_pool2d.default, "writes", lambda m, x: F.adaptive_avg_pool2d(x, (3, 4)), (X,),
        "indexed", set(),
    ),
    "bicubic": (
        aten.upsample_bicubic2d.vec, "reads", lambda m, x: F.interpolate(x, (3, 9), mode="bicubic"), (X,),
        "indexed", set(),
    ),
    "conv": (aten.convolution.default, "reads", lambda m, x: m.c(x), (X,), "contraction", set()),
    "conv's result": (aten.convolution.default, "writes", lambda m, x: m.c(x), (X,), "contraction", set()),
    "linear": (aten.linear.default, "reads", lambda m, x: m.l(x), (X,), "contraction", set()),
    "matmul": (
        aten.matmul.default, "reads", lambda m, x, y: x @ y, (X, (2, 6, 7, 3)), "contraction", {(0, 1, 3, 2)}
    ),
    "matmul's result": (
        aten.matmul.default, "writes", lambda m, x, y: x @ y, (X, (2, 6, 7, 3)), "contraction", {(0, 1, 3, 2)}
    ),
    "sort": (aten.sort.default, "reads", lambda m, x: x.sort(1), (X,), "opaque", set()),
    "sort's result": (aten.sort.default, "writes", lambda m, x: x.sort(1), (X,), "opaque", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_two_axes_swapped_on_one_tensor_are_found(name: str) -> None:
    target, side, function, shapes, text, right_too = SPOILT[name]
    extracted, plan = planned(function, *shapes, c=CONV, l=nn.Linear(7, 4))
    index = site_of(extracted, target)
    right = getattr(extracted.problem.steps[index].configs[plan.choice[index]], side)[0]
    assert len(right) > 1
    others = [swapped(right, i, j) for i in range(len(right)) for j in range(i)]
    spoilt = {layout: relaid(extracted, plan, index, **{side: {0: layout}}) for layout in others}
    assert {layout for layout, wrong in spoilt.items() if not found(wrong, plan, text)} == right_too


def test_the_checker_knows_every_operator_that_runs_in_other_orders_than_row_major() -> None:
    ruled = {
        name
        for name, operator in OPERATORS.items()
        if operator.relate not in (None, relate_pointwise)
        and any(each.lower is not ROW_MAJOR.lower for each in operator.implementations)
    }
    assert ruled - KNOWN == set()


def test_a_transposed_convolution_of_one_tap_that_adds_a_pixel_is_no_fault() -> None:
    planned(lambda m, x: F.conv_transpose1d(x, m.w, output_padding=1, dilation=2), (2, 3, 4), w=WEIGHT)


def test_a_relabel_with_wrong_axes_is_found() -> None:
    extracted, plan = planned(lambda m, x: x.permute(0, 2, 3, 1).relu(), X)
    node = next(n for n in extracted.views if n.target == aten.permute.default)
    view = extracted.views[node]
    wrong = {**extracted.views, node: BufferView(view.buffer, swapped(view.axes, 1, 2))}
    assert found(replace(extracted, views=wrong), plan, "no cut of the shape")


def test_a_relabel_that_shuffles_axes_of_one_size_is_found() -> None:
    extracted, plan = planned(
        lambda m, x: x.reshape(2, 3, 3, 5).transpose(1, 2).reshape(2, 9, 5).relu(), (2, 9, 5)
    )
    node = [n for n in extracted.views if n.target == aten.reshape.default][-1]
    view = extracted.views[node]
    wrong = {**extracted.views, node: BufferView(view.buffer, swapped(view.axes, 1, 2))}
    assert found(replace(extracted, views=wrong), plan, "relabel: memory read")


def test_a_relabel_across_blocks_in_another_order_is_found() -> None:
    extracted, plan = planned(lambda m, x: x.reshape(2, 4, 24).relu(), (2, 6, 16))
    index = site_of(extracted, aten.reshape.default)
    right = layouts(extracted, plan, index)[0]
    wrong = relaid(extracted, plan, index, reads={0: swapped(right, 1, 2)})
    assert found(wrong, plan, "relabel: memory read")


def test_groups_in_two_orders_are_found() -> None:
    extracted, plan = planned(lambda m, x: m.c(x), X, c=nn.Conv2d(6, 4, 3, groups=2))
    index = site_of(extracted, aten.convolution.default)
    right = layouts(extracted, plan, index)[0]
    wrong = relaid(extracted, plan, index, reads={0: swapped(right, -2, -1)})
    assert found(wrong, plan, "of a group do not lie together")


def test_channels_of_a_plain_convolution_may_lie_in_any_order() -> None:
    extracted, plan = planned(
        lambda m, x: m.c(x.reshape(2, 2, 3, 5, 7).transpose(1, 2).reshape(X).relu()), X, c=nn.Conv2d(6, 4, 3)
    )
    index = site_of(extracted, aten.convolution.default)
    right = layouts(extracted, plan, index)[0]
    other = relaid(extracted, plan, index, reads={0: swapped(right, -2, -1)})
    assert not found(other, plan, "contraction")


def test_an_input_or_output_not_in_the_promised_order_is_found() -> None:
    lowered = lowering(Net(lambda m, x: x + 1), [torch.zeros(X)])
    contiguous = contract_of(lowered.program, DimOrder.contiguous)
    last = contract_of(lowered.program, DimOrder.channels_last)
    extracted, plan = lowered.plan(contiguous)
    assert check(extracted, plan, contiguous) == []
    assert any(
        "input 0" in fault for fault in check(extracted, plan, Contract(last.inputs, contiguous.outputs))
    )
    assert any(
        "output 0" in fault for fault in check(extracted, plan, Contract(contiguous.inputs, last.outputs))
    )


def test_a_missing_and_an_idle_conversion_are_found() -> None:
    extracted, plan = planned(lambda m, x: m.c(x), X, c=nn.Conv2d(6, 4, 3))
    assert len(plan.conversions) == 2
    assert found(extracted, replace(plan, conversions=plan.conversions[:1]), "is needed, not listed")
    idle = replace(plan.conversions[0], to_order=plan.conversions[0].from_order)
    assert found(extracted, replace(plan, conversions=(*plan.conversions, idle)), "is listed, not needed")


def test_a_layout_that_is_no_order_of_the_axes_is_found() -> None:
    extracted, plan = planned(lambda m, x: x.relu(), X)
    index = site_of(extracted, aten.relu.default)
    assert found(relaid(extracted, plan, index, reads={0: (0, 1, 2, 2)}), plan, "is no order of the axes")


def test_an_operator_left_out_is_found() -> None:
    extracted, plan = planned(lambda m, x: x.relu() + 1, X)
    index = site_of(extracted, aten.relu.default)
    sites = (*extracted.sites[:index], replace(extracted.sites[index], node=extracted.sites[index + 1].node))
    wrong = replace(extracted, sites=(*sites, *extracted.sites[index + 1 :]))
    assert found(wrong, plan, "missing from the problem")


def test_an_operator_that_reads_another_value_is_found() -> None:
    extracted, plan = planned(lambda m, x, y: (x.relu(), y.tanh()), X, X)
    index = site_of(extracted, aten.relu.default)
    sites = list(extracted.sites)
    other = BufferView(1, sites[index].reads[0].axes)
    sites[index] = replace(sites[index], reads=(other,))
    assert found(replace(extracted, sites=tuple(sites)), plan, "reads or writes other buffers")
