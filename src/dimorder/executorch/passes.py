"""Define passes over ExecuTorch programs: `canonicalize`, and those that write dim-order operators."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass, NodeMetadata, ProxyValue
from executorch.exir.passes.dim_order_ops_registry import DimOrderOpsMap, MemoryFormatOpsMap
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import read
from dimorder.executorch.layout import NHWC
from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import keep_names
from dimorder.graph.nodes import set_meta, set_value

TO_DIM_ORDER = exir_ops.edge.dim_order_ops._to_dim_order_copy.default
DIM_ORDER_OPERATORS = frozenset(MemoryFormatOpsMap)
_FORMATS = {NHWC: torch.channels_last}


def canonicalize(program: ExportedProgram) -> ExportedProgram:
    """Make every constant dense and row-major, and give inputs only orders that ExecuTorch knows.

    Use it before `to_edge_transform_and_lower`. A 4-D channels-last input stays so, unless sizes of 1 make
    that the same memory as contiguous. Any other input becomes contiguous. A copy into a memory format of
    another rank than 4 becomes contiguous too, and so does a channels-last copy of one channel.

    This avoids three problems. Channels-last depthwise weights crash XNNPACK's preprocess. Kernels refuse the
    labels of size-1 dims (upstream #22520, #19153). Constants with gaps are not serialised.

    Args:
        program: an exported program.

    Returns:
        The new program, or `program` itself if nothing needs a change.

    >>> conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    >>> program = canonicalize(torch.export.export(conv, (torch.randn(2, 3, 5, 7),)))
    >>> program.state_dict["weight"].is_contiguous()
    True
    """
    names = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    moved = {
        node.name: _canonical_order(node.meta["val"], names[node.name].kind == InputKind.USER_INPUT)
        for node in inputs
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    constants = {**program.state_dict, **program.constants}
    fresh = {
        name: _row_major(tensor)
        for name, tensor in constants.items()
        if isinstance(tensor, torch.Tensor) and not _is_row_major(tensor)
    }
    odd_inputs = [
        node for node in inputs if node.name in moved and not _lies(node.meta["val"], moved[node.name])
    ]
    formats = [node for node in program.graph.nodes if _odd_format(node)]
    if not (fresh or odd_inputs or formats):
        return program
    graph = copy_graph_module(program)
    for old, node in zip(program.graph.nodes, graph.graph.nodes, strict=True):
        if old.name in moved:
            set_value(node, restride(old.meta["val"], moved[old.name]))
        if _odd_format(old):
            arguments = (node.args, node.kwargs)
            node.args, node.kwargs = pytree.tree_map_only(
                torch.memory_format, lambda _: torch.contiguous_format, arguments
            )
    return replace_parts(
        program,
        root=graph,
        graph=graph.graph,
        state_dict={name: fresh.get(name, tensor) for name, tensor in program.state_dict.items()},
        constants={name: fresh.get(name, value) for name, value in program.constants.items()},
    )


class InsertDimOrderOperators(ExportPass):  # type: ignore[misc]
    """A pass that replaces operators with a torch memory format by dim-order operators, at any rank.

    ExecuTorch's own pass fails on every format but contiguous and 4-D channels-last. Its runtime and its
    dim-order operators know no other order. So other formats become contiguous, with the same values.

    >>> from executorch.exir import EdgeCompileConfig, to_edge
    >>> class Copy(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.to(memory_format=torch.channels_last)
    >>> program = torch.export.export(Copy(), (torch.ones(1, 3, 5, 7),))
    >>> edge = to_edge(program, compile_config=EdgeCompileConfig(_skip_dim_order=True))
    >>> module = InsertDimOrderOperators()(edge.exported_program().graph_module).graph_module
    >>> [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]
    ['dim_order_ops._to_dim_order_copy.default']
    """

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: NodeMetadata) -> Any:
        if not isinstance(op, EdgeOpOverload) or op not in DimOrderOpsMap:
            return super().call_operator(op, args, kwargs, meta)
        rest = {name: value for name, value in kwargs.items() if name != "memory_format"}
        order = _wanted_order(args[0], kwargs.get("memory_format"))
        return super().call_operator(DimOrderOpsMap[op], args, {**rest, "dim_order": list(order)}, meta)


class RevertDimOrderOperators(ExportPass):  # type: ignore[misc]
    """A pass that replaces dim-order operators by torch's operators with a memory format.

    It serves a delegate's preprocess that does not know dim-order operators. `InsertDimOrderOperators` after
    it gives the same graph again.

    >>> from executorch.exir import to_edge
    >>> class Copy(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.to(memory_format=torch.channels_last)
    >>> edge = to_edge(torch.export.export(Copy(), (torch.ones(1, 3, 5, 7),)))
    >>> module = RevertDimOrderOperators()(edge.exported_program().graph_module).graph_module
    >>> [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]
    ['aten._to_copy.default']
    """

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: NodeMetadata) -> Any:
        if not isinstance(op, EdgeOpOverload) or op not in MemoryFormatOpsMap:
            return super().call_operator(op, args, kwargs, meta)
        rest = {name: value for name, value in kwargs.items() if name != "dim_order"}
        wanted = kwargs.get("dim_order")
        form = torch.contiguous_format if wanted is None else format_of(DimOrder(*wanted))
        return super().call_operator(MemoryFormatOpsMap[op], args, {**rest, "memory_format": form}, meta)


class Annotate(ExportPass):  # type: ignore[misc]
    """A pass that writes `node.meta["dim_order"]`: the order in ExecuTorch's label, or None.

    >>> x = torch.ones(1, 3, 5, 7).to(memory_format=torch.channels_last)
    >>> module = Annotate()(torch.export.export(torch.nn.ReLU(), (x,)).graph_module).graph_module
    >>> [node.meta["dim_order"] for node in module.graph.nodes if node.op == "call_function"]
    [DimOrder(0, 2, 3, 1)]
    """

    def call(self, graph_module: torch.fx.GraphModule) -> Any:
        from torch.fx.passes.infra.pass_base import PassResult

        for node in graph_module.graph.nodes:
            value = node.meta.get("val")
            set_meta(node, "dim_order", label(value) if isinstance(value, torch.Tensor) else None)
        return PassResult(graph_module, True)


def copy_graph_module(program: ExportedProgram) -> torch.fx.GraphModule:
    graph: torch.fx.GraphModule = copy.deepcopy(program.graph_module)
    keep_names(graph.graph, program.graph)
    return graph


def label(value: torch.Tensor) -> DimOrder:
    """Return the dim order that ExecuTorch writes into a .pte for a tensor: its strides, sorted.

    >>> label(torch.zeros(2, 3, 5, 7).to(memory_format=torch.channels_last))
    DimOrder(0, 2, 3, 1)
    """
    return DimOrder(*label_of(value.stride()))


def label_of(steps: Sequence[Any]) -> list[int]:
    """Return the dimensions by their strides, the largest first."""
    return sorted(range(len(steps)), key=lambda dim: -size_hint(steps[dim]))


def size_hint(size: Any) -> int:
    """Return the example's size for a dynamic one. `int(size)` would fix it for the whole program.

    A size that depends on data has no example: each of its symbols counts as 2.
    """
    if isinstance(size, int):
        return size
    hint, expression = size.node.hint, size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, 2)) if hint is None else hint)


def restride(value: torch.Tensor, order: DimOrder) -> torch.Tensor:
    """Return an empty (fake) tensor like `value`, dense in `order`."""
    sizes = list(value.shape)
    is_fake = isinstance(value, torch._subclasses.FakeTensor)
    with mode_of(value) if is_fake else torch._subclasses.fake_tensor.unset_fake_temporarily():
        return torch.empty_strided(sizes, order.strides(sizes), dtype=value.dtype, device=value.device)


def format_of(order: DimOrder) -> torch.memory_format:
    """Return torch's memory format for an order that dim-order operators can have."""
    return torch.contiguous_format if order.is_contiguous else _FORMATS[order]


def _canonical_order(value: torch.Tensor, is_input: bool) -> DimOrder:
    """Return the order that a placeholder should have."""
    if not is_input or value.dim() != 4 or not all(isinstance(size, int) for size in value.shape):
        return DimOrder.contiguous(value.dim())
    return NHWC if read(tuple(value.shape), tuple(value.stride())) == NHWC else DimOrder.contiguous(4)


def _is_both(value: torch.Tensor) -> bool:
    """Return whether sizes of 1 make channels-last and contiguous the same memory."""
    return NHWC.equivalent(DimOrder.contiguous(4), tuple(value.shape))


def _lies(value: torch.Tensor, order: DimOrder) -> bool:
    return tuple(value.stride()) == order.strides(tuple(value.shape))


def _is_row_major(tensor: torch.Tensor) -> bool:
    return (
        _lies(tensor, DimOrder.contiguous(tensor.dim()))
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    # torch.contiguous() keeps the strides of size-1 dims, and contiguous tensors in a larger storage.
    fresh = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    fresh.copy_(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    return fresh


def _odd_format(node: torch.fx.Node) -> bool:
    """Return whether a node copies into a memory format for which the edge dialect has no dim order."""
    given = [*node.args, *node.kwargs.values()] if node.op == "call_function" else []
    wanted = {argument for argument in given if isinstance(argument, torch.memory_format)}
    value = node.meta.get("val")
    known = isinstance(value, torch.Tensor) and value.dim() == 4 and not _is_both(value)
    return bool(
        wanted - {torch.preserve_format, torch.contiguous_format, *([torch.channels_last] if known else [])}
    )


def _wanted_order(source: Any, form: torch.memory_format | None) -> DimOrder:
    value = source.to_tensor() if isinstance(source, ProxyValue) else source
    rank = value.dim() if isinstance(value, torch.Tensor) else len(value)
    if form == torch.channels_last and rank == 4:
        return NHWC
    if form in (None, torch.preserve_format) and isinstance(value, torch.Tensor) and label(value) == NHWC:
        return NHWC
    return DimOrder.contiguous(rank)


def mode_of(value: Any) -> Any:
    """Return the mode of a fake tensor."""
    return value.fake_mode
