"""Decides the order of every tensor in an exported program so that each operator gets what it handles right.

What an operator handles right is what the truth table of kernels says, or the delegate's layout; where an
order must change, the planner chooses the places: the fewest bytes, proven.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.operator.convert import to_out_variant
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError
from dimorder.executorch.layout import NHWC, PORTABLE, DelegateLayout
from dimorder.executorch.passes import (
    DIM_ORDER_OPERATORS,
    TO_DIM_ORDER,
    format_of,
    label,
    mode_of,
    restride,
    tensors,
)
from dimorder.planning.problem import Buffer, Config, LayoutProblem, Operator
from dimorder.planning.solve import solve
from dimorder.program.contract import describe
from dimorder.runtime.kernels import CONTIGUOUS, LAST, LOWER, KernelTable, signature

_CONVERSIONS = frozenset(
    {*DIM_ORDER_OPERATORS, torch.ops.aten._to_copy.default, torch.ops.aten.clone.default}
)
_COPY_STRIDED = torch.ops.prims.copy_strided.default
# `mul.Tensor(x, 2)` gets its number as a tensor without dims, which channels-last kernels refuse (0x12);
# their siblings for numbers take any order.
_SCALAR_SIBLINGS = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder")


@dataclass(frozen=True)
class Fault:
    """An operator that gets orders which its kernel, or its delegate, does not handle."""

    operator: str
    node: str
    where: str
    found: str
    accepted: str
    verdict: str
    kind: str

    def error(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.operator} ({', '.join(filter(None, [self.node, self.where]))})",
            f"{self.found}: {self.verdict}",
            f"it takes {self.accepted}: lower with legalise in transform_passes, or with guarded(...)",
        )


@dataclass(frozen=True)
class Legalise(ExportedProgramPassBase):  # type: ignore[misc]
    """Inserts the fewest bytes of conversions after which every kernel handles its orders right.

    A pass for `to_edge_transform_and_lower(transform_passes=[...])`, and callable on an ATen program too.
    Operators that `layout` lists are the delegate's, all others ExecuTorch's portable kernels. Numbers become
    arguments instead of tensors where that saves a conversion; constants are re-laid ahead of time.
    A program that needs nothing is returned as it is.
    """

    layout: DelegateLayout = PORTABLE

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        program = legalised(exported_program, self.layout)
        return ExportedProgramPassResult(program, program is not exported_program)


legalise = Legalise()


def legalised(
    program: ExportedProgram, layout: DelegateLayout = PORTABLE, chosen: Callable[[Node], bool] | None = None
) -> ExportedProgram:
    """The program with the conversions that it needs; itself where it needs none. See `Legalise`.

    `chosen` says which nodes the delegate takes, by default those that `layout` lists.
    """
    program = _without_strided_copies(program)
    if not faults(program, layout, chosen):
        return program
    return _Problem(program, layout, chosen).rewritten()


def faults(
    program: ExportedProgram, layout: DelegateLayout = PORTABLE, chosen: Callable[[Node], bool] | None = None
) -> list[Fault]:
    """What a program calls in orders that are not handled right, in program order.

    `chosen` says which nodes the delegate takes, by default those that `layout` lists.
    """
    rules = _Rules(program, layout, chosen)
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not rules.is_computed(node):
            continue
        operands = rules.operands(node, label)
        if not rules.accepts(node, operands, _results(node.meta.get("val"))):
            found.append(rules.fault(node, operands, _results(node.meta.get("val"))))
    return found


class _Rules:
    """What each node of one program accepts."""

    def __init__(
        self, program: ExportedProgram, layout: DelegateLayout, chosen: Callable[[Node], bool] | None = None
    ) -> None:
        kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
        self.table = KernelTable.shipped()
        self.layout = layout
        self._chosen = chosen or (lambda node: name_of(node) in layout.operators)
        self.constants = {
            node
            for node in program.graph.nodes
            if node.op == "placeholder" and kinds.get(node.name) not in (None, InputKind.USER_INPUT)
        }

    def chosen(self, node: Node) -> bool:
        """Whether the delegate takes the node."""
        return self._chosen(node) and self.layout.takes(name_of(node), rank_of(node))

    def is_computed(self, node: Node) -> bool:
        """Whether the node is an operator over tensors, not a relabelled result or a symbol."""
        return isinstance(node.target, (EdgeOpOverload, torch._ops.OpOverload)) and any(
            True for _ in tensors(node.meta.get("val"))
        )

    def operands(self, node: Node, order_of: Callable[[Any], DimOrder]) -> list[Any]:
        """The tensor arguments as `signature` wants them; of a delegate's nodes without its constants."""
        own = self.chosen(node)

        def read(argument: Any) -> Any:
            if isinstance(argument, Node):
                value = argument.meta.get("val")
                if not isinstance(value, torch.Tensor) or (own and argument in self.constants):
                    return None
                return tuple(value.shape), tuple(order_of(value))
            if isinstance(argument, (list, tuple)):
                items = [item for item in map(read, argument) if item is not None]
                return items or None
            return None

        arguments = [*node.args, *node.kwargs.values()]
        return [found for found in map(read, arguments) if found is not None]

    def accepts(self, node: Node, operands: list[Any], results: list[Any]) -> bool:
        if node.target in _CONVERSIONS:
            return True
        if self.chosen(node):
            return self._delegate_accepts(node, operands)
        rank, letters = signature(operands + results)
        if set(letters) <= {CONTIGUOUS, LOWER}:
            return True
        kernel = kernel_name(node)
        return kernel is not None and self.table.accepts("portable", kernel, rank, letters)

    def _delegate_accepts(self, node: Node, operands: list[Any]) -> bool:
        """Inputs alone: what a result is labelled inside a partition means nothing."""
        accepted = self.layout.of_operator(name_of(node))
        seen = set()
        for shape, dims in _pairs(operands):
            order = DimOrder(*dims)
            fits = {one for one in accepted if len(one) == len(shape) and one.equivalent(order, shape)}
            if not fits if len(shape) == 4 else not order.is_contiguous:
                return False
            seen.add(frozenset(fits) or None)
        return (
            not self.layout.alike
            or len(seen - {None}) < 2
            or bool(frozenset.intersection(*filter(None, seen)))
        )

    def fault(self, node: Node, operands: list[Any], results: list[Any]) -> Fault:
        rank, letters = signature(operands + results)
        orders = list(dict.fromkeys(describe(DimOrder(*dims)) for _, dims in _pairs(operands)))
        verdict = self.table.verdict("portable", kernel_name(node) or "", rank, letters)
        if self.chosen(node):
            accepted = ", ".join(map(describe, self.layout.of_operator(name_of(node))))
            said = f"not an order that {self.layout.name} takes"
        else:
            accepted = describe(DimOrder.contiguous(rank))
            said = {
                "wrong": "its kernel returns wrong numbers, silently",
                "refused": "its kernel refuses them",
            }.get(verdict or "", "its kernel was never seen to handle them")
        found = f"{', '.join(orders)} in, {', '.join(describe(DimOrder(*dims)) for _, dims in results)} out"
        return Fault(name_of(node), node.name, source_line(node), found, accepted, said, verdict or "unknown")


class _Problem:
    """The layout problem of one program, and the program that its plan amounts to."""

    def __init__(
        self, program: ExportedProgram, layout: DelegateLayout, chosen: Callable[[Node], bool] | None
    ) -> None:
        self.program = program
        self.rules = _Rules(program, layout, chosen)
        self.buffer_of: dict[Node, int] = {}
        self.buffers: list[Buffer] = []
        self.operators: list[Operator] = []
        self.rows: list[Node] = []  # the node of each operator
        self.scalars: dict[tuple[int, int], Any] = {}  # (operator, configuration) → its sibling for numbers
        for node in program.graph.nodes:
            self._add(node)

    def rewritten(self) -> ExportedProgram:
        problem = LayoutProblem(
            ("bytes", "conversions"), tuple(self.buffers), tuple(self.operators), "complete"
        )
        plan = solve(problem)
        program = copied(self.program)
        twin = dict(zip(self.program.graph.nodes, program.graph.nodes, strict=True))
        made: dict[tuple[int, Any], Node] = {}
        replaced: dict[str, torch.Tensor] = {}
        for index, (choice, op) in enumerate(zip(plan.choice, self.operators, strict=True)):
            node = twin[self.rows[index]]
            config = op.configs[choice]
            if (
                node.op == "placeholder"
                and node.meta["val"].dim() == 4
                and self._is_constant(self.rows[index])
            ):
                self._relay(program, self.rows[index], node, config.writes[0], replaced)
            if (index, choice) in self.scalars:
                target, args = self.scalars[index, choice]
                node.target, node.args = target, args(node)
            for buffer, wanted in zip(op.reads, config.reads, strict=True):
                source = self._source(twin, buffer)
                produced = self._produced(buffer, plan.choice)
                if wanted == produced:
                    continue
                if (buffer, wanted) not in made:
                    made[buffer, wanted] = self._convert(program, source, wanted)
                node.replace_input_with(source, made[buffer, wanted])
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        return _retraced(program, replaced)

    def _add(self, node: Node) -> None:
        if node.op == "output":
            for argument in dict.fromkeys(node.all_input_nodes):
                if argument in self.buffer_of:
                    wanted = LAST if label(argument.meta["val"]) == NHWC else CONTIGUOUS
                    self._operator(node, [argument], [], [Config((wanted,), (), (0, 0))])
            return
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            letters = [_letter(value)]
            if self._is_constant(node) and _can_be_last(value):
                letters = [CONTIGUOUS, LAST]
            self._buffer(node, value)
            self._operator(node, [], [node], [Config((), (one,), (0, 0)) for one in letters])
        elif node.op == "call_function" and node.target is operator.getitem:
            return
        elif node.op == "call_function" and self.rules.is_computed(node):
            self._add_call(node)

    def _add_call(self, node: Node) -> None:
        reads = [a for a in node.all_input_nodes if a in self.buffer_of]
        results = self._result_nodes(node)
        configs: list[Config] = []
        index = len(self.operators)
        for letters in self._choices(node, reads):
            run = _Simulation(node, dict(zip(reads, letters, strict=True)))
            written = run.results()
            if written is None:
                continue
            own = [_letter(value) for value in written]
            for scalar in (False, True):
                sibling = (
                    _scalar_sibling(self.program, node) if scalar and not self.rules.chosen(node) else None
                )
                if scalar and sibling is None:
                    continue
                target, args, dropped = sibling or (node.target, None, None)
                pairs, made = run.operands(self.rules, dropped), _results(written)
                fits = self._takes(target, pairs + made) if scalar else self.rules.accepts(node, pairs, made)
                if not fits or not all(one in (CONTIGUOUS, LAST) for one in own):
                    continue
                if scalar:
                    self.scalars[index, len(configs)] = (target, args)
                writes = [own[position] for position, _ in results]
                configs.append(Config(tuple(letters), tuple(writes), (0, int(scalar))))
                break
        if not configs:
            operands = self.rules.operands(node, label)
            raise self.rules.fault(node, operands, _results(node.meta["val"])).error()
        for position, result in results:
            self._buffer(result, list(tensors(node.meta["val"]))[position])
        self._operator(node, reads, [result for _, result in results], configs)

    def _choices(self, node: Node, reads: Sequence[Node]) -> Iterator[tuple[str, ...]]:
        """Orders of the operands worth a look: all alike, or all but the constants alike."""
        free = [a for a in reads if _can_be_last(a.meta["val"])]
        moving = [a for a in free if a not in self.rules.constants]
        seen = set()
        for last in ([], free, moving):
            letters = tuple(LAST if a in last else CONTIGUOUS for a in reads)
            if letters not in seen:
                seen.add(letters)
                yield letters

    def _takes(self, target: Any, pairs: list[Any]) -> bool:
        kernel = _out_variant(_overload(target))
        return kernel is not None and self.rules.table.accepts("portable", kernel, *signature(pairs))

    def _buffer(self, node: Node, value: torch.Tensor) -> None:
        bytes_moved = int(value.element_size())
        for size in value.shape:
            bytes_moved *= _hint(size)
        self.buffer_of[node] = len(self.buffers)
        self.buffers.append(Buffer(node.name, (bytes_moved, 1)))

    def _operator(
        self, node: Node, reads: Sequence[Node], writes: Sequence[Node], configs: list[Config]
    ) -> None:
        self.rows.append(node)
        self.operators.append(
            Operator(
                node.name,
                tuple(self.buffer_of[a] for a in reads),
                tuple(self.buffer_of[a] for a in writes),
                tuple(configs),
            )
        )

    def _result_nodes(self, node: Node) -> list[tuple[int, Node]]:
        """(position among the tensors, node) of what others read."""
        if isinstance(node.meta["val"], torch.Tensor):
            return [(0, node)]
        return [
            (int(str(user.args[1])), user)
            for user in node.users
            if user.target is operator.getitem and isinstance(user.meta.get("val"), torch.Tensor)
        ]

    def _is_constant(self, node: Node) -> bool:
        return node in self.rules.constants

    def _source(self, twin: Mapping[Node, Node], buffer: int) -> Node:
        return twin[next(node for node, index in self.buffer_of.items() if index == buffer)]

    def _produced(self, buffer: int, choice: Sequence[int]) -> Any:
        for op, chosen in zip(self.operators, choice, strict=True):
            if buffer in op.writes:
                return op.configs[chosen].writes[op.writes.index(buffer)]
        raise AssertionError(buffer)

    def _convert(self, program: ExportedProgram, source: Node, letter: Any) -> Node:
        order = NHWC if letter == LAST else DimOrder.contiguous(source.meta["val"].dim())
        with program.graph.inserting_after(_last_of_placeholders(program, source)):
            return _conversion(program, source, order)

    def _relay(
        self, program: ExportedProgram, old: Node, node: Node, letter: Any, replaced: dict[str, torch.Tensor]
    ) -> None:
        """Give a constant the order that the plan wants."""
        order = NHWC if letter == LAST else DimOrder.contiguous(4)
        spec = next(s for s in program.graph_signature.input_specs if s.arg.name == old.name)
        store = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = store[spec.target]
        if label(tensor) == order and label(node.meta["val"]) == order:
            return
        fresh = torch.empty_strided(tensor.shape, order.strides(tensor.shape), dtype=tensor.dtype)
        fresh.copy_(tensor.detach())
        replaced[spec.target] = (
            torch.nn.Parameter(fresh, False) if isinstance(tensor, torch.nn.Parameter) else fresh
        )
        node.meta["val"] = restride(node.meta["val"], order)


class _Simulation:
    """One call on fake tensors whose orders are given, as the edge dialect would run it."""

    def __init__(self, node: Node, letters: Mapping[Node, str]) -> None:
        self.node = node
        self.values = {
            a: restride(a.meta["val"], NHWC if one == LAST else DimOrder.contiguous(a.meta["val"].dim()))
            for a, one in letters.items()
        }

    def results(self) -> list[torch.Tensor] | None:
        target = _functional(self.node.target)
        read = lambda a: self.values.get(a, a.meta.get("val"))  # noqa: E731
        args = torch.fx.node.map_arg(self.node.args, read)
        kwargs = torch.fx.node.map_arg(self.node.kwargs, read)
        mode = next(map(mode_of, self.values.values()), None)
        if mode is None:
            return list(tensors(self.node.meta["val"]))
        try:
            with mode:
                return list(tensors(target(*args, **kwargs)))
        except (RuntimeError, AssertionError, NotImplementedError):
            return None  # an order for which the operator itself has no meaning, such as a view of NHWC

    def operands(self, rules: _Rules, dropped: Node | None) -> list[Any]:
        by_value = {id(a.meta["val"]): label(value) for a, value in self.values.items() if a is not dropped}
        found = rules.operands(self.node, lambda value: by_value.get(id(value), label(value)))
        if dropped is None:
            return found
        shape = tuple(dropped.meta["val"].shape)
        return [pair for pair in found if isinstance(pair, list) or pair[0] != shape]


def name_of(node: Node) -> str:
    """The ATen name of a node's operator, as in `torch.ops.aten`: "add.Tensor", "convolution"."""
    target = _overload(node.target)
    name = str(target).removeprefix("aten.").removesuffix(".default")
    head, _, overload = name.partition(".")
    head = head.removesuffix("_copy") if head not in ("_to_copy", "_to_dim_order_copy") else head
    return f"{head}.{overload}" if overload else head


def rank_of(node: Node) -> int:
    """The highest rank of the tensors that a node reads and writes."""
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    return max((value.dim() for value in tensors(values)), default=0)


def kernel_name(node: Node) -> str | None:
    """The portable kernel that a node calls, as a .pte names it: "aten::add.out"."""
    return _out_variant(_functional(node.target))


def source_line(node: Node) -> str:
    """Where the call stands in the network's own code, or else in torch's, as far as it is known."""
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/torch/" not in line] or lines
    return own[-1].replace('File "', "").replace('", line ', ":").split(",")[0] if own else ""


@functools.cache
def _out_variant(target: Any) -> str | None:
    try:
        found, _ = to_out_variant(target)
    except (RuntimeError, TypeError, KeyError, AssertionError):
        return None
    name: str = found._schema.name
    return f"{name}.{found._schema.overload_name}" if found._schema.overload_name else name


def _overload(target: Any) -> Any:
    return target._op if isinstance(target, EdgeOpOverload) else target


@functools.cache
def _functional(target: Any) -> Any:
    """The overload that the edge dialect calls: views as copies."""
    target = _overload(target)
    packet = getattr(torch.ops.aten, f"{target._schema.name.removeprefix('aten::')}_copy", None)
    is_view = any(result.alias_info is not None for result in target._schema.returns)
    return getattr(packet, target._overloadname, target) if is_view and packet is not None else target


def _scalar_sibling(program: ExportedProgram, node: Node) -> Any:
    """(overload for numbers, its arguments, the operand that goes) where the second operand is one number."""
    name, _, overload = name_of(node).partition(".")
    if overload != "Tensor" or name not in _SCALAR_SIBLINGS or len(node.args) < 2:
        return None
    number, dropped = node.args[1], None
    if isinstance(number, Node):
        value = number.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dim() or not _real_constant(program, number):
            return None
        dropped, number = number, _real_constant(program, number)[0].item()
    if not isinstance(number, (int, float)) or not isinstance(node.args[0], Node):
        return None
    if isinstance(number, float) and not node.args[0].meta["val"].dtype.is_floating_point:
        return None  # its kernel would compute in another type
    edge = isinstance(node.target, EdgeOpOverload)
    packet = getattr(exir_ops.edge.aten if edge else torch.ops.aten, name)
    return packet.Scalar, lambda twin: (twin.args[0], number, *twin.args[2:]), dropped


def _real_constant(program: ExportedProgram, node: Node) -> list[torch.Tensor]:
    spec = next((s for s in program.graph_signature.input_specs if s.arg.name == node.name), None)
    store = {**program.state_dict, **program.constants}
    tensor = store.get(spec.target) if spec is not None and spec.target else None
    is_real = isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch._subclasses.FakeTensor)
    return [tensor] if is_real and isinstance(tensor, torch.Tensor) else []


def has_orders(program: ExportedProgram) -> bool:
    """Whether any tensor of the program is not contiguous as ExecuTorch labels it."""
    return any(
        not label(value).is_contiguous
        for node in program.graph.nodes
        for value in tensors(node.meta.get("val"))
    )


def _pairs(operands: list[Any]) -> Iterator[Any]:
    for operand in operands:
        yield from operand if isinstance(operand, list) else [operand]


def _results(value: Any) -> list[Any]:
    return [(tuple(one.shape), tuple(label(one))) for one in tensors(value)]


def _letter(value: torch.Tensor) -> str:
    """The order of a value for the planner: channels-last as ExecuTorch labels it, else contiguous."""
    found = label(value)
    if found.is_contiguous:
        return CONTIGUOUS
    return LAST if found == NHWC else "X"


def _can_be_last(value: torch.Tensor) -> bool:
    """Whether channels-last is an order of its own for the value, and gets the label of it."""
    if value.dim() != 4:
        return False
    shape = tuple(value.shape)
    return DimOrder(*label_of(NHWC.strides(shape))) == NHWC


def label_of(steps: Sequence[Any]) -> list[int]:
    return sorted(range(len(steps)), key=lambda dim: -_hint(steps[dim]))


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 1)


def copied(program: ExportedProgram) -> ExportedProgram:
    graph = copy.deepcopy(program.graph_module)
    return ExportedProgram(
        root=graph,
        graph=graph.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=[program.verifier],
    )


def _retraced(program: ExportedProgram, replaced: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """The program with its new constants, and the strides of every value as they are now."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
            continue
        if not any(True for _ in tensors(node.meta.get("val"))):
            continue
        read = lambda a: a.meta.get("val")  # noqa: E731
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), read)
        fakes = [v for a in node.all_input_nodes for v in tensors(a.meta.get("val"))]
        if fakes:
            with mode_of(fakes[0]):
                node.meta["val"] = _functional(node.target)(*args, **kwargs)
    results = program.graph.output_node().args[0]
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, Node) and hasattr(spec.arg, "name"):
            spec.arg.name = result.name
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict={name: replaced.get(name, tensor) for name, tensor in program.state_dict.items()},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: replaced.get(name, value) for name, value in program.constants.items()},
        verifiers=[program.verifier],
    )


def _without_strided_copies(program: ExportedProgram) -> ExportedProgram:
    """The program with conversions instead of `prims.copy_strided`, which some decompositions leave.

    That has no kernel; what it says is an order.
    """
    if not any(_overload(node.target) == _COPY_STRIDED for node in program.graph.nodes):
        return program
    program = copied(program)
    for node in [node for node in program.graph.nodes if _overload(node.target) == _COPY_STRIDED]:
        order = label(node.meta["val"])
        with program.graph.inserting_before(node):
            fresh = _conversion(
                program, node.args[0], order if order == NHWC else DimOrder.contiguous(len(order))
            )
        node.replace_all_uses_with(fresh)
        program.graph.erase_node(node)
    return _retraced(program, {})


def _conversion(program: ExportedProgram, source: Node, order: DimOrder) -> Node:
    """A new node, where the graph inserts now, that copies `source` into an order."""
    node: Node
    if any(isinstance(node.target, EdgeOpOverload) for node in program.graph.nodes):
        node = program.graph.call_function(TO_DIM_ORDER, (source,), {"dim_order": list(order)})
    else:
        target = torch.ops.aten._to_copy.default
        node = program.graph.call_function(target, (source,), {"memory_format": format_of(order)})
    node.meta = {**source.meta, "val": restride(source.meta["val"], order)}
    return node


def _last_of_placeholders(program: ExportedProgram, source: Node) -> Node:
    """Where a conversion of `source` may stand: after it, and after all placeholders."""
    if source.op != "placeholder":
        return source
    last: Node = [node for node in program.graph.nodes if node.op == "placeholder"][-1]
    return last
