"""Say how a target computes each float operator of a quantized program: in integers, or in floats.

An operator between a dequantize and a quantize reads and writes integers, if the target's table says so.
A target may also follow functions of one value, and keep sums in wider integers until they are quantized.
Every other operator that the target computes is a float island. The program itself stays as it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, Node, map_arg

from dimorder.graph.nodes import bound, only_reader
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.ops.table import elements_of
from dimorder.physical.annotations import Annotation, FusedProgram, How
from dimorder.physical.integer_functions import (
    computed,
    dequantized_numbers,
    is_smooth,
    position_key,
    rounded_levels,
    with_finite_ends,
)
from dimorder.physical.tokens import moved_tokens, token_numbers
from dimorder.physical.wasted_levels import clamp_range

aten = torch.ops.aten

# The arguments of a call by name. A constant is its tensor, every other value its node. `shape` is the
# result's shape.
CallArguments = SimpleNamespace


@dataclass(frozen=True)
class IntegerKernel:
    """A call that a target computes in integers, under a condition.

    Attributes:
        unmet: Takes the types of the operands other than weights, and the type in which the result is
            quantized. Returns why the kernel is not exact for these types, or None.
        weights: The names of the arguments that are its weights.
        clamps: Whether it clamps its result.
        chooses: Whether it only chooses among the elements of operands, so that integers keep their type.
        of_dynamic_size: Why it gives no result of a dynamic size, or None.
        unmet_dynamic: Takes the token of each element of floats that are quantized dynamically. Returns why
            the kernel cannot read these, or None.
    """

    unmet: Callable[[Sequence[IntegerType], IntegerType], str | None]
    weights: tuple[str, ...] = ()
    clamps: bool = False
    chooses: bool = False
    of_dynamic_size: str | None = None
    unmet_dynamic: Callable[[Tensor], str | None] = lambda tokens: "no kernel of it quantises dynamically"


@dataclass(frozen=True)
class WideKernel:
    """A call that a target computes in wider integers, which some later call quantizes.

    Attributes:
        unmet: Takes the annotations of the operands that are not constant. Returns why the kernel cannot read
            these, or None.
        follows: Whether a function of one quantized value becomes a table: a number for each integer.
        keeps: Whether the result has the integer type of the operands, if these have one and none is a
            constant float.
        positions: The names of the arguments that are positions: integers, which are read as they are.
        constants: The names of the arguments that may be constant floats beside integers that are kept.
    """

    unmet: Callable[[Mapping[Node, Annotation]], str | None]
    follows: bool = False
    keeps: bool = False
    positions: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


MOVE = IntegerKernel(lambda operands, result: None)  # of a call that only moves elements
# How a target computes a call: by a kernel, in floats for a reason, or (None) in floats since it has no
# kernel. A rule may depend on the call's arguments.
FoundKernel: TypeAlias = IntegerKernel | WideKernel | str | None
KernelRule: TypeAlias = FoundKernel | Callable[[CallArguments], FoundKernel]


NO_KERNEL = "no int8 kernel computes it alone"


def fuse_quantized(
    graph: Graph,
    constants: Mapping[Node, Tensor],
    parts: Mapping[Node, int],
    rules: Mapping[Any, KernelRule],
    constant_type: Callable[[Tensor], IntegerType | None],
    dynamic: Collection[Node] = (),
) -> FusedProgram:
    """Return how a target computes each float call of a quantized program.

    Args:
        graph: The physical program's graph.
        constants: The values of its constants.
        parts: The part of the program in which the target computes a call. Other calls run outside. Parts
            pass each other floats as floats.
        rules: How the target computes each operator. Operators that always move elements need no rule.
        constant_type: Returns the type of the integers by which a kernel reads a constant, or None.
        dynamic: The calls whose results have dynamic sizes.
    """
    fuser = _Fuser(constants, parts, rules, constant_type, dynamic)
    for node in graph.nodes:
        if node in parts and fuser.computes_with_floats(node):
            fuser.add(node)
    return FusedProgram({node: fuser.found[node] for node in graph.nodes if node in fuser.found})


@dataclass
class _Fuser:
    constants: Mapping[Node, Tensor]
    parts: Mapping[Node, int]
    rules: Mapping[Any, KernelRule]
    constant_type: Callable[[Tensor], IntegerType | None]
    dynamic: Collection[Node]
    found: dict[Node, Annotation] = field(default_factory=dict)

    @cached_property
    def integer_parts(self) -> set[int]:
        """The parts with integers. In other parts only dynamic quantization makes islands."""
        return {part for node, part in self.parts.items() if node.target in (QUANTIZE, DEQUANTIZE)}

    def computes_with_floats(self, node: Node) -> bool:
        if _is_float(node):
            return True
        is_truth = _dtype(node) == torch.bool  # not an integer, which no table gives
        read = any(_is_float(value) or (is_truth and value in self.found) for value in node.all_input_nodes)
        return read and isinstance(self._rule(node), WideKernel)

    def add(self, node: Node) -> None:
        """Annotate a call, and what it computes besides, unless a call before it computes it."""
        if node in self.found:
            return
        rule = self._rule(node)
        annotation = self._annotation(node, rule)
        if annotation is None:
            return
        self.found[node] = replace(annotation, source=annotation.source or self._source(node))
        reader = self._only_reader(node)
        clamps = isinstance(rule, IntegerKernel) and rule.clamps and clamp_range(reader) is not None
        if annotation.how is How.ISLAND and clamps and reader is not None:
            self.found[reader] = Annotation(How.IN_ISLAND)

    def _annotation(self, node: Node, rule: FoundKernel) -> Annotation | None:
        is_cast = node.target is aten._to_copy.default and rule is None
        if is_cast or node.target is operator.getitem:
            return None
        if node.target is DEQUANTIZE:
            reach = self._reach(node)
            return Annotation(How.DEQUANTIZED, _type_of(node), origin=self._rounded(node), reach=reach)
        if node.target is FAKE_QUANTIZE_DYNAMIC:
            return Annotation(How.TOKENS, tokens=token_numbers(node))
        if isinstance(rule, WideKernel):
            return self._in_wide_kernel(node, rule)
        values = self._operands(node, rule)
        operands = [self._operand(node, value) for value in values]
        if rule is MOVE:  # which reads constants as floats
            return None if self.constants.keys() & {*values} else self._moved(node, operands)
        tokens = [each.tokens for each in operands if each is not None and each.tokens is not None]
        if tokens:
            kernel = rule if isinstance(rule, IntegerKernel) else MOVE
            reason = kernel.unmet_dynamic(tokens[0])
            return Annotation(How.DYNAMIC_KERNEL) if reason is None else _island(reason)
        if self.parts[node] not in self.integer_parts:
            return None
        if rule is None or isinstance(rule, str):
            return _island(rule or NO_KERNEL)
        if rule.of_dynamic_size and node in self.dynamic:
            return _island(rule.of_dynamic_size)
        dequantized = [each.type for each in operands if each is not None and each.how is How.DEQUANTIZED]
        types = [of for of in dequantized if of is not None]
        known = types if len(types) == len(operands) else None
        if rule.chooses and known and {*known} == {known[0]} and self.found.keys() >= {*node.all_input_nodes}:
            return Annotation(How.DEQUANTIZED, known[0])
        return self._in_kernel(node, rule, known)

    def _in_kernel(
        self, node: Node, kernel: IntegerKernel, types: Sequence[IntegerType] | None
    ) -> Annotation:
        """Annotate a call that has a kernel, and all that the kernel computes after it."""
        computed, (low, high) = [node], (-math.inf, math.inf)
        while computed[-1].target is not QUANTIZE:
            reader = self._only_reader(computed[-1])
            bounds = clamp_range(reader) if kernel.clamps else None
            if bounds is not None:
                low, high = (min(max(bound, bounds[0]), bounds[1]) for bound in (low, high))
            elif reader is None or not (reader.target is QUANTIZE or self._moves_one(reader)):
                return _island("a result that is not quantised")
            assert reader is not None
            computed.append(reader)
        if types is None or node.meta["val"].dtype != torch.float32:
            return _island("an operand that is not quantised")
        result = _type_of(computed[-1])
        reason = kernel.unmet(types, result)
        if reason is not None:
            return _island(reason)
        self.found.update(dict.fromkeys(computed[1:], Annotation(How.IN_KERNEL)))
        return Annotation(How.KERNEL, result, low, high)

    def _in_wide_kernel(self, node: Node, kernel: WideKernel) -> Annotation | None:
        """Annotate a call that is a function of one value, or that the kernel computes in wider integers."""
        values = [value for value in node.all_input_nodes if value not in self.constants]
        known = {value: each for value in values if (each := self._operand(node, value)) is not None}
        if kernel.follows and len(known) == len(values) and (function := self._function(node, known)):
            return function
        if not any(map(_is_float, (node, *values))):  # truth values of several values
            return None
        given, read = bound(node.target, node.args, node.kwargs), set[Any]()
        map_arg([given[name] for name in kernel.positions], read.add)
        if any(value not in known or known[value].how is How.ISLAND for value in values if value not in read):
            return _island("an operand that is not quantised")
        known = {value: each for value, each in known.items() if value not in read}
        reason = kernel.unmet(known)
        if reason is not None:
            return _island(reason)
        types = {each.exact_type for each in known.values()}
        fitting = [given[name] for name in kernel.constants]
        constants = [value for value in node.all_input_nodes if value in self.constants]
        floats = [value for value in constants if _is_float(value) and value not in fitting]
        if kernel.keeps and len(types) == 1 and types != {None} and not floats:
            return Annotation(How.DEQUANTIZED, types.pop())
        return Annotation(How.WIDE)

    def _function(self, node: Node, operands: Mapping[Node, Annotation]) -> Annotation | None:
        """Return the call as a function of one value, or None if it reads several or none.

        It is one of an earlier source, if there is one, unless its own source's integers stand for it. Truth
        values are of their own source, by which integers may be chosen.
        """
        own = self._of_one(node, operands)
        origins = {value: each.origin or each for value, each in operands.items()}
        origin = None if origins == operands else self._of_one(node, origins)
        if own is not None and (origin is None or own.exact_type is not None or _is_truth(own)):
            return replace(own, origin=origin)
        return origin

    def _of_one(self, node: Node, operands: Mapping[Node, Annotation]) -> Annotation | None:
        """Return the call as a function of the source that all operands have, or None."""
        numbers = {value: each.numbers for value, each in operands.items() if each.numbers is not None}
        constants = {value: self.constants[value] for value in node.all_input_nodes if value not in operands}
        if len(numbers) < len(operands) or len({each.source for each in operands.values()}) != 1:
            return None
        if any(each.numel() != 1 for each in constants.values()):
            return None
        of, source, reach = next((each.type, each.source, each.reach) for each in operands.values())
        function = with_finite_ends(computed(node, numbers, constants), reach)
        chooses = any(each.dtype == torch.bool for each in numbers.values())
        if chooses and of is not None and of.dtype == torch.int16 and not is_smooth(function):
            return None  # a TABLE of int16 interpolates, and a choice may have steps
        return Annotation(How.FUNCTION, of, function=function, source=source, reach=reach)

    def _rounded(self, dequantize: Node) -> Annotation | None:
        """Return a dequantized value as a function of the source of the value that was quantized, or None."""
        (integers,) = dequantize.all_input_nodes
        before = self.found.get(integers.all_input_nodes[0]) if integers.target is QUANTIZE else None
        before = before and (before.origin or before)
        if before is None or before.numbers is None or before.type is None:
            return None
        if torch.int16 in (before.type.dtype, _type_of(dequantize).dtype):
            return None
        numbers = dequantized_numbers(_type_of(dequantize), _levels(before.numbers, integers))
        return replace(before, how=How.FUNCTION, function=numbers)

    def _reach(self, dequantize: Node) -> tuple[int, int] | None:
        """Return the places of the first and the last integer that a function of one value is rounded to."""
        (integers,) = dequantize.all_input_nodes
        before = self.found.get(integers.all_input_nodes[0]) if integers.target is QUANTIZE else None
        if before is None or before.function is None:
            return None
        levels = _levels(before.function, integers) - _type_of(dequantize).low
        return int(levels.min()), int(levels.max())

    def _source(self, value: Node) -> Hashable:
        """Return a key of the value that a value is a function of."""
        found = self.found.get(value)
        if found is not None:
            return found.source
        if value.target is DEQUANTIZE:
            return self._source(value.all_input_nodes[0])
        moved = self._source(value.all_input_nodes[0]) if self._moves_one(value) else None
        return position_key(value, moved)

    def _moved(self, node: Node, operands: Sequence[Annotation | None]) -> Annotation | None:
        """Return what a move makes of its operands: values of one kind, or tokens."""
        known = [each for each in operands if each is not None]
        if len(known) < len(operands) or len({(each.how, each.type) for each in known}) != 1:
            return None
        if known[0].how is How.DEQUANTIZED:
            return Annotation(How.DEQUANTIZED, known[0].type)
        if known[0].how in (How.FUNCTION, How.WIDE) and len(known) == 1:
            return replace(known[0], source=self._source(node), origin=None)
        tokens = {value: each.tokens for value, each in zip(node.all_input_nodes, known, strict=True)}
        moved = moved_tokens(node, tokens)
        return None if moved is None else Annotation(How.TOKENS, tokens=moved)

    def _only_reader(self, node: Node) -> Node | None:
        """Return the call of the same part that alone reads a value, or None."""
        reader = only_reader(node)
        return reader if reader is not None and self.parts.get(reader) == self.parts[node] else None

    def _rule(self, node: Node) -> FoundKernel:
        rule = self.rules.get(node.target)
        computed = rule(self._arguments(node)) if callable(rule) else rule
        return MOVE if computed is None and elements_of(node.target).moves else computed

    def _arguments(self, node: Node) -> CallArguments:
        given = bound(node.target, node.args, node.kwargs)
        held = map_arg(given, lambda read: self.constants.get(read, read))
        return SimpleNamespace(**held, shape=tuple(node.meta["val"].shape))

    def _operands(self, node: Node, rule: FoundKernel) -> list[Any]:
        """Return the operands of a call: values, and the number that a kernel reads beside one."""
        given = bound(node.target, node.args, node.kwargs)
        for name in rule.weights if isinstance(rule, IntegerKernel) else ():
            del given[name]
        if isinstance(rule, IntegerKernel) and "other" in given:
            return [given["self"], given["other"]]
        found: dict[Node, None] = {}
        map_arg(given, lambda read: found.setdefault(read))
        return list(found)

    def _operand(self, node: Node, value: Any) -> Annotation | None:
        """Return the annotation of an operand of a call. That of a constant is made here."""
        if isinstance(value, Node) and value not in self.constants:
            return self.found.get(value) if self.parts.get(value) == self.parts[node] else None
        constant = self.constants[value] if isinstance(value, Node) else torch.tensor([float(value)])
        of = self.constant_type(constant)
        return None if of is None else Annotation(How.DEQUANTIZED, of)

    def _moves_one(self, node: Node) -> bool:
        return len(node.all_input_nodes) == 1 and self._rule(node) is MOVE


def _island(reason: str) -> Annotation:
    return Annotation(How.ISLAND, reason=reason)


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None


def _is_float(node: Node) -> bool:
    dtype = _dtype(node)
    return dtype is not None and dtype.is_floating_point


def _type_of(node: Node) -> IntegerType:
    """Return the type of a quantize or dequantize."""
    given = bound(node.target, node.args, node.kwargs)
    return IntegerType(given["dtype"], given["scale"], given["zero_point"])


def _is_truth(annotation: Annotation) -> bool:
    return annotation.function is not None and annotation.function.dtype == torch.bool


def _levels(numbers: Tensor, quantize: Node) -> Tensor:
    """Return the integers to which a call rounds numbers."""
    given = bound(quantize.target, quantize.args, quantize.kwargs)
    return rounded_levels(numbers, _type_of(quantize)).clamp(given["quant_min"], given["quant_max"])
