"""Make an exported graph functional: in-place operators get functional forms if nothing else sees the writes.

torch decomposes graphs for which that is not enough. This takes longer than the export itself.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from dimorder.capture.refusals import WRITING_BRANCH
from dimorder.errors import UnsupportedError
from dimorder.graph.branches import COND
from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph, state_of
from dimorder.graph.nodes import (
    CUSTOM,
    RESIZES,
    call_before,
    is_number,
    may_resize,
    operator_at,
    set_meta,
    tensor_of,
)
from dimorder.graph.tracing import out_of_place
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.operator import Operator

aten = torch.ops.aten

# Operators whose results depend only on the shape of their operand.
_FILLED = frozenset(
    {aten.new_zeros.default, aten.new_ones.default, aten.zeros_like.default, aten.ones_like.default}
)

_NORMS = (aten.batch_norm.default, aten.instance_norm.default)

# Their in-place forms keep the type of their operand; the functional forms return booleans.
_TRUTHS = frozenset(
    f"{name}_" for name in ("eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater")
) | frozenset(("greater_equal_", "logical_and_", "logical_or_", "logical_xor_", "logical_not_"))


def functionalize(
    exported: ExportedProgram, operators: Mapping[Any, Operator], *, decompose: bool = True
) -> ExportedProgram:
    """Return the program without in-place operators, and without composite ones outside `operators`.

    Calls that can be computed ahead of time, in this order, stay as they are. With `decompose` off, a program
    that torch would have to decompose is returned as it is.

    >>> class Steps(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.relu_(x + 1).flatten()
    >>> from dimorder.ops.table import OPERATORS
    >>> program = functionalize(torch.export.export(Steps(), (torch.ones(2, 3),)), OPERATORS)
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['aten.add.Tensor', 'aten.relu.default', 'aten.flatten.using_ints']
    """
    called = [node for node in exported.graph.nodes if node.op in ("call_function", "get_attr")]
    if all(_is_functional(node, operators) for node in called):
        return exported
    graph = copy_graph(exported.graph)
    ahead = calls_ahead(exported, graph, operators)
    for node in graph.nodes:
        if node in ahead:
            continue
        if node.op == "get_attr" or (node.op == "call_function" and not _made_functional(node, operators)):
            if not decompose:
                return exported
            return _decomposed(exported)
    return replace_parts(exported, graph=graph)


def calls_ahead(exported: ExportedProgram, graph: Graph, operators: Mapping[Any, Operator]) -> set[Node]:
    """Return the constants, and the calls that compute from these and from sizes alone.

    Args:
        exported: the program. What it writes to is no constant.
        graph: its graph, or a copy.
        operators: the table of operators.
    """
    specs = exported.graph_signature.input_specs
    constants = {spec.arg.name for spec in specs if spec.kind != InputKind.USER_INPUT}
    constants -= set(state_of(exported))
    ahead = {node for node in graph.find_nodes(op="placeholder") if node.name in constants}
    for node in graph.nodes:
        if node.op == "call_function" and _is_ahead(node, ahead, operators):
            ahead.add(node)
        elif _is_mutable(node.target):
            ahead.difference_update(_written_by(node, operators))
    return ahead


def _decomposed(exported: ExportedProgram) -> ExportedProgram:
    """Return the program as torch decomposes it, with the notes on nodes that torch keeps only in CUSTOM."""
    apart = write_apart(exported)
    for node in filter(may_resize, apart.graph.nodes):
        set_meta(node, CUSTOM, {**node.meta.get(CUSTOM, {}), RESIZES: True})
    try:
        decomposed: ExportedProgram = apart.run_decompositions({})
    except SpecViolationError as error:
        calls = exported.graph.find_nodes(op="call_function", target=COND)
        if not calls:
            raise
        raise UnsupportedError(operator_at(calls[0]), *WRITING_BRANCH) from error
    for node in decomposed.graph.nodes:
        if RESIZES in node.meta.get(CUSTOM, {}):
            set_meta(node, RESIZES, True)
    return decomposed


def write_apart(exported: ExportedProgram) -> ExportedProgram:
    """Return the program in which each buffer is written with a value of its own, in its type and shape.

    torch 2.13 refuses what it makes of a value that is written into two buffers, or that is another buffer.
    It leaves conversions and broadcasts to the write, of which a functional program has none.
    """
    graph, buffers = copy_graph(exported.graph), state_of(exported)
    written = set[Node]()
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        buffer, value = (tensor_of(each) for each in node.args[:2])
        if value.dtype != buffer.dtype:
            _write_instead(node, aten._to_copy.default, dtype=buffer.dtype)
        if value.shape != buffer.shape:
            _write_instead(node, aten.expand.default, list(buffer.shape))
        source = node.args[1]
        if source in written or source.name in buffers or _is_mutable(source.target):
            _write_instead(node, aten.clone.default)
        written.add(node.args[1])
    return replace_parts(exported, graph=graph)


def _is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _write_instead(copy: Node, target: Any, *args: Any, **kwargs: Any) -> None:
    """Let a write take what a call makes of its value."""
    copy.update_arg(1, call_before(copy, target, (copy.args[1], *args), kwargs))


def _is_ahead(node: Node, ahead: Collection[Node], operators: Mapping[Any, Operator]) -> bool:
    """Return whether a call reads no input, and writes no parameter nor what a call on inputs has read."""
    target: Any = node.target
    if target in _FILLED or is_number(node):
        return True
    # A slice of a table is another constant for each size.
    if target is SLICE_CONSTANT or not all(operand in ahead for operand in node.all_input_nodes):
        return False
    if not _is_mutable(target):
        return True
    written = _written_by(node, operators)
    read = (user for value in written for user in value.users if user < node)
    return all(value.op != "placeholder" for value in written) and all(user in ahead for user in read)


def _written_by(node: Node, operators: Mapping[Any, Operator]) -> list[Node]:
    """Return the value that a call writes in place, and all before the call that share its memory."""
    written = node.all_input_nodes[:1]
    for value in written:  # grows
        sources = [] if _is_fresh(value, operators) else value.all_input_nodes
        views = (user for user in value.users if user < node and not _is_fresh(user, operators))
        written += [other for other in (*sources, *views) if other not in written]
    return written


def _made_functional(node: Node, operators: Mapping[Any, Operator]) -> bool:
    """Return whether a call is functional, or was in place and has been replaced."""
    in_place = _is_mutable(node.target)
    return _replaced(node, operators) if in_place else _is_functional(node, operators)


def _is_functional(node: Node, operators: Mapping[Any, Operator]) -> bool:
    if is_number(node):
        return True
    if node.op == "get_attr":  # the graph of a branch
        branch = getattr(node.graph.owning_module, str(node.target))
        if not isinstance(branch, GraphModule):  # what torch.export keeps of a mapped function
            return False
        called = (each for each in branch.graph.nodes if each.op in ("call_function", "get_attr"))
        return all(_is_functional(each, operators) for each in called)
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target in (operator.getitem, COND)
    if node.target in _NORMS and node.args[3] is not None and node.args[5]:
        return False  # on the input's statistics it writes the running ones, which no schema says
    is_known = node.target in operators or not _is_composite(node.target)
    return is_known and not node.target._schema.is_mutable


def _replaced(node: Node, operators: Mapping[Any, Operator]) -> bool:
    """Replace an in-place operator by its functional form if nothing else sees the write, or return False."""
    written: Any = node.args[0] if node.args else None
    target: Any = node.target
    overload = out_of_place(target)
    if overload is None or not isinstance(written, Node):
        return False
    if target._opname in _TRUTHS and written.meta["val"].dtype != torch.bool:
        return False
    earlier = (user for user in written.users if user < node)
    if not _is_private(written, operators) or not all(_is_fresh(user, operators) for user in earlier):
        return False
    operands = [operand.meta["val"] for operand in node.all_input_nodes]
    if len({each.dtype for each in operands if isinstance(each, torch.Tensor)}) != 1:  # it would promote them
        return False
    written.replace_all_uses_with(node, lambda user: user > node)
    node.target = overload
    return True


def _is_private(node: Node, operators: Mapping[Any, Operator]) -> bool:
    """Return whether a value is new memory, or the only view of new memory that is still read."""
    if node.op != "call_function" or _is_fresh(node, operators):
        return node.op == "call_function"
    sources = node.all_input_nodes
    return len(sources) == 1 and len(sources[0].users) == 1 and _is_private(sources[0], operators)


def _is_fresh(node: Node, operators: Mapping[Any, Operator]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    aliased = any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    known = operators.get(node.target)
    return not aliased and ((known is not None and known.fresh) or not _is_composite(node.target))


def _is_composite(target: torch._ops.OpOverload) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"))
