"""Write a physical program as a .pte: delegates, portable operators between them, and the boundary.

Delegates read and write dense tensors. A 4-D channels-last input or output of the program is NHWC to them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from executorch.exir.program._program import _generate_edge_program
from executorch.exir.tracer import _default_decomposition_table
from torch._dynamo import config
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, summary
from dimorder.executorch.program_tables import count_calls, read_program
from dimorder.executorch.pte import method_of
from dimorder.graph.branches import COND
from dimorder.graph.exported import CarriedState, turn_buffers_into_inputs, turn_inputs_into_buffers
from dimorder.graph.nodes import is_getitem, origin_of, set_value, where
from dimorder.ops.quantization import is_quantized
from dimorder.ops.resize import RESIZED_BY_MATMUL
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.delegate import EDGE, outer_program, write_pte
from dimorder.targets.table import Table
from dimorder.targets.xnnpack.artifact import Pte
from dimorder.targets.xnnpack.exact import exact_run
from dimorder.targets.xnnpack.in_place import write_in_place
from dimorder.targets.xnnpack.ops import OPERATORS, wrong_at_some_sizes, wrong_outside
from dimorder.targets.xnnpack.outer import build_outer
from dimorder.targets.xnnpack.partition import Partition, partition
from dimorder.targets.xnnpack.sketch import partition_for_ranges, reason_outside
from dimorder.verification.network_calls import Run


def emit(
    program: ExportedProgram,
    *,
    constant_methods: Mapping[str, str] | None = None,
    operators: Table = OPERATORS,
    contract: Contract | None = None,
) -> Pte:
    """Return the `.pte` of a physical program; its inputs and outputs are the program's, flat and in order.

    A 4-D input or output with channels-last strides keeps its logical shape and gets the dim order (0, 2, 3,
    1). Every other one is contiguous, also one whose order is ambiguous (C = 1, H = W = 1). Operators that
    XNNPACK lacks run as portable kernels between the delegates. A buffer that the program writes becomes one
    of ExecuTorch's mutable buffers. Its initial value is in the file, and each load of the method has its own
    copy.

    `constant_methods` become methods that return the text. `operators` are those that the delegates compute.
    `contract` is the file's contract, which a program with dynamic sizes needs: it names them.

    Raises `UnsupportedError` for a write to an input, and for an input or output that is not a tensor. It is
    raised too for a dynamic size that no contract names, and for an operator that neither XNNPACK nor the
    runtime's portable kernels know.

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> emitted = emit(torch.export.export(Double(), (torch.ones(2, 3),)))
    >>> emitted.delegates, emitted.outside, emitted.transposes
    (1, {}, 0)
    """
    table = None
    if program.range_constraints and contract is not None:
        plan, table = partition_for_ranges(program, operators, contract)
    else:
        plan = partition(program, operators)
    for node in plan.outside():
        reason = wrong_outside(node)
        if reason is None and table is not None and node.target in RESIZED_BY_MATMUL:
            reason = wrong_at_some_sizes(node, plan.tensors([node], table)[0].shape)
        if reason:
            raise _no_kernel(plan, [node], reason)
    build = build_outer(plan, table)

    def file_of(module: GraphModule, plan: Partition, texts: Mapping[str, str]) -> bytes:
        return _file(plan, module, texts, table)

    plan.constants.clear()  # the delegates have them, and weights of integers stand there as floats too
    data = file_of(GraphModule(build.root, build.graph), plan, constant_methods or {})
    delegates, outside = _calls(data)
    _require_kernels(outside, plan)
    exactly = None
    if is_quantized(program.graph_module):

        def load(module: GraphModule) -> Run:
            return method_of(file_of(module, replace(plan, state={}), {}))

        functional = turn_buffers_into_inputs(program)
        exact = exact_run(functional, build.graph, build.root, build.computed, load)
        exactly = CarriedState(exact, [*plan.state.values()])
    return Pte(data, delegates, outside, exactly, tuple(build.kernels), build.transposes)


def _file(
    plan: Partition, module: GraphModule, texts: Mapping[str, str], table: SizeTable | None = None
) -> bytes:
    """Return the file of a program around delegates. `table` has its dynamic sizes."""
    examples = tuple(plan.tensors(plan.inputs))
    outer = outer_program(module, examples, {} if table is None else table.ranges)
    if any(isinstance(node.target, torch._ops.OpOverload) for node in outer.graph.nodes):
        return _lower_outside(plan, outer, texts)
    return write_pte(turn_inputs_into_buffers(outer, plan.state), texts, keep_delegates=True)


# The finished file


def _lower_outside(plan: Partition, outer: ExportedProgram, texts: Mapping[str, str]) -> bytes:
    """Return the file of a program with portable operators.

    ExecuTorch fails in many ways on a missing operator.
    """
    try:
        # What the runtime has kernels for is not decomposed: that would take longer than all the rest.
        if not all(_has_kernel(node.target) for node in outer.graph.nodes if node.op == "call_function"):
            with patch.object(config, "do_not_emit_runtime_asserts", True):  # of sizes: ExecuTorch lacks pow
                outer = outer.run_decompositions(_default_decomposition_table())
        _add_in_pairs(outer.graph_module)
        edge = turn_inputs_into_buffers(_generate_edge_program(EDGE, outer), plan.state)
        return write_pte(write_in_place(edge), texts, keep_delegates=True)
    except Exception as error:
        raise _no_kernel(plan, plan.outside(), summary(error)) from error


def _has_kernel(target: Any) -> bool:
    """Return whether ExecuTorch has a kernel for what is called, as it has for each operator in core ATen."""
    if not isinstance(target, torch._ops.OpOverload):
        return target is not COND
    overload = "" if target._overloadname == "default" else f"{target._overloadname}_"
    name = f"{target.namespace}::{target._opname}.{overload}out"
    return torch.Tag.core in target.tags or name in _kernels()


def _kernels() -> set[str]:
    """Return the names of the runtime's kernels."""
    from executorch.runtime import Runtime

    return set(Runtime.get().operator_registry.operator_names)


def _add_in_pairs(module: GraphModule) -> None:
    """Write sums of sizes as additions of two, in place: ExecuTorch has no sum of more."""
    for part in (each for each in module.modules() if isinstance(each, GraphModule)):
        for node in part.graph.find_nodes(op="call_function", target=torch.sym_sum):
            with part.graph.inserting_before(node):
                total, *others = node.args[0]
                for other in others:
                    value = (total, other)
                    total = part.graph.call_function(operator.add, value)
                    numbers = (each.meta["val"] if isinstance(each, Node) else each for each in value)
                    set_value(total, operator.add(*numbers))
            node.replace_all_uses_with(total)
            part.graph.erase_node(node)


def _calls(pte: bytes) -> tuple[int, dict[str, int]]:
    """Return the number of delegates in the file, and the number of calls of each operator outside them."""
    forward = next(plan for plan in read_program(pte).execution_plan if plan.name == "forward")
    kernels = count_calls(forward)
    assert kernels.pop("", 0) == len(forward.delegates)  # a delegate's call runs no kernel
    return len(forward.delegates), dict(sorted(kernels.items()))


def _require_kernels(outside: Mapping[str, int], plan: Partition) -> None:
    """Refuse operators without a kernel in the runtime.

    The runtime would refuse to load the file, and name no node.
    """
    missing = set(outside) - _kernels()
    if missing:
        stems = [name.split("::")[1].split(".")[0].removesuffix("_copy") for name in missing]
        named = [node for node in plan.outside() if any(_stem(node) in s or s in _stem(node) for s in stems)]
        raise _no_kernel(
            plan, named or plan.outside(), f"no kernel in the runtime for {', '.join(sorted(missing))}"
        )


def _stem(node: Node) -> str:
    """Return the stem of an operator's name: `cumsum` of `aten.cumsum.default`."""
    return str(node.target).split(".")[1] if "." in str(node.target) else str(node.target)


def _no_kernel(plan: Partition, nodes: Sequence[Node], found: str) -> UnsupportedError:
    described = [f"{node.target} ({where(node)})" for node in nodes]
    # Several calls may write one operator.
    sites = {origin_of(node).get("site", node) for node in nodes}
    called = [node for node in plan.called if origin_of(node).get("site", node) in sites]
    reasons = {reason for node in called if not is_getitem(node) and (reason := reason_outside(node, plan))}
    return UnsupportedError(
        "one of the operators outside the delegates: " * (len(nodes) > 1) + "; ".join(described),
        found + f" (outside because: {'; '.join(sorted(reasons))})" * bool(reasons),
        "replace it in the module, or run that part in torch",
    )
