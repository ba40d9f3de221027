"""Define resizes, which run channels-last (3-D ones in two steps), or as matmuls if they are linear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, dynamic_dims, may_resize
from dimorder.graph.tracing import FLOATS, Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.moves import view
from dimorder.ops.operator import Implementation, Operator, spelling
from dimorder.ops.pooling import FORM, MATMULS, give_by_matmuls, give_in_planes, relate_spatial

aten = torch.ops.aten


def _resize(c: Call, target: Any, *options: Any) -> None:
    """Lower a resize on planes; the last argument of the overloads `.vec` is the scale factors, or None."""
    *depth, height, width = shape_of(c.node)[2:]
    scales = args_of(c.node)[-1] or [None] * (len(depth) + 2)

    def plane(x: torch.fx.Node, deep: bool) -> torch.fx.Node:
        if not deep:
            return c.b.call(target, x, [height, width], *options, *scales[-2:])
        along = None if scales[0] is None else 1.0  # a factor counts only if both dimensions have one
        return c.b.call(target, x, [*depth, height * width], *options, scales[0], along)

    give_in_planes(c, plane)


def _bilinear(c: Call) -> None:
    _resize(c, OPS.upsample_bilinear2d_nhwc.default, args_of(c.node)[2])


def _nearest(c: Call) -> None:
    _resize(c, OPS.upsample_nearest2d_nhwc.default)


# For each resize that is linear and separable: the overload that takes both the size and the factors.
_SIZED = {
    overloads.vec: overloads.default
    for overloads in (
        aten.upsample_bilinear2d,
        aten.upsample_bicubic2d,
        aten._upsample_bilinear2d_aa,
        aten._upsample_bicubic2d_aa,
    )
}


def _in_aten(c: Call) -> None:
    """Lower a resize to ATen's own operator, channels-first."""
    *_, aligned, factors = args_of(c.node)
    dims = c.by_label("n", "c", "s.0", "s.1")
    size = None if factors else list(shape_of(c.node)[2:])
    c.give(c.b.call(c.target, c.take(0, dims), size, aligned, factors), dims)


def _by_matmuls(c: Call) -> None:
    """Lower a resize to one matmul per spatial dimension."""
    c.compute_in_float32()
    *_, aligned, factors = args_of(c.node)
    old, new = shape_of(args_of(c.node)[0])[2:], shape_of(c.node)[2:]
    sizes = zip(old, new, factors or (None, None), strict=True)
    give_by_matmuls(c, [resized_by(_SIZED[c.target], a, b, aligned, factor) for a, b, factor in sizes])


@functools.cache
def resized_by(target: Any, old: int, new: int, aligned: bool, factor: float | None) -> torch.Tensor:
    """Return the matrix (new, old) by which torch resizes one dimension: its result for the unit vectors.

    >>> resized_by(aten.upsample_bilinear2d.default, 2, 4, False, None)[1]
    tensor([0.7500, 0.2500])
    """
    units = torch.eye(old).view(old, 1, 1, old)
    return target(units, [1, new], aligned, 1.0, factor).view(old, new).t().contiguous()  # type: ignore[no-any-return]


def _is_float32_or_less(node: torch.fx.Node) -> bool:
    return node.meta["val"].dtype in FLOATS


def _resize_line(resize: Any) -> Callable[..., Value]:
    """Return the spelling of a 1-D resize, overload `vec`, as a 2-D resize.

    Its arguments are a size or factors, with `align_corners` between them if the resize has that. A bilinear
    kernel weighs the only row by 1 and by 0, which turns an infinity into NaN.
    """

    def spell(n: Tracer, x: Value, size: Sequence[int] | None, *rest: Any) -> Value:
        *aligned, factors = rest
        wanted = [None if size is None else [1, *size], *aligned, None if not factors else [1.0, *factors]]
        *outer, length = shape_of(x)
        y = n.write(resize, view(n, x, [*(1,) * (2 - len(outer)), *outer, 1, length]), *wanted)
        return view(n, y, [*outer, shape_of(y)[-1]])

    return spell


def _resize_by_size(target: Any, vec: Any) -> Callable[..., Value]:
    """Return the spelling of the overload with a size and factors as `vec`, which takes either of them."""

    def spell(n: Tracer, x: Value, size: Sequence[int], *rest: Any) -> Value:
        count = sum(argument.name.startswith("scales") for argument in target._schema.arguments)
        given = len(target._schema.arguments) - 2 - count
        aligned, factors = rest[:given], rest[given:]
        if not any(factors) or any(aligned):  # between aligned corners no factor counts
            return n.write(vec, x, list(size), *aligned, None)
        whole = zip(shape_of(x)[2:], factors, size, strict=True)
        if all(factor and int(old * factor) == new for old, factor, new in whole):
            return n.write(vec, x, None, *aligned, list(factors))
        return n.emit(target, x, size, *rest)

    return spell


_BILINEAR = Implementation("channels last", FORM, _bilinear, (OPS.upsample_bilinear2d_nhwc.default,))
_BY_MATMULS = Implementation("by matmul", FORM, _by_matmuls, MATMULS, _is_float32_or_less)
RESIZED_BY_MATMUL = frozenset(_SIZED)  # the resizes that may run as matmuls


def has_dynamic_resize(graph: Graph) -> bool:
    """Return whether a resize that may run as a matmul is of dynamic sizes."""
    resizes = (node for node in graph.nodes if node.target in RESIZED_BY_MATMUL)
    return any(may_resize(node) or any(dim >= 2 for dim in dynamic_dims(node)) for node in resizes)


_NEAREST = Implementation("channels last", FORM, _nearest, (OPS.upsample_nearest2d_nhwc.default,))


def _resized(name: Any, elements: Elements, *implementations: Implementation) -> Operator:
    """Return a resize whose first implementation is plain."""
    plain = (implementations[0].name,)
    return Operator((name,), relate_spatial, implementations, plain=plain, elements=elements)


OPERATORS = (
    _resized(aten.upsample_bilinear2d.vec, Elements.FILTERS, _BILINEAR, _BY_MATMULS),
    *(
        _resized(
            name,
            Elements.FILTERS,
            Implementation("in ATen", "n c s.0 s.1", _in_aten, (name,)),
            _BY_MATMULS,
        )
        for name in _SIZED
        if name is not aten.upsample_bilinear2d.vec
    ),
    _resized(aten.upsample_trilinear3d.vec, Elements.FILTERS, _BILINEAR),
    _resized(aten.upsample_nearest2d.vec, Elements.SELECTS, _NEAREST),
    _resized(aten.upsample_nearest3d.vec, Elements.SELECTS, _NEAREST),
    spelling(_resize_line(aten.upsample_nearest2d.vec), aten.upsample_nearest1d.vec),
    spelling(_resize_line(aten.upsample_bilinear2d.vec), aten.upsample_linear1d.vec),
    *(
        spelling(_resize_by_size(overloads.default, overloads.vec), overloads.default)
        for overloads in (
            aten.upsample_nearest1d,
            aten.upsample_nearest2d,
            aten.upsample_nearest3d,
            aten.upsample_linear1d,
            aten.upsample_bilinear2d,
            aten.upsample_trilinear3d,
            aten.upsample_bicubic2d,
            aten._upsample_bilinear2d_aa,
            aten._upsample_bicubic2d_aa,
        )
    ),
)
