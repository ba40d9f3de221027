"""Cases that every target computes: calls of physical programs, emitted as they stand, and lowered networks.
Each operator has one case or more, with dims that all differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder

D = torch.ops.dimorder
aten = torch.ops.aten


class Net(torch.nn.Module):
    """A function of its inputs and of constants, which are its buffers."""

    def __init__(self, function: Callable[..., Any], constants: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self.function = function
        for i, constant in enumerate(constants):
            self.register_buffer(f"constant{i}", constant)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, *self.buffers())


def contiguous_contract(module: Net, inputs: tuple[Tensor, ...]) -> Contract:
    """The contract of a network whose inputs and outputs are contiguous."""

    def specs(name: str, tensors: object) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(f"{name}{i}", tuple(x.shape), str(x.dtype), DimOrder.contiguous(x.dim()))
            for i, x in enumerate(pytree.tree_leaves(tensors))
        )

    return Contract(specs("input", inputs), specs("output", module(*inputs)))


def r(*shape: int) -> Tensor:
    """Random numbers that depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 7 * len(shape)))


# name -> function, inputs, constants
Case = tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]

X = r(2, 9, 11, 6)
Y = r(2, 5, 7)

IMAGE = r(2, 6, 9, 11)


def dense(x: Tensor, *dims: int) -> Tensor:
    """A conversion, as a physical program has it."""
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


# Operators that no network has, conversions, and views that ATen reads in any order.
PHYSICAL: dict[str, Case] = {
    "conv": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 1], [1, 1, 2, 2], [1, 1], 1),
        (X,),
        (r(5, 3, 5, 6), r(5)),
    ),
    "conv, stride, dilation, asymmetric padding": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [2, 1], [0, 3, 2, 1], [1, 2], 1),
        (X,),
        (r(5, 3, 4, 6), r(5)),
    ),
    "conv, 1x1, no bias": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [0] * 4, [1, 1], 1),
        (X,),
        (r(7, 1, 1, 6),),
    ),
    "conv, groups": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 2], [1] * 4, [1, 1], 3),
        (X,),
        (r(12, 3, 2, 2), r(12)),
    ),
    "conv, one channel": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 1], [1] * 4, [1, 1], 1),
        (r(2, 9, 11, 1),),
        (r(5, 3, 2, 1), r(5)),
    ),
    "conv1d": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 2], [0, 0, 4, 4], [1, 2], 1),
        (r(2, 1, 23, 6),),
        (r(5, 1, 5, 6), r(5)),
    ),
    "depthwise": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [2, 1], [1, 1, 2, 2], [1, 1], 6),
        (X,),
        (r(6, 3, 5, 1), r(6)),
    ),
    "depthwise, multiplier 2": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 1], [1] * 4, [1, 1], 6),
        (X,),
        (r(12, 3, 2, 1), r(12)),
    ),
    "transposed, groups": (
        lambda x, w: D.conv_transpose2d_nhwc(x, w, None, [2, 2], [1, 1], [0, 1], [1, 1], 3),
        (X,),
        (r(12, 3, 4, 2),),
    ),
    "max pool, ceil": (
        lambda x: D.max_pool2d_nhwc(x, [3, 2], [2, 2], [0, 0], [1, 1], True),
        (r(2, 8, 11, 6),),
        (),
    ),
    "max pool, ceil, stride over kernel": (
        lambda x: D.max_pool2d_nhwc(x, [2, 2], [3, 4], [0, 1], [1, 1], True),
        (X,),
        (),
    ),
    "max pool, 1x1": (lambda x: D.max_pool2d_nhwc(x, [1, 1], [2, 3], [0, 0], [1, 1], False), (X,), ()),
    "average pool": (lambda x: D.avg_pool2d_nhwc(x, [3, 2], [2, 3], [0, 0], False, True, None), (X,), ()),
    "average pool, padding counts": (
        lambda x: D.avg_pool2d_nhwc(x, [3, 2], [2, 3], [1, 1], False, True, None),
        (X,),
        (),
    ),
    "average pool, padding does not count": (
        lambda x: D.avg_pool2d_nhwc(x, [3, 4], [2, 3], [1, 2], False, False, None),
        (X,),
        (),
    ),
    "average pool, ceil, padding counts": (
        lambda x: D.avg_pool2d_nhwc(x, [3, 4], [2, 3], [1, 1], True, True, None),
        (r(2, 8, 11, 6),),
        (),
    ),
    "average pool, ceil, padding does not count": (
        lambda x: D.avg_pool2d_nhwc(x, [3, 4], [2, 3], [1, 1], True, False, None),
        (r(2, 8, 11, 6),),
        (),
    ),
    "average pool, divisor": (
        lambda x: D.avg_pool2d_nhwc(x, [3, 2], [2, 3], [1, 1], True, True, 5),
        (r(2, 8, 11, 6),),
        (),
    ),
    "bilinear, scales": (lambda x: D.upsample_bilinear2d_nhwc(x, [18, 44], False, 2.0, 4.0), (X,), ()),
    "nearest, scales": (lambda x: D.upsample_nearest2d_nhwc(x, [18, 22], 2.0, 2.0), (X,), ()),
    "prelu": (lambda x, w: D.prelu_last(x, w), (X,), (r(6),)),
    "prelu, one slope": (lambda x, w: D.prelu_last(x, w), (X,), (r(1),)),
    "conversion": (lambda x: (dense(x, 2, 0, 1) * 2, dense(x, 0, 2, 1)), (Y,), ()),
    "conversion, rank 6": (lambda x: dense(x, 5, 1, 3, 0, 4, 2) * 2, (r(2, 3, 4, 5, 6, 7),), ()),
    "conversion, sizes of 1": (lambda x: dense(x, 2, 0, 1, 3) * 2, (r(1, 4, 1, 5),), ()),
    "conversion, then a view": (lambda x: dense(x, 2, 0, 1).view(14, 5) * 2, (Y,), ()),
    "conversion and back": (lambda x: dense(dense(x * 2, 2, 0, 1), 1, 2, 0) + x, (Y,), ()),
    "conversion, two readers": (lambda x: (lambda p: p.exp() + p)(dense(x * 2, 2, 0, 1)), (Y,), ()),
    "conversion of a constant": (lambda x, c: x * dense(c, 1, 0), (Y,), (r(7, 5),)),
    "relabel of sizes of 1": (lambda x: x.permute(2, 0, 1, 3) * 2, (r(1, 4, 1, 5),), ()),
}

SHARED: dict[str, Case] = {
    "conv": (
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 3), (1, 2), 3),
        (IMAGE,),
        (r(12, 2, 3, 4), r(12)),
    ),
    "conv, depthwise, multiplier 2": (
        lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 6),
        (IMAGE,),
        (r(12, 1, 3, 2),),
    ),
    "conv, 3-D": (
        lambda x, w, b: F.conv3d(x, w, b, (2, 1, 2), (1, 0, 1), (1, 2, 1), 2),
        (r(2, 4, 7, 8, 9),),
        (r(6, 2, 3, 2, 3), r(6)),
    ),
    "matmul, left with less of a batch": (torch.matmul, (r(1, 5, 4, 7), r(2, 5, 7, 3)), ()),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 4, 2), (r(2, 6, 23),), (r(5, 6, 5), r(5))),
    "conv, transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, (1, 0), (0, 1), 3),
        (IMAGE,),
        (r(6, 4, 3, 4), r(12)),
    ),
    "conv, dilated beyond the image": (
        lambda x, w, b, v: (
            F.conv2d(x, w, b, 1, (13, 2), (13, 1)),
            F.conv2d(x, v, None, (2, 1), (9, 17), (7, 15), 2),
            F.conv2d(x, w, b, 1, (1, 5), (1, 10)),
            F.conv1d(x.flatten(2), w[:, :, 0], b, 1, 101, 101),
        ),
        (IMAGE,),
        (r(5, 6, 3, 3), r(5), r(4, 3, 3, 2)),
    ),
    "conv, transposed, in steps": (
        lambda x, w, b, v, u: (
            F.conv_transpose2d(x, w, b, (2, 3), (1, 2), (0, 1)),
            F.conv_transpose2d(x, v, None, 2),
            F.conv_transpose2d(x, u, b, (2, 3), (1, 2), 1),
            F.conv_transpose2d(x, u, b, (3, 2), (0, 1)),
        ),
        (IMAGE,),
        (r(6, 5, 4, 6), r(5), r(6, 3, 2, 2), r(6, 5, 3, 5)),
    ),
    "conv1d, transposed, in steps": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 2, 1),
        (r(2, 6, 11),),
        (r(6, 5, 9), r(5)),
    ),
    "conv, transposed, 3-D": (
        lambda x, w, b: F.conv_transpose3d(x, w, b, (2, 3, 1), (1, 0, 2), (1, 2, 0), 2, (2, 3, 1)),
        (r(2, 6, 4, 5, 3),),
        (r(6, 2, 3, 2, 4), r(4)),
    ),
    "conv, transposed, 3-D, cropped": (
        lambda x, w: F.conv_transpose3d(x, w, None, (3, 1, 2), (2, 0, 1)),
        (r(2, 6, 4, 5, 3),),
        (r(6, 5, 2, 4, 3),),
    ),
    "adaptive pools that do not divide": (
        lambda x, v: (
            F.adaptive_avg_pool2d(x, (4, 6)),
            F.adaptive_avg_pool2d(x, (15, 2)),
            F.adaptive_max_pool2d(x, (4, 6)),
            F.adaptive_avg_pool3d(v, (3, 5, 1)),
            F.adaptive_max_pool3d(v, (3, 5, 1)),
        ),
        (IMAGE, r(2, 3, 5, 6, 7)),
        (),
    ),
    "adaptive pools of a line": (
        lambda x: (F.adaptive_avg_pool1d(x, 5), F.adaptive_avg_pool1d(x, 23), F.adaptive_max_pool1d(x, 17)),
        (r(2, 5, 12),),
        (),
    ),
    "max pool": (lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True), (IMAGE,), ()),
    "max pool, 1-D": (lambda x: F.max_pool1d(x, 3, 2, 1), (r(2, 5, 12),), ()),
    "max pool, dilated": (lambda x: F.max_pool2d(x, (3, 2), 2, 1, dilation=(2, 3)), (IMAGE,), ()),
    "max pool, 3-D": (
        lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 3), (1, 0, 1)),
        (r(2, 3, 5, 8, 11),),
        (),
    ),
    "max pool, 3-D, dilated": (
        lambda x: F.max_pool3d(x, 2, 1, 1, dilation=(2, 1, 3)),
        (r(2, 3, 5, 8, 11),),
        (),
    ),
    "average pool": (
        lambda x: F.avg_pool2d(x, (3, 4), (2, 3), (1, 2), count_include_pad=False),
        (IMAGE,),
        (),
    ),
    "average pool, 3-D": (
        lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 3), (1, 1, 0), ceil_mode=True, count_include_pad=False),
        (r(2, 3, 5, 8, 11),),
        (),
    ),
    "bilinear": (lambda x: F.interpolate(x, (14, 27), mode="bilinear"), (IMAGE,), ()),
    "bilinear, where a pixel is read on the point": (
        lambda x: F.interpolate(x, scale_factor=(1.5, 1.7), mode="bilinear", recompute_scale_factor=True),
        (r(2, 6, 7, 13),),
        (),
    ),
    "bilinear, by a factor": (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"), (IMAGE,), ()),
    "bilinear, by a factor, between convolutions": (
        lambda x, w, v: F.conv2d(F.interpolate(F.conv2d(x, w), scale_factor=1.3, mode="bilinear"), v),
        (IMAGE,),
        (r(24, 6, 3, 3), r(5, 24, 2, 3)),
    ),
    "bicubic": (lambda x: F.interpolate(x, (14, 27), mode="bicubic"), (IMAGE,), ()),
    "bicubic, aligned, by factors": (
        lambda x: F.interpolate(x, scale_factor=(1.3, 0.6), mode="bicubic", align_corners=True),
        (IMAGE,),
        (),
    ),
    "bicubic, antialias": (
        lambda x: F.interpolate(x, (5, 27), mode="bicubic", antialias=True),
        (IMAGE,),
        (),
    ),
    "bilinear, antialias": (
        lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
        (IMAGE,),
        (),
    ),
    "windows as columns": (
        lambda x: (F.unfold(x, 2, stride=2), F.unfold(x, (3, 2), (2, 1), (1, 0), (2, 3)), F.unfold(x[0], 2)),
        (IMAGE,),
        (),
    ),
    "columns as windows": (
        lambda x, y: (F.fold(x, (9, 11), 2, 1, 0, 2), F.fold(y, (9, 11), (3, 2), (2, 1), (1, 0), (2, 3))),
        (r(2, 24, 20), r(2, 36, 16)),
        (),
    ),
    "windows of a dimension": (
        lambda x: (
            x.unfold(2, 3, 1) * 2,
            x.unfold(-1, 3, 3) * 2,
            x.unfold(-1, 2, 3) * 2,
            x.unfold(1, 4, 2) * 2,
        ),
        (IMAGE,),
        (),
    ),
    "matmul, either side with less of a batch": (torch.matmul, (r(2, 1, 4, 7), r(1, 5, 7, 3)), ()),
    "trilinear": (
        lambda x: F.interpolate(x, (7, 9, 13), mode="trilinear", align_corners=True),
        (r(2, 3, 5, 8, 11),),
        (),
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=(2.0, 3.0)), (IMAGE,), ()),
    "nearest, 3-D": (lambda x: F.interpolate(x, scale_factor=2.0), (r(2, 3, 5, 8, 11),), ()),
    "add, both broadcast": (lambda x, y: x + y, (r(2, 5, 1), r(1, 7)), ()),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=3), (Y, r(7)), ()),
    "add, scalar": (lambda x: aten.add.Scalar(x + 2.5, 3), (Y,), ()),
    "add, constant": (lambda x, c: c + x, (Y,), (r(5, 7),)),
    "add, integer constant": (lambda x, c: x + c, (Y,), (torch.arange(7),)),
    "sub": (lambda x, y: x - y, (Y, r(7)), ()),
    "sub, scalar": (lambda x: aten.sub.Scalar(x, 3, 2), (Y,), ()),
    "rsub": (lambda x: torch.rsub(x, 3) + aten.rsub.Scalar(x, 1.5, 2), (Y,), ()),
    "rsub, tensor": (lambda x, y: aten.rsub.Tensor(x, y, alpha=2), (Y, r(7)), ()),
    "mul": (lambda x, y: x * y, (Y, r(5, 1)), ()),
    "mul, scalar": (lambda x: aten.mul.Scalar(x * 2, 0.25), (Y,), ()),
    "div": (lambda x, y: x / y, (Y, r(7).abs() + 1), ()),
    "div, scalar": (lambda x: aten.div.Scalar(x / 3, 7), (Y,), ()),
    "maximum": (torch.maximum, (Y, r(7)), ()),
    "minimum": (torch.minimum, (Y, r(7)), ()),
    "relu": (lambda x: torch.relu(x), (Y,), ()),
    "relu6": (lambda x: aten.relu6(x * 5), (Y,), ()),
    "hardtanh": (lambda x: F.hardtanh(x, -0.3, 0.7), (Y,), ()),
    "clamp": (lambda x: torch.clamp(x, -0.2, 0.9), (Y,), ()),
    "clamp, one side": (lambda x: (torch.clamp(x, min=0.1), torch.clamp(x, max=0.2)), (Y,), ()),
    "clamp_min, clamp_max": (lambda x: (aten.clamp_min(x, -0.1), aten.clamp_max(x, 0.3)), (Y,), ()),
    "hardswish": (lambda x: F.hardswish(x * 3), (Y,), ()),
    "hardsigmoid": (lambda x: F.hardsigmoid(x * 3), (Y,), ()),
    "silu": (F.silu, (Y,), ()),
    "gelu": (F.gelu, (Y,), ()),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (Y,), ()),
    "sigmoid": (torch.sigmoid, (Y,), ()),
    "tanh": (torch.tanh, (Y,), ()),
    "elu": (lambda x: F.elu(x, 0.7), (Y,), ()),
    "elu, scales": (lambda x: aten.elu(x, 0.7, 1.3, 0.6), (Y,), ()),
    "selu, celu": (lambda x: (F.selu(x), F.celu(x, 0.7)), (Y,), ()),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (Y,), ()),
    "leaky_relu, slopes": (
        lambda x: F.leaky_relu(x, -0.3) + F.leaky_relu(x, 1.5) + F.leaky_relu(x, 0.0),
        (Y,),
        (),
    ),
    "prelu": (F.prelu, (IMAGE,), (r(6),)),
    "prelu, one slope": (F.prelu, (IMAGE,), (r(1),)),
    "prelu between convolutions": (
        lambda x, w, a, v: F.conv2d(F.prelu(F.conv2d(x, w), a), v),
        (IMAGE,),
        (r(5, 6, 3, 2), r(5), r(4, 5, 1, 2)),
    ),
    "exp": (torch.exp, (Y,), ()),
    "sin, cos": (lambda x: (torch.sin(x), torch.cos(x)), (Y,), ()),
    "square": (lambda x: torch.square(x) + x**2, (Y,), ()),
    "rank 0": (lambda x: x * 2 + 1, (r(),), ()),
    "linear, no bias, rank 4": (lambda x, w: F.linear(x, w), (X,), (r(4, 6),)),
    "linear, weight given": (F.linear, (Y, r(3, 7)), ()),
    "linear, weight and bias given": (F.linear, (Y, r(3, 7), r(3)), ()),
    "linear, bias given": (lambda x, b, w: F.linear(x, w, b), (Y, r(3)), (r(3, 7),)),
    "linear, features first": (lambda x, w, b: F.linear(x.t(), w, b).t(), (r(7, 40),), (r(3, 7), r(3))),
    "linear, rank 1": (F.linear, (r(7),), (r(3, 7), r(3))),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (r(4, 7),), (r(7, 3), r(3))),
    "addmm, matrix given": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2),
        (r(4, 3), r(4, 7), r(7, 3)),
        (),
    ),
    "mm, constant": (torch.mm, (r(4, 7),), (r(7, 3),)),
    "mm": (torch.mm, (r(4, 7), r(7, 3)), ()),
    "bmm": (torch.bmm, (r(2, 4, 7), r(2, 7, 3)), ()),
    "bmm, constant": (torch.bmm, (r(2, 4, 7),), (r(2, 7, 3),)),
    "bmm, transposed right": (lambda x, y: torch.bmm(x, y.permute(0, 2, 1)), (r(2, 4, 7), r(2, 3, 7)), ()),
    "matmul, rank 4": (torch.matmul, (r(2, 5, 4, 7), r(2, 5, 7, 3)), ()),
    "matmul, both transposed, and the product": (
        lambda x, y: torch.matmul(x.transpose(1, 2), y.transpose(1, 2)).transpose(1, 2),
        (r(2, 7, 4), r(2, 3, 7)),
        (),
    ),
    "matmul, by a column, of a transposed matrix": (
        lambda x, y: torch.matmul(x.transpose(1, 2), y),
        (r(2, 7, 4), r(2, 7, 1)),
        (),
    ),
    "matmul, transposed, by itself": (lambda x: x.transpose(0, 2) @ x.transpose(0, 2), (r(4, 5, 2, 4),), ()),
    "mean of it": (lambda x: (x.transpose(0, 2) @ x.transpose(0, 2)).mean(0), (r(4, 5, 2, 4),), ()),
    "matmul, rank 3 by 2": (torch.matmul, (r(2, 4, 7), r(7, 3)), ()),
    "matmul, rank 3 by 2, constant": (torch.matmul, (r(2, 4, 7),), (r(7, 3),)),
    "softmax, not the last": (lambda x: (torch.softmax(x, 1), torch.softmax(x, 0)), (Y,), ()),
    "log_softmax": (
        lambda x: (torch.log_softmax(x * 40, 1), torch.log_softmax(x, 0), x[..., :1].log_softmax(2)),
        (Y,),
        (),
    ),
    "softmax in a type": (
        lambda x: (
            torch.softmax(x, 1, dtype=torch.float32),
            torch.log_softmax(x, 1, dtype=torch.float32),
        ),
        (Y,),
        (),
    ),
    "layer_norm of channels": (
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (6,), w, b).permute(0, 3, 1, 2),
        (IMAGE,),
        (r(6), r(6)),
    ),
    "layer_norm, no affine": (lambda x: F.layer_norm(x, (6,)), (X,), ()),
    "layer_norm, all dims": (lambda x: F.layer_norm(x, (5, 7)), (r(5, 7),), ()),
    "logarithms of other bases, the power 0": (
        lambda x: (torch.log2(x.abs() + 0.1), torch.log10(x.abs() + 0.1), x**0),
        (X,),
        (),
    ),
    "mean, everything": (lambda x: x.mean(), (X,), ()),
    "mean, rank 6": (lambda x: x.mean((1, 3)), (r(2, 3, 4, 5, 6, 7),), ()),
    "mean, sizes of 1": (lambda x: x.mean((0, 1, 3)), (r(1, 4, 1, 5, 6),), ()),
    "amax, amin": (lambda x: (x.amax((1, 3)), x.amin(0, True), x.amax(2)), (X,), ()),
    "prod": (lambda x: x.prod(1), (Y,), ()),
    "running sum and product": (lambda x: (torch.cumsum(x, 1), torch.cumprod(x, 2)), (Y,), ()),
    "var": (
        lambda x: (aten.var.correction(x, [1, 2]), x.var(-1, correction=0, keepdim=True), x.var(0, False)),
        (X,),
        (),
    ),
    "var of everything, standard deviation": (
        lambda x: (x.var(), x.std(1), x.std(), aten.std.correction(x, [0, 3], correction=0)),
        (X,),
        (),
    ),
    "sum": (lambda x: (x.sum((1, 2)), x.sum(-1, keepdim=True), x.sum((0, 2)), x.sum()), (X,), ()),
    "cat with a constant": (lambda x, c: torch.cat([x, c, x], 1), (Y,), (r(2, 3, 7),)),
    "slice": (lambda x: (x[:, 1:4], x[..., -3:], x[:, :-2], x[0:1]), (Y,), ()),
    "slice of everything": (lambda x: x[:, 0:] * 2, (Y,), ()),
    "slice, steps": (
        lambda x: (x[:, ::2], x[..., 1::3], x[:, 1:4:2], x[..., 2::4], x[..., :6:3]),
        (Y,),
        (),
    ),
    "slice beyond the end": (lambda x: aten.slice.Tensor(x, 1, 3, 99) * 2, (Y,), ()),
    "written to every n-th": (
        lambda x, y: (
            torch.slice_scatter(x, y, 2, 1, 7, 3) * 2,
            torch.slice_scatter(x, y[:, :3, :1].expand(2, 3, 7), -2, 0, None, 2) * 2,
            torch.slice_scatter(x, y[:, :2, :1].expand(2, 2, 7), 1, 1, 4, 2) * 2,
        ),
        (Y, r(2, 5, 2)),
        (),
    ),
    "select": (lambda x: (x[:, 2], x[..., -1], aten.select.int(x, 0, 1)), (Y,), ()),
    "split": (lambda x: [p * 2 for p in torch.split(x, 3, 2)] + list(torch.split(x, [1, 4], -2)), (Y,), ()),
    "chunk": (lambda x: [p * 2 for p in torch.chunk(x, 3, -1)], (Y,), ()),
    "unbind": (lambda x: torch.unbind(x, 1)[3] + torch.unbind(x, -2)[1], (Y,), ()),
    "pad": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 3, 2, 1), value=-1.5), aten.constant_pad_nd(x, [1, 0], 2)),
        (Y,),
        (),
    ),
    "pad, negative": (lambda x: (F.pad(x, (-1, 2)), F.pad(x, (0, -3, 1, -2), value=2.5)), (Y,), ()),
    "permute": (lambda x: (x.permute(2, 0, 1) * 2, x.permute(0, 2, 1).clone()), (Y,), ()),
    "permute, rank 6": (lambda x: x.permute(5, 1, 3, 0, 4, 2) * 2, (r(2, 3, 4, 5, 6, 7),), ()),
    "views": (
        lambda x: (
            (x * 2).view(10, 7),
            x.reshape(2, 35) + 1,
            torch.flatten(x, 1) * 3,
            x.unsqueeze(1) * 2,
            x.unflatten(0, (1, 2)) * 2,
            aten._unsafe_view(x, [5, 14]) * 2,
        ),
        (Y,),
        (),
    ),
    "squeeze": (
        lambda x: (x.squeeze() * 2, x.squeeze(2) * 3, x.squeeze((0, 2)) + 1),
        (r(1, 5, 1, 7),),
        (),
    ),
    "view of a permute": (lambda x: x.permute(2, 0, 1).reshape(14, 5) * 2, (Y,), ()),
    "view to rank 0": (lambda x: x.reshape(()) * 2, (r(1, 1),), ()),
    "expand": (
        lambda x: (x.expand(4, 5, 7) * 2, x.expand(3, 1, 5, 7) + 1, x.expand(1, 5, 7) * 3),
        (r(1, 5, 7),),
        (),
    ),
    "expand of rank 0": (lambda x: x.expand(2, 5, 7) * 2, (r(),), ()),
    "no-ops": (
        lambda x: F.dropout(aten.alias(aten.detach(x.clone().contiguous())), 0.5, False) * 2,
        (Y,),
        (),
    ),
}
