"""Choose the order of every tensor in an exported program, so that each operator handles its orders right.

The truth table or the delegate's layout says which orders are right. The planner finds the fewest bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.algebra.dim_order import DimOrder
from dimorder.executorch.layout import NHWC, PORTABLE, DelegateLayout
from dimorder.executorch.passes import label, label_of, mode_of, restride, size_hint
from dimorder.executorch.rewriting import (
    copy_program,
    insert_conversion,
    keep_buffer_orders,
    last_placeholder,
    relabel_copies,
    replace_strided_copies,
    retrace,
    written_buffers,
)
from dimorder.executorch.rules import Rules, compute, faults, name_of, results_of
from dimorder.graph.nodes import set_value, tensors_in
from dimorder.planning.problem import Buffer, Config, LayoutProblem, Step
from dimorder.planning.solve import solve
from dimorder.runtime.kernels import CONTIGUOUS, LAST, OTHER

# `mul.Tensor(x, 2)` gets its number as a tensor without dims, which channels-last kernels refuse (0x12). The
# overloads for numbers take any order.
_SCALAR_SIBLINGS = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder")


@dataclass(frozen=True)
class Legalize(ExportedProgramPassBase):  # type: ignore[misc]
    """A pass that inserts the fewest bytes of conversions after which every kernel handles its orders right.

    Use it in `to_edge_transform_and_lower(transform_passes=[...])`, or call it on an ATen program. Operators
    that `layout` lists belong to the delegate, all others to ExecuTorch's portable kernels. A number becomes
    an argument instead of a tensor where that saves a conversion. Constants are converted ahead of time. A
    program without faults is returned as it is.

    Attributes:
        layout: The orders that the delegate accepts.

    >>> x = torch.ones(1, 3, 5, 7).to(memory_format=torch.channels_last)
    >>> program = Legalize()(torch.export.export(torch.nn.Softmax(1), (x,))).exported_program
    >>> [node.target._opname for node in program.graph.nodes if node.op == "call_function"]
    ['_to_copy', 'softmax']
    """

    layout: DelegateLayout = PORTABLE

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        program = legalize_program(exported_program, self.layout)
        return ExportedProgramPassResult(program, program is not exported_program)


legalize = Legalize()


def legalize_program(
    program: ExportedProgram, layout: DelegateLayout = PORTABLE, chosen: Callable[[Node], bool] | None = None
) -> ExportedProgram:
    """Return the program with the conversions it needs; `chosen` are the nodes that the delegate takes."""
    program = keep_buffer_orders(relabel_copies(replace_strided_copies(program)))
    if not faults(program, layout, chosen):
        return program
    return _Problem(program, layout, chosen).rewritten()


class _Problem:
    """The layout problem of one program, and the program that its plan leads to."""

    def __init__(
        self, program: ExportedProgram, layout: DelegateLayout, chosen: Callable[[Node], bool] | None
    ) -> None:
        self.program = program
        self.rules = Rules(program, layout, chosen)
        self.written = {*written_buffers(program).values()}  # their new values have the order that they have
        self.buffer_of: dict[Node, int] = {}
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.rows: list[Node] = []  # the node of each step
        # by step and configuration: the overload to call instead
        self.siblings: dict[tuple[int, int], _Sibling] = {}
        for node in program.graph.nodes:
            self._add(node)

    def rewritten(self) -> ExportedProgram:
        problem = LayoutProblem(("bytes", "conversions"), tuple(self.buffers), tuple(self.steps), "complete")
        plan = solve(problem)
        program = copy_program(self.program)
        twin = dict(zip(self.program.graph.nodes, program.graph.nodes, strict=True))
        sources = [twin[node] for node in self.buffer_of]
        orders: dict[tuple[int, Any], Node] = {}  # each buffer, in each order in which it is needed
        replaced: dict[str, torch.Tensor] = {}
        for index, (choice, op, row) in enumerate(zip(plan.choice, self.steps, self.rows, strict=True)):
            node, config = twin[row], op.configs[choice]
            if row in self.rules.constants and node.meta["val"].dim() == 4:
                self._relay(program, row, node, config.writes[0], replaced)
            if (index, choice) in self.siblings:
                node.target, node.args = self.siblings[index, choice].call(node)
            for buffer, wanted in zip(op.reads, config.reads, strict=True):
                if (buffer, wanted) not in orders:
                    orders[buffer, wanted] = self._convert(program, sources[buffer], wanted)
                node.replace_input_with(sources[buffer], orders[buffer, wanted])
            orders |= {(b, one): sources[b] for b, one in zip(op.writes, config.writes, strict=True)}
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        return retrace(program, replaced)

    def _add(self, node: Node) -> None:
        if node.op == "output":
            for argument in dict.fromkeys(node.all_input_nodes):
                if argument in self.buffer_of:
                    letters = _promised(argument.meta["val"])
                    self._operator(node, [argument], [], [Config((one,), (), (0, 0)) for one in letters])
            return
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            free = node in self.rules.constants - self.written and _can_be_last(value)
            letters = (CONTIGUOUS, LAST) if free else (_letter(value),)
            self._buffer(node, value)
            self._operator(node, [], [node], [Config((), (one,), (0, 0)) for one in letters])
        elif node.op == "call_function" and self.rules.is_computed(node):
            self._add_call(node)

    def _add_call(self, node: Node) -> None:
        reads = [a for a in node.all_input_nodes if a in self.buffer_of]
        results = self._result_nodes(node)
        configs: list[Config] = []
        index = len(self.steps)
        siblings = [None] if self.rules.chosen(node) else [None, _sibling(self.program, node)]
        for letters in self._choices(reads):
            run = _Simulation(node, dict(zip(reads, letters, strict=True)))
            written = run.results()
            own = [_letter(value) for value in written or ()]
            if written is None or not {*own} <= {CONTIGUOUS, LAST}:
                continue
            for sibling in siblings:
                target, dropped = (sibling.target, sibling.dropped) if sibling else (None, None)
                if self.rules.accepts(node, run.operands(self.rules, dropped), results_of(written), target):
                    if sibling:
                        self.siblings[index, len(configs)] = sibling
                    writes = tuple(own[position] for position, _ in results)
                    configs.append(Config(letters, writes, (0, int(sibling is not None))))
                    break
        if not configs:
            operands = self.rules.operands(node, label)
            raise self.rules.fault(node, operands, results_of(node.meta["val"])).error()
        for position, result in results:
            self._buffer(result, tensors_in(node.meta["val"])[position])
        self._operator(node, reads, [result for _, result in results], configs)

    def _choices(self, reads: Sequence[Node]) -> Iterator[tuple[str, ...]]:
        """Return the operand orders that are worth pricing: one for all, or for all but the constants."""
        free = [a for a in reads if _can_be_last(a.meta["val"])]
        moving = [a for a in free if a not in self.rules.constants]
        seen = set()
        for last in ([], free, moving):
            letters = tuple(LAST if a in last else CONTIGUOUS for a in reads)
            if letters not in seen:
                seen.add(letters)
                yield letters

    def _buffer(self, node: Node, value: torch.Tensor) -> None:
        bytes_moved = value.element_size() * math.prod(map(size_hint, value.shape))
        self.buffer_of[node] = len(self.buffers)
        self.buffers.append(Buffer(node.name, (bytes_moved, 1)))

    def _operator(
        self, node: Node, reads: Sequence[Node], writes: Sequence[Node], configs: list[Config]
    ) -> None:
        self.rows.append(node)
        read, written = (tuple(self.buffer_of[a] for a in nodes) for nodes in (reads, writes))
        self.steps.append(Step(node.name, read, written, tuple(configs)))

    def _result_nodes(self, node: Node) -> list[tuple[int, Node]]:
        """Return (position among the tensors, node) for each result that others read."""
        if isinstance(node.meta["val"], torch.Tensor):
            return [(0, node)]
        return [
            (int(str(user.args[1])), user)
            for user in node.users
            if user.target is operator.getitem and isinstance(user.meta.get("val"), torch.Tensor)
        ]

    def _convert(self, program: ExportedProgram, source: Node, letter: Any) -> Node:
        order = _order_of(letter, source.meta["val"])
        with program.graph.inserting_after(last_placeholder(program, source)):
            return insert_conversion(program, source, order)

    def _relay(
        self, program: ExportedProgram, old: Node, node: Node, letter: Any, replaced: dict[str, torch.Tensor]
    ) -> None:
        """Give a constant the order that the plan chose."""
        order = _order_of(letter, node.meta["val"])
        target, tensor = _constant(program, old)
        if label(tensor) == order and label(node.meta["val"]) == order:
            return
        fresh = torch.empty_strided(tensor.shape, order.strides(tensor.shape), dtype=tensor.dtype)
        fresh.copy_(tensor.detach())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        replaced[target] = torch.nn.Parameter(fresh, False) if is_parameter else fresh
        set_value(node, restride(node.meta["val"], order))


class _Simulation:
    """One call on fake tensors in the given orders, as the edge dialect would run it."""

    def __init__(self, node: Node, letters: Mapping[Node, str]) -> None:
        self.node = node
        self.values = {
            a: restride(a.meta["val"], _order_of(one, a.meta["val"])) for a, one in letters.items()
        }

    def results(self) -> list[torch.Tensor] | None:
        read = lambda a: self.values.get(a, a.meta.get("val"))  # noqa: E731
        args = torch.fx.node.map_arg(self.node.args, read)
        kwargs = torch.fx.node.map_arg(self.node.kwargs, read)
        mode = next(map(mode_of, self.values.values()), None)
        if mode is None:
            return tensors_in(self.node.meta["val"])
        try:
            with mode:
                return tensors_in(compute(self.node.target, args, kwargs))
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            return None  # an order for which the operator itself has no meaning, such as a view of NHWC

    def operands(self, rules: Rules, dropped: Node | None) -> list[Any]:
        by_value = {id(a.meta["val"]): label(value) for a, value in self.values.items() if a is not dropped}
        found = rules.operands(self.node, lambda value: by_value.get(id(value), label(value)))
        if dropped is None:
            return found
        shape = tuple(dropped.meta["val"].shape)
        return [pair for pair in found if isinstance(pair, list) or pair[0] != shape]


@dataclass(frozen=True)
class _Sibling:
    """An overload for numbers, if the second operand is a number, in the tensor `dropped` or in no tensor."""

    target: Any
    number: int | float
    dropped: Node | None

    def call(self, node: Node) -> tuple[Any, tuple[Any, ...]]:
        return self.target, (node.args[0], self.number, *node.args[2:])


def _sibling(program: ExportedProgram, node: Node) -> _Sibling | None:
    name, _, overload = name_of(node).partition(".")
    if overload != "Tensor" or name not in _SCALAR_SIBLINGS or len(node.args) < 2:
        return None
    number, dropped = node.args[1], None
    if isinstance(number, Node):
        value, (_, constant) = number.meta.get("val"), _constant(program, number)
        is_real = constant is not None and not isinstance(constant, torch._subclasses.FakeTensor)
        if not isinstance(value, torch.Tensor) or value.dim() or not is_real:
            return None
        dropped, number = number, constant.item()
    if not isinstance(number, (int, float)) or not isinstance(node.args[0], Node):
        return None
    if isinstance(number, float) and not node.args[0].meta["val"].dtype.is_floating_point:
        return None  # its kernel would compute in another type
    edge = isinstance(node.target, EdgeOpOverload)
    packet = getattr(exir_ops.edge.aten if edge else torch.ops.aten, name)
    return _Sibling(packet.Scalar, number, dropped)


def _constant(program: ExportedProgram, node: Node) -> tuple[str, Any]:
    """Return the name and the value of the constant that a node stands for; None as value if it is none."""
    specs = program.graph_signature.input_specs
    target = next((spec.target for spec in specs if spec.arg.name == node.name), None) or ""
    return target, program.state_dict.get(target, program.constants.get(target))


def _letter(value: torch.Tensor) -> str:
    """Return the order of a value for the planner: channels-last as ExecuTorch labels it, else contiguous."""
    found = label(value)
    if found.is_contiguous:
        return CONTIGUOUS
    return LAST if found == NHWC else OTHER


def _order_of(letter: Any, value: torch.Tensor) -> DimOrder:
    """Return the order of a value that a letter of the plan stands for."""
    return NHWC if letter == LAST else DimOrder.contiguous(value.dim())


def _promised(value: torch.Tensor) -> tuple[str, ...]:
    """Return the orders that a result may have: its own, and one that is the same by sizes of 1."""
    if value.dim() == 4 and NHWC.equivalent(DimOrder.contiguous(4), tuple(value.shape)):
        return CONTIGUOUS, LAST
    return (LAST if label(value) == NHWC else CONTIGUOUS,)


def _can_be_last(value: torch.Tensor) -> bool:
    """Return whether channels-last differs from contiguous for the value, and ExecuTorch labels it so."""
    if value.dim() != 4:
        return False
    shape = tuple(value.shape)
    return DimOrder(*label_of(NHWC.strides(shape))) == NHWC
