"""Bind calls of physical operators to a target's table, which has one row per operator.

A row gets its arguments by name. A permute is only another view of the same memory until an operator needs
the memory itself in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.graph.dynamic_sizes import DynamicCall
from dimorder.graph.elements import moves
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import bound, is_getitem, results, tensor_of
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.physical.fuse_quantized import KernelRule

aten = torch.ops.aten
# The types of calls that are computed in float32, if a target has them.
_IN_FLOAT32 = HALVES | {torch.float64}


class Dense(Protocol):
    """A dense, row-major tensor of the file under construction, as the target's writer knows it."""

    @property
    def shape(self) -> tuple[int, ...]: ...


V = TypeVar("V", bound=Dense)


@dataclass(frozen=True)
class View(Generic[V]):
    """A value of the program: its dimension `i` is dimension `order[i]` of the dense `value`."""

    value: V
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape[i] for i in self.order)

    @property
    def is_dense(self) -> bool:
        """Whether the memory is in the view's own order, since at most sizes of 1 changed places."""
        return not moves(self.order, self.value.shape)

    @property
    def is_transposed(self) -> bool:
        """Whether only its last two dimensions are swapped."""
        return self.order == last_two_swapped(len(self.order))

    def of(self, elements: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the elements of the dense value as a tensor of the view, which has this shape in a call."""
        dense = [shape[self.order.index(dim)] for dim in range(len(self.order))]
        return elements.reshape(dense).permute(self.order)

    def permute(self, dims: Sequence[int]) -> View[V]:
        return View(self.value, tuple(self.order[d] for d in dims))


def whole(value: V) -> View[V]:
    """Return `value` in its own order."""
    return View(value, tuple(range(len(value.shape))))


# The arguments of a call by their names in the schema, with defaults filled in. Each tensor is a View or a
# constant Tensor. `shape`, `shapes` and `dtype` (a torch.dtype) belong to the results. `floats` are the
# floating types of operands and results. A check gets the fx nodes instead.
Arguments = SimpleNamespace


def shape_of(operand: Any) -> tuple[int, ...]:
    """Return the shape of an operand: a View, a constant, or the node that a check or a kernel rule gets."""
    return tuple(tensor_of(operand).shape)


def is_of_one_type(arguments: Arguments) -> bool:
    """Return whether all floats that a call reads and returns have one type."""
    return len(arguments.floats) == 1


def has_exact_numbers(arguments: Arguments) -> bool:
    """Return whether all floats of a call have one type that represents each of its number arguments exactly.

    >>> [has_exact_numbers(Arguments(floats={torch.float16}, other=other)) for other in (0.25, 0.1, 1e5)]
    [True, False, False]
    """
    dtype, *others = arguments.floats
    numbers = (n for n in vars(arguments).values() if type(n) in (int, float))
    return not others and all(float(torch.tensor(number, dtype=dtype)) == number for number in numbers)


def unsupported_tensor(value: Any, target: str, dtypes: Collection[torch.dtype]) -> str | None:
    """Return why a value of the program cannot be a tensor of the target, which has these types, or None."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__} where {target} wants a tensor"
    if value.dtype not in dtypes:
        return f"{value.dtype}; this target has {', '.join(map(str, dtypes))}"
    if not all(isinstance(size, int) for size in value.shape):
        return f"the symbolic shape {tuple(value.shape)}"
    if value.numel() == 0:
        return f"the empty shape {tuple(value.shape)}"
    return None


@dataclass(frozen=True)
class Row:
    """The functions that write one operator for a target, and refuse calls that cannot be written.

    Attributes:
        build: Takes the target's writer and the arguments. Returns a dense value, a View, or a list of dense
            values.
        check: Returns why a call cannot be written, or None.
        relabel: Whether the operator moves no element, or moves elements only as part of a conversion.
        integers: Whether the operator takes int8 and uint8 besides the target's own types.
        halves: Returns whether `build` computes a half-precision call in half precision. Other calls are
            written in float32, and the table adds the casts before and after them.
        kernel: The target's kernel for the operator between quantized values, if it computes in integers.
    """

    build: Callable[[Any, Arguments], Any]
    check: Callable[[Arguments], str | None] = lambda arguments: None
    relabel: bool = False
    integers: bool = False
    halves: Callable[[Arguments], bool] = lambda arguments: False
    kernel: KernelRule = None

    def is_widened(self, arguments: Arguments) -> bool:
        """Return whether a call in half precision or float64 is computed in float32."""
        return not _IN_FLOAT32.isdisjoint(arguments.floats) and not self.halves(arguments)


@dataclass(frozen=True)
class Table:
    """The operators that a target computes.

    `unfit(value, is_constant)` returns why a value of the program cannot be one of the target's tensors.
    `lacks` has more to say about calls of operators without a row.
    """

    name: str
    rows: Mapping[Any, Row]
    unfit: Callable[[Any, bool], str | None]
    lacks: Mapping[Any, Callable[[Node], str]] = field(default_factory=dict)

    def without(self, *names: str) -> Table:
        """Return the table without the operators of these names, for a target that lacks them.

        >>> aten = torch.ops.aten
        >>> Table("T", {aten.relu.default: Row(print)}, lambda v, c: None).without("relu").rows
        {}
        """
        kept = {target: row for target, row in self.rows.items() if target._opname not in names}
        return replace(self, rows=kept)

    @property
    def kernel_rules(self) -> Mapping[Any, KernelRule]:
        """How the target computes each operator between integers."""
        return {target: row.kernel for target, row in self.rows.items()}

    def supports(self, node: Node, constants: Collection[Node]) -> str | None:
        """Return None if the target computes `node`, else the reason why not.

        `constants` are the nodes whose value is known ahead of time.
        """
        if node.op != "call_function":
            return None
        if is_getitem(node):
            reason = self.supports(node.args[0], constants)  # type: ignore[arg-type]  # getitem's first is a node
            return reason and f"its source: {reason}"
        row = self.rows.get(node.target)
        if row is None:
            known = self.lacks.get(node.target)
            return f"{self.name} has no {node.target}{f', {known(node)}' if known else ''}"
        arguments = bind(node, lambda n: n)
        arguments.is_constant = lambda argument: argument is None or argument in constants
        if row.is_widened(arguments):
            arguments.dtype = _wide(arguments.dtype)
        if node.target in (QUANTIZE, DEQUANTIZE) and (reason := row.check(arguments)):
            return reason  # its own reason says more about integers than "not a float type"
        for tensor in (node, *node.all_input_nodes):
            for value in results(tensor):
                if row.integers and isinstance(value, Tensor) and value.dtype in (torch.int8, torch.uint8):
                    value = value.to(torch.float32)  # whose shape has the same limits
                reason = self.unfit(value, tensor in constants)
                if reason:
                    return reason
        return row.check(arguments)

    def build(
        self,
        writer: Any,
        node: Node,
        resolve: Callable[[Node], Any],
        dynamic: DynamicCall | None = None,
    ) -> View[Any] | list[View[Any]]:
        """Write the target's operators for `node`, and return its result or results.

        `dynamic` has the numbers of `node`, if they depend on dynamic sizes.

        For a call that is computed in float32, `writer.widened` casts the operands and `writer.narrowed` the
        results.
        """
        row, arguments = self.rows[node.target], bind(node, resolve, dynamic)
        if not row.is_widened(arguments):
            return _viewed(writer, row.build(writer, arguments), arguments.shape)
        wide = bind(node, lambda operand: writer.widened(resolve(operand)), dynamic)
        wide.dtype = _wide(wide.dtype)
        result = _viewed(writer, row.build(writer, wide), wide.shape)
        if not isinstance(result, list):
            return writer.narrowed(result, arguments.dtype)  # type: ignore[no-any-return]
        return [writer.narrowed(view, value.dtype) for view, value in zip(result, results(node), strict=True)]

    def is_relabel(self, node: Node) -> bool:
        """Return whether `node` only renames or moves elements."""
        row = self.rows.get(node.target)
        return is_getitem(node) or (row is not None and row.relabel)


def bind(node: Node, resolve: Callable[[Node], Any], dynamic: DynamicCall | None = None) -> Arguments:
    """Return the arguments of `node` by name, with each node among them replaced by `resolve` of it.

    `dynamic` has the numbers of `node`, if they depend on dynamic sizes.
    """
    values = results(node)
    call = dynamic or DynamicCall(node.args, node.kwargs, [tuple(value.shape) for value in values])
    named, shapes = bound(node.target, call.args, call.kwargs), call.shapes
    read = (value for operand in node.all_input_nodes for value in results(operand))
    tensors = (value for value in (*values, *read) if isinstance(value, Tensor))
    floats = frozenset(tensor.dtype for tensor in tensors if tensor.is_floating_point())
    unsigned = [name for name, x in named.items() if isinstance(x, Node) and _is_unsigned(x)]
    facts = {"shape": shapes[0], "shapes": shapes, "dtype": values[0].dtype}
    facts |= {"floats": floats, "unsigned": unsigned}
    return SimpleNamespace(**{**torch.fx.map_arg(named, resolve), **facts})


def _is_unsigned(node: Node) -> bool:
    return any(isinstance(x, Tensor) and x.dtype == torch.uint8 for x in results(node))


def _viewed(writer: Any, result: Any, shape: Sequence[int]) -> View[Any] | list[View[Any]]:
    """Return the output of a row as views."""
    if isinstance(result, View):
        return result
    if isinstance(result, list):
        return [whole(value) for value in result]
    return whole(writer.reshape(result, shape))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _IN_FLOAT32 else dtype


def is_conversion(clone: Arguments) -> bool:
    """Return whether a clone is the second half of a conversion, or copies a tensor that is dense already."""
    return clone.memory_format is torch.contiguous_format


def is_permute(node: Node) -> bool:
    return node.target is aten.permute.default


def is_transposed(node: Node) -> bool:
    """Return whether a call's operand is a view with its last two dimensions swapped."""
    if not is_permute(node):
        return False
    dims: Any = node.args[1]
    return tuple(dims) == last_two_swapped(len(dims))


def last_two_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)
