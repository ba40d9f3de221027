"""Decides how a graph is traced anew, operator by operator: what is over constants alone is evaluated, what
has another spelling is rewritten, the rest is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dimorder.errors import UnsupportedError
from dimorder.graph.quantized_constant import evaluate
from dimorder.graph.schema import bound

Value = Any  # a graph node, a constant tensor, or a plain Python argument
EXPORTED = "exported"  # of a node's meta: the name of the node of the exported program that it was made for
MOST = "most"  # of a node's meta, where sizes are symbols: the most that each size of its shape can be
SOURCE = ("stack_trace", "nn_module_stack")  # what of a node's meta says where in the user's source it is
HALVES = frozenset((torch.float16, torch.bfloat16))  # types of half precision


class Tracer:
    """The graph under construction and its constants.

    `spellings` maps an operator to the function that writes it in other operators, and `is_known` says which
    ones stay whole; others are decomposed as far as torch has a decomposition. `node` is the one being
    traced, and `meta` its place in the source, which whatever is written for it inherits. `remembered` is
    what a spelling keeps for the next call of its operator: constants that several calls share. `given` are
    the program's inputs.
    """

    def __init__(
        self, spellings: Mapping[Any, Callable[..., Value]], is_known: Callable[[Any], bool]
    ) -> None:
        self.spellings, self.is_known = spellings, is_known
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self.attribute_nodes: dict[int, torch.fx.Node] = {}
        self.kept: list[torch.Tensor] = []  # keeps ids of constants unique while tracing
        self.names: dict[int, str] = {}
        self.remembered: dict[Any, Any] = {}
        self.given: set[torch.fx.Node] = set()
        self.node: Any = None
        self.meta: dict[str, Any] = {}

    def trace(
        self, node: torch.fx.Node, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]
    ) -> Value:
        """One call of the old graph as a call of `target`, its arguments already traced."""
        self.node = node
        self.meta = {key: node.meta[key] for key in SOURCE if key in node.meta} | {EXPORTED: node.name}
        return self.call(target, args, kwargs)

    def input(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = without_data(tensor)
        self.given.add(node)
        return node

    def named(self, name: str, constant: torch.Tensor) -> torch.Tensor:
        """A constant that will have this name."""
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
        return torch.fx.GraphModule(root, self.graph)

    def call(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Evaluate, spell anew, or copy one operator; assertions, which return nothing, are dropped."""
        if isinstance(target, torch._ops.OpOverload) and not target._schema.returns:
            return None
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, torch.fx.Node) for leaf in leaves) and not is_random(
            target, args, kwargs
        ):
            return evaluate(target, args, kwargs)
        if target not in self.spellings and not self.is_known(target):
            target = _as_view(target)
        rewrite = self.spellings.get(target)
        if rewrite is not None:
            return rewrite(self, *args, **kwargs)
        if self.is_known(target):
            return self.emit(target, *args, **kwargs)
        return self.parts(target, args, kwargs)

    def parts(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """What torch itself makes of an operator that nothing else is known of, operator by operator."""
        function = decomposition_of(target)
        if function is None:
            return self.emit(target, *args, **kwargs)
        leaves, spec = pytree.tree_flatten((_plain(args), _plain(kwargs)))
        given = [leaf for leaf in leaves if isinstance(leaf, (torch.fx.Node, torch.Tensor))]

        def run(*tensors: torch.Tensor) -> Any:
            feed = iter(tensors)
            filled = [next(feed) if isinstance(x, (torch.fx.Node, torch.Tensor)) else x for x in leaves]
            filled_args, filled_kwargs = pytree.tree_unflatten(filled, spec)
            return function(*filled_args, **filled_kwargs)

        with FakeTensorMode(), torch.no_grad():
            stand_ins = [torch.empty(shape_of(x), dtype=dtype_of(x)) for x in given]
            graph = make_fx(run)(*stand_ins).graph
        env: dict[torch.fx.Node, Value] = {}
        feed = iter(given)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(feed)
            elif node.op == "call_function":
                inner = pytree.tree_map_only(torch.fx.Node, env.__getitem__, (node.args, node.kwargs))
                if isinstance(node.target, type):  # results with names
                    env[node] = list(inner[0])
                    continue
                env[node] = self.call(out_of_place(node.target) or node.target, *inner)
                if out_of_place(node.target):  # what it wrote to is the result from here on
                    env[node.args[0]] = env[node]
        return pytree.tree_map_only(torch.fx.Node, env.__getitem__, graph.output_node().args[0])

    def write(self, target: Any, *args: Value, **kwargs: Value) -> Value:
        """`call` with the arguments as they are written."""
        return self.call(target, args, kwargs)

    def emit(self, target: Any, *args: Value, **kwargs: Value) -> Value:
        """Copy one operator. What has no elements is a constant, whatever it was made from."""
        nodes = pytree.tree_map_only(torch.Tensor, self.as_node, (args, kwargs))
        metas = pytree.tree_map_only(torch.fx.Node, lambda n: n.meta["val"], nodes)
        try:
            with torch.no_grad():
                value = pytree.tree_map_only(torch.Tensor, without_data, target(*metas[0], **metas[1]))
        except NotImplementedError as error:
            found = "torch has no rule for the shapes of its results"
            raise UnsupportedError(str(target), found, "replace it in the module") from error
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            return torch.empty(tuple(value.shape), dtype=value.dtype)
        node = self.graph.call_function(target, *nodes)
        node.meta.update(self.meta, val=value)
        return node

    def as_node(self, value: Value) -> torch.fx.Node:
        if isinstance(value, torch.fx.Node):
            return value
        if id(value) not in self.attribute_nodes:
            self.kept.append(value)
            name = self._free_name(self.names.get(id(value), "constant"))
            # A copy: what the module's owner does to its parameters later must not reach the program.
            self.attributes[name] = value.detach().clone(memory_format=torch.contiguous_format)
            node = self._at_top(lambda: self.graph.get_attr(name))
            node.meta["val"] = without_data(value)
            self.attribute_nodes[id(value)] = node
        return self.attribute_nodes[id(value)]

    def _free_name(self, name: str) -> str:
        """The name, or with a number where a constant has it already, or GraphModule has it for its own."""
        names = (name, *(f"{name}_{i}" for i in range(1, len(self.attributes) + 2)))
        return next(n for n in names if n not in self.attributes and not hasattr(_GRAPH_MODULE, n))

    def _at_top(self, make: Callable[[], torch.fx.Node]) -> torch.fx.Node:
        first = next((node for node in self.graph.nodes if node.op == "call_function"), None)
        if first is None:
            return make()
        with self.graph.inserting_before(first):
            return make()


def _as_view(target: Any) -> Any:
    """The operator that views what this one copies, such as `slice` for `slice_copy`; else itself."""
    if torch.Tag.view_copy not in getattr(target, "tags", ()):
        return target
    views = getattr(torch.ops.aten, target._opname.removesuffix("_copy"))
    return getattr(views, target._overloadname, target)


def _plain(value: Any) -> Any:
    """The same in lists that may be written to: those of a graph may not, and a decomposition may write."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


_GRAPH_MODULE = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())


@cache
def decomposition_of(target: Any) -> Callable[..., Any] | None:
    """The function by which torch decomposes an operator that is not in its core set, or None."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return target.decompose
    table = core_aten_decompositions()
    if target not in table:  # which fills it: `get` alone finds nothing
        return None
    decomposition: Callable[..., Any] = table[target]
    return decomposition


def in_float32(spell: Callable[..., Value]) -> Callable[..., Value]:
    """A spelling that computes what comes in half precision in float32: squares do not overflow there, and
    what is made of several operators is rounded once."""

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
    """The functional operator of one that writes to its first operand; None for any other.

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


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of a tensor, dense: predicted strides lie, and would make later views fail."""
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def shape_of(value: Value) -> tuple[int, ...]:
    tensor = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    return tuple(int(size) for size in tensor.shape)


def at_most(size: int | torch.SymInt) -> int:
    """What a size is at most; `sys.maxsize` where its symbols have no end."""
    if not isinstance(size, torch.SymInt):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else sys.maxsize


def most_of(node: torch.fx.Node) -> tuple[int, ...]:
    """The shape of a value, of the program for ranges of sizes at most."""
    return node.meta.get(MOST) or shape_of(node)


def dtype_of(value: Value) -> torch.dtype:
    tensor = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    return tensor.dtype  # type: ignore[no-any-return]


def is_random(target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether a call draws random numbers: an LSTM without dropout, or any out of training, draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    given = bound(target, args, kwargs)
    chances = [given[name] for name in ("p", "dropout", "dropout_p") if name in given]
    return given.get("train") is not False and chances != [0]
