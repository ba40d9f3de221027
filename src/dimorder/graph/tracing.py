"""Trace a graph again: evaluate, copy or decompose each operator, or write it in other operators."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dimorder.errors import UnsupportedError
from dimorder.graph.half_numbers import HALVES, round_numbers
from dimorder.graph.nodes import (
    EXPORTED,
    MAX_SHAPE,
    RESIZES,
    RESULT,
    UNEVEN,
    add_constant,
    add_meta,
    bound,
    graph_module,
    is_getitem,
    set_value,
    source_of,
    tensor_of,
)
from dimorder.graph.pairs import Pair, is_pair
from dimorder.graph.prediction import results_of, without_data
from dimorder.graph.quantized import evaluate

Value = Any  # a graph node, a constant tensor, or a plain Python argument
FLOATS = HALVES | {torch.float32}  # the types of networks that are deployed

# Memory that nothing was written to differs from run to run, and may hold what no reader of a file may see.
# For each operator: one that gives zeros in its place, and how many arguments both have.
_AS_ZEROS: Mapping[Any, tuple[Any, int]] = MappingProxyType(
    {
        torch.ops.aten.empty.memory_format: (torch.ops.aten.zeros.default, 1),
        torch.ops.aten.empty_permuted.default: (torch.ops.aten.zeros.default, 1),
        torch.ops.aten.empty_strided.default: (torch.ops.aten.zeros.default, 1),
        torch.ops.aten.empty_like.default: (torch.ops.aten.zeros_like.default, 1),
        torch.ops.aten.new_empty.default: (torch.ops.aten.new_zeros.default, 2),
        torch.ops.aten.new_empty_strided.default: (torch.ops.aten.new_zeros.default, 2),
    }
)


def is_half(node: torch.fx.Node) -> bool:
    """Return whether a node has one result, a tensor of half precision."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in HALVES


class Tracer:
    """A graph under construction, with its constants.

    `spellings` maps an operator to the function that writes it in other operators. `is_known` says which
    operators stay whole. torch decomposes the others as far as it has a decomposition. `parts` returns a
    function in plain torch for a call that would stay whole, but is to be written in other operators.

    `fused` has the operators that stay whole although others have them in simpler ones; a spelling asks.

    `pairs` writes a call of complex numbers as calls of real ones. It returns NotImplemented for other calls.

    `node` is the node being traced. `meta` is its place in the source, which every new node inherits.
    `remembered` is what a spelling keeps for later calls, such as constants that several calls share. `given`
    has the program's inputs.
    """

    def __init__(
        self,
        spellings: Mapping[Any, Callable[..., Value]],
        is_known: Callable[[Any], bool],
        parts: Callable[[Any, Sequence[Value]], Callable[..., Any] | None] = lambda target, args: None,
        pairs: Callable[..., Value] = lambda tracer, target, args, kwargs: NotImplemented,
        fused: Collection[Any] = (),
    ) -> None:
        self.spellings, self.is_known, self.parts_of = spellings, is_known, parts
        self.pairs, self.fused = pairs, fused
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self.attribute_nodes: dict[int, torch.fx.Node] = {}
        self.kept: list[torch.Tensor] = []  # keeps constants alive, so that their ids stay unique
        self.names: dict[int, str] = {}
        self.remembered: dict[Any, Any] = {}
        self.given: set[torch.fx.Node] = set()
        self.node: Any = None
        self.meta: dict[str, Any] = {}

    def trace(
        self, node: torch.fx.Node, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]
    ) -> Value:
        """Write one call of the old graph as a call of `target`, with arguments that are already traced."""
        self.node = node
        self.meta = {**source_of(node, RESIZES, UNEVEN), EXPORTED: node.name}
        result = self.call(target, args, kwargs)
        if isinstance(result, torch.fx.Node):
            call = (str(node.args[0]), node.args[1]) if is_getitem(node) else (node.name, None)
            result.meta.setdefault(RESULT, call)
        return result

    def input(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        set_value(node, without_data(tensor))
        self.given.add(node)
        return node

    def named(self, name: str, constant: torch.Tensor) -> torch.Tensor:
        """Register the name that a constant will have, and return the constant."""
        self.names[id(constant)] = name
        self.kept.append(constant)
        return constant

    def module(self, outputs: Sequence[Value]) -> torch.fx.GraphModule:
        self.meta = {}
        self.graph.output(tuple(self.as_node(value) for value in outputs))
        self.graph.eliminate_dead_code()
        root = torch.nn.Module()
        used = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name, tensor in self.attributes.items():
            if name in used:
                root.register_buffer(name, tensor)
        return graph_module(root, self.graph)

    def call(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Evaluate, rewrite or copy one operator; drop assertions, which return nothing."""
        if isinstance(target, torch._ops.OpOverload) and not target._schema.returns:
            return None
        if target in _AS_ZEROS:
            target, count = _AS_ZEROS[target]
            args, kwargs = args[:count], {k: v for k, v in kwargs.items() if k != "memory_format"}
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, torch.fx.Node) for leaf in leaves) and not is_random(
            target, args, kwargs
        ):
            return evaluate(target, args, kwargs)
        args, kwargs = round_numbers(target, args, kwargs)
        written = self.pairs(self, target, args, kwargs)
        if written is not NotImplemented:
            return written
        if target not in self.spellings and not self.is_known(target):
            target = _as_view(target)
        rewrite = self.spellings.get(target)
        if rewrite is not None:
            return rewrite(self, *args, **kwargs)
        if self.is_known(target):
            return self.emit(target, *args, **kwargs)
        return self.parts(target, args, kwargs)

    def parts(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Write an operator by torch's own decomposition, or copy it if torch has none."""
        function = decomposition_of(target)
        if function is None:
            return self.emit(target, *args, **kwargs)
        return self.written_by(function, args, kwargs)

    def written_by(
        self,
        function: Callable[..., Any],
        args: Sequence[Value],
        kwargs: Mapping[str, Value],
        in_pairs: bool = False,
    ) -> Value:
        """Trace a function of plain torch, and write its operators; NotImplemented if it returns that.

        With `in_pairs` it takes and returns pairs, else the complex tensors that they stand for.
        """
        whole = None if in_pairs else is_pair
        leaves, spec = pytree.tree_flatten((_plain(args), _plain(kwargs)), is_leaf=whole)
        kinds = (torch.fx.Node, torch.Tensor, Pair)
        given = [leaf for leaf in leaves if isinstance(leaf, kinds)]

        def run(*tensors: torch.Tensor) -> Any:
            feed = iter(tensors)
            filled = [next(feed) if isinstance(x, kinds) else x for x in leaves]
            filled_args, filled_kwargs = pytree.tree_unflatten(filled, spec)
            result = function(*filled_args, **filled_kwargs)
            if result is NotImplemented:
                raise _StaysError
            return result

        with FakeTensorMode(), torch.no_grad():
            stand_ins = [torch.empty(shape_of(x), dtype=dtype_of(x)) for x in given]
            try:
                graph = make_fx(run)(*stand_ins).graph
            except _StaysError:
                return NotImplemented
        env: dict[torch.fx.Node, Value] = {}
        feed = iter(given)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(feed)
            elif node.op == "call_function":
                inner = pytree.tree_map_only(torch.fx.Node, env.__getitem__, (node.args, node.kwargs))
                if isinstance(node.target, type):  # a tuple of named results
                    env[node] = Pair(*inner[0]) if node.target is Pair else list(inner[0])
                    continue
                env[node] = self.call(out_of_place(node.target) or node.target, *inner)
                if out_of_place(node.target):  # later reads of the operand read the result
                    env[node.args[0]] = env[node]
        return pytree.tree_map_only(torch.fx.Node, env.__getitem__, graph.output_node().args[0])

    def write(self, target: Any, *args: Value, **kwargs: Value) -> Value:
        """Do the same as `call`, with the arguments as they are written in a call."""
        return self.call(target, args, kwargs)

    def emit(self, target: Any, *args: Value, **kwargs: Value) -> Value:
        """Copy one operator into the graph. A result without elements becomes a constant.

        Raises:
            UnsupportedError: torch has no rule for the shapes of the results.
        """
        function = self.parts_of(target, args)
        if function is not None:
            written = self.written_by(function, args, kwargs)
            if isinstance(written, (list, tuple)) and None in written:
                whole = self._copied(target, args, kwargs)
                return [
                    self._copied(operator.getitem, (whole, i), {}) if value is None else value
                    for i, value in enumerate(written)
                ]
            if written is not NotImplemented:
                return written
        return self._copied(target, args, kwargs)

    def _copied(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        nodes = pytree.tree_map_only(torch.Tensor, self.as_node, (args, kwargs))
        try:
            value = results_of(target, *nodes)
        except NotImplementedError as error:
            found = "torch has no rule for the shapes of its results"
            raise UnsupportedError(str(target), found, "replace it in the module") from error
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            return torch.empty(tuple(value.shape), dtype=value.dtype)
        return add_meta(self.graph.call_function(target, *nodes), self.meta, value)

    def as_node(self, value: Value) -> torch.fx.Node:
        if isinstance(value, torch.fx.Node):
            return value
        if id(value) not in self.attribute_nodes:
            self.kept.append(value)
            name = self._free_name(self.names.get(id(value), "constant"))
            # A copy: later changes to the module's parameters must not reach the program.
            self.attributes[name] = value.detach().clone(memory_format=torch.contiguous_format)
            self.attribute_nodes[id(value)] = self._at_top(lambda: add_constant(self.graph, name, value))
        return self.attribute_nodes[id(value)]

    def _free_name(self, name: str) -> str:
        """Return `name`, with a number appended if a constant or GraphModule uses it already."""
        names = (name, *(f"{name}_{i}" for i in range(1, len(self.attributes) + 2)))
        return next(n for n in names if n not in self.attributes and not hasattr(_GRAPH_MODULE, n))

    def _at_top(self, make: Callable[[], torch.fx.Node]) -> torch.fx.Node:
        first = next((node for node in self.graph.nodes if node.op == "call_function"), None)
        if first is None:
            return make()
        with self.graph.inserting_before(first):
            return make()


class _StaysError(Exception):
    """A function of plain torch does not write a call in other operators."""


def _as_view(target: Any) -> Any:
    """Return the operator that views what this one copies (`slice` for `slice_copy`), else `target`."""
    if torch.Tag.view_copy not in getattr(target, "tags", ()):
        return target
    views = getattr(torch.ops.aten, target._opname.removesuffix("_copy"))
    return getattr(views, target._overloadname, target)


def _plain(value: Any) -> Any:
    """Copy a graph's immutable lists into plain lists, to which a decomposition may write."""
    if isinstance(value, Pair):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


_GRAPH_MODULE = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())


@cache
def decomposition_of(target: Any) -> Callable[..., Any] | None:
    """Return the function by which torch decomposes an operator outside its core set, or None."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return target.decompose
    table = core_aten_decompositions()
    if target not in table:  # `in` fills the table: `get` alone finds nothing
        return None
    decomposition: Callable[..., Any] = table[target]
    return decomposition


def in_float32(spell: Callable[..., Value]) -> Callable[..., Value]:
    """Make a spelling compute half-precision operands in float32.

    Squares do not overflow there. A result of several operators is rounded once.
    """

    def wide_of(n: Tracer, value: Value) -> Value:
        is_half = isinstance(value, (torch.fx.Node, torch.Tensor)) and dtype_of(value) in HALVES
        return n.write(torch.ops.aten._to_copy.default, value, dtype=torch.float32) if is_half else value

    def widened(n: Tracer, x: Value, *args: Any, **kwargs: Any) -> Value:
        given = dtype_of(x)
        if given not in HALVES:
            return spell(n, x, *args, **kwargs)
        wide = spell(n, wide_of(n, x), *(wide_of(n, each) for each in args), **kwargs)
        several = isinstance(wide, list)
        to = kwargs.get("dtype") or given
        narrow = [
            n.write(torch.ops.aten._to_copy.default, y, dtype=to) for y in (wide if several else [wide])
        ]
        return narrow if several else narrow[0]

    return widened


def out_of_place(target: Any) -> Any:
    """Return the functional form of an operator that writes to its first operand, else None.

    >>> out_of_place(torch.ops.aten.add_.Scalar)
    <OpOverload(op='aten.add', overload='Scalar')>
    >>> out_of_place(torch.ops.aten.transpose_.default)
    <OpOverload(op='aten.transpose', overload='int')>
    """
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"), None)
    names = [] if packet is None else [target._overloadname, *packet.overloads()]
    takes = [str(argument.real_type) for argument in target._schema.arguments]
    for overload in (getattr(packet, name) for name in names if hasattr(packet, name)):
        schema = overload._schema
        if not schema.is_mutable and [str(argument.real_type) for argument in schema.arguments] == takes:
            return overload
    return None


def shape_of(value: Value) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor_of(value).shape)


def at_most(size: int | torch.SymInt) -> int:
    """Return the upper bound of a size, or `sys.maxsize` if the size is unbounded."""
    if not isinstance(size, torch.SymInt):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else sys.maxsize


def at_least(size: int | torch.SymInt) -> int:
    """Return the lower bound of a size."""
    if not isinstance(size, torch.SymInt):
        return size
    return int(size.node.shape_env.bound_sympy(size.node.expr).lower)


def quotient(size: int | torch.SymInt, other: int | torch.SymInt) -> Any:
    """Return one size over another, in lowest terms, as sympy has it."""
    terms = (
        each.node.expr if isinstance(each, torch.SymInt) else sympy.Integer(each) for each in (size, other)
    )
    return sympy.cancel(next(terms) / next(terms))


def max_shape_of(node: torch.fx.Node) -> tuple[int, ...]:
    """Return the largest shape of a value, over the ranges of dynamic sizes."""
    return node.meta.get(MAX_SHAPE) or shape_of(node)


def dtype_of(value: Value) -> torch.dtype:
    return tensor_of(value).dtype


def is_random(target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Return whether a call draws random numbers.

    An LSTM without dropout draws none, and neither does any operator outside training.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    given = bound(target, args, kwargs)
    chances = [given[name] for name in ("p", "dropout", "dropout_p") if name in given]
    return given.get("train") is not False and chances != [0]
