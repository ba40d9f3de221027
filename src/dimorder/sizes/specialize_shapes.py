"""Specialize a program with dynamic sizes for fixed sizes.

Each number that is computed from sizes becomes a constant, and so does every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node, map_arg
from torch.utils import _pytree as pytree

from dimorder.errors import UnsupportedError, summary
from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import RESIZES, VALUE, bound, drop_meta, operator_at, set_meta, set_value
from dimorder.ops.attention import ATTENTION

_IN_PIECES = (torch.ops.aten.split.Tensor, torch.ops.aten.chunk.default)
_WINDOWS = (torch.ops.aten.unfold.default, torch.ops.aten.im2col.default)


def specialize_shapes(exported: ExportedProgram, leaves: Sequence[Any], sizes: str) -> ExportedProgram:
    """Return the program for the sizes that the leaves of a call have.

    Names, source lines and parameters stay unchanged. Shapes are read from the symbolic ones.

    Args:
        exported: a program with dynamic sizes.
        leaves: the flat arguments of a call.
        sizes: the sizes in words, for errors.

    Raises:
        UnsupportedError: if the network returns a size, or if an operator whose shapes are not known ahead
            of time does not accept these sizes. `require_accepted` finds the other ones.

    >>> class Rows(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.reshape(x.shape[0] * 3, -1)
    >>> batch = torch.export.Dim("N", min=1, max=16)
    >>> program = torch.export.export(Rows(), (torch.ones(2, 3, 5),), dynamic_shapes=({0: batch},))
    >>> fixed = specialize_shapes(program, (torch.ones(7, 3, 5),), "N = 7")
    >>> [node.args[1] for node in fixed.graph.nodes if node.op == "call_function"]
    [[21, -1]]
    """
    graph = copy_graph(exported.graph)
    for node in filter(_resizes, graph.nodes):
        set_meta(node, RESIZES, True)
    tensors = {**exported.state_dict, **exported.constants}
    feed = iter(leaves)
    placed = {
        spec.arg.name: next(feed) if spec.kind == InputKind.USER_INPUT else tensors[str(spec.target)]
        for spec in exported.graph_signature.input_specs
    }
    point = CallSizes([(node, placed[node.name]) for node in graph.nodes if node.op == "placeholder"])
    known: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            value = placed[node.name]
            value = (
                point.fake(value, value.shape, value.stride()) if isinstance(value, torch.Tensor) else value
            )
        elif node.op == "call_function":
            value = point.value_of(node)
            if value is None or node.target in _IN_PIECES:
                value = _run(node, known, sizes)
            if node.target in _IN_PIECES:
                _require_pieces(node, value, sizes)
        elif node.op == "get_attr":  # a branch, which has its sizes from its operands
            value = None
        else:
            drop_meta(node, VALUE)  # a loaded program has symbolic values here
            continue
        known[set_value(node, value)] = value
    if any(_is_number(result, known) for result in graph.output_node().all_input_nodes):
        found = "a size among what the network returns"
        raise UnsupportedError("output", found, "return tensors: their shapes tell their sizes")
    for node in reversed(graph.nodes):
        node.args, node.kwargs = (
            map_arg(each, lambda n: known[n] if _is_number(n, known) else n)
            for each in (node.args, node.kwargs)
        )
        if _is_number(node, known) or (node.op == "call_function" and known[node] is None):
            graph.erase_node(node)
    args, kwargs = pytree.tree_unflatten(list(leaves), exported.call_spec.in_spec)
    call = (tuple(args), dict(kwargs))
    program = replace_parts(exported, graph=graph, range_constraints={}, example_inputs=call)
    if 1 in point.roots.values():
        program._guards_code = []  # they follow from sizes of at least 2, which torch assumes
    return program


def shapes_at(exported: ExportedProgram, inputs: Sequence[Any]) -> Callable[[Node], tuple[int, ...]]:
    """Return what tells the shape that a node's result has in a call with these inputs."""
    point = CallSizes(list(zip(input_nodes(exported), inputs, strict=True)))
    return lambda node: tuple(point.number(size) for size in node.meta[VALUE].shape)


class CallSizes:
    """The sizes of a program at one point, known from the tensors of a call.

    Args:
        placed: the program's placeholders, each with what a call puts there. Those that have no dynamic size
            may be missing.
    """

    def __init__(self, placed: Sequence[tuple[Node, Any]]) -> None:
        self.roots: dict[sympy.Symbol, sympy.Integer] = {}
        self.known: dict[Any, Any] = {}  # by expression
        self.mode = detect_fake_mode([node.meta.get(VALUE) for node, _ in placed])
        for node, value in placed:
            symbolic = node.meta.get(VALUE)
            if isinstance(value, torch.Tensor) and isinstance(symbolic, torch.Tensor):
                sizes: Any = zip(symbolic.shape, value.shape, strict=True)
                for size, found in sizes:
                    if isinstance(size, torch.SymInt):
                        step, root = size.node.expr.as_coeff_Mul()
                        self.roots[root] = sympy.Integer(found // int(step))

    def value_of(self, node: Node) -> Any:
        """Return what a call returns, from its symbolic result, or None if that does not say it."""
        leaves, tree = pytree.tree_flatten(node.meta.get(VALUE))
        found = list(map(self._leaf, leaves))
        return None if None in found else pytree.tree_unflatten(found, tree)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.SymInt):
            return self.number(leaf)
        if not isinstance(leaf, torch.Tensor):
            return None
        shape, strides = ([self.number(size) for size in each] for each in (leaf.shape, leaf.stride()))
        # A result that torch.export does not expect here has a size below 0.
        is_known = None not in (*shape, *strides) and min(shape, default=0) >= 0
        return self.fake(leaf, shape, strides) if is_known else None

    def number(self, number: Any) -> Any:
        """Return a number at the point, or None if it depends on anything else."""
        if not isinstance(number, torch.SymInt):
            return number
        expression = number.node.expr
        if expression not in self.known:
            value = expression.xreplace(self.roots)
            self.known[expression] = int(value) if value.is_Integer else None
        return self.known[expression]

    def fake(self, like: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """Return a tensor without data, in the mode of the program's own."""
        elements = torch.empty_strided(tuple(shape), tuple(strides), dtype=like.dtype, device="meta")
        assert self.mode is not None, "symbols are of a mode"
        return FakeTensor(self.mode, elements, like.device)


def require_accepted(program: ExportedProgram, sizes: str) -> None:
    """Check that each operator of a program of fixed sizes accepts them.

    Raises:
        UnsupportedError: for the first operator that does not; `sizes` are the sizes in words.
    """
    known: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = node.meta.get(VALUE)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):  # its branches are not looked into
            known[node] = node.meta[VALUE]
        elif node.op == "call_function":
            known[node] = _run(node, known, sizes)


def input_nodes(exported: ExportedProgram) -> list[Node]:
    """Return the placeholders of the user's inputs, one for each leaf of a call."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    specs = exported.graph_signature.input_specs
    return [nodes[spec.arg.name] for spec in specs if spec.kind == InputKind.USER_INPUT]


def resize_tensor(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor with another shape: its elements, repeated or cut off along each dimension.

    >>> resize_tensor(torch.tensor([[1, 2], [3, 4]]), (3, 1))
    tensor([[1],
            [3],
            [1]])
    """
    for d, size in enumerate(shape):
        if tensor.shape[d] != size:
            tensor = tensor.index_select(d, torch.arange(size, device=tensor.device) % tensor.shape[d])
    return tensor


def _run(node: Node, known: Mapping[Node, Any], sizes: str) -> Any:
    """Return the results of a call on what is known, without data."""
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    target: Any = node.target
    try:
        with torch.no_grad():
            return target(*args, **kwargs)
    except Exception as error:  # whatever an operator says about sizes that it does not accept
        raise UnsupportedError(
            f"{operator_at(node)}, at {sizes}",
            summary(error),
            "narrow the range of sizes, or make the network take them all",
        ) from error


def _require_pieces(node: Node, value: Any, sizes: str) -> None:
    """Check that a call gives as many tensors as torch.export's program reads, which it does not check."""
    count = len(node.meta[VALUE])
    if len(value) != count:
        found = f"{len(value)} pieces of a dynamic size, where the example inputs have {count}"
        fix = "narrow the range of sizes, or cut a fixed number of pieces"
        raise UnsupportedError(f"{operator_at(node)}, at {sizes}", found, fix)


def _resizes(node: Node) -> bool:
    """Return whether a call may leave its operand as it is here, and change it at other sizes.

    It reads a number computed from sizes, and changes a size of its operand. Or it is attention with a mask
    of a dynamic size, or takes windows that touch and may leave elements over. A slice that cuts the same
    from its operand at all sizes is none.
    """
    if node.target is torch.ops.aten.slice.Tensor and _cuts_alike(node):
        return False
    if node.target in _WINDOWS:
        return _leaves_elements(node)
    if node.target is ATTENTION:
        mask = bound(node.target, node.args, node.kwargs)["attn_mask"]
        return mask is not None and any(isinstance(size, torch.SymInt) for size in mask.meta[VALUE].shape)
    read = [each.meta.get(VALUE) for each in node.all_input_nodes]
    shapes = [list(value.shape) for value in (*read, node.meta.get(VALUE)) if isinstance(value, torch.Tensor)]
    return any(isinstance(value, torch.SymInt) for value in read) and str(shapes[:1]) != str(shapes[-1:])


def _leaves_elements(windows: Node) -> bool:
    """Return whether windows side by side may leave elements of a dynamic size over."""
    read = bound(windows.target, windows.args, windows.kwargs)
    shape = read["self"].meta[VALUE].shape
    if windows.target is torch.ops.aten.unfold.default:
        cuts = [(shape[read["dimension"]], read["size"], read["step"])] if shape else []
    else:
        whole = [size + 2 * pad for size, pad in zip(shape[-2:], read["padding"], strict=True)]
        spans = [d * (k - 1) + 1 for d, k in zip(read["dilation"], read["kernel_size"], strict=True)]
        cuts = list(zip(whole, spans, read["stride"], strict=True))
    rest = [whole % step for whole, size, step in cuts if size == step and isinstance(whole, torch.SymInt)]
    return any(not isinstance(each, torch.SymInt) or each.node.expr != 0 for each in rest)


def _cuts_alike(node: Node) -> bool:
    """Return whether a slice begins at a fixed place, and ends at a fixed distance from its operand's end."""
    read = bound(node.target, node.args, node.kwargs)
    whole, part = (each.meta[VALUE].shape[read["dim"]] for each in (read["self"], node))
    distance = (
        (whole - part).node.expr if isinstance(whole - part, torch.SymInt) else sympy.Integer(whole - part)
    )
    return not isinstance(read["start"], Node) and read["step"] == 1 and bool(distance.is_Integer)


def _is_number(node: Node, known: Mapping[Node, Any]) -> bool:
    """Return whether a node computes a size, or a number from sizes."""
    return node.op == "call_function" and isinstance(known[node], (int, float))
