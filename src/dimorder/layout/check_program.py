"""Check the annotated program, the layout problem and the physical program, and return faults as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from dimorder.contract import Contract
from dimorder.errors import StageError
from dimorder.graph.dynamic_sizes import DynamicSizeError, dynamic_calls
from dimorder.graph.elements import Elements
from dimorder.graph.exported import own_module, state_of
from dimorder.graph.interpreter import GraphRun
from dimorder.graph.nodes import is_getitem, node_title, origin_of, results
from dimorder.graph.passes import FIX
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.layout.annotate import Annotated, results_of
from dimorder.layout.candidate_orders import default_tokens, formed
from dimorder.layout.capabilities import Capabilities, Verdicts
from dimorder.layout.problem import Extracted, boundary_axes
from dimorder.layout.rewrite import at_boundary
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.problem_map import Arrangement, layout_of, layouts_of
from dimorder.ops.relation import AxedTensor, Relation
from dimorder.ops.table import elements_of, operands
from dimorder.planning.plan import LayoutPlan

aten = torch.ops.aten


# -- annotated axes


def annotated_faults(annotated: Annotated) -> Iterator[str]:
    """Yield the faults of an annotated program.

    Axes make up dimensions, labels cover axes, and all readers of a value see the same axes.
    """
    axes = _axes_where_produced(annotated)
    for call, relation in annotated.relations.items():
        name = node_title(call)
        reads, writes = annotated.reads[call], annotated.writes[call]
        sources = operands(call)
        if (len(reads), len(writes)) != (len(sources), len(results(call))):
            yield f"{name}: axes of {len(reads)} operands and {len(writes)} results"
            continue
        values = [*(node.meta["val"] for node in sources), *results(call)]
        unlike = [
            f"{name}, tensor {i}: {fault}"
            for i, (tensor, value) in enumerate(zip((*reads, *writes), values, strict=True))
            for fault in _axed_faults(tensor, tuple(value.shape))
        ]
        if unlike:
            yield from unlike
            continue
        for i, (source, tensor) in enumerate(zip(sources, reads, strict=True)):
            if source in axes and axes[source] != (tensor.sizes, tensor.dims):
                yield f"{name}, tensor {i}: axes {tensor.sizes}, which {source} has as {axes[source][0]}"
        for fault in _label_faults(relation, (*reads, *writes)):
            yield f"{name}: {fault}"


def _axes_where_produced(annotated: Annotated) -> dict[Node, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        node: (tensor.sizes, tensor.dims)
        for call, tensors in annotated.writes.items()
        for node, tensor in zip(results_of(call), tensors, strict=True)
        if node is not None
    }


def _axed_faults(tensor: AxedTensor, shape: tuple[int, ...]) -> Iterator[str]:
    made_up = [1] * len(shape)
    for size, dim in zip(tensor.sizes, tensor.dims, strict=True):
        made_up[dim] *= size
    if tuple(made_up) != shape or list(tensor.dims) != sorted(tensor.dims) or 1 in tensor.sizes:
        yield f"axes {tensor.sizes} of dimensions {tensor.dims} do not make up the shape {shape}"
    labelled = Counter(axis for positions in tensor.labels.values() for axis in positions)
    if labelled != Counter(range(len(tensor.sizes))):
        yield f"labels {tensor.labels} do not cover each of {len(tensor.sizes)} axes once"


def _label_faults(relation: Relation, tensors: Sequence[AxedTensor]) -> Iterator[str]:
    apart = relation.blocks | relation.absorbed
    names = dict.fromkeys(name for tensor in tensors for name in tensor.labels)
    if relation.kind == "opaque" and not set(names) <= relation.blocks:
        yield f"it is opaque, and {sorted(set(names) - relation.blocks)} are no blocks"
    for name in names:
        sizes = {tuple(t.sizes[a] for a in t.labels[name]) for t in tensors if name in t.labels}
        if name not in apart and len(sizes) > 1:
            yield f"label {name} is shared, with axes of {' and of '.join(map(str, sorted(sizes)))}"


# -- the layout problem


def problem_faults(
    extracted: Extracted, contract: Contract, capabilities: Capabilities, others: Sequence[Extracted] = ()
) -> Iterator[str]:
    """Yield the faults of a layout problem.

    Configurations mean orders of their buffers. The defaults and the contract's orders are among them. The
    target computes each, or the operator is among those left outside. `others` are the problems of the same
    network at other sizes.
    """
    problem, verdicts = extracted.problem, Verdicts(capabilities)
    if not len(extracted.sites) == len(problem.steps) == len(extracted.arrangements):
        yield f"{len(extracted.sites)} sites for {len(problem.steps)} steps"
        return
    outputs = zip(contract.outputs, extracted.annotated.program.outputs, strict=True)
    computed = (spec for spec, node in outputs if node in extracted.views)
    promised = {"input": iter(contract.inputs), "output": computed}
    for index, site in enumerate(extracted.sites):
        name = f"step {index}, {node_title(site.node)}"
        for fault in _step_faults(extracted, index):
            yield f"{name}: {fault}"
        if site.kind in promised:
            order = boundary_axes(site, next(promised[site.kind]).dim_order, extracted.buffers)
            configs = problem.steps[index].configs
            if [(*config.reads, *config.writes) for config in configs] != [(order,)]:
                yield f"{name}: not the promised order {order} alone"
            continue
        if site.kind == "state":
            continue
        for fault in _configured_faults([extracted, *others], index, verdicts):
            yield f"{name}: {fault}"


def _step_faults(extracted: Extracted, index: int) -> Iterator[str]:
    site, step = extracted.sites[index], extracted.problem.steps[index]
    arrangements = extracted.arrangements[index]
    buffers = tuple(tuple(view.buffer for view in side) for side in (site.reads, site.writes))
    if (step.reads, step.writes) != buffers:
        yield "the site's buffers are not the step's"
        return
    if len(arrangements) != len(step.configs):
        yield f"{len(arrangements)} arrangements for {len(step.configs)} configurations"
    for arrangement, config in zip(arrangements, step.configs, strict=False):
        orders: Any = (*config.reads, *config.writes)
        for i, (view, order) in enumerate(zip(site.views, orders, strict=True)):
            rank = len(extracted.buffers[view.buffer].tensor.sizes)
            if sorted(order) != list(range(rank)):
                yield f"{order} is no order of the {rank} axes of buffer {view.buffer}"
            elif site.relation is not None and layout_of(i, site, arrangement) != order:
                yield f"a configuration has {order}, its arrangement means {layout_of(i, site, arrangement)}"


def _configured_faults(problems: Sequence[Extracted], index: int, verdicts: Verdicts) -> Iterator[str]:
    extracted = problems[0]
    site, step = extracted.sites[index], extracted.problem.steps[index]
    outside = site.node in extracted.outside

    def refused(arrangement: Arrangement) -> str | None:
        why, why_not_outside = verdicts.of(index, arrangement, problems)
        return why_not_outside if outside else why

    for arrangement in extracted.arrangements[index]:
        reason = refused(arrangement)
        if reason is not None:
            yield f"offered, and the target does not {'leave' if outside else 'compute'} it: {reason}"
    if extracted.problem.candidates == "truncated":
        return
    offered = {(*config.reads, *config.writes) for config in step.configs}
    for number, form in enumerate(site.forms):
        default = Arrangement(formed(default_tokens(site), form), ((),) * len(site.views), number)
        layouts = layouts_of(site, default)
        if layouts not in offered and refused(default) is None:
            yield f"its default {layouts}, {site.implementations[number].name}, is not offered"


# -- the physical program


def physical_faults(
    program: ExportedProgram,
    extracted: Extracted,
    plan: LayoutPlan,
    contract: Contract,
    capabilities: Capabilities,
) -> Iterator[str]:
    """Yield the faults of a physical program.

    Tensors are dense. The operators are those that the chosen implementations declare. The conversions are
    those of the plan. The target computes each call, or leaves it outside.
    """
    yield from made_faults(program.graph.nodes, extracted, plan)
    for node in program.graph.nodes:
        if node.op == "call_function":
            yield from (f"predicted: {fault}" for fault in misread(node, node.meta["val"]))
    yield from (f"{node_title(node)}: {why}" for node, why in refused_calls(program, extracted, capabilities))
    yield from left_faults(program, extracted, capabilities)
    inputs = extracted.annotated.program.example_inputs
    held = [at_boundary(tensor, spec) for tensor, spec in zip(inputs, contract.inputs, strict=True)]
    yield from run_densely(own_module(program), held)[1]


def made_faults(nodes: Iterable[Node], extracted: Extracted, plan: LayoutPlan) -> Iterator[str]:
    """Yield what the plan does not account for in a physical program; `nodes` are those of its graph."""
    converted: list[tuple[int, tuple[int, ...]]] = []
    for node in nodes:
        if node.op != "call_function":
            continue
        name, origin = node_title(node), origin_of(node)
        if origin.get("converts"):
            if "order" in origin:  # others come before the last transpose of a conversion
                converted.append((origin["buffer"], tuple(origin["order"])))
            if node.target is aten.clone.default and not _is_conversion(node):
                yield f"{name}: a conversion that is no permute and dense copy"
            elif node.target not in (aten.clone.default, aten.permute.default):
                yield f"{name}: a conversion by another operator"
        elif _is_conversion(node):
            yield f"{name}: a conversion that is not marked as one of the plan"
        elif (
            elements_of(node.target) is not Elements.RELABELS
            and node.target is not DEQUANTIZE_CHANNELS  # a constant that is kept as integers
            and not is_getitem(node)
            and node.target not in _declared(extracted, plan, origin)
        ):
            yield f"{name}: the operator that it is of does not declare it"
    planned = Counter((c.buffer, c.to_order) for c in plan.conversions)
    if Counter(converted) != planned:
        yield f"conversions {sorted(Counter(converted))}, where the plan has {sorted(planned)}"


def _is_conversion(node: Node) -> bool:
    """Return whether a call copies a permuted view to dense memory."""
    source = node.args[0] if node.args else None
    return (
        node.target is aten.clone.default
        and node.kwargs.get("memory_format") is torch.contiguous_format
        and isinstance(source, Node)
        and source.target is aten.permute.default
    )


def _declared(extracted: Extracted, plan: LayoutPlan, origin: dict[str, Any]) -> tuple[Any, ...]:
    """Return the physical operators that the plan declares for the operator that a call belongs to."""
    if "site" not in origin or not extracted.sites[origin["site"]].implementations:
        return ()
    site = extracted.sites[origin["site"]]
    if site.kind == "opaque":
        return (site.node.target,)
    arrangement = extracted.arrangements[origin["site"]][plan.choice[origin["site"]]]
    declared: tuple[Any, ...] = site.implementations[arrangement.implementation].physical
    return declared


# -- the calls of the physical program


def refused_calls(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities
) -> Iterator[tuple[Node, str]]:
    """Yield the calls of operators that the target neither computes nor leaves outside, and why."""
    for node, why in _not_computed(program, extracted, capabilities):
        why_not_outside = why if capabilities.leaves is None else capabilities.leaves(node)
        if why_not_outside is not None:
            yield node, why if why_not_outside == why else f"{why}, and {why_not_outside}"


def require_capabilities(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities, target: str
) -> None:
    """Check that the target computes or leaves each call, even without DIMORDER_CHECK.

    Raises:
        StageError: for the first call that the target refuses.
    """
    for node, why in refused_calls(program, extracted, capabilities):
        raise StageError(f"{node_title(node)} of the physical program for {target}", why, FIX)


def left_faults(program: ExportedProgram, extracted: Extracted, capabilities: Capabilities) -> Iterator[str]:
    """Yield what the target does not compute, where the plan has it inside.

    A view may lie outside if what it reads, or all that reads it, may lie there: it moves no element. A
    conversion is part of no operator.
    """

    def is_outside(node: Node) -> bool:
        origin = origin_of(node)
        if "site" not in origin or origin.get("converts"):
            return True
        return extracted.sites[origin["site"]].node in extracted.outside

    for node, why in _not_computed(program, extracted, capabilities):
        is_view = node.target is aten.view.default
        leads_out = is_view and (is_outside(node.all_input_nodes[0]) or all(map(is_outside, node.users)))
        if not is_outside(node) and not leads_out:
            yield f"{node_title(node)}: left outside, where the plan has it inside: {why}"


def _not_computed(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities
) -> Iterator[tuple[Node, str]]:
    """Yield the calls of operators that the target does not compute, and why."""
    constants = _constants(program)
    for node in program.graph.nodes:
        origin = origin_of(node)
        if node.op != "call_function" or node in constants or "site" not in origin or origin.get("converts"):
            continue
        if not extracted.sites[origin["site"]].implementations or capabilities.computes is None:
            continue
        why = capabilities.computes(node, constants)
        if why is not None:
            yield node, why


def refused_at_all_sizes(
    programs: Sequence[ExportedProgram], names: Collection[str], capabilities: Capabilities
) -> list[str]:
    """Return which of the calls with these names the target does not compute at all sizes.

    Args:
        programs: the physical program at several points of its sizes.
        names: the calls' names. Those that the plan has outside are not asked for.
        capabilities: what the target computes.
    """
    computes, at_all_sizes = capabilities.computes, capabilities.at_all_sizes
    if computes is None or at_all_sizes is None:
        return []
    try:
        numbers = dynamic_calls([program.graph for program in programs])
    except DynamicSizeError:  # it is refused where the programs are merged
        return []
    constants = _constants(programs[0])
    calls = [call for call in numbers if call.name in names and not origin_of(call).get("outside")]
    return [
        call.name
        for call in calls
        if computes(call, constants) is not None or at_all_sizes(call, constants, numbers) is not None
    ]


def _constants(program: ExportedProgram) -> Collection[Node]:
    """Return the nodes that read neither inputs nor state."""
    given = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    given |= set(state_of(program))
    known: dict[Node, None] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            is_known = node.name not in given
        else:
            is_known = all(operand in known for operand in node.all_input_nodes)
            is_known = is_known and node.op == "call_function" and node.target is not SLICE_CONSTANT
        if is_known:
            known[node] = None
    return known


def run_densely(
    module: GraphModule, inputs: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], list[str]]:
    """Run a physical program, and return its results and its reads of tensors that are not dense."""
    run = _DensityRun(module)
    return run.run(*inputs), run.faults


class _DensityRun(GraphRun):
    """A run of a physical program that notes reads of tensors that are not row-major."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.faults: list[str] = []

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        self.faults += misread(node, result)
        return result


def misread(node: Node, value: Any) -> Iterator[str]:
    """Yield the readers of a value that is not row-major.

    Views may be copied, permuted and returned. A matmul may read a view that swaps the last two dimensions.
    """
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return
    swapped = value.dim() > 1 and value.mT.is_contiguous()
    for user in node.users:
        allowed = user.op == "output" or user.target in (aten.clone.default, aten.permute.default)
        if not allowed and not (swapped and user.target is aten.matmul.default):
            yield f"{node_title(user)} reads {node_title(node)}, which is not dense"
