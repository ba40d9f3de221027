"""Define the dialect of physical programs, and decompose it into ATen.

The dialect has operators on contiguous NHWC tensors that ATen pins to NCHW. It also has operators for which
ATen needs several. Each has a schema, and a function that computes it in ATen between permute views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch._export.verifier import TrainingIRVerifier
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.proxy_tensor import make_fx

from dimorder.graph.branches import Branches
from dimorder.graph.elements import Elements
from dimorder.graph.exported import remade
from dimorder.graph.nodes import copy_meta

NAMESPACE = "dimorder"
_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)


def decomposition_table() -> dict[torch._ops.OpOverload, Callable[..., Tensor]]:
    """Return the function of each dialect operator, which computes it in plain ATen between permute views.

    >>> sorted(str(op) for op in decomposition_table())[0]
    'dimorder.avg_pool2d_nhwc.default'
    """
    return {getattr(torch.ops.dimorder, name).default: body for name, (_, body, _) in _DIALECT.items()}


def decompose(
    program: ExportedProgram, *, taps_as_linear: bool = False, kept: Collection[object] = ()
) -> ExportedProgram:
    """Replace every dialect operator by plain ATen, and branches by torch.cond.

    All other operators stay as they are.

    Args:
        taps_as_linear: Write a convolution of one tap as `linear`, which needs no permutes around it.
        kept: Dialect operators that stay.

    >>> class Pool(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.ops.dimorder.max_pool2d_nhwc(x, [2, 2], [2, 2], [0, 0], [1, 1], False)
    >>> program = decompose(torch.export.export(Pool(), (torch.randn(1, 4, 6, 3),)))
    >>> [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    ['aten.permute.default', 'aten.max_pool2d.default', 'aten.permute.default']
    """
    table = decomposition_table()
    if taps_as_linear:
        table[torch.ops.dimorder.conv2d_nhwc.default] = _conv2d_or_linear
    root, graph, made = torch.nn.Module(), Graph(), dict[Node, Node]()
    for node in program.graph.nodes:
        body = None if node.target in kept else table.get(node.target)
        if isinstance(node.target, Branches):
            made[node] = node.target.written(root, graph, [made[each] for each in node.args])
            copy_meta(made[node], node)
        elif body is None:
            made[node] = graph.node_copy(node, made.__getitem__)
        else:
            made[node] = _written_out(graph, node, body, made)
        made[node].name = node.name  # the signature refers to it by name
    return remade(program, root=root, graph=graph, verifiers=[TrainingIRVerifier])


def _written_out(graph: Graph, node: Node, body: Callable[..., Tensor], made: Mapping[Node, Node]) -> Node:
    """Write one call in plain ATen and return its result.

    The call is traced on the fake tensors of its program. Other calls are not traced again.
    """
    read = node.all_input_nodes

    def run(*tensors: Tensor) -> Tensor:
        held = dict(zip(read, tensors, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), held.__getitem__)
        return body(*args, **kwargs)

    mode = node.meta["val"].fake_mode
    guards = nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
    with mode, torch.no_grad(), guards:
        traced = make_fx(run, pre_dispatch=True)(*(each.meta["val"] for each in read)).graph
    inner: dict[Node, Node] = dict(
        zip(traced.find_nodes(op="placeholder"), map(made.__getitem__, read), strict=True)
    )
    for each in traced.nodes:
        if each.op == "call_function":
            args, kwargs = map_arg((each.args, each.kwargs), inner.__getitem__)
            name = f"{node.name}_{each.name}_"
            inner[each] = graph.call_function(each.target, args, kwargs, name=name)
            copy_meta(inner[each], node, each.meta["val"])
    (result,) = traced.output_node().all_input_nodes
    return inner[result]


def _nchw(x: Tensor) -> Tensor:
    return x.permute(_TO_NCHW)


def _nhwc(y: Tensor) -> Tensor:
    """Return an NCHW result as a dense NHWC tensor."""
    return _dense(y.permute(_TO_NHWC))


def _dense(x: Tensor) -> Tensor:
    """Make a tensor contiguous, with canonical strides even where a size is 1."""
    x = x.contiguous()
    canonical = tuple(math.prod(x.shape[d + 1 :]) for d in range(x.dim()))
    return x if x.stride() == canonical else x.reshape(-1).view(x.shape)


def _conv2d(
    x: Tensor,
    weight_ohwi: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    top, bottom, left, right = padding
    image, conv_padding = _nchw(x), (top, left)
    if (top, left) != (bottom, right):
        image, conv_padding = functional.pad(image, (left, right, top, bottom)), (0, 0)
    weight = _nchw(weight_ohwi)
    return _nhwc(torch.ops.aten.conv2d(image, weight, bias, stride, conv_padding, dilation, groups))


def _conv2d_or_linear(x: Tensor, weight_ohwi: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
    stride, padding, _, groups = window
    one_tap = tuple(weight_ohwi.shape[1:3]) == tuple(stride) == (1, 1)
    if one_tap and groups == 1 and not any(padding):
        return functional.linear(x, weight_ohwi.flatten(1), bias)
    return _conv2d(x, weight_ohwi, bias, *window)


def _conv3d(
    x: Tensor,
    weight_odhwi: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    depth, height, width = padding[:2], padding[2:4], padding[4:]
    volume = functional.pad(x.movedim(-1, 1), [*width, *height, *depth])
    y = torch.conv3d(volume, weight_odhwi.movedim(-1, 1), bias, stride, (0, 0, 0), dilation, groups)
    return _dense(y.movedim(1, -1))


def _conv_transpose2d(
    x: Tensor,
    weight_ohwi: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    arguments = (_inputs_first(weight_ohwi, groups), bias, stride, padding, output_padding, groups, dilation)
    return _nhwc(torch.ops.aten.conv_transpose2d(_nchw(x), *arguments))


def _conv_transpose3d(
    x: Tensor,
    weight_odhwi: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    arguments = (_inputs_first(weight_odhwi, groups), bias, stride, padding, output_padding, groups, dilation)
    return _dense(torch.ops.aten.conv_transpose3d(x.movedim(-1, 1), *arguments).movedim(1, -1))


def _inputs_first(weight: Tensor, groups: int) -> Tensor:
    """Return a transposed convolution's weight as torch has it: (I, O/groups, *) from (O, *, I/groups)."""
    y: Tensor = weight.unflatten(0, (groups, -1)).movedim(-1, 1).flatten(0, 1)
    return y


def _max_pool2d(x: Tensor, *arguments: Any) -> Tensor:
    return _nhwc(torch.ops.aten.max_pool2d(_nchw(x), *arguments))


def _avg_pool2d(x: Tensor, *arguments: Any) -> Tensor:
    return _nhwc(torch.ops.aten.avg_pool2d(_nchw(x), *arguments))


def _upsample_bilinear2d(
    x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None, scales_w: float | None
) -> Tensor:
    size, scales = _size_or_scales(output_size, scales_h, scales_w)
    return _nhwc(torch.ops.aten.upsample_bilinear2d.vec(_nchw(x), size, align_corners, scales))


def _upsample_nearest2d(
    x: Tensor, output_size: Sequence[int], scales_h: float | None, scales_w: float | None
) -> Tensor:
    return _nhwc(
        torch.ops.aten.upsample_nearest2d.vec(_nchw(x), *_size_or_scales(output_size, scales_h, scales_w))
    )


def _size_or_scales(
    output_size: Sequence[int], scales_h: float | None, scales_w: float | None
) -> tuple[Sequence[int] | None, list[float] | None]:
    """Return the size or the scales for the overload `vec`, which takes only one of them.

    Other runtimes know that overload. Scales imply the size.
    """
    if scales_h is None or scales_w is None:
        return output_size, None
    return None, [scales_h, scales_w]


def dynamic_type(
    x: Tensor, dims: Sequence[int], low: int, high: int, eps: float, mode: str
) -> tuple[Tensor, Tensor]:
    """Return the scales and zero points by which `fake_quantize_dynamic` rounds.

    Args:
        x: The values.
        dims: The dimensions that share a scale; their size is 1 in both results.
        low: The smallest integer.
        high: The largest integer.
        eps: The smallest scale.
        mode: `symmetric`, `asymmetric` or `balanced`. `asymmetric` fits the zero point to the least value.
            `balanced` fits it to the least or the greatest value, whichever is missed by less.
    """
    zero, over = torch.zeros((), dtype=x.dtype), list(dims)
    least, most = x.amin(over, keepdim=True).minimum(zero), x.amax(over, keepdim=True).maximum(zero)
    if mode == "symmetric":
        scale = torch.maximum(-least, most).div((high - low) / 2).clamp(min=eps)
        return scale, torch.full_like(scale, (high + low + 1) // 2)
    scale = ((most - least) / (high - low)).clamp(min=eps)
    below, above = low - least / scale, high - most / scale
    if mode == "asymmetric":
        return scale, (low - (least / scale).round()).clamp(low, high)
    return scale, torch.where(low + high > below + above, below, above).clamp(low, high).round()


def _fake_quantize_dynamic(
    x: Tensor, dims: Sequence[int], low: int, high: int, eps: float, mode: str
) -> Tensor:
    """Round `x` to multiples of scales that are computed from it, one scale over all of `dims`."""
    scale, zero = dynamic_type(x, dims, low, high, eps, mode)
    return _dense(((x * (1 / scale)).round().add(zero).clamp(low, high) - zero) * scale)


def _prelu_last(x: Tensor, weight: Tensor) -> Tensor:
    if x.dim() < 2:
        return torch.where(x > 0, x, x * weight)
    return _dense(torch.ops.aten.prelu(x.movedim(-1, 1), weight).movedim(1, -1))


def _slice_constant(x: Tensor, dim: int, start: int, end: int) -> Tensor:
    """Slice and copy a constant, even the whole: the decomposition has the same operators at every size."""
    part: Tensor = torch.ops.aten.slice.Tensor(x, dim, start, end)
    return part.clone(memory_format=torch.contiguous_format)


# By an operator's name: its schema, the function that computes it, and what it does to elements.
_DIALECT: dict[str, tuple[str, Callable[..., Tensor], Elements]] = {
    "conv2d_nhwc": (
        "(Tensor x, Tensor weight_ohwi, Tensor? bias, int[2] stride, int[4] padding, int[2] dilation, "
        "int groups) -> Tensor",
        _conv2d,
        Elements.CONTRACTS,
    ),
    "conv3d_ndhwc": (
        "(Tensor x, Tensor weight_odhwi, Tensor? bias, int[3] stride, int[6] padding, int[3] dilation, "
        "int groups) -> Tensor",
        _conv3d,
        Elements.CONTRACTS,
    ),
    "conv_transpose2d_nhwc": (
        "(Tensor x, Tensor weight_ohwi, Tensor? bias, int[2] stride, int[2] padding, int[2] output_padding, "
        "int[2] dilation, int groups) -> Tensor",
        _conv_transpose2d,
        Elements.CONTRACTS,
    ),
    "conv_transpose3d_ndhwc": (
        "(Tensor x, Tensor weight_odhwi, Tensor? bias, int[3] stride, int[3] padding, int[3] output_padding, "
        "int[3] dilation, int groups) -> Tensor",
        _conv_transpose3d,
        Elements.CONTRACTS,
    ),
    "max_pool2d_nhwc": (
        "(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) "
        "-> Tensor",
        _max_pool2d,
        Elements.SELECTS,
    ),
    "avg_pool2d_nhwc": (
        "(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, "
        "bool count_include_pad, int? divisor_override) -> Tensor",
        _avg_pool2d,
        Elements.FILTERS,
    ),
    "upsample_bilinear2d_nhwc": (
        "(Tensor x, SymInt[2] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor",
        _upsample_bilinear2d,
        Elements.FILTERS,
    ),
    "upsample_nearest2d_nhwc": (
        "(Tensor x, SymInt[2] output_size, float? scales_h, float? scales_w) -> Tensor",
        _upsample_nearest2d,
        Elements.SELECTS,
    ),
    "fake_quantize_dynamic": (
        "(Tensor x, int[] dims, int low, int high, float eps, str mode) -> Tensor",
        _fake_quantize_dynamic,
        Elements.MIXES,
    ),
    "prelu_last": ("(Tensor x, Tensor weight) -> Tensor", _prelu_last, Elements.POINTWISE),
    "slice_constant": (
        "(Tensor x, int dim, SymInt start, SymInt end) -> Tensor",
        _slice_constant,
        Elements.MOVES,
    ),
}


def _register() -> None:
    """Define the operators once per process, even if this module is imported several times."""
    for name, (schema, body, _) in _DIALECT.items():
        if hasattr(torch.ops.dimorder, name):
            continue
        qualified = f"{NAMESPACE}::{name}"
        torch.library.define(qualified, schema)
        torch.library.impl(qualified, "CompositeExplicitAutograd", body)
        torch.library.register_fake(qualified, body)


_register()

OPS = torch.ops.dimorder  # the registered operators
SLICE_CONSTANT = OPS.slice_constant.default
ELEMENTS: Mapping[Any, Elements] = MappingProxyType(
    {getattr(OPS, name).default: elements for name, (_, _, elements) in _DIALECT.items()}
)
