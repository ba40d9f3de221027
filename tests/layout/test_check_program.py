"""Test that each check of a stage reports the fault that it is for: one fault is planted for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dimorder import api
from dimorder.capture import check_captured
from dimorder.capture.captured import Captured, Slices, capture
from dimorder.errors import StageError
from dimorder.graph import passes
from dimorder.graph.nodes import CUSTOM, origin_of, with_origin
from dimorder.layout import check_program
from dimorder.layout.annotate import Annotated, annotate
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.rewrite import rewrite
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.pipeline import planning
from dimorder.planning.problem import Config
from dimorder.plans.network_plan import NetworkPlan
from dimorder.targets import find

aten = torch.ops.aten

SHAPE = (2, 3, 9, 7)


class Small(nn.Module):
    """A convolution, a view, a cumulative maximum (opaque), a sum, and a relu, which takes any order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.dense = nn.Linear(8 * 9 * 7, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.conv(x)
        return self.dense(y.flatten(1)), y.cummax(1)[0] + 1, y.relu()


def captured() -> Captured:
    return capture(Small().eval(), (torch.randn(SHAPE),))


def planned(target: str = "torch") -> NetworkPlan:
    return api.plan(Small().eval(), (torch.randn(SHAPE),), target=target)


def call(nodes: Any, target: Any) -> torch.fx.Node:
    return next(node for node in nodes if node.target is target)


# -- every stage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["captured", "annotated", "problem", "physical"])
def test_lower_asks_every_stage(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = check_captured if step == "captured" else check_program
    monkeypatch.setattr(checks, f"{step}_faults", lambda *_: iter([f"a fault of {step}"]))
    with pytest.raises(StageError, match=f"a fault of {step}"):
        api.lower(Small().eval(), (torch.randn(SHAPE),))


# -- the captured form ---------------------------------------------------------------------------------------


def test_a_network_in_normal_form_has_no_faults() -> None:
    assert list(check_captured.captured_faults(captured())) == []


def test_one_operand_may_be_sliced_before_a_call_is_spelled_and_another_after() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.table = nn.Buffer(torch.randn(2, 6)), nn.Buffer(torch.randn(5, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x + nn.functional.linear(self.rows.relu(), self.table)

    program = capture(Mixed(), (torch.randn(2, 5),), slices={"relu": Slices(torch.randn(2, 8), {1: 0})})
    weight = next(node for node in program.nodes if node.target == "table")
    with program.module.graph.inserting_after(weight):
        part = program.module.graph.call_function(SLICE_CONSTANT, (weight, 1, 0, 6))
    part.meta["val"] = weight.meta["val"]
    weight.replace_all_uses_with(part, lambda user: user is not part)
    assert list(check_captured.captured_faults(program)) == []


def _respell(program: Captured) -> None:
    call(program.nodes, aten.reshape.default).target = aten.view.default


def _write_in_place(program: Captured) -> None:
    call(program.nodes, aten.add.Tensor).target = aten.add_.Tensor


def _put_a_clone(program: Captured) -> None:
    linear = call(program.nodes, aten.linear.default)
    with program.module.graph.inserting_before(linear):
        clone = program.module.graph.call_function(aten.clone.default, (linear.args[0],))
    clone.meta["val"] = linear.args[0].meta["val"]  # type: ignore[union-attr]
    linear.replace_input_with(linear.args[0], clone)  # type: ignore[arg-type]


def _compute_a_constant(program: Captured) -> None:
    add = call(program.nodes, aten.add.Tensor)
    weight = next(node for node in program.nodes if node.op == "get_attr")
    add.args = (weight, 1)


def _stride(program: Captured) -> None:
    node = call(program.nodes, aten.convolution.default)
    node.meta["val"] = node.meta["val"].to(memory_format=torch.channels_last)


def _stride_a_constant(program: Captured) -> None:
    program.module.conv_weight = program.module.conv_weight.to(memory_format=torch.channels_last)


def _change_a_constant(program: Captured) -> None:
    program.module.conv_bias = program.module.conv_bias[:5]


def _call_python(program: Captured) -> None:
    call(program.nodes, aten.add.Tensor).target = torch.add


def _leave_a_module(program: Captured) -> None:
    call(program.nodes, aten.add.Tensor).op = "call_module"


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (_respell, "the normal form spells it aten.reshape.default"),
        (_put_a_clone, "the normal form spells it as nothing"),
        (_write_in_place, "it writes to its operand"),
        (_compute_a_constant, "it reads constants alone"),
        (_stride, "predicted strides"),
        (_stride_a_constant, "a constant with strides"),
        (_change_a_constant, "held as torch.float32 (5,)"),
        (_call_python, "no operator of torch"),
        (_leave_a_module, "a call_module in a functional graph"),
    ],
)
def test_a_fault_of_the_captured_form_is_told(plant: Callable[[Captured], None], told: str) -> None:
    program = captured()
    plant(program)
    assert any(told in fault for fault in check_captured.captured_faults(program))


# -- the axes of values --------------------------------------------------------------------------------------


def _annotated(change: Callable[[Annotated, torch.fx.Node], None], target: Any) -> list[str]:
    annotated = annotate(captured())
    assert not list(check_program.annotated_faults(annotated))
    change(annotated, call(annotated.calls, target))
    return list(check_program.annotated_faults(annotated))


def _lose_an_axis(annotated: Annotated, node: torch.fx.Node) -> None:
    (tensor,) = annotated.reads[node]
    annotated.reads[node] = (replace(tensor, sizes=tensor.sizes[1:], dims=tensor.dims[1:]),)


def _lose_a_label(annotated: Annotated, node: torch.fx.Node) -> None:
    (tensor,) = annotated.reads[node]
    annotated.reads[node] = (replace(tensor, labels=dict(list(tensor.labels.items())[1:])),)


def _lose_an_operand(annotated: Annotated, node: torch.fx.Node) -> None:
    annotated.reads[node] = ()


def _share_the_channels(annotated: Annotated, node: torch.fx.Node) -> None:
    relation = annotated.relations[node]
    annotated.relations[node] = replace(relation, absorbed=frozenset())


def _free_the_opaque(annotated: Annotated, node: torch.fx.Node) -> None:
    annotated.relations[node] = replace(annotated.relations[node], blocks=frozenset())


def _cut_here_alone(annotated: Annotated, node: torch.fx.Node) -> None:
    (tensor,) = annotated.reads[node]
    name, (axis,) = next((n, axes) for n, axes in tensor.labels.items() if tensor.sizes[axes[0]] == 9)
    sizes = (*tensor.sizes[:axis], 3, 3, *tensor.sizes[axis + 1 :])
    dims = (*tensor.dims[:axis], tensor.dims[axis], *tensor.dims[axis:])
    moved = {n: tuple(a + (a > axis) for a in axes) for n, axes in tensor.labels.items()}
    annotated.reads[node] = (
        replace(tensor, sizes=sizes, dims=dims, labels={**moved, name: (axis, axis + 1)}),
    )


@pytest.mark.parametrize(
    ("plant", "target", "told"),
    [
        (_lose_an_axis, aten.convolution.default, "do not make up the shape (2, 3, 9, 7)"),
        (_lose_a_label, aten.convolution.default, "do not cover each of 4 axes once"),
        (_lose_an_operand, aten.convolution.default, "axes of 0 operands and 1 results"),
        (_share_the_channels, aten.convolution.default, "is shared, with axes of"),
        (_free_the_opaque, aten.cummax.default, "it is opaque"),
        (_cut_here_alone, aten.add.Tensor, "axes (2, 8, 3, 3, 7), which getitem has as (2, 8, 9, 7)"),
    ],
)
def test_a_fault_of_axes_is_told(
    plant: Callable[[Annotated, torch.fx.Node], None], target: Any, told: str
) -> None:
    assert any(told in fault for fault in _annotated(plant, target))


# -- the layout problem --------------------------------------------------------------------------------------


def _problem_faults(plan: NetworkPlan, capabilities: Capabilities | None = None, **changed: Any) -> list[str]:
    capabilities = find(plan.target).capabilities if capabilities is None else capabilities
    return list(check_program.problem_faults(replace(plan.extracted, **changed), plan.contract, capabilities))


def _index(plan: NetworkPlan, target: Any) -> int:
    return next(i for i, site in enumerate(plan.extracted.sites) if site.node.target is target)


def _with_configs(plan: NetworkPlan, index: int, change: Callable[[tuple[Config, ...]], Any]) -> Any:
    """The problem with other configurations of one step; it checks less than `stages` does."""
    problem = plan.extracted.problem
    steps = list(problem.steps)
    steps[index] = replace(steps[index], configs=tuple(change(steps[index].configs)))
    return replace(problem, steps=tuple(steps))


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_a_layout_problem_has_no_faults(target: str) -> None:
    assert _problem_faults(planned(target)) == []


def test_sites_that_are_not_the_steps_are_told() -> None:
    plan = planned()
    assert "sites for" in _problem_faults(plan, sites=plan.extracted.sites[1:])[0]
    sites, i, j = (
        list(plan.extracted.sites),
        _index(plan, aten.cummax.default),
        _index(plan, aten.relu.default),
    )
    sites[i], sites[j] = sites[j], sites[i]
    faults = _problem_faults(plan, sites=tuple(sites))
    assert any("the site's buffers are not the step's" in fault for fault in faults)


def test_an_order_that_is_none_of_its_buffer_is_told() -> None:
    plan = planned()
    index = _index(plan, aten.convolution.default)
    problem = _with_configs(plan, index, lambda cs: [replace(c, reads=((0, 1, 1, 2),)) for c in cs])
    assert any(
        "(0, 1, 1, 2) is no order of the 4 axes" in fault for fault in _problem_faults(plan, problem=problem)
    )


def test_a_configuration_that_its_arrangement_does_not_mean_is_told() -> None:
    plan = planned()
    index = _index(plan, aten.relu.default)
    problem = _with_configs(plan, index, lambda cs: cs[::-1])
    assert any("its arrangement means" in fault for fault in _problem_faults(plan, problem=problem))


def test_an_arrangement_too_few_is_told() -> None:
    plan = planned()
    index = _index(plan, aten.relu.default)
    arrangements = list(plan.extracted.arrangements)
    arrangements[index] = arrangements[index][:-1]
    faults = _problem_faults(plan, arrangements=tuple(arrangements))
    assert any("arrangements for" in fault for fault in faults)


def test_a_promise_that_is_not_kept_is_told() -> None:
    plan = planned()
    problem = _with_configs(plan, 0, lambda cs: [replace(cs[0], writes=((0, 2, 3, 1),))])
    assert any("not the promised order (0, 1, 2, 3)" in f for f in _problem_faults(plan, problem=problem))


def test_a_default_that_is_not_offered_is_told() -> None:
    plan = planned()
    index = _index(plan, aten.relu.default)
    arrangements = list(plan.extracted.arrangements)
    arrangements[index] = arrangements[index][1:]
    problem = _with_configs(plan, index, lambda cs: cs[1:])
    faults = _problem_faults(plan, problem=problem, arrangements=tuple(arrangements))
    assert any("its default" in fault and "is not offered" in fault for fault in faults)


def test_a_configuration_that_the_target_does_not_compute_is_told() -> None:
    plan = planned("xnnpack")
    faults = _problem_faults(plan, Capabilities(lambda call, constants: "too large"))
    assert any("offered, and the target does not compute it: too large" in fault for fault in faults)
    faults = _problem_faults(plan, replace(find("xnnpack").capabilities, leaves=lambda call: "no kernel"))
    assert any("offered, and the target does not leave it: no kernel" in fault for fault in faults)


# -- the physical program ------------------------------------------------------------------------------------


def _physical_faults(
    plant: Callable[[torch.fx.Graph], None] = lambda graph: None,
    capabilities: Capabilities | None = None,
    target: str = "xnnpack",
) -> list[str]:
    plan = planned(target)
    program = rewrite(plan.extracted, plan.layout_plan, plan.contract)
    plant(program.graph)
    capabilities = find(target).capabilities if capabilities is None else capabilities
    return list(
        check_program.physical_faults(program, plan.extracted, plan.layout_plan, plan.contract, capabilities)
    )


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_a_physical_program_has_no_faults(target: str) -> None:
    assert _physical_faults(target=target) == []


def _conversion(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(n for n in graph.nodes if n.target is aten.clone.default and origin_of(n).get("converts"))


def _read_a_view(graph: torch.fx.Graph) -> None:
    clone = _conversion(graph)
    clone.replace_all_uses_with(clone.args[0])  # type: ignore[arg-type]


def _hide_a_conversion(graph: torch.fx.Graph) -> None:
    _conversion(graph).meta[CUSTOM] = with_origin({})[CUSTOM]


def _convert_otherwise(graph: torch.fx.Graph) -> None:
    clone = _conversion(graph)
    clone.kwargs = {}


def _convert_by_roll(graph: torch.fx.Graph) -> None:
    clone = _conversion(graph)
    clone.args[0].target = aten.roll.default  # type: ignore[union-attr]


def _use_another_operator(graph: torch.fx.Graph) -> None:
    call(graph.nodes, aten.add.Tensor).target = aten.sub.Tensor


def _forget_the_operator(graph: torch.fx.Graph) -> None:
    call(graph.nodes, aten.linear.default).meta[CUSTOM] = with_origin({})[CUSTOM]


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (_read_a_view, "which is not dense"),
        (_hide_a_conversion, "a conversion that is not marked as one of the plan"),
        (_hide_a_conversion, "where the plan has"),
        (_convert_otherwise, "a conversion that is no permute and dense copy"),
        (_convert_by_roll, "a conversion by another operator"),
        (_use_another_operator, "(aten.sub.Tensor): the operator that it is of does not declare it"),
        (_forget_the_operator, "(aten.linear): the operator that it is of does not declare it"),
    ],
)
def test_a_fault_of_the_physical_program_is_told(plant: Callable[[torch.fx.Graph], None], told: str) -> None:
    plan = planned("xnnpack")
    program = rewrite(plan.extracted, plan.layout_plan, plan.contract)
    plant(program.graph)
    faults = [*check_program.made_faults(program.graph.nodes, plan.extracted, plan.layout_plan)]
    faults += (
        check_program.run_densely(program.graph_module, list(_feed(program)))[1]
        if plant is _read_a_view
        else []
    )
    assert any(told in fault for fault in faults), faults


def _feed(program: torch.export.ExportedProgram) -> list[Tensor]:
    """Return the inputs of the graph itself: constants first, then those of the network."""
    return [*program.state_dict.values(), torch.randn(SHAPE)]


def test_predicted_strides_are_read_as_those_of_a_run() -> None:
    def stride(graph: torch.fx.Graph) -> None:
        node = _conversion(graph)
        node.meta["val"] = node.meta["val"].transpose(1, 2).contiguous().transpose(1, 2)

    assert any("predicted" in fault and "not dense" in fault for fault in _physical_faults(stride))


def test_what_the_plan_has_inside_and_the_target_does_not_compute_is_told() -> None:
    xnnpack = find("xnnpack").capabilities
    assert xnnpack.computes is not None

    def computes(call: torch.fx.Node, constants: Any) -> str | None:
        return "no addition" if call.target is aten.add.Tensor else xnnpack.computes(call, constants)  # type: ignore[misc]

    left = _physical_faults(capabilities=replace(xnnpack, computes=computes))
    assert any("left outside, where the plan has it inside: no addition" in fault for fault in left)
    refused = _physical_faults(
        capabilities=replace(xnnpack, computes=computes, leaves=lambda call: "no kernel")
    )
    assert any("no addition, and no kernel" in fault for fault in refused)


def test_lower_refuses_such_a_call_with_checks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(passes.CHECK, "0")
    late = []

    def computes(call: torch.fx.Node, constants: Any) -> str | None:
        return "no addition" if late and call.target is aten.add.Tensor else None

    def rewritten(*arguments: Any) -> Any:
        late.append(True)
        return rewrite(*arguments)

    monkeypatch.setattr(planning, "rewrite", rewritten)
    target = replace(find("torch"), capabilities=Capabilities(computes))
    with pytest.raises(StageError) as error:
        api.lower(Small().eval(), (torch.randn(SHAPE),), target=target)
    assert error.value.where == "add (aten.add.Tensor) of the physical program for torch"
    assert error.value.found == "no addition"
