"""Merge linears or convolutions that read one value and are added, as in RepVGG, MobileOne and FastViT."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.capture.linears import SCALE_AND_SHIFT, Linear, is_normal, of_features, with_constant
from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import shape_of
from dimorder.ops.normalization import scaled_features

aten = torch.ops.aten


def merge_parallel_linear(module: GraphModule) -> None:
    """Merge the sum or difference of two linears or convolutions, in place.

    One of the two may also be the value that the other one reads.

    >>> class Branches(torch.nn.Module):
    ...     def forward(self, x, v=torch.ones(4, 4, 3, 3), w=torch.ones(4, 4, 1, 1)):
    ...         return torch.conv2d(x, v, padding=1) + torch.conv2d(x, w) + x
    >>> from dimorder.capture.captured import capture
    >>> module = capture(Branches(), (torch.ones(1, 4, 5, 6),)).module
    >>> merge_parallel_linear(module)
    >>> [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    ['aten.convolution.default']
    """
    for node in list(module.graph.nodes):
        if node.users and node.target in (aten.add.Tensor, aten.sub.Tensor):
            sums = (_sum(*pair) for pair in _pairs(module, node))
            merged = next((each for each in sums if each is not None), None)
            if merged is not None:
                linear, weight, bias = merged
                node.replace_all_uses_with(linear.with_constants(weight, bias, "added"))
                module.graph.eliminate_dead_code()


@dataclass(frozen=True)
class _Term:
    """A linear or convolution of a value, or the value itself, with a factor and a shift per channel."""

    source: Any
    linear: Linear | None
    scale: Tensor
    shift: Tensor


@dataclass(frozen=True)
class _Addend:
    """The float64 weight and bias of a linear or convolution, its padding and its dilation."""

    weight: Tensor
    bias: Tensor
    padding: Sequence[int]
    dilation: Sequence[int]


def _pairs(module: GraphModule, node: Node) -> Iterator[tuple[_Term, _Term]]:
    """Yield the pairs of terms of one value that a sum's operands can be; more taps come first."""
    if len(node.args) != 2 or node.kwargs or node.meta["val"].dtype != torch.float32:
        return
    signs = (1.0, -1.0 if node.target is aten.sub.Tensor else 1.0)
    first, second = ([*_terms(module, *each, node)] for each in zip(args_of(node), signs, strict=True))
    for pair in itertools.product(first, second):
        one, other = sorted(pair, key=_taps, reverse=True)
        if one.source is other.source and one.linear is not None:
            yield one, other


def _taps(term: _Term) -> int:
    """Return the number of taps per input channel, or 0 for the value itself."""
    return 0 if term.linear is None else term.linear.weight[0, 0].numel()


def _terms(module: GraphModule, value: Any, sign: float, total: Node) -> Iterator[_Term]:
    """Yield the terms that an operand of a sum can be."""
    scale, shift = torch.tensor(sign, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    while isinstance(value, Node) and value.op != "get_attr" and shape_of(value) == shape_of(total):
        yield _Term(value, None, scale, shift)
        if len(value.users) > 1:
            return
        linear = Linear.of(module, value)
        if linear is not None and not linear.transposed:
            yield _Term(args_of(value)[0], linear, scale, shift)
        found = with_constant(module, value)
        if found is None:
            return
        factor, added = SCALE_AND_SHIFT[value.target](found[1])
        if not is_normal(factor):  # 0 times an overflow is not 0
            return
        value, scale, shift = found[0], scale * factor, shift + scale * added


def _sum(one: _Term, other: _Term) -> tuple[Linear, Tensor, Tensor | None] | None:
    """Return the linear or convolution that replaces both terms, with its weight and bias, or None."""
    linear = one.linear
    assert linear is not None
    if other.linear is not None and not _are_alike(linear, other.linear):
        return None
    kernel, added = _kernel(one, linear), _kernel(other, linear)
    if kernel is None or added is None:
        return None
    part = added.weight
    for d in range(linear.dims):
        taps = kernel.weight.shape[d + 2]
        at = torch.arange(part.shape[d + 2]) * added.dilation[d] - added.padding[d] + kernel.padding[d]
        if bool(((at % kernel.dilation[d] != 0) | (at < 0) | (at >= taps * kernel.dilation[d])).any()):
            return None
        wider = part.new_zeros([*part.shape[: d + 2], taps, *part.shape[d + 3 :]])
        part = wider.index_copy(d + 2, at // kernel.dilation[d], part)
    weight, bias = kernel.weight + part, kernel.bias + added.bias
    if not all(bool(each.float().isfinite().all()) for each in (weight, bias)):
        return None
    return linear, weight, bias if bool(bias.any()) else None


def _are_alike(linear: Linear, other: Linear) -> bool:
    """Return whether two convolutions, or two linears, differ only in their kernels."""
    kinds = {(each.node.target, each.weight.shape[:2], each.groups) for each in (linear, other)}
    return len(kinds) == 1 and linear.options[:1] == other.options[:1]


def _kernel(term: _Term, linear: Linear) -> _Addend | None:
    """Return the weight and bias of a term as those of the same kind as `linear`, or None if it has none."""
    (features, inputs), shape = linear.weight.shape[:2], shape_of(linear.node)
    scale, shift = (
        of_features(linear, (), each.expand(shape) if each.numel() > 1 else each)
        for each in (term.scale, term.shift)
    )
    if scale is None or shift is None:
        return None
    padding, dilation = [0] * linear.dims, [1] * linear.dims
    if term.linear is not None:
        weight, bias = scaled_features(term.linear.weight, term.linear.bias, scale, shift)
        if linear.dims:
            _, padding, dilation, *_ = term.linear.options
        return _Addend(weight, bias, padding, dilation)
    steps = set(linear.options[0]) if linear.options else {1}
    if inputs * linear.groups != features or shape_of(term.source) != shape or steps != {1}:
        return None
    own = torch.eye(inputs, dtype=torch.float64).repeat(linear.groups, 1) * scale[:, None]
    return _Addend(own.reshape(features, inputs, *[1] * linear.dims), shift, padding, dilation)
