"""Write a physical program as a .pte: delegates, portable operators between them, and the boundary.

Delegates read and write dense tensors. A 4-D channels-last input or output of the program is NHWC to them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.program._program import _generate_edge_program
from executorch.exir.schema import DelegateCall, KernelCall
from executorch.exir.tracer import _default_decomposition_table
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from dimorder.capture.integer_boundary import integer_type
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.branches import Branches
from dimorder.graph.exported import stateful
from dimorder.graph.integer_type import IntegerType
from dimorder.graph.quantized_constant import QUANTIZE
from dimorder.graph.source_lines import where
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.physical.keep_unit_dims import keep_unit_dims
from dimorder.sizes.merge_specializations import SizesError
from dimorder.sizes.symbolic import SizeTable
from dimorder.targets.delegate import EDGE, TO_NCHW, TO_NHWC, empty, lowered, written
from dimorder.targets.table import Table, View, is_getitem, is_permute, whole
from dimorder.targets.xnnpack import run
from dimorder.targets.xnnpack.backend import BACKEND, XnnWriter
from dimorder.targets.xnnpack.exact import Computed, exact_run
from dimorder.targets.xnnpack.graph import XnnValue
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.ops import OPERATORS, wrong_outside
from dimorder.targets.xnnpack.partition import Partition, partition
from dimorder.targets.xnnpack.ranges import Outer, Parts, for_ranges
from dimorder.verification.verify import Run

aten = torch.ops.aten

# For views whose results are not dense.
_COPIES: Mapping[Any, Any] = MappingProxyType(
    {
        aten.permute.default: aten.permute_copy.default,
        aten.expand.default: aten.expand_copy.default,
        SLICE_CONSTANT: aten.slice_copy.Tensor,
    }
)

# Portable kernels that read only 64-bit positions, and the operand that holds these.
_POSITIONS: Mapping[Any, int] = MappingProxyType(
    {
        aten.gather.default: 2,
        aten.scatter.src: 2,
        aten.scatter.value: 2,
        aten.scatter_add.default: 2,
    }
)


@dataclass(frozen=True)
class Emitted:
    """A `.pte` and facts about its content.

    `delegates` is the number of XNNPACK delegates, and `outside` the calls of each portable operator. Both
    are read from the finished file. `transposes` counts the conversions inside the delegates. `kernels` are
    the kernels that run inside them, for fixed sizes and float32. For a file with int8 kernels, `exactly`
    computes the same bits by other means. `float_islands` are its operators in float32, each with the reason.
    """

    pte: bytes
    delegates: int
    outside: dict[str, int]
    transposes: int
    exactly: Run | None = None
    float_islands: tuple[tuple[Node, str], ...] = ()
    kernels: tuple[KernelRun, ...] = ()


def emit(
    program: ExportedProgram,
    *,
    constant_methods: Mapping[str, str] | None = None,
    operators: Table = OPERATORS,
    others: Sequence[ExportedProgram] = (),
    ranges: tuple[Contract, SizeTable] | None = None,
) -> Emitted:
    """Return the `.pte` of a physical program; its inputs and outputs are the program's, flat and in order.

    A 4-D input or output with channels-last strides keeps its logical shape and gets the dim order (0, 2, 3,
    1). Every other one is contiguous, also one whose order is ambiguous (C = 1, H = W = 1). Operators that
    XNNPACK lacks run as portable kernels between the delegates. A buffer that the program writes becomes one
    of ExecuTorch's mutable buffers. Its initial value is in the file, and each load of the method has its own
    copy.

    `constant_methods` become methods that return the text. `operators` are those that the delegates compute.
    `others` are programs of the same plan at other sizes. `ranges` are the file's contract, and the table of
    sizes at these points.

    Raises `UnsupportedError` for a write to an input, for an input or output that is not a tensor, and for a
    dynamic size. It does so too for an operator that neither XNNPACK nor the runtime's portable kernels know.

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> emitted = emit(torch.export.export(Double(), (torch.ones(2, 3),)))
    >>> emitted.delegates, emitted.outside, emitted.transposes
    (1, {}, 0)
    """
    plan = partition(program, operators)
    for node in plan.outside():
        reason = wrong_outside(node)
        if reason:
            raise _no_kernel(plan, [node], reason)
    if ranges is not None:
        contract, table = ranges
        sizes = zip(*(key for key in table.known if len(set(key)) > 1), strict=True)
        programs = [keep_unit_dims(*each) for each in zip([program, *others], map(set, sizes), strict=True)]
        return _for_ranges(programs, contract, table, constant_methods or {}, operators)
    build = _outer(plan)
    module = GraphModule(build.root, build.graph)
    pte = _file(plan, module, constant_methods or {})
    delegates, outside = _calls(pte)
    _require_kernels(outside, plan)
    exactly = None
    if build.is_quantised:

        def run_module(module: GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
            return run(_file(plan, module, {}), inputs)

        exactly = exact_run(program, build.graph, build.root, build.computed, run_module)
    islands = tuple(build.float_islands.items())
    return Emitted(pte, delegates, outside, build.transposes, exactly, islands, tuple(build.kernels))


def _for_ranges(
    programs: Sequence[ExportedProgram],
    contract: Contract,
    table: SizeTable,
    texts: Mapping[str, str],
    operators: Table,
) -> Emitted:
    """Return one file for all sizes.

    An operator that XNNPACK cannot compute at all of them runs outside, if correct there.
    """
    outside: set[str] = set()
    while True:
        plans = [partition(program, operators, outside) for program in programs]
        builds = [_outer(plan, bare=True) for plan in plans]
        outers = [Outer(build.root, build.graph, build.values, build.delegates) for build in builds]
        try:
            module, symbols = for_ranges(outers, contract, table)
            break
        except SizesError as error:
            node = error.node
            if node.name in outside or node not in plans[0].stage or wrong_outside(node):
                raise
            outside.add(node.name)
    pte = _file(plans[0], module, texts, symbols)
    delegates, kernels = _calls(pte)
    _require_kernels(kernels, plans[0])
    return Emitted(pte, delegates, kernels, builds[0].transposes)


def _file(plan: Partition, module: GraphModule, texts: Mapping[str, str], symbols: Any = None) -> bytes:
    outer = torch.export.export(module, plan.example_inputs(), dynamic_shapes=symbols)
    if plan.outside() or outer.graph.find_nodes(op="call_function", target=aten.clone.default):
        return _lower_outside(plan, outer, texts)
    return written(stateful(outer, plan.state), texts, keep_delegates=True)


# The delegates


def _delegate(
    plan: Partition, group: Sequence[Node]
) -> tuple[list[Node], list[Node], XnnWriter, dict[Node, View[XnnValue]]]:
    """Write the delegate of `group`.

    Returns the nodes that it reads, the nodes that it returns, its graph, and the place in that graph of the
    integers of the quantize nodes.
    """
    members = set(group)
    operands: dict[Node, Any] = dict(plan.constants)
    writer, read = XnnWriter(), list[Node]()

    def fetch(node: Node) -> None:
        """Fetch an operand from outside the group. A permute is redone here, where it takes no memory."""
        if node in operands or node in members:
            return
        if is_permute(node) and plan.is_computed(node):
            fetch(node.all_input_nodes[0])
            operands[node] = plan.operators.build(writer, node, operands.__getitem__)
        else:
            read.append(node)
            operands[node] = _read(writer, node, plan)

    for node in group:
        for operand in node.all_input_nodes:
            fetch(operand)
    given = [node for node in group if isinstance(node.meta["val"], Tensor) and _leaves(plan, node, members)]
    for node in group:
        writer.origin = node
        if is_getitem(node):
            operands[node] = operands[node.args[0]][node.args[1]]  # type: ignore[index]  # its source is a list
        else:
            operands[node] = plan.operators.build(writer, node, operands.__getitem__)
    for node in given:
        view = operands[node]
        writer.output(writer.dense(view.permute(TO_NHWC) if plan.is_nhwc(node) else view))
    writer.finish()
    return read, given, writer, {node: operands[node] for node in group if node.target is QUANTIZE}


def _read(writer: XnnWriter, node: Node, plan: Partition) -> View[XnnValue]:
    value = node.meta["val"]
    of: IntegerType | torch.dtype | None = value.dtype
    rounded = node not in plan.inputs and value.is_floating_point()
    if not value.is_floating_point():
        of = integer_type(node)
        assert of is not None, f"nothing says what the integers of {node} stand for"
    if not plan.is_nhwc(node):
        return whole(writer.input(value.shape, of, is_rounded=rounded))
    shape = [value.shape[d] for d in TO_NHWC]
    return whole(writer.input(shape, of, is_rounded=rounded)).permute(TO_NCHW)


def _leaves(plan: Partition, node: Node, members: set[Node]) -> bool:
    """Return whether anything outside reads a value as it is. Another delegate redoes a permute itself."""
    for user in node.users:
        if user in members:
            if is_permute(user) and _is_fetched(plan, user, members):
                return True
        elif not (is_permute(node) and plan.is_computed(user)):
            return True
    return False


def _is_fetched(plan: Partition, permute: Node, members: set[Node]) -> bool:
    """Return whether another delegate redoes a permute, and so reads the permute's operand."""
    return any(
        _is_fetched(plan, user, members) if user in members and is_permute(user) else plan.is_computed(user)
        for user in permute.users
        if user not in members or is_permute(user)
    )


# The program around the delegates


def _outer(plan: Partition, bare: bool = False) -> _OuterBuilder:
    """Return the program as calls of delegates and portable operators, and the facts about its delegates."""
    root, graph = torch.nn.Module(), Graph()
    values: dict[Node, Node] = {node: graph.placeholder(node.name) for node in plan.inputs}
    build = _OuterBuilder(plan, root, graph, values, bare)
    for stage in sorted(set(plan.stage.values())):
        group = [node for node, s in plan.stage.items() if s == stage]
        build.delegate(group) if stage % 2 == 0 else build.outside(group)
    results = [build.result(node) for node in plan.outputs]
    for i, result in enumerate(results[: len(plan.state)]):
        if result.op == "get_attr":  # ExecuTorch would mistake it for the buffer that is written
            results[i] = graph.call_function(aten.clone.default, (result,))
    graph.output(tuple(results))
    return build


@dataclass
class _OuterBuilder:
    """Writes the calls of delegates, and one call for each node that runs outside, on dense tensors.

    Edge dialect has copies instead of views. A permute is a copy there, so a clone that makes a view dense
    has nothing left to do.
    """

    plan: Partition
    root: torch.nn.Module
    graph: Graph
    values: dict[Node, Node]
    bare: bool = False  # without the content of its delegates
    transposes: int = 0
    kernels: list[KernelRun] = field(default_factory=list)
    is_quantised: bool = False
    computed: dict[str, Computed] = field(default_factory=dict)
    delegates: dict[str, Parts] = field(default_factory=dict)
    float_islands: dict[Node, str] = field(default_factory=dict)
    long: dict[Node, Node] = field(default_factory=dict)

    def delegate(self, group: Sequence[Node]) -> None:
        read, given, writer, integers = _delegate(self.plan, group)
        self.transposes += writer.transposes
        self.kernels += writer.kernels() if writer.is_of_float32 else []
        self.is_quantised |= writer.is_quantised
        self.float_islands.update(writer.islands())
        name = f"delegate_{len(self.delegates)}"
        reads, gives = (
            [empty(node.meta["val"], self.plan.is_nhwc(node)) for node in nodes] for nodes in (read, given)
        )
        self.delegates[name] = reads, gives, writer
        if not self.bare:
            self._attach(name, read, given, integers)
        results = self.graph.call_module(name, tuple(self.values[node] for node in read))
        for position, node in enumerate(given):
            self.values[node] = self.graph.call_function(operator.getitem, (results, position))

    def _attach(
        self, name: str, read: Sequence[Node], given: Sequence[Node], integers: dict[Node, View[XnnValue]]
    ) -> None:
        """Put the delegate of that name into the program."""
        reads, gives, writer = self.delegates[name]
        self.root.add_module(name, lowered(BACKEND, reads, gives, *writer.serialise()))
        model, outputs = writer.model(), list(writer.outputs)
        more = [index for index in model.rounded if index not in outputs]

        def telling() -> LoweredBackendModule:
            told = [torch.empty(model.shapes[index], dtype=model.dtype(index)) for index in more]
            return lowered(BACKEND, reads, [*gives, *told], *writer.serialise(more))

        nhwc = [*map(self.plan.is_nhwc, read)], [*map(self.plan.is_nhwc, given)]
        rounded = [(outputs + more).index(index) for index in model.rounded]
        self.computed[name] = Computed(model, nhwc, telling, rounded, integers)

    def outside(self, group: Sequence[Node]) -> None:
        for node in group:
            arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), self.value)
            # A value that a call writes back at its end needs its own memory. So does the value that it
            # overwrites.
            is_own = bool(self.plan.state) and node in self.plan.outputs
            if node.target is aten.clone.default and not is_own:
                self.values[node] = self.value(node.all_input_nodes[0])
                continue
            at = _POSITIONS.get(node.target)
            if at is not None:
                arguments = (*arguments[:at], self._long(node.args[at]), *arguments[at + 1 :])
            target = _COPIES.get(node.target, node.target)
            value = self.graph.call_function(target, arguments, keywords)
            if is_getitem(node) and isinstance(node.all_input_nodes[0].target, Branches):
                # The results of the next branches would overwrite the results of these branches.
                value = self.graph.call_function(aten.clone.default, (value,))
            self.values[node] = value

    def _long(self, positions: Any) -> Node:
        """Return the same positions in 64 bits, converted once for all readers."""
        if positions.meta["val"].dtype == torch.int64:
            return self.value(positions)
        if positions not in self.long:
            cast: Any = aten._to_copy.default
            self.long[positions] = (
                self._constant(self.plan.constants[positions].long())
                if positions in self.plan.constants
                else self.graph.call_function(cast, (self.value(positions),), {"dtype": torch.int64})
            )
        return self.long[positions]

    def value(self, node: Node) -> Node:
        """Return the value of `node` for a portable kernel, which is right only in contiguous order."""
        assert node in self.plan.constants or not self.plan.is_nhwc(node), f"{node} lies channels-last"
        return self.result(node)

    def result(self, node: Node) -> Node:
        if node not in self.values and node in self.plan.constants:
            self.values[node] = self._constant(self.plan.constants[node])
        return self.values[node]

    def _constant(self, value: Tensor) -> Node:
        name = f"constant_{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
        return self.graph.get_attr(name)


# The finished file


def _lower_outside(plan: Partition, outer: ExportedProgram, texts: Mapping[str, str]) -> bytes:
    """Return the file of a program with portable operators.

    ExecuTorch fails in many ways on a missing operator.
    """
    try:
        # A program in core ATen is not decomposed, since that would take longer than all the rest.
        if not all(torch.Tag.core in getattr(node.target, "tags", ()) for node in plan.outside()):
            outer = outer.run_decompositions(_default_decomposition_table())
        return written(stateful(_generate_edge_program(EDGE, outer), plan.state), texts, keep_delegates=True)
    except Exception as error:
        summary = (str(error).strip().splitlines() or [""])[0]
        raise _no_kernel(plan, plan.outside(), f"{type(error).__name__}: {summary}") from error


def _calls(pte: bytes) -> tuple[int, dict[str, int]]:
    """Return the number of delegates in the file, and the number of calls of each operator outside them."""
    program = deserialize_pte_binary(pte).program
    forward = next(plan for plan in program.execution_plan if plan.name == "forward")
    instructions = [i.instr_args for chain in forward.chains for i in chain.instructions]
    kernels = [forward.operators[i.op_index] for i in instructions if isinstance(i, KernelCall)]
    outside = Counter(f"{kernel.name}.{kernel.overload}".rstrip(".") for kernel in kernels)
    assert sum(isinstance(i, DelegateCall) for i in instructions) == len(forward.delegates)
    return len(forward.delegates), dict(sorted(outside.items()))


def _require_kernels(outside: Mapping[str, int], plan: Partition) -> None:
    """Refuse operators without a kernel in the runtime.

    The runtime would refuse to load the file, and name no node.
    """
    from executorch.runtime import Runtime

    missing = set(outside) - set(Runtime.get().operator_registry.operator_names)
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
    reasons = {reason for node in nodes if (reason := plan.operators.supports(node, plan.constants))}
    return UnsupportedError(
        "one of the operators outside the delegates: " * (len(nodes) > 1) + "; ".join(described),
        f"{found} (outside because: {'; '.join(sorted(reasons))})",
        "replace it in the module, or run that part in torch",
    )
