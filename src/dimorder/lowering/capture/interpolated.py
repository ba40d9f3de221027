"""Decides how resizes and last steps are written where sizes are symbols, for targets whose own have fixed
ones.

1. A pixel shuffle is a transposed convolution.
2. The last step is the second of two to which all are resized.
3. All else is a product with a matrix for each dimension, which each call computes of the sizes. A row of
   such a matrix says what one place of the result takes of each along that dimension: 1 less the distance to
   it, and nothing from a distance of 1 on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node, map_arg
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def with_products(exported: ExportedProgram) -> ExportedProgram:
    """The program in which resizes to symbolic sizes, and steps from the end of one, are written so; itself
    where there are none, and where one of them may read infinities, of which a product makes NaN elsewhere.

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.interpolate(x, scale_factor=2.0)
    >>> height = torch.export.Dim("H", min=4, max=64)
    >>> x = torch.ones(2, 3, 8, 5)
    >>> program = with_products(torch.export.export(Twice(), (x,), dynamic_shapes=({2: height},)))
    >>> [node.target for node in program.graph.nodes].count(torch.ops.aten.matmul.default)
    2
    """
    nodes = list(exported.graph.nodes)
    found = [n for n in nodes if n.target in _RESIZES and _has_symbols(n.meta["val"].shape[2:])]
    found += [n for n in nodes if n.target in _STEPS and _is_of_end(*_read(n))]
    if not found or not _infinite(exported).isdisjoint(found):
        return exported
    decomposed: ExportedProgram = exported.run_decompositions({**_RESIZES, **_STEPS})
    return decomposed


def _read(node: Node) -> tuple[Any, ...]:
    """What a call reads, tensors and sizes without data."""
    read: tuple[Any, ...] = map_arg(node.args, lambda each: each.meta["val"])
    return read


def _has_symbols(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


# Finite, whatever is infinite of what these read.
_BOUNDED = (
    *(aten.softmax.int, aten.scaled_dot_product_attention.default),
    *(aten.sigmoid.default, aten.tanh.default),
)


def _infinite(exported: ExportedProgram) -> set[Node]:
    """The values that have infinities which the network itself puts there, as masks do."""
    signature = exported.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    held = {**exported.state_dict, **exported.constants}
    found = set[Node]()
    for node in exported.graph.nodes:
        value, put = node.meta.get("val"), (held.get(names.get(node.name, "")), node.args, node.kwargs)
        if not isinstance(value, Tensor) or not value.is_floating_point() or node.target in _BOUNDED:
            continue
        if found.intersection(node.all_input_nodes) or any(map(_is_infinite, pytree.tree_leaves(put))):
            found.add(node)
    return found


def _is_infinite(value: Any) -> bool:
    tensor = isinstance(value, Tensor) and value.is_floating_point()
    return bool(value.isinf().any()) if tensor else isinstance(value, float) and math.isinf(value)


# From the sizes of a dimension before and after, and a factor or None, to where each place of the result lies
# among those of the operand.
_Places = Callable[[Any, Any, "float | None"], Any]


def _resized(x: Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None, places: _Places) -> Any:
    given: Sequence[float | None] = factors or [None] * (x.dim() - 2)
    if (
        not _has_symbols((*x.shape[2:], *(size or ())))
        or x.dtype != torch.float32
        or any(f and not f.is_integer() for f in given)
    ):
        return NotImplemented
    old, y, last = x.shape[2:], x.movedim(1, -1), x.dim() - 2
    for d, (before, factor) in enumerate(zip(old, given, strict=True)):
        after = before * int(factor) if factor else (size or old)[d]
        weights = _weights(places(before, after, factor), before, x.dim())
        y = torch.matmul(weights, y.transpose(d + 1, last)).transpose(d + 1, last)
    return y.movedim(-1, 1)


def _weights(places: Tensor, old: Any, rank: int) -> Tensor:
    """At the ends, where the place on one side is missing, that on the other counts alone."""
    near = _near(places, old, rank)
    return near / near.sum(-1, keepdim=True)


def _near(places: Tensor, old: Any, rank: int) -> Tensor:
    ones = [1] * (rank - 2)
    distance = places.view(*ones, -1, 1) - _range(old).view(*ones, 1, -1)
    return (1 - distance.abs()).clamp(min=0.0)


def _range(size: Any) -> Tensor:
    return torch.arange(size, dtype=torch.float32)


def _last(size: Any) -> Tensor:
    """Size - 1, as a tensor: a number would be another constant for each size."""
    return _range(size)[-1:]


def _step(old: Any, new: Any, factor: float | None) -> Any:
    return (_last(old) + 1) / (_last(new) + 1) if factor is None else 1 / factor


def _by_corners(old: Any, new: Any, factor: float | None) -> Any:
    return _range(new) * _step(old, new, factor)


def _by_centres(old: Any, new: Any, factor: float | None) -> Any:
    return (_range(new) + 0.5) * _step(old, new, factor)


def _by_ends(old: Any, new: Any, factor: float | None) -> Any:
    return _range(new) * (_last(old) / _last(new).clamp(min=1.0))


def _nearest(x: Tensor, size: Any, factors: Any) -> Any:
    return _resized(x, size, factors, lambda *sizes: _by_corners(*sizes).floor())


def _nearest_exact(x: Tensor, size: Any, factors: Any) -> Any:
    return _resized(x, size, factors, lambda *sizes: _by_centres(*sizes).floor())


def _linear(x: Tensor, size: Any, aligned: bool, factors: Any) -> Any:
    if size and not _has_symbols(size):  # which a target has itself
        return NotImplemented
    places = _by_ends if aligned else lambda *sizes: _by_centres(*sizes) - 0.5
    return _resized(x, size, factors, places)


def _shuffled(x: Tensor, factor: int) -> Any:
    """Pixels of channels in a row, which are the taps of a transposed convolution."""
    if not _has_symbols(x.shape[2:]) or x.dim() != 4 or x.dtype != torch.float32:
        return NotImplemented
    taps = factor * factor
    groups = x.shape[1] // taps
    weight = torch.eye(taps).view(taps, 1, factor, factor).repeat(groups, 1, 1, 1)
    return aten.conv_transpose2d.input(x, weight, None, [factor] * 2, [0, 0], [0, 0], groups)


def _is_of_end(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> bool:
    """Whether a slice has the last steps of a symbolic size, few of them."""
    counts = isinstance(start, int) and -_FEW <= start < 0 and step == 1
    ends = end is None or (isinstance(end, int) and (end >= sys.maxsize or start < end < 0))
    floats = x.dtype == torch.float32 and x.dim() > 1
    return floats and counts and ends and isinstance(x.shape[dim], torch.SymInt)


def _last_steps(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if not _is_of_end(x, dim, start, end, step):
        return NotImplemented
    count = -start if end is None or end >= 0 else end - start
    if start == -1 and x.dim() <= 3:
        steps = x.movedim(dim, -1)
        steps = steps.view(*[1] * (3 - x.dim()), *steps.shape)
        both = aten.upsample_linear1d.vec(steps, [2], True, None)  # the first, and the last
        return both.view(*both.shape[3 - x.dim() :])[..., 1:].movedim(-1, dim)
    places = _last(x.shape[dim]) + (torch.arange(count) + 1 + start)
    near = _near(places, x.shape[dim], x.dim())
    return torch.matmul(near, x.movedim(dim, -2)).movedim(-2, dim)


def _last_step(x: Tensor, dim: int, index: Any) -> Any:
    if not _is_of_end(x, dim, index):
        return NotImplemented
    return _last_steps(x, dim, index, index + 1 or None).squeeze(dim)


_FEW = 8  # steps that a product takes: with all, it takes as long as with so many features
_RESIZES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **dict.fromkeys(
            (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec), _nearest
        ),
        **dict.fromkeys(
            (
                aten._upsample_nearest_exact1d.vec,
                aten._upsample_nearest_exact2d.vec,
                aten._upsample_nearest_exact3d.vec,
            ),
            _nearest_exact,
        ),
        **dict.fromkeys(
            (aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec), _linear
        ),
        aten.pixel_shuffle.default: _shuffled,
    }
)
_STEPS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.slice.Tensor: _last_steps, aten.select.int: _last_step}
)
