"""Find the operators that get orders which their delegate or their kernel does not handle right.

A delegate's layout says what its operators accept. The truth table says it for portable kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.operator.convert import to_out_variant
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.errors import UnsupportedError
from dimorder.executorch.layout import PORTABLE, DelegateLayout
from dimorder.executorch.passes import DIM_ORDER_OPERATORS, label
from dimorder.graph.nodes import source_frames, tensors_in
from dimorder.runtime.kernels import CONTIGUOUS, LOWER, KernelTable, signature

CONVERSIONS = frozenset({*DIM_ORDER_OPERATORS, torch.ops.aten._to_copy.default, torch.ops.aten.clone.default})


@dataclass(frozen=True)
class Fault:
    """An operator that gets orders which its kernel, or its delegate, does not handle right."""

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
            f"it takes {self.accepted}: lower with legalize in transform_passes, or with guarded(...)",
        )


def faults(
    program: ExportedProgram, layout: DelegateLayout = PORTABLE, chosen: Callable[[Node], bool] | None = None
) -> list[Fault]:
    """Return the calls in orders that are not handled right; `chosen` are nodes of the delegate."""
    rules = Rules(program, layout, chosen)
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not rules.is_computed(node):
            continue
        operands, results = rules.operands(node, label), results_of(node.meta.get("val"))
        if not rules.accepts(node, operands, results):
            found.append(rules.fault(node, operands, results))
    return found


class Rules:
    """The orders that each node of one program accepts."""

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
        """Return whether the delegate takes the node."""
        return self._chosen(node) and self.layout.takes(name_of(node), rank_of(node))

    def is_computed(self, node: Node) -> bool:
        """Return whether the node is an operator over tensors, not a relabelled result or a symbol."""
        return isinstance(node.target, (EdgeOpOverload, torch._ops.OpOverload)) and bool(
            tensors_in(node.meta.get("val"))
        )

    def operands(self, node: Node, order_of: Callable[[Any], DimOrder]) -> list[Any]:
        """Return the tensor arguments in the form for `signature`, without a delegate's constants."""
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

    def accepts(self, node: Node, operands: list[Any], results: list[Any], target: Any = None) -> bool:
        """Return whether the node, or `target` in its place, handles these orders right."""
        if node.target in CONVERSIONS:
            return True
        if self.chosen(node):
            return self._delegate_accepts(node, operands)
        rank, letters = signature(operands + results)
        verdict = self.table.verdict("portable", kernel_name(target or node.target) or "", rank, letters)
        # Contiguous order is trusted unless known to be wrong. Any other order must be known to be right.
        return verdict != "wrong" if set(letters) <= {CONTIGUOUS, LOWER} else verdict == "right"

    def _delegate_accepts(self, node: Node, operands: list[Any]) -> bool:
        """Check the inputs alone, since the label of a result inside a partition means nothing."""
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
        verdict = self.table.verdict("portable", kernel_name(node.target) or "", rank, letters)
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


def name_of(node: Node) -> str:
    """Return the ATen name of a node's operator, as in `torch.ops.aten`: "add.Tensor", "convolution"."""
    target = overload_of(node.target)
    name = str(target).removeprefix("aten.").removesuffix(".default")
    head, _, overload = name.partition(".")
    head = head.removesuffix("_copy") if head not in ("_to_copy", "_to_dim_order_copy") else head
    return f"{head}.{overload}" if overload else head


def rank_of(node: Node) -> int:
    """Return the highest rank of the tensors that a node reads and writes."""
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    return max((value.dim() for value in tensors_in(values)), default=0)


@functools.cache
def kernel_name(target: Any) -> str | None:
    """Return the portable kernel of an operator by its name in a .pte, "aten::add.out", or None."""
    try:
        found, _ = to_out_variant(functional_of(target))
    except (RuntimeError, TypeError, KeyError, AssertionError):
        return None
    name: str = found._schema.name
    return f"{name}.{found._schema.overload_name}" if found._schema.overload_name else name


def source_line(node: Node) -> str:
    """Return the source line of a call in the network's own code, or else in torch's, if known."""
    frames = source_frames(node)
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return ":".join(own[-1]) if own else ""


def overload_of(target: Any) -> Any:
    return target._op if isinstance(target, EdgeOpOverload) else target


@functools.cache
def functional_of(target: Any) -> Any:
    """Return the overload that the edge dialect calls, in which views are copies."""
    target = overload_of(target)
    packet = getattr(torch.ops.aten, f"{target._schema.name.removeprefix('aten::')}_copy", None)
    return getattr(packet, target._overloadname, target) if target.is_view and packet is not None else target


def compute(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a call on fake tensors, as the edge dialect has them: copies of views.

    torch's own reference of a `_copy` operator would fix the dynamic sizes among its arguments.
    """
    functional = functional_of(target)
    view = _view_of(functional)
    if view is None:
        return functional(*args, **kwargs)
    copied = lambda x: x.clone(memory_format=torch.contiguous_format)  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, copied, view(*args, **kwargs))


@functools.cache
def _view_of(functional: Any) -> Any:
    """Return the view that a `_copy` operator copies; None if the operator is no such copy."""
    name = functional._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_copy"), None) if name.endswith("_copy") else None
    view = getattr(packet, functional._overloadname, None)
    return view if view is not None and view.is_view else None


def has_orders(program: ExportedProgram) -> bool:
    """Return whether any tensor of the program is not contiguous as ExecuTorch labels it."""
    return any(
        not label(value).is_contiguous
        for node in program.graph.nodes
        for value in tensors_in(node.meta.get("val"))
    )


def _pairs(operands: list[Any]) -> Iterator[Any]:
    for operand in operands:
        yield from operand if isinstance(operand, list) else [operand]


def results_of(value: Any) -> list[Any]:
    return [(tuple(one.shape), tuple(label(one))) for one in tensors_in(value)]
