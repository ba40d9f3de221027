"""Check the captured form of a network: functional, in the spellings of the normal form, of fixed shapes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator
from typing import Any, cast

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from dimorder.capture.captured import Captured
from dimorder.graph.branches import Branches
from dimorder.graph.nodes import node_title, results
from dimorder.graph.tracing import Tracer
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.table import SPELLINGS, find


def captured_faults(program: Captured) -> Iterator[str]:
    """Yield the faults of a captured program.

    >>> from dimorder.capture.captured import capture
    >>> list(captured_faults(capture(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),))))
    []
    """
    if len(program.input_names) != len(program.inputs):
        yield f"{len(program.inputs)} inputs, of which {len(program.input_names)} have names"
    for node in program.nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            yield f"{node}: a {node.op} in a functional graph"
        if node.op == "output":
            continue
        for value in results(node):
            if not all(isinstance(size, int) for size in value.shape):
                yield f"{node}: the symbolic shape {tuple(value.shape)}"
            elif not value.is_contiguous():
                yield f"{node}: predicted strides {value.stride()}, which are not row-major"
        if node.op == "get_attr":
            yield from _constant_faults(program, node)
        elif node.op == "call_function" and node.target is not operator.getitem:
            yield from _call_faults(program, node)


def _constant_faults(program: Captured, node: Node) -> Iterator[str]:
    value = program.constant(node)
    noted, own = (f"{each.dtype} {tuple(each.shape)}" for each in (node.meta["val"], value))
    if noted != own:
        yield f"{node}: noted as {noted}, held as {own}"
    if not value.is_contiguous():
        yield f"{node}: a constant with strides {value.stride()}"


def _call_faults(program: Captured, node: Node) -> Iterator[str]:
    name = node_title(node)
    if isinstance(node.target, Branches):
        return
    if not isinstance(node.target, torch._ops.OpOverload):
        yield f"{name}: no operator of torch"
        return
    if node.target._schema.is_mutable:
        yield f"{name}: it writes to its operand"
    if node.target is not SLICE_CONSTANT and all(o.op == "get_attr" for o in node.all_input_nodes):
        yield f"{name}: it reads constants alone, and is no constant"
    elif node.target in SPELLINGS:
        # Each slice of a constant was taken before the call was spelled, or after.
        slices = [operand for operand in node.all_input_nodes if operand.target is SLICE_CONSTANT]
        ways = itertools.product((True, False), repeat=len(slices))
        spelled = [_spell_again(program, node, set(itertools.compress(slices, way))) for way in ways]
        if [node.target] not in spelled:
            yield f"{name}: the normal form spells it {' '.join(map(str, spelled[0])) or 'as nothing'}"


def _spell_again(program: Captured, node: Node, values: Collection[Node]) -> list[Any]:
    """Return the operators that the spelling of a call writes: only its own, if it is in normal form.

    `values` are the slices of constants that count as values.
    """
    tracer = Tracer(SPELLINGS, lambda target: find(target) is not None, fused={node.target})
    stand_ins: dict[Node, Any] = {
        operand: _constant_of(program, operand)
        if operand.op == "get_attr" or (operand.target is SLICE_CONSTANT and operand not in values)
        else tracer.input(operand.name, operand.meta["val"])
        for operand in node.all_input_nodes
    }
    tracer.given.clear()  # they stand for any values
    args, kwargs = pytree.tree_map_only(Node, stand_ins.__getitem__, (node.args, node.kwargs))
    tracer.trace(node, node.target, args, kwargs)
    return [call.target for call in tracer.graph.nodes if call.op == "call_function"]


def _constant_of(program: Captured, node: Node) -> torch.Tensor:
    if node.op == "get_attr":
        return program.constant(node)
    whole, *window = node.args
    return cast(torch.Tensor, SLICE_CONSTANT(_constant_of(program, cast(Node, whole)), *window))
