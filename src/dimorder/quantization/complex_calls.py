"""Write calls of complex numbers in calls of their real and imaginary parts, which Arm's quantizers know."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from types import MappingProxyType

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import replace_node, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.graph.tracing import Tracer, Value
from dimorder.ops.complex_numbers import write_pairs
from dimorder.ops.fourier import OPERATORS
from dimorder.quantization.constants import insert_constant, written_buffers

aten = torch.ops.aten

_CONVOLUTIONS = (  # and transposed ones, by the number of their spatial dimensions
    (aten.conv1d.default, aten.conv_transpose1d.default),
    (aten.conv2d.default, aten.conv_transpose2d.input),
    (aten.conv3d.default, aten.conv_transpose3d.input),
)


def _convolution(
    n: Tracer,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """Write a convolution as the operator that quantizers know."""
    target = _CONVOLUTIONS[len(stride) - 1][transposed]
    rest = (output_padding, groups, dilation) if transposed else (dilation, groups)
    return n.write(target, x, weight, bias, stride, padding, *rest)


_SPELLINGS = MappingProxyType(
    {
        **{name: each.spelling for each in OPERATORS if each.spelling for name in each.names},
        aten.convolution.default: _convolution,
    }
)


def write_complex_calls(model: GraphModule) -> None:
    """Write what a network computes of complex numbers in real ones, in place.

    Calls that complex results of the network need stay. So do all calls if an input or a state is complex.

    >>> class Spectrum(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.fft.rfft(x).real
    >>> model = torch.export.export(Spectrum(), (torch.ones(2, 5),)).module(check_guards=False)
    >>> write_complex_calls(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"]
    ['aten.linear.default']
    """
    calls = [node for node in model.graph.nodes if node.op == "call_function" and _computes_pairs(node)]
    operands = [each for node in calls for each in node.all_input_nodes]
    states = written_buffers(model)
    given = (each for each in operands if each.op == "placeholder" or each.target in states)
    if not all(map(_has_fixed_sizes, (*calls, *operands))) or any(
        tensor_of(each).is_complex() for each in given
    ):
        return
    tracer = Tracer(_SPELLINGS, lambda target: target not in _SPELLINGS, pairs=write_pairs)
    values: dict[Node, Value] = {}
    written: dict[Node, Node] = {}
    for node in calls:
        for each in node.all_input_nodes:
            if each not in values:
                values[each] = _operand(model, tracer, each, states)
                written |= {values[each]: each} if isinstance(values[each], Node) else {}
        args, kwargs = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
        value = values[node] = tracer.trace(node, node.target, args, kwargs)
        if isinstance(value, Tensor) and not value.is_complex():
            value = tracer.as_node(value)
        _copy_new(model, tracer, written, node)
        if isinstance(value, Node):
            replace_node(node, written[value])
    model.graph.eliminate_dead_code()


def _computes_pairs(node: Node) -> bool:
    """Return whether a call reads or gives complex numbers."""
    return any(
        isinstance(value, Tensor) and value.is_complex()
        for each in (node, *node.all_input_nodes)
        for value in pytree.tree_leaves(each.meta.get("val"))
    )


def _has_fixed_sizes(node: Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    return all(isinstance(size, int) for value in values for size in getattr(value, "shape", ()))


def _operand(model: GraphModule, tracer: Tracer, node: Node, states: Collection[str]) -> Value:
    """Return a constant itself, and any other operand as an input of the tracer."""
    if node.op == "get_attr" and node.target not in states:
        held: Tensor = attrgetter(str(node.target))(model)
        return tracer.named(node.name, held.detach())
    return tracer.input(node.name, tensor_of(node))


def _copy_new(model: GraphModule, tracer: Tracer, written: dict[Node, Node], place: Node) -> None:
    """Copy the calls that the tracer has written since the last time into the network, before `place`."""
    for each in tracer.graph.nodes:
        if each in written:
            continue
        if each.op == "get_attr":
            name = str(each.target)
            written[each] = insert_constant(model, name, tracer.attributes[name], place)
        elif each.op == "call_function":
            args, kwargs = pytree.tree_map_only(Node, written.__getitem__, (each.args, each.kwargs))
            written[each] = computed_before(place, each.target, *args, **kwargs)
