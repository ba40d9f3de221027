"""Define physical operators that ATen lacks, such as those on NHWC tensors, and decompose them into ATen."""

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
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from dimorder.graph.branches import Branches
from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import Elements
from dimorder.graph.interpreter import arguments
from dimorder.graph.nodes import copy_meta

NAMESPACE = "dimorder"


def decomposition_table() -> dict[torch._ops.OpOverload, Callable[..., Tensor]]:
    """Return the function of each dialect operator, which computes it in plain ATen between permute views.

    >>> sorted(str(op) for op in decomposition_table())[0]
    'dimorder.attention_nlhe.default'
    """
    return {getattr(torch.ops.dimorder, name).default: body for name, (_, body, _) in _DIALECT.items()}


def decompose(
    program: ExportedProgram, *, taps_as_linear: bool = False, kept: Collection[object] = ()
) -> ExportedProgram:
    """Replace dialect operators but those `kept` by plain ATen, and branches by torch.cond.

    With `taps_as_linear`, a convolution of one tap becomes a `linear`, which needs no permutes around it.

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
    root, graph, copies = torch.nn.Module(), Graph(), dict[Node, Node]()
    for node in program.graph.nodes:
        body = None if node.target in kept else table.get(node.target)
        if isinstance(node.target, Branches):
            copies[node] = node.target.write_call(root, graph, [copies[each] for each in node.args])
            copy_meta(copies[node], node)
        elif body is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            copies[node] = _write_in_aten(graph, node, body, copies)
        copies[node].name = node.name  # the signature refers to it by name
    return replace_parts(program, root=root, graph=graph, verifiers=[TrainingIRVerifier])


def _write_in_aten(
    graph: Graph, node: Node, body: Callable[..., Tensor], copies: Mapping[Node, Node]
) -> Node:
    """Write one call in plain ATen, traced on the fake tensors of its program, and return its result."""
    read = node.all_input_nodes

    def run(*tensors: Tensor) -> Tensor:
        args, kwargs = arguments(node, dict(zip(read, tensors, strict=True)))
        return body(*args, **kwargs)

    mode = node.meta["val"].fake_mode
    guards = nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
    with mode, torch.no_grad(), guards:
        values = (each.meta["val"] for each in read)
        # Operands that share one tensor would be taken for one.
        apart = [value.detach() if isinstance(value, Tensor) else value for value in values]
        traced = make_fx(run, pre_dispatch=True)(*apart).graph
    inner: dict[Node, Node] = dict(
        zip(traced.find_nodes(op="placeholder"), map(copies.__getitem__, read), strict=True)
    )
    for each in traced.nodes:
        if each.op == "call_function":
            name = f"{node.name}_{each.name}_"
            inner[each] = graph.call_function(each.target, *arguments(each, inner), name=name)
            copy_meta(inner[each], node, each.meta["val"])
    (result,) = traced.output_node().all_input_nodes
    return inner[result]


def _channels_first(x: Tensor) -> Tensor:
    """View an NHWC or NDHWC tensor as ATen has it."""
    return x.permute(0, x.dim() - 1, *range(1, x.dim() - 1))


def _channels_last(y: Tensor) -> Tensor:
    """Return a result of ATen as a dense NHWC or NDHWC tensor."""
    return _dense(y.permute(0, *range(2, y.dim()), 1))


def _dense(x: Tensor) -> Tensor:
    """Make a tensor contiguous, with canonical strides even where a size is 1."""
    x = x.contiguous()
    canonical = tuple(math.prod(x.shape[d + 1 :]) for d in range(x.dim()))
    return x if x.stride() == canonical else x.reshape(-1).view(x.shape)


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], *rest: Any
) -> Tensor:
    """Compute a 2-D or 3-D convolution with a weight (O, *, I/groups) and padding on both sides."""
    image, before, after = _channels_first(x), list(padding[::2]), list(padding[1::2])
    if before != after:
        pairs = zip(reversed(before), reversed(after), strict=True)
        image, before = functional.pad(image, [side for pair in pairs for side in pair]), [0] * len(before)
    convolve = torch.ops.aten.conv2d if x.dim() == 4 else torch.ops.aten.conv3d
    return _channels_last(convolve(image, _channels_first(weight), bias, stride, before, *rest))


def _conv2d_or_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
    stride, padding, _, groups = window
    one_tap = tuple(weight.shape[1:3]) == tuple(stride) == (1, 1)
    if one_tap and groups == 1 and not any(padding):
        return functional.linear(x, weight.flatten(1), bias)
    return _conv(x, weight, bias, *window)


def _conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
    """Compute a 2-D or 3-D transposed convolution with a weight (O, *, I/groups)."""
    *steps, dilation, groups = window
    inputs_first = weight.unflatten(0, (groups, -1)).movedim(-1, 1).flatten(0, 1)
    convolve = torch.ops.aten.conv_transpose2d if x.dim() == 4 else torch.ops.aten.conv_transpose3d
    return _channels_last(convolve(_channels_first(x), inputs_first, bias, *steps, groups, dilation))


def _max_pool2d(x: Tensor, *arguments: Any) -> Tensor:
    return _channels_last(torch.ops.aten.max_pool2d(_channels_first(x), *arguments))


def _avg_pool2d(x: Tensor, *arguments: Any) -> Tensor:
    return _channels_last(torch.ops.aten.avg_pool2d(_channels_first(x), *arguments))


def _upsample_bilinear2d(x: Tensor, output_size: Sequence[int], align_corners: bool, *scales: Any) -> Tensor:
    size, factors = _size_or_factors(output_size, scales)
    resize = torch.ops.aten.upsample_bilinear2d.vec
    return _channels_last(resize(_channels_first(x), size, align_corners, factors))


def _upsample_nearest2d(x: Tensor, output_size: Sequence[int], *scales: Any) -> Tensor:
    resize = torch.ops.aten.upsample_nearest2d.vec
    return _channels_last(resize(_channels_first(x), *_size_or_factors(output_size, scales)))


def _size_or_factors(size: Sequence[int], scales: Sequence[float | None]) -> tuple[Any, Any]:
    """Return the size, or the factors that imply it, for the overload `vec`, which other runtimes know."""
    return (size, None) if None in scales else (None, list(scales))


def dynamic_type(
    x: Tensor, dims: Sequence[int], low: int, high: int, eps: float, mode: str
) -> tuple[Tensor, Tensor]:
    """Return the scales and zero points by which `fake_quantize_dynamic` rounds, of size 1 along `dims`.

    Mode `asymmetric` fits the zero point to the least value, and `balanced` to the least or the greatest
    value, whichever is missed by less. `eps` is the smallest scale.
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


def _attention_nlhe(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Compute attention of tensors (N, L, H, E), whose heads lie inside a row, with a mask (N, 1, L, S)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale)
    return _dense(y.transpose(1, 2))


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
        _conv,
        Elements.CONTRACTS,
    ),
    "conv3d_ndhwc": (
        "(Tensor x, Tensor weight_odhwi, Tensor? bias, int[3] stride, int[6] padding, int[3] dilation, "
        "int groups) -> Tensor",
        _conv,
        Elements.CONTRACTS,
    ),
    "conv_transpose2d_nhwc": (
        "(Tensor x, Tensor weight_ohwi, Tensor? bias, int[2] stride, int[2] padding, int[2] output_padding, "
        "int[2] dilation, int groups) -> Tensor",
        _conv_transpose,
        Elements.CONTRACTS,
    ),
    "conv_transpose3d_ndhwc": (
        "(Tensor x, Tensor weight_odhwi, Tensor? bias, int[3] stride, int[3] padding, int[3] output_padding, "
        "int[3] dilation, int groups) -> Tensor",
        _conv_transpose,
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
    "attention_nlhe": (
        "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, float? scale) -> Tensor",
        _attention_nlhe,
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
        if not hasattr(torch.ops.dimorder, name):
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
