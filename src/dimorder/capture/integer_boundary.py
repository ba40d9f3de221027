"""Give a quantized network integer inputs and outputs where its contract has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.capture.captured import Captured
from dimorder.errors import UnsupportedError, UsageError, require_type
from dimorder.graph.nodes import call_after, operator_at, replace_node, set_value
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.table import elements_of, moved_operands

TYPES = ("float32", "int8", "uint8", "int16")
_INTEGERS = (torch.int8, torch.uint8, torch.int16)
Types: TypeAlias = str | torch.dtype | Sequence[str | torch.dtype | None] | None
"""The types of inputs or outputs of a quantised network: integers, if the caller passes or gets integers.

One type for all, or a sequence with one per tensor; None leaves a tensor as it is. A type is one of `TYPES`,
such as "int8", or a dtype of torch.
"""


def integer_type(node: Node) -> IntegerType | None:
    """Return what the integers of an input or result stand for, by the quantizes beside them, or None."""
    while _moves(node):
        node = moved_operands(node)[0]
    if node.target is QUANTIZE:
        return _type_in(node)
    found = {_type_in(reader) for reader in _readers(node) if reader.target is DEQUANTIZE}
    return found.pop() if len(found) == 1 else None


def _moves(node: Node) -> bool:
    return elements_of(node.target).moves and node.meta["val"].dtype in _INTEGERS


def _are_given(integers: Node) -> bool:
    """Return whether no quantize gives some of these integers, but an input or a constant."""
    if _moves(integers):
        return any(map(_are_given, moved_operands(integers)))
    return integers.target is not QUANTIZE


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        yield user
        if elements_of(user.target).moves and node in moved_operands(user):
            yield from _readers(user)


def _type_in(node: Node) -> IntegerType | None:
    scale, zero_point, low, high, dtype = node.args[1:]
    if dtype not in _INTEGERS:
        return None
    of = IntegerType(dtype, float(scale), int(zero_point))  # type: ignore[arg-type]
    return of if (of.low, of.high) == (low, high) else None


def set_boundary_types(program: Captured, input_types: Types, output_types: Types) -> Captured:
    """Replace float inputs and outputs of a network by integers, with signed integers inside, in place.

    Args:
        program: The quantized network.
        input_types: None, one type for all inputs, or one per input; see `TYPES`.
        output_types: The same for outputs.

    Raises:
        UsageError: The types are too few, too many or unknown.
        UnsupportedError: An input is not quantized first, or an output is not dequantized last.
    """
    examples = list(program.examples)
    tensors = [i for i, leaf in enumerate(examples) if isinstance(leaf, Tensor)]
    named = [f"input {name!r}" for name in program.input_names]
    asked = _requested_types(input_types, program.inputs, named, "input")
    for place, node, called, dtype in zip(tensors, program.inputs, named, asked, strict=True):
        if dtype is not None:
            examples[place] = _quantize(examples[place], _quantized_input(node, called, dtype))
    results = program.outputs
    named = [f"output 'output{index}'" for index in range(len(results))]
    for index, dtype in enumerate(_requested_types(output_types, results, named, "output")):
        if dtype is not None:
            results[index] = _quantized_output(results[index], named[index], dtype)
    output = program.module.graph.output_node()
    output.args = ((*(left for _, left in program.carried), *results),)
    _make_signed(program)
    program.module.graph.eliminate_dead_code()
    program.module.recompile()
    return replace(program, examples=tuple(examples))


def boundary_types(program: Captured) -> tuple[list[torch.dtype | None], list[torch.dtype | None]]:
    """Return the integer dtype, or None, of each input and each output that is quantized."""
    ends = map(_first_type, program.inputs), map(_last_type, program.outputs)
    inputs, outputs = ([None if own is None else own.dtype for own in side] for side in ends)
    return inputs, outputs


def _first_type(node: Node) -> IntegerType | None:
    """Return the integer type of an input if all its readers quantize it in the same way."""
    types = {_type_in(reader) if reader.target is QUANTIZE else None for reader in _after_casts(node)}
    return types.pop() if len(types) == 1 else None


def _last_type(node: Node) -> IntegerType | None:
    """Return the integer type of an output if it is dequantized last."""
    node = _before_casts(node)
    return _type_in(node) if node.target is DEQUANTIZE else None


def _after_casts(node: Node) -> list[Node]:
    """Return what reads a value, as it is or as floats of another type."""
    readers = [_after_casts(reader) if _is_cast(reader) else [reader] for reader in node.users]
    return [reader for each in readers for reader in each]


def _before_casts(node: Node) -> Node:
    """Return the floats of which a value has another type, or the value itself."""
    return _before_casts(node.all_input_nodes[0]) if _is_cast(node) else node


def _is_cast(node: Node) -> bool:
    """Return whether a node changes floats into floats of another type."""
    return node.target is torch.ops.aten._to_copy.default and all(
        each.meta["val"].is_floating_point() for each in (node, *node.all_input_nodes)
    )


def _quantize(x: Tensor, of: IntegerType) -> Tensor:
    """Return the integers that stand for the numbers in `x`."""
    return (x.float() * (1 / of.scale)).round().add(of.zero_point).clamp(of.low, of.high).to(of.dtype)


def _requested_types(
    types: Types, nodes: Sequence[Node], named: Sequence[str], kind: str
) -> list[torch.dtype | None]:
    """Return the requested integer type of each tensor, or None if it stays as it is."""
    fix = f"give one of {', '.join(TYPES)}, or a list with one per {kind}"
    require_type(types, (str, torch.dtype, list, tuple, type(None)), f"{kind} types", fix)
    alone = types is None or isinstance(types, (str, torch.dtype))
    asked: list[Any] = [types] * len(nodes) if alone else [*types]  # type: ignore[misc]  # mypy forgets `alone`
    if len(asked) != len(nodes):
        raise UsageError(
            f"{kind} types", f"{len(asked)} for {len(nodes)} {kind}s", f"give one for all, or one per {kind}"
        )
    names = [None if each is None else str(each).removeprefix("torch.") for each in asked]
    for name in names:
        if name is not None and name not in TYPES:
            raise UsageError(
                f"{kind} type {name}", "no type for a boundary", f"say one of {', '.join(TYPES)}"
            )
    found = []
    for node, called, name in zip(nodes, named, names, strict=True):
        is_float = node.meta["val"].is_floating_point()
        as_it_is = name in (None, "float32") or (not is_float and (alone or _has_dtype(node, name)))
        if not (as_it_is or is_float):
            raise UsageError(
                f"{called}, asked for in {name}",
                f"it is of {node.meta['val'].dtype} in the network itself",
                "ask for that type, or none",
            )
        found.append(None if as_it_is else getattr(torch, str(name)))
    return found


def _has_dtype(node: Node, name: str | None) -> bool:
    return str(node.meta["val"].dtype) == f"torch.{name}"


def _quantized_input(node: Node, called: str, dtype: torch.dtype) -> IntegerType:
    """Turn an input into the integers that its quantize gives, and return their type."""
    readers, own = _after_casts(node), _first_type(node)
    if own is None:
        other = next((r for r in readers if r.target is not QUANTIZE), None)
        found = f"{operator_at(other)} reads it as floats" if other else "several scales"
        fix = "quantise it first thing, or leave its type out"
        if all(each.target is not QUANTIZE for each in node.graph.nodes):
            fix = "quantise the network first: dimorder.quantize, or --quantize and --calibrate"
        raise UnsupportedError(f"{called}, asked for in {dtype}", found, fix)
    _require_bits(own, called, dtype)
    boundary = own.as_type(dtype)
    set_value(node, torch.empty_like(node.meta["val"], dtype=dtype))
    if dtype == own.dtype:
        for reader in readers:
            replace_node(reader, node)
    else:
        real = _after(node, DEQUANTIZE, boundary, like=readers[0])
        for reader in readers:
            reader.replace_input_with(reader.all_input_nodes[0], real)
    return boundary


def _require_bits(own: IntegerType, called: str, dtype: torch.dtype) -> None:
    """Refuse integers of 16 bits for those of 8, which may have a zero point, and the reverse."""
    if (dtype == torch.int16) != (own.dtype == torch.int16):
        asks, recipe = ("int16", "int8") if own.dtype == torch.int16 else ("int8 or uint8", "int16x8")
        fix = f"ask for {asks}, or quantise the network by recipe {recipe}"
        raise UnsupportedError(f"{called}, asked for in {dtype}", f"the network has it in {own.dtype}", fix)


def _quantized_output(node: Node, called: str, dtype: torch.dtype) -> Node:
    """Return the integers of an output that is dequantized last."""
    own = _last_type(node)
    if own is None:
        raise UnsupportedError(
            f"{called}, asked for in {dtype}",
            f"{operator_at(node)} gives floats",
            "quantise it last thing, or leave its type out",
        )
    _require_bits(own, called, dtype)
    node = _before_casts(node)
    integers = node.args[0]
    assert isinstance(integers, Node)
    # Without the dequantize, nothing might say what integers stand for that no quantize gives.
    if dtype == own.dtype and not _are_given(integers):
        return integers
    return _after(node, QUANTIZE, own.as_type(dtype))


def _after(node: Node, target: Any, of: IntegerType, like: Node | None = None) -> Node:
    """Append a quantize or dequantize after a node."""
    dtype = of.dtype if target is QUANTIZE else torch.float32
    value = torch.empty_like(node.meta["val"], dtype=dtype)
    return call_after(node, target, (node, *of.arguments), like=like, value=value)


def _make_signed(program: Captured) -> None:
    """Make unsigned integers signed. Those of a boundary stay, and signed ones follow or precede them."""
    for node in program.nodes:
        own = _type_in(node) if node.target is QUANTIZE else None
        if own is None or own.dtype != torch.uint8:
            continue
        together = _moved_together(node)
        integers = [each for each in together if each.target is not DEQUANTIZE]
        typed = [each for each in together if not _moves(each)]
        if all(each.target in (QUANTIZE, DEQUANTIZE) and _type_in(each) == own for each in typed):
            for each in typed:
                each.args = (each.args[0], *own.as_type(torch.int8).arguments)
            for each in integers:
                set_value(each, each.meta["val"].to(torch.int8))
    for node in program.nodes:
        own = _type_in(node) if node.target in (QUANTIZE, DEQUANTIZE) else None
        if own is None or own.dtype != torch.uint8:
            continue
        signed = own.as_type(torch.int8)
        if node.target is DEQUANTIZE and any(user.target is not QUANTIZE for user in node.users):
            readers = [user for user in node.users if user.target is not QUANTIZE]
            real = _after(_after(node, QUANTIZE, signed), DEQUANTIZE, signed)
            for reader in readers:
                reader.replace_input_with(node, real)
        elif node.target is QUANTIZE and node.args[0].target is not DEQUANTIZE:  # type: ignore[union-attr]
            (source,) = node.all_input_nodes
            node.replace_input_with(source, _after(_after(source, QUANTIZE, signed), DEQUANTIZE, signed))


def _moved_together(quantize: Node) -> list[Node]:
    """Return integers with all that they are moved and joined with, and what reads them in the end."""
    found: dict[Node, None] = {}
    pending = [quantize]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found[node] = None
        if node.target is QUANTIZE or _moves(node):
            pending += node.users
        if _moves(node):
            pending += moved_operands(node)
    return list(found)
