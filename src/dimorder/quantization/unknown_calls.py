"""Write and annotate calls that Arm's quantizers do not know, as those that they know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import bound, replace_node, shown_as, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.quantization.complex_calls import write_complex_calls
from dimorder.quantization.compound_calls import write_compound_calls, write_embedding_bags
from dimorder.quantization.constants import insert_constant
from dimorder.quantization.counts import count_in_floats
from dimorder.quantization.norms import rewrite_cosines, rewrite_deviations, rewrite_norms
from dimorder.quantization.transposed import widen_transposed
from dimorder.quantization.wrapped import WrappedQuantizer

aten = torch.ops.aten

# Operator → one that Arm's quantizers annotate, with the same arguments at the places that they read.
_ANNOTATED_AS: Mapping[Any, Any] = MappingProxyType(
    {
        aten._log_softmax.default: aten.exp.default,
        aten.conv_transpose3d.input: aten.conv_transpose2d.input,
        aten.grid_sampler.default: aten.avg_pool2d.default,  # Arm's clips the picture to [-1, 1], as the grid
    }
)

_BY_MATRICES = (
    aten.upsample_bicubic2d.vec,
    aten._upsample_bicubic2d_aa.vec,
    aten._upsample_bilinear2d_aa.vec,
)


# Operators of a tensor and a number → the same of two tensors.
_OF_TWO: Mapping[Any, Any] = MappingProxyType(
    {
        scalar: operator.Tensor
        for operator in (
            *(aten.add, aten.sub, aten.mul, aten.div, aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le),
        )
        for scalar in (operator.Tensor, operator.Scalar)
    }
    | {aten.rsub.Scalar: aten.sub.Tensor}
)


class UnknownCalls(WrappedQuantizer):
    """Another quantizer, for which calls that it does not know are rewritten, or annotated as others."""

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        write_complex_calls(model)
        widen_transposed(model)
        write_compound_calls(model)
        write_embedding_bags(model)
        count_in_floats(model)
        keep_scalar_shapes(model)
        make_contiguous_before_softmax(model)
        rewrite_norms(model)
        rewrite_cosines(model)
        rewrite_deviations(model)
        rewrite_logsumexp(model)
        keep_log_softmax(model)
        split_trilinear(model)
        split_average_pools(model)
        resize_by_matrices(model)
        return super().transform_for_annotation(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        with shown_as(model.graph, _ANNOTATED_AS):
            return super().annotate(model)


def keep_scalar_shapes(model: GraphModule) -> None:
    """Write each number beside a tensor of shape () as a constant of that shape, in place.

    Arm's passes write numbers as constants of shape (1,), and so the result would have this shape.

    >>> class Half(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.sum() / 2
    >>> model = torch.export.export(Half(), (torch.ones(3),)).module(check_guards=False)
    >>> keep_scalar_shapes(model)
    >>> [node.meta["val"].shape for node in model.graph.find_nodes(op="get_attr")]
    [torch.Size([])]
    """
    for node in list(model.graph.nodes):
        if node.target not in _OF_TWO or len(node.args) != 2 or node.kwargs:
            continue
        (x, number), is_turned = node.args, node.target is aten.rsub.Scalar
        if not isinstance(x, Node) or not isinstance(number, (int, float)) or tensor_of(node).dim():
            continue
        dtype = tensor_of(x).dtype
        if dtype.is_floating_point:
            constant = insert_constant(model, "number", torch.tensor(number, dtype=dtype), node)
            node.target, node.args = _OF_TWO[node.target], (constant, x) if is_turned else (x, constant)


def make_contiguous_before_softmax(model: GraphModule) -> None:
    """Copy each operand of a softmax that is not contiguous, in place, as the softmax itself does.

    Arm's passes write a softmax in operators that keep strides, and a view of its result may then be none.

    >>> class Columns(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.mT.softmax(-1).view(-1)
    >>> model = torch.export.export(Columns(), (torch.zeros(2, 5),)).module(check_guards=False)
    >>> make_contiguous_before_softmax(model)
    >>> [str(node.target) for node in model.graph.nodes][1:-1]
    ['aten.mT.default', 'aten.clone.default', 'aten.softmax.int', 'aten.view.default']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.softmax.int):
        x, *rest = node.args
        if not tensor_of(x).is_contiguous():
            dense = computed_before(node, aten.clone.default, x, memory_format=torch.contiguous_format)
            node.args = (dense, *rest)


def rewrite_logsumexp(model: GraphModule) -> None:
    """Write each `logsumexp` as the maximum less that of the `log_softmax`, in place.

    It is written along one dimension after the other.

    >>> class LogSumExp(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.logsumexp(1)
    >>> model = torch.export.export(LogSumExp(), (torch.zeros(2, 5),)).module(check_guards=False)
    >>> rewrite_logsumexp(model)
    >>> [str(node.target) for node in model.graph.nodes][1:-1]
    ['aten.amax.default', 'aten.log_softmax.int', 'aten.amax.default', 'aten.sub.Tensor', 'aten.squeeze.dims']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.logsumexp.default):
        given = bound(node.target, node.args, node.kwargs)
        total: Node = given["self"]
        if not tensor_of(total).is_floating_point():
            continue
        for dim in given["dim"]:
            largest = computed_before(node, aten.amax.default, total, [dim], True)
            scores = computed_before(node, aten.log_softmax.int, total, dim)
            scores = computed_before(node, aten.amax.default, scores, [dim], True)
            total = computed_before(node, aten.sub.Tensor, largest, scores)
        kept = total if given["keepdim"] else computed_before(node, aten.squeeze.dims, total, given["dim"])
        replace_node(node, kept)


def keep_log_softmax(model: GraphModule) -> None:
    """Write each `log_softmax` as the operator that Arm's passes leave whole, in place.

    They write the other one as log(softmax). Small weights then round to 0, whose logarithm is infinite.

    >>> model = torch.export.export(torch.nn.LogSoftmax(1), (torch.ones(2, 5),)).module(check_guards=False)
    >>> keep_log_softmax(model)
    >>> [str(node.target) for node in model.graph.nodes][1:-1]
    ['aten._log_softmax.default']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.log_softmax.int):
        given, dtype = bound(node.target, node.args, node.kwargs), tensor_of(node).dtype
        x = given["self"]
        if tensor_of(x).dtype != dtype:
            x = computed_before(node, aten.to.dtype, x, dtype)
        replace_node(node, computed_before(node, aten._log_softmax.default, x, given["dim"], False))


def split_trilinear(model: GraphModule) -> None:
    """Write each trilinear resize as a bilinear one of each image, then one along the depth, in place.

    >>> resize = torch.nn.Upsample(scale_factor=2, mode="trilinear")
    >>> model = torch.export.export(resize, (torch.ones(1, 3, 4, 5, 6),)).module(check_guards=False)
    >>> split_trilinear(model)
    >>> [str(node.target) for node in model.graph.nodes if "upsample" in str(node.target)]
    ['aten.upsample_bilinear2d.vec', 'aten.upsample_bilinear2d.vec']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.upsample_trilinear3d.vec):
        given = bound(node.target, node.args, node.kwargs)
        factors, aligned = given["scale_factors"], given["align_corners"]
        depth, height, width = tensor_of(node).shape[2:]
        images = (None, factors[1:]) if factors else ([height, width], None)
        rows = (None, [factors[0], 1.0]) if factors else ([depth, height * width], None)
        of_images, along = ((size, aligned, scales) for size, scales in (images, rows))
        _split_volume(node, given["input"], aten.upsample_bilinear2d.vec, of_images, along)


def split_average_pools(model: GraphModule) -> None:
    """Write each 3-D average pool of equal windows as one of each image, then one along the depth, in place.

    >>> pool = torch.nn.AvgPool3d((2, 3, 3), padding=1)
    >>> model = torch.export.export(pool, (torch.ones(1, 3, 4, 5, 6),)).module(check_guards=False)
    >>> split_average_pools(model)
    >>> [str(node.target) for node in model.graph.nodes if "pool" in str(node.target)]
    ['aten.avg_pool2d.default', 'aten.avg_pool2d.default']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.adaptive_avg_pool3d.default):
        sizes, new_sizes = tensor_of(node.args[0]).shape[-3:], tensor_of(node).shape[-3:]
        if all(size % new_size == 0 for size, new_size in zip(sizes, new_sizes, strict=True)):
            kernel = [size // new_size for size, new_size in zip(sizes, new_sizes, strict=True)]
            replace_node(node, computed_before(node, aten.avg_pool3d.default, node.args[0], kernel, kernel))
    for node in model.graph.find_nodes(op="call_function", target=aten.avg_pool3d.default):
        given = bound(node.target, node.args, node.kwargs)
        kernel, stride, padding = (
            [*given[name]] * (3 // len(given[name]) if given[name] else 1)
            for name in ("kernel_size", "stride", "padding")
        )
        windows, options = (
            (kernel, stride or kernel, padding),
            (given["ceil_mode"], given["count_include_pad"]),
        )
        images = [each[1:] for each in windows]
        along = [[each[0], beside] for each, beside in zip(windows, (1, 1, 0), strict=True)]
        divisor = given["divisor_override"]
        of_images, last = ((divisor,), (1,)) if divisor is not None else ((), ())
        calls = (*images, *options, *of_images), (*along, *options, *last)
        _split_volume(node, given["self"], aten.avg_pool2d.default, *calls)


def _split_volume(node: Node, x: Node, target: Any, of_images: Sequence[Any], along: Sequence[Any]) -> None:
    """Write a call on volumes as a 2-D one on each image, then as one along the depth, with images as rows.

    `of_images` and `along` are the arguments of the two calls after the operand.
    """
    value = tensor_of(node)
    sizes = (*tensor_of(x).shape, *value.shape)
    if not all(isinstance(size, int) for size in sizes):
        return
    if value.dim() == 4:
        x = computed_before(node, aten.unsqueeze.default, x, 0)
    n, c, depth, height, width = tensor_of(x).shape
    new_height, new_width = value.shape[-2:]
    images = computed_before(node, aten.transpose.int, x, 1, 2)
    images = computed_before(node, aten.reshape.default, images, [n * depth, c, height, width])
    images = computed_before(node, target, images, *of_images)
    volume = computed_before(node, aten.reshape.default, images, [n, depth, c, new_height, new_width])
    rows = computed_before(node, aten.transpose.int, volume, 1, 2)
    rows = computed_before(node, aten.reshape.default, rows, [n, c, depth, new_height * new_width])
    rows = computed_before(node, target, rows, *along)
    replace_node(node, computed_before(node, aten.reshape.default, rows, list(value.shape)))


def resize_by_matrices(model: GraphModule) -> None:
    """Write each bicubic or antialiased resize as products with constant matrices, in place.

    PyTorch 2.13 is wrong when it resizes a row-major picture to one column and another height with
    `antialias=True`. Such a resize stays as it is, and targets refuse it.

    >>> resize = torch.nn.Upsample(scale_factor=2, mode="bicubic")
    >>> model = torch.export.export(resize, (torch.ones(1, 3, 4, 5),)).module(check_guards=False)
    >>> x = torch.arange(60.0).reshape(1, 3, 4, 5)
    >>> resize_by_matrices(model)
    >>> _ = model.recompile()
    >>> torch.allclose(model(x), resize(x), atol=1e-4), "upsample" in model.code
    (True, False)
    """
    for target in _BY_MATRICES:
        for node in model.graph.find_nodes(op="call_function", target=target):
            given = bound(node.target, node.args, node.kwargs)
            x, factors, aligned = given["input"], given["scale_factors"], given["align_corners"]
            sizes, new_sizes = tensor_of(x).shape[2:], tensor_of(node).shape[2:]
            if not all(isinstance(size, int) for size in (*sizes, *new_sizes)):
                continue
            is_antialiased = target is not aten.upsample_bicubic2d.vec
            if is_antialiased and new_sizes[1] == 1 and sizes[0] != new_sizes[0]:
                continue
            for place, name in ((1, "columns"), (0, "rows")):
                size, scales = ([1, new_sizes[place]], None) if not factors else (None, [1.0, factors[place]])
                ones = torch.eye(sizes[place]).reshape(1, sizes[place], 1, sizes[place])
                weight = target(ones, size, aligned, scales).reshape(sizes[place], -1).t().contiguous()
                matrix = insert_constant(model, name, weight.to(tensor_of(x).dtype), node)
                x = computed_before(node, aten.linear.default, x, matrix)
                x = computed_before(node, aten.transpose.int, x, 2, 3)
            replace_node(node, x)
