"""Write ExecuTorch delegates: their bytes, and a stand-in program that returns tensors like their results.

A 4-D channels-last tensor keeps its logical shape in the program, and is NHWC to the delegate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.delegate import executorch_call_delegate, get_lowered_module_name
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, Proxy, map_arg
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from dimorder.graph.branches import Branches
from dimorder.graph.construct import program_of_values
from dimorder.graph.exported import state_of
from dimorder.graph.nodes import VALUE, set_value
from dimorder.targets.largest_shapes import LargestShapes
from dimorder.targets.program_io import is_channels_last

aten: Any = torch.ops.aten

EDGE = EdgeCompileConfig(_check_ir_validity=False)
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
# computes a size from the sizes of all operands, in one flat sequence
SizeFormula = Callable[[Any], Any]


def make_delegate(
    backend: str,
    reads: Sequence[Tensor],
    gives: Sequence[Tensor],
    blob: bytes,
    constants: NamedDataStoreOutput | None = None,
    options: Sequence[CompileSpec] = (),
    shapes: Sequence[Sequence[int | SizeFormula]] | None = None,
) -> LoweredBackendModule:
    """Return a delegate with these bytes, for operands and results like the given ones.

    `backend` is the name that the runtime registers, and `options` are its compile specs. With dynamic sizes,
    `reads` are tensors without data of such sizes, and `shapes` are the shapes of the results. A dynamic size
    in `shapes` is a function of one flat sequence of the operands' sizes.
    """
    shapes = [tuple(result.shape) for result in gives] if shapes is None else shapes
    return LoweredBackendModule(_stand_in(reads, gives, shapes), backend, blob, list(options), constants)


def outer_program(
    module: GraphModule, examples: Sequence[Tensor], ranges: Mapping[Any, Any] = MappingProxyType({})
) -> ExportedProgram:
    """Return the exported program of a graph that calls delegates and operators, as torch.export would.

    torch.export takes more time. It also refuses what an operator seems to ask of dynamic sizes.

    Args:
        module: The graph, in which each delegate is a module. Tensors that it reads become buffers. A value
            that stands at a node is not computed again.
        examples: One tensor for each input. Those at the inputs' nodes have dynamic sizes, if there are some.
        ranges: The ranges of these.
    """
    inputs, read = (module.graph.find_nodes(op=op) for op in ("placeholder", "get_attr"))
    given = {node: node.meta.get(VALUE, each) for node, each in zip(inputs, examples, strict=True)}
    mode, root, graph = _mode_of(given.values()), torch.nn.Module(), Graph()
    state = {str(node.target): module.get_buffer(str(node.target)) for node in read}
    buffers = {name: graph.placeholder(f"b_{name}") for name in state}
    for name, node in buffers.items():
        set_value(node, _without_data(mode, state[name]))
    copies: dict[Node, Any] = {node: buffers[str(node.target)] for node in read}
    for node in inputs:
        copies[node] = set_value(graph.placeholder(node.name), _without_data(mode, given[node]))
    environment = mode.shape_env
    with nullcontext() if environment is None else environment.suppress_guards():
        for node in module.graph.nodes:
            if node.op == "call_module":
                delegate: Any = module.get_submodule(str(node.target))
                reads = [copies[operand] for operand in node.args]
                called = graph.get_attr(get_lowered_module_name(root, delegate))
                copies[node] = graph.call_function(executorch_call_delegate, (called, *reads))
                results = delegate.original_module.graph.output_node().args[0]
                value: Any = [each.meta[VALUE] for each in results]
            elif isinstance(node.target, Branches):
                copies[node] = node.target.write_call(root, graph, [copies[each] for each in node.args])
                value = node.meta[VALUE]
            elif node.op == "call_function":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                value = node.meta[VALUE] if VALUE in node.meta else _computed(mode, copies[node])
            else:
                continue
            set_value(copies[node], pytree.tree_map_only(Tensor, partial(_without_data, mode), value))
    returned: Any = module.graph.output_node().args[0]
    graph.output(tuple(copies[node] for node in returned))
    return program_of_values(root, graph, examples, state, buffers, ranges)


def _computed(mode: FakeTensorMode, node: Node) -> Any:
    """Return the result of a call of an operator, without data."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda read: read.meta[VALUE])
    target: Any = node.target
    with mode, enable_python_dispatcher():  # paddings of dynamic amounts are computed in Python alone
        return target(*args, **kwargs)


def _mode_of(values: Iterable[Any]) -> FakeTensorMode:
    """Return the mode of the tensors without data among some values, or a new one."""
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), FakeTensorMode())


def _without_data(mode: FakeTensorMode, value: Tensor) -> Tensor:
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def write_pte(program: ExportedProgram, texts: Mapping[str, str], *, keep_delegates: bool = False) -> bytes:
    """Return the .pte of a program in edge dialect; `texts` become methods that return them.

    Calls of delegates are edge dialect already, so `to_edge`, which takes half a second, is skipped.
    `keep_delegates` puts the bytes of delegates into the program itself, which lives as long as its methods.
    Otherwise they are segments, which ExecuTorch frees after it has made the delegate.
    """
    manager = EdgeProgramManager({"forward": program}, dict(texts), EDGE)
    state = list(state_of(program))
    # Without this pass ExecuTorch starts a mutable buffer with whatever its memory contains.
    passes: list[Any] = [InitializedMutableBufferPass(state)] if state else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mutation on a buffer")  # the pass warns about just that
        config = ExecutorchBackendConfig(
            passes=passes,
            extract_delegate_segments=not keep_delegates,
            sym_shape_eval_pass=LargestShapes(program.range_constraints),
        )
        data = bytes(manager.to_executorch(config).buffer)
    _drop_cached_delegates(program)
    return data


def _drop_cached_delegates(program: ExportedProgram) -> None:
    """Drop delegates from PyTorch's caches of fake results, which would keep their weights forever.

    Results of dynamic sizes are cached beside the sizes.
    """
    inputs = [node.meta.get(VALUE) for node in program.graph.find_nodes(op="placeholder")]
    sizes = _mode_of(inputs).shape_env
    for cache in (FakeTensorMode.cache, *([] if sizes is None else [sizes.fake_tensor_cache])):
        for entry in [entry for entry in cache if entry.key[0] is executorch_call_delegate]:
            del cache[entry]


class _StandIn(ExportedProgram):
    """A graph that ExecuTorch runs for a delegate while it traces: it reads no state, and runs as it is."""

    def module(self, check_guards: bool = True) -> GraphModule:
        graph_module: GraphModule = self.graph_module
        return graph_module


def _stand_in(
    reads: Sequence[Tensor], gives: Sequence[Tensor], shapes: Sequence[Sequence[int | SizeFormula]]
) -> ExportedProgram:
    """Return a program whose results have the right shapes, strides and types."""
    mode, graph = _mode_of(reads), Graph()
    operands = [graph.placeholder(f"x{i}") for i in range(len(reads))]
    for node, value in zip(operands, reads, strict=True):
        set_value(node, _without_data(mode, value))
    sizes, results = _Sizes(graph, operands), []
    for like, formulas in zip(gives, shapes, strict=True):
        computed = [each(sizes) if callable(each) else each for each in formulas]
        shape = [each.node if isinstance(each, Proxy) else each for each in computed]
        nhwc = is_channels_last(like)
        args = ([shape[d] for d in TO_NHWC] if nhwc else shape,)
        result = graph.call_function(aten.zeros.default, args, {"dtype": like.dtype})
        results.append(graph.call_function(aten.permute.default, (result, TO_NCHW)) if nhwc else result)
    graph.output(tuple(results))
    for node in graph.nodes:
        if node.op == "call_function":
            set_value(node, _computed(mode, node))
    examples = [torch.empty(0)] * len(reads)
    return program_of_values(torch.nn.Module(), graph, examples, kind=_StandIn)


class _Sizes:
    """The sizes of all operands in one flat sequence; a dynamic one is read from its operand."""

    def __init__(self, graph: Graph, operands: Sequence[Node]) -> None:
        self.graph, self.tracer = graph, GraphAppendingTracer(graph)
        self.places = [(node, d) for node in operands for d in range(node.meta["val"].dim())]

    def __getitem__(self, place: int) -> int | Proxy:
        node, dim = self.places[place]
        size = node.meta["val"].shape[dim]
        if isinstance(size, int):
            return size
        return Proxy(self.graph.call_function(aten.sym_size.int, (node, dim)), self.tracer)
