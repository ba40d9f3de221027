"""Every operator of the target's table, run in the ExecuTorch runtime, against torch on the same module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")

from dimorder.targets.xnnpack import run
from dimorder.targets.xnnpack.emit import Emitted, emit
from dimorder.targets.xnnpack.ops import OPERATORS

D = torch.ops.dimorder
aten = torch.ops.aten


class Physical(torch.nn.Module):
    """A physical module: a function of its inputs and of constants, which are its buffers."""

    def __init__(self, function: Callable[..., Any], constants: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self.function = function
        for i, constant in enumerate(constants):
            self.register_buffer(f"constant{i}", constant)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, *self.buffers())


def r(*shape: int) -> Tensor:
    """Random numbers that depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 7 * len(shape)))


def emitted(module: Physical, inputs: tuple[Tensor, ...]) -> Emitted:
    return emit(torch.export.export(module, inputs))


def compare(module: Physical, inputs: tuple[Tensor, ...], tolerance: float = 2e-6) -> Emitted:
    """Emit, run, and hold every output's largest error against its largest value."""
    result = emitted(module, inputs)
    expected = module(*inputs)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    actual = run(result.pte, list(inputs))
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        torch.testing.assert_close(a, e, rtol=0, atol=tolerance * max(1.0, float(e.abs().max())))
    return result


# name -> function, inputs, constants
Case = tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]

X = r(2, 9, 11, 6)
CONVOLUTIONS: dict[str, Case] = {
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
    "depthwise, 7x7": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [1, 1], [3] * 4, [1, 1], 6),
        (X,),
        (r(6, 7, 7, 1), r(6)),
    ),
    "depthwise, 7x7, no padding, stride": (
        lambda x, w, b: D.conv2d_nhwc(x, w, b, [2, 1], [0, 1, 0, 0], [1, 1], 6),
        (X,),
        (r(6, 7, 7, 1), r(6)),
    ),
    "depthwise, 5x7, dilation": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 2], [5, 3, 4, 1], [2, 1], 6),
        (X,),
        (r(6, 5, 7, 1),),
    ),
    "depthwise, 13x13": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [6] * 4, [1, 1], 6),
        (X,),
        (r(6, 13, 13, 1),),
    ),
    "depthwise, 1x31": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [0, 0, 15, 15], [1, 1], 6),
        (r(2, 1, 37, 6),),
        (r(6, 1, 31, 1),),
    ),
    "transposed": (
        lambda x, w, b: D.conv_transpose2d_nhwc(x, w, b, [3, 2], [1, 0], [2, 1], [1, 2], 1),
        (X,),
        (r(5, 3, 2, 6), r(5)),
    ),
    "transposed, groups": (
        lambda x, w: D.conv_transpose2d_nhwc(x, w, None, [2, 2], [1, 1], [0, 1], [1, 1], 3),
        (X,),
        (r(12, 3, 4, 2),),
    ),
    "max pool": (lambda x: D.max_pool2d_nhwc(x, [3, 2], [2, 3], [1, 0], [1, 2], False), (X,), ()),
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
    "max pool, identity": (
        lambda x: D.max_pool2d_nhwc(x + 1, [1, 1], [1, 1], [0, 0], [1, 1], False),
        (X,),
        (),
    ),
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
    "average pool, 1x1": (lambda x: D.avg_pool2d_nhwc(x, [1, 1], [2, 3], [0, 0], False, True, 3), (X,), ()),
    "bilinear": (lambda x: D.upsample_bilinear2d_nhwc(x, [14, 27], False, None, None), (X,), ()),
    "bilinear, scales": (lambda x: D.upsample_bilinear2d_nhwc(x, [18, 33], False, 2.0, 3.0), (X,), ()),
    "bilinear, down": (lambda x: D.upsample_bilinear2d_nhwc(x, [5, 4], False, None, None), (X,), ()),
    "bilinear, aligned": (lambda x: D.upsample_bilinear2d_nhwc(x, [14, 27], True, None, None), (X,), ()),
    "bilinear, from one pixel": (
        lambda x: D.upsample_bilinear2d_nhwc(x, [14, 13], False, None, None),
        (r(2, 1, 1, 6),),
        (),
    ),
    "nearest": (lambda x: D.upsample_nearest2d_nhwc(x, [18, 33], None, None), (X,), ()),
    "nearest, scales": (lambda x: D.upsample_nearest2d_nhwc(x, [18, 22], 2.0, 2.0), (X,), ()),
}

Y = r(2, 5, 7)
ELEMENTWISE: dict[str, Case] = {
    "add": (lambda x, y: x + y, (r(2, 5, 7), r(2, 5, 7) + 1), ()),
    "add, broadcast": (lambda x, y: x + y, (r(2, 5, 7), r(5, 1)), ()),
    "add, both broadcast": (lambda x, y: x + y, (r(2, 5, 1), r(1, 7)), ()),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=3), (Y, r(7)), ()),
    "add, scalar": (lambda x: aten.add.Scalar(x + 2.5, 3), (Y,), ()),
    "add, constant": (lambda x, c: c + x, (Y,), (r(5, 7),)),
    "add, integer constant": (lambda x, c: x + c, (Y,), (torch.arange(7),)),
    "add, relu": (lambda x, y: torch.relu(x + y), (Y, r(7)), ()),
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
    "clamp after clamp": (lambda x: torch.relu(torch.clamp(x * 2, -1, 1)), (Y,), ()),
    "relu, its input used too": (lambda x: (lambda y: y + torch.relu(y))(x * 2), (Y,), ()),
    "relu, its input given too": (lambda x: (lambda y: (y, torch.relu(y)))(x * 2), (Y,), ()),
    "hardswish": (lambda x: F.hardswish(x * 3), (Y,), ()),
    "hardsigmoid": (lambda x: F.hardsigmoid(x * 3), (Y,), ()),
    "silu": (F.silu, (Y,), ()),
    "gelu": (F.gelu, (Y,), ()),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (Y,), ()),
    "sigmoid": (torch.sigmoid, (Y,), ()),
    "tanh": (torch.tanh, (Y,), ()),
    "elu": (lambda x: F.elu(x, 0.7), (Y,), ()),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (Y,), ()),
    "leaky_relu, slopes": (
        lambda x: F.leaky_relu(x, -0.3) + F.leaky_relu(x, 1.5) + F.leaky_relu(x, 0.0),
        (Y,),
        (),
    ),
    "prelu": (lambda x, w: D.prelu_last(x, w), (X,), (r(6),)),
    "prelu, one slope": (lambda x, w: D.prelu_last(x, w), (X,), (r(1),)),
    "exp": (torch.exp, (Y,), ()),
    "log": (lambda x: torch.log(x.abs() + 0.1), (Y,), ()),
    "sin, cos": (lambda x: (torch.sin(x), torch.cos(x)), (Y,), ()),
    "sqrt, rsqrt": (lambda x: (torch.sqrt(x.abs()), torch.rsqrt(x.abs() + 0.5)), (Y,), ()),
    "neg, floor, ceil": (lambda x: (-x, torch.floor(x * 3), torch.ceil(x * 3)), (Y,), ()),
    "square": (lambda x: torch.square(x) + x**2, (Y,), ()),
    "powers": (
        lambda x: x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -0.5 + (x.abs() + 1) ** -1 + x**1,
        (Y,),
        (),
    ),
    "reciprocal": (lambda x: torch.reciprocal(x.abs() + 1), (Y,), ()),
    "rank 0": (lambda x: x * 2 + 1, (r(),), ()),
}

MATRICES: dict[str, Case] = {
    "linear": (F.linear, (r(2, 5, 7),), (r(3, 7), r(3))),
    "linear, no bias, rank 4": (lambda x, w: F.linear(x, w), (X,), (r(4, 6),)),
    "linear, rank 1": (F.linear, (r(7),), (r(3, 7), r(3))),
    "linear, weight given": (lambda x, w: F.linear(x, w), (r(2, 5, 7), r(3, 7)), ()),
    "linear, relu": (lambda x, w, b: torch.relu(F.linear(x, w, b)), (r(4, 7),), (r(3, 7), r(3))),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (r(4, 7),), (r(7, 3), r(3))),
    "mm, constant": (torch.mm, (r(4, 7),), (r(7, 3),)),
    "mm": (torch.mm, (r(4, 7), r(7, 3)), ()),
    "mm, transposed": (lambda x, y: torch.mm(x, y.t()), (r(4, 7), r(3, 7)), ()),
    "bmm": (torch.bmm, (r(2, 4, 7), r(2, 7, 3)), ()),
    "bmm, constant": (torch.bmm, (r(2, 4, 7),), (r(2, 7, 3),)),
    "bmm, transposed right": (lambda x, y: torch.bmm(x, y.permute(0, 2, 1)), (r(2, 4, 7), r(2, 3, 7)), ()),
    "bmm, transposed left": (lambda x, y: torch.bmm(x.permute(0, 2, 1), y), (r(2, 7, 4), r(2, 7, 3)), ()),
    "matmul, rank 4": (torch.matmul, (r(2, 5, 4, 7), r(2, 5, 7, 3)), ()),
    "matmul, rank 3 by 2": (torch.matmul, (r(2, 4, 7), r(7, 3)), ()),
    "matmul, rank 3 by 2, constant": (torch.matmul, (r(2, 4, 7),), (r(7, 3),)),
    "matmul, constant left": (lambda x, c: torch.matmul(c, x), (r(2, 7, 3),), (r(2, 4, 7),)),
    "attention": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 7)), ()),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8)),
        (),
    ),
    "attention, masks": (
        lambda q, k, v, m, n: (
            F.scaled_dot_product_attention(q, k, v, m) + F.scaled_dot_product_attention(q, k, v, n)
        ),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8), r(4, 5)),
        (r(4, 5) > -0.5,),
    ),
}

REDUCTIONS: dict[str, Case] = {
    "softmax": (lambda x: torch.softmax(x, -1), (Y,), ()),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-3), (r(2, 5, 7),), (r(7), r(7))),
    "layer_norm, no affine": (lambda x: F.layer_norm(x, (6,)), (X,), ()),
    "layer_norm, two dims": (
        lambda x, w, b: F.layer_norm(x, (5, 7), w, b),
        (r(2, 5, 7),),
        (r(5, 7), r(5, 7)),
    ),
    "layer_norm, all dims": (lambda x: F.layer_norm(x, (5, 7)), (r(5, 7),), ()),
    **{
        f"mean, {dims}, keepdim={keep}": (lambda x, d=dims, k=keep: x.mean(d, k), (X,), ())
        for dims in [(1, 2), (3,), (0,), (-1, 1), (2, 3), (0, 3), (0, 2), (0, 1, 2, 3), (1,)]
        for keep in (False, True)
    },
    "mean, everything": (lambda x: x.mean(), (X,), ()),
    "mean, rank 6": (lambda x: x.mean((1, 3)), (r(2, 3, 4, 5, 6, 7),), ()),
    "mean, sizes of 1": (lambda x: x.mean((0, 1, 3)), (r(1, 4, 1, 5, 6),), ()),
    "sum": (lambda x: (x.sum((1, 2)), x.sum(-1, keepdim=True), x.sum((0, 2)), x.sum()), (X,), ()),
}

MOVES: dict[str, Case] = {
    **{
        f"cat of {n} along {dim}": (
            lambda *xs, d=dim: torch.cat(xs, d),
            tuple(
                r(*(n + i if j == dim % 3 else size for j, size in enumerate((2, 5, 7)))) for i in range(n)
            ),
            (),
        )
        for n, dim in [(1, 0), (2, 1), (3, -1), (4, 0), (5, 1), (6, 2), (27, 1)]
    },
    "cat with a constant": (lambda x, c: torch.cat([x, c, x], 1), (Y,), (r(2, 3, 7),)),
    "slice": (lambda x: (x[:, 1:4], x[..., -3:], x[:, :-2], x[0:1]), (Y,), ()),
    "slice of everything": (lambda x: x[:, 0:] * 2, (Y,), ()),
    "slice beyond the end": (lambda x: aten.slice.Tensor(x, 1, 3, 99) * 2, (Y,), ()),
    "narrow": (lambda x: aten.narrow(x, 1, -3, 2) * 2, (Y,), ()),
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
    "pad, infinite": (lambda x: torch.clamp(F.pad(x, (1, 2), value=float("-inf")), min=-9.0), (Y,), ()),
    "permute": (lambda x: (x.permute(2, 0, 1) * 2, x.permute(0, 2, 1).clone()), (Y,), ()),
    "permute, rank 6": (lambda x: x.permute(5, 1, 3, 0, 4, 2) * 2, (r(2, 3, 4, 5, 6, 7),), ()),
    "permute of sizes of 1": (lambda x: x.permute(2, 0, 1, 3) * 2, (r(1, 4, 1, 5),), ()),
    "permute twice": (lambda x: (x * 2).permute(2, 0, 1).permute(1, 2, 0) + x, (Y,), ()),
    "permute, two readers": (lambda x: (lambda p: p.exp() + p)((x * 2).permute(2, 0, 1)), (Y,), ()),
    "transpose": (lambda x: (x.transpose(0, -1) * 2, x.transpose(1, 2)[0].t() + 1), (Y,), ()),
    "constant permuted": (
        lambda x, c: x * c.permute(1, 0).contiguous().view(7, 5).t(),
        (Y,),
        (r(7, 5).t().contiguous(),),
    ),
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
    "no-ops": (
        lambda x: F.dropout(aten.alias(aten.detach(x.clone().contiguous())), 0.5, False) * 2,
        (Y,),
        (),
    ),
    "lift": (lambda x: aten.lift_fresh_copy(x) * 2, (Y,), ()),
}

CASES = {**CONVOLUTIONS, **ELEMENTWISE, **MATRICES, **REDUCTIONS, **MOVES}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    function, inputs, constants = CASES[name]
    result = compare(Physical(function, constants), inputs)
    assert (result.delegates, result.outside) == (1, {})


def test_every_row_of_the_table_has_a_case() -> None:
    covered = set()
    for function, inputs, constants in CASES.values():
        program = torch.export.export(Physical(function, constants), inputs)
        covered |= {node.target for node in program.graph.nodes}
    covered |= {aten._softmax.default, aten.lift_fresh_copy.default, aten.alias.default}
    assert {str(op) for op in set(OPERATORS.rows) - covered} == set()
