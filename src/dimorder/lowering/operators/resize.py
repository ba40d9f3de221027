"""Upsampling, channels-last. Three dimensions are two, and then one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dimorder.lowering.operators.dialect import OPS
from dimorder.lowering.operators.operator import Implementation, Operator, args_of, shape_of
from dimorder.lowering.operators.pooling import FORM, give_in_planes, relate_spatial

if TYPE_CHECKING:
    from dimorder.lowering.building import Call

aten = torch.ops.aten


def _resize(c: Call, target: Any, *options: Any) -> None:
    """The overloads `.vec` carry scale factors last; sizes alone decide where there are none."""
    *depth, height, width = shape_of(c.node)[2:]
    scales = args_of(c.node)[-1] or [None] * (len(depth) + 2)

    def plane(x: torch.fx.Node, deep: bool) -> torch.fx.Node:
        size, factors = (
            ([*depth, height * width], [scales[0], None]) if deep else ([height, width], scales[-2:])
        )
        return c.b.call(target, x, size, *options, *factors)

    give_in_planes(c, plane)


def _bilinear(c: Call) -> None:
    _resize(c, OPS.upsample_bilinear2d_nhwc.default, args_of(c.node)[2])


def _nearest(c: Call) -> None:
    _resize(c, OPS.upsample_nearest2d_nhwc.default)


_BILINEAR = Implementation("channels last", FORM, _bilinear, (OPS.upsample_bilinear2d_nhwc.default,))
_NEAREST = Implementation("channels last", FORM, _nearest, (OPS.upsample_nearest2d_nhwc.default,))

OPERATORS = (
    Operator((aten.upsample_bilinear2d.vec,), relate_spatial, (_BILINEAR,)),
    Operator((aten.upsample_trilinear3d.vec,), relate_spatial, (_BILINEAR,)),
    Operator((aten.upsample_nearest2d.vec,), relate_spatial, (_NEAREST,)),
    Operator((aten.upsample_nearest3d.vec,), relate_spatial, (_NEAREST,)),
)
