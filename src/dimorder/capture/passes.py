"""List the passes of capture: on the exported program, and on the graph. Define the smallest of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from dimorder.capture.dynamic import with_dynamic
from dimorder.capture.functionalize import functionalize
from dimorder.capture.fuse_gelu import fuse_gelu
from dimorder.capture.half_integers import widen_between_integers
from dimorder.capture.integers import normalize_quantization
from dimorder.capture.refusals import refuse_random
from dimorder.capture.state import drop_idle_writes, require_apart
from dimorder.graph.nodes import (
    CUTS,
    RESIZES,
    VALUE,
    add_meta,
    are_equal_shapes,
    args_of,
    is_getitem,
    may_resize,
    replace_node,
    set_meta,
    tensor_of,
)
from dimorder.graph.passes import Pass
from dimorder.graph.prediction import add_predicted
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.graph.tracing import is_random, shape_of
from dimorder.ops.table import OPERATORS, elements_of

aten = torch.ops.aten


def graph_faults(module: GraphModule) -> Iterator[str]:
    """Yield what no pass may leave: nodes without a value, calls of an operator that writes."""
    for node in module.graph.nodes:
        if node.op != "output" and "val" not in node.meta:
            yield f"{node}: no value"
        if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            yield f"{node}: it writes to its operand"
    try:
        module.graph.lint()
    except RuntimeError as error:
        yield str(error)


def merge_common_subexpressions(module: GraphModule) -> None:
    """Replace repeated calls by the first of them, in place.

    Arguments are equal if they print the same: 1 is not 1.0, which turns integers into floats.

    >>> from dimorder.capture.captured import capture
    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[:, ::2].relu(), x[:, ::2] * 2, x.long() * 2, x.long() * 2.0
    >>> nodes = capture(Twice(), (torch.ones(1, 4),)).nodes
    >>> print(*(node.name for node in nodes if node.op == "call_function"))
    slice_tensor relu_default mul_tensor _to_copy_default mul_tensor_1 _to_copy_default_2 mul_tensor_3
    """
    first: dict[tuple[Any, str], Node] = {}
    for node in list(module.graph.nodes):
        is_call = isinstance(node.target, OpOverload) or is_getitem(node)
        if is_call and not is_random(node.target, node.args, node.kwargs):
            known = first.setdefault((node.target, repr((node.args, node.kwargs))), node)
            if known is not node:
                replace_node(node, known)


def merge_slices(module: GraphModule) -> None:
    """Cut what slices leave of a slice directly from the whole, in place.

    A slice with a step stays: where the merged slice ended would depend on a dynamic size by rounding.

    >>> from dimorder.capture.captured import capture
    >>> class Gates(torch.nn.Module):
    ...     def forward(self, x):
    ...         gates = x[:, 6:]
    ...         return gates[:, :1] + gates[:, 1:]
    >>> nodes = capture(Gates(), (torch.ones(2, 8),)).nodes
    >>> [node.args[1:] for node in nodes if node.target is aten.slice.Tensor]
    [(1, 6, 7, 1), (1, 7, 8, 1)]
    """
    for node in list(module.graph.nodes):
        if node.target is not aten.slice.Tensor:
            continue
        whole, dim, *cut = args_of(node)
        only_sliced = node.users and all(user.target is aten.slice.Tensor for user in node.users)
        if not only_sliced or cut[-1] != 1:
            continue
        for user in list(node.users):
            _, inner_dim, *inner = args_of(user)
            size = shape_of(whole)[dim]
            if inner_dim == dim and all(isinstance(n, int) for n in (size, *cut, *inner)):
                left = range(size)[slice(*cut)][slice(*inner)]
                user.args = (whole, dim, left.start, min(left.stop, size), left.step)
                if may_resize(node):
                    set_meta(user, RESIZES, True)
    module.graph.eliminate_dead_code()


def drop_expands(module: GraphModule) -> None:
    """Let operators that broadcast read a value itself, where another operand has the sizes of their result.

    The repeated value is then not written to memory.

    >>> from dimorder.capture.captured import capture
    >>> class Gate(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * x.mean((2, 3), keepdim=True).expand_as(x)
    >>> nodes = capture(Gate(), (torch.ones(2, 3, 5, 7),)).nodes
    >>> [str(node.target) for node in nodes if node.op == "call_function"]
    ['aten.mean.dim', 'aten.mul.Tensor']
    """
    for node in module.graph.find_nodes(op="call_function", target=aten.expand.default):
        for user in list(node.users):
            if may_broadcast(node, user):
                user.replace_input_with(node, node.args[0])
    module.graph.eliminate_dead_code()


def may_broadcast(node: Node, user: Node) -> bool:
    """Return whether a user of a value gives the same result if the value's size is 1 where it repeats.

    It does if it broadcasts, and another operand has the sizes of its result.
    """
    others = [each for each in user.all_input_nodes if each is not node]
    return _broadcasts(user.target) and any(_are_of_one_shape(each, user) for each in others)


def _broadcasts(target: Any) -> bool:
    known = elements_of(target).is_pointwise and target.namespace == "aten"
    return known and not target._opname.endswith("_backward")  # kernels of some of these do not broadcast


def _are_of_one_shape(node: Node, other: Node) -> bool:
    """Return whether two values have the same shape, at all sizes. A size has none."""
    if not isinstance(node.meta[VALUE], torch.Tensor):
        return False
    return are_equal_shapes(tensor_of(node).shape, tensor_of(other).shape)


def crop_conv_padding(module: GraphModule) -> None:
    """Replace a convolution whose result is cut by a padding and a convolution, in place.

    >>> class Causal(torch.nn.Module):
    ...     def forward(self, x, w):
    ...         return torch.conv1d(x, w, padding=2)[..., :-2]
    >>> from dimorder.capture.captured import capture
    >>> nodes = capture(Causal(), (torch.ones(1, 3, 9), torch.ones(4, 3, 3))).nodes
    >>> [(str(node.target), *node.args[1:2]) for node in nodes if node.op == "call_function"][0]
    ('aten.constant_pad_nd.default', [2, 0])
    """
    for node in list(module.graph.nodes):
        if node.target is aten.slice.Tensor:
            _crop(node)
    module.graph.eliminate_dead_code()


def _crop(cut: Node) -> None:
    """Crop the padding of the convolution whose result is cut, also if it is quantized in between."""
    conv, dim, start, end, step = args_of(cut)
    between = list[Node]()
    while conv.target in (QUANTIZE, DEQUANTIZE) and len(conv.users) == 1:
        between.insert(0, conv)
        conv = conv.args[0]
    axis = dim - 2
    if conv.target is not aten.convolution.default or axis < 0 or step != 1 or len(conv.users) > 1:
        return
    if may_resize(cut):  # a dynamic size decides how much is cut, and whether anything is
        return
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = conv.args
    amounts = [*padding]
    low, high = amounts[axis] - start, amounts[axis] - (shape_of(conv)[dim] - end)
    if transposed or stride[axis] != 1 or min(low, high) < 0:
        return
    amounts[axis] = 0
    sides = [0, 0] * (len(stride) - 1 - axis) + [low, high]
    is_pad = x.target is aten.constant_pad_nd.default and len(x.users) == 1 and not any(x.args[2:])
    if is_pad and not may_resize(x):  # of a crop
        sides = list(map(sum, itertools.zip_longest(sides, x.args[1], fillvalue=0)))
        x = x.args[0]
    with cut.graph.inserting_before(cut):
        padded = add_predicted(conv, aten.constant_pad_nd.default, x, sides, 0.0)
        args = (padded, weight, bias, stride, amounts, dilation, transposed, output_padding, groups)
        cropped: Node = conv
        for node in (conv, *between):
            operands = args if node is conv else (cropped, *node.args[1:])
            cropped = add_predicted(node, node.target, *operands)
            add_meta(cropped, {CUTS: (*node.meta.get(CUTS, ()), (dim, start, end))})
    cut.replace_all_uses_with(cropped)


EXPORTED_PASSES: tuple[Pass[ExportedProgram], ...] = (
    Pass("refuse buffers that share memory", require_apart),
    Pass("write dynamic quantization as one operator", with_dynamic),
    Pass("functionalize", partial(functionalize, operators=OPERATORS)),
    Pass("drop writes that leave a buffer as it is", drop_idle_writes),
)

_GRAPH = (graph_faults,)
GRAPH_PASSES: tuple[Pass[GraphModule], ...] = (
    Pass("compute in float32 between integers", widen_between_integers, _GRAPH, _GRAPH),
    Pass("normalize quantization", normalize_quantization, _GRAPH, _GRAPH),
    Pass("merge common subexpressions", merge_common_subexpressions, _GRAPH, _GRAPH),
    Pass("write GELU as one operator", fuse_gelu, _GRAPH, _GRAPH),
    Pass("drop expands", drop_expands, _GRAPH, _GRAPH),
    Pass("merge slices", merge_slices, _GRAPH, _GRAPH),
    Pass("crop padding of convolutions", crop_conv_padding, _GRAPH, _GRAPH),
    Pass("refuse random numbers", refuse_random),
)
