"""Test networks that stock ExecuTorch crashes on, refuses or gets wrong: stock's outcome and ours."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from dimorder.algebra.dim_order import DimOrder
from dimorder.api import load
from dimorder.errors import UnsupportedError
from dimorder.executorch import XNNPACK, guarded
from dimorder.executorch.attempt import disagreement
from dimorder.executorch.lowering_paths import lower_legally, run_bare, run_guarded, stock
from tests.marks import slow_but

NHWC = DimOrder.channels_last(4)
CRASH = "ahead of time"
REFUSED = "at run time"
WRONG = "silently wrong"
RIGHT = "right"


class Call(nn.Module):
    """A function of the inputs, and of submodules where it has any, as a module."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs):
        return self.function(*self.parts, *inputs)


def last(*shape):
    """A random tensor, channels-last at any rank."""
    rank = len(shape)
    order = DimOrder.channels_last(rank)
    return torch.randn(order.physical_shape(shape)).permute(order.inverse.dims)


def conv(cin, cout, kernel, **options):
    return nn.Conv2d(cin, cout, kernel, **options).to(memory_format=torch.channels_last)


def calls(part):
    return Call(lambda module, x: module(x), part)


# Network, inputs, and what stock lowering makes of it: on portable kernels, and with XNNPACK's partitioner.
CASES = {
    "depthwise channels-last weights": (
        lambda: calls(conv(8, 8, 3, groups=8)),
        lambda: [last(2, 8, 5, 7)],
        REFUSED,
        RIGHT,
    ),
    "a 3x3 conv with channels-last weights": (
        lambda: calls(conv(3, 8, 3)),
        lambda: [last(2, 3, 5, 7)],
        RIGHT,
        CRASH,
    ),
    "C=1": (
        lambda: calls(conv(1, 8, 3)),
        lambda: [torch.randn(2, 1, 5, 7).to(memory_format=torch.channels_last)],
        REFUSED,
        REFUSED,
    ),
    "conv to C=1": (
        lambda: calls(nn.Conv2d(3, 1, 2)),
        lambda: [last(2, 3, 5, 7)],
        REFUSED,
        REFUSED,
    ),
    "a copy of C=1": (
        lambda: Call(lambda x: x.to(memory_format=torch.channels_last) * 2),
        lambda: [torch.randn(2, 1, 5, 7)],
        REFUSED,
        REFUSED,
    ),
    "a cast of C=1": (
        lambda: Call(lambda part, x: part(x).double(), nn.Conv2d(3, 1, 2)),
        lambda: [last(2, 3, 5, 7)],
        REFUSED,
        REFUSED,
    ),
    "a copy of a conv to C=1": (
        lambda: Call(lambda part, x: part(x).clone(memory_format=torch.channels_last), nn.Conv2d(3, 1, 2)),
        lambda: [last(2, 3, 5, 7)],
        REFUSED,
        REFUSED,
    ),
    "H=W=1": (
        lambda: calls(nn.Conv2d(3, 8, 1)),
        lambda: [torch.randn(2, 3, 1, 1).to(memory_format=torch.channels_last)],
        RIGHT,
        REFUSED,
    ),
    "x * 2": (lambda: Call(lambda x: x * 2), lambda: [last(2, 3, 5, 7)], REFUSED, RIGHT),
    "per-channel scale": (
        lambda: Call(lambda x, s: x * s),
        lambda: [last(2, 3, 5, 7), last(1, 3, 1, 1)],
        WRONG,
        REFUSED,
    ),
    "cat of channels-last": (
        lambda: Call(lambda x, y: torch.cat([x, y], 1)),
        lambda: [last(2, 3, 5, 7), last(2, 4, 5, 7)],
        WRONG,
        RIGHT,
    ),
    "where of a mixture": (
        lambda: Call(lambda x, y: torch.where(x > 0.5, x, y)),
        lambda: [last(2, 3, 5, 7), torch.randn(2, 3, 5, 7)],
        REFUSED,
        REFUSED,
    ),
    "softmax over the last dim": (
        lambda: Call(lambda x: x.softmax(-1)),
        lambda: [last(2, 3, 5, 7)],
        REFUSED,
        WRONG,
    ),
    "softmax over the channels, permuted last": (
        lambda: Call(lambda x: x.permute(0, 2, 3, 1).softmax(-1)),
        lambda: [last(2, 3, 5, 7)],
        REFUSED,
        WRONG,
    ),
    # XNNPACK goes on in channels-last after a convolution, also in a program of contiguous tensors alone.
    "softmax after a conv": (
        lambda: Call(lambda part, x: part(x).relu().softmax(-1), nn.Conv2d(3, 8, 2)),
        lambda: [torch.randn(2, 3, 5, 7)],
        RIGHT,
        WRONG,
    ),
    "flip": (lambda: Call(lambda x: x.flip(2)), lambda: [last(2, 3, 5, 7)], WRONG, WRONG),
    "layer norm": (
        lambda: Call(lambda x: nn.functional.layer_norm(x, (7,))),
        lambda: [last(2, 3, 5, 7)],
        WRONG,
        WRONG,
    ),
    "channel shuffle": (
        lambda: Call(lambda x: torch.channel_shuffle(x, 2)),
        lambda: [last(2, 4, 5, 7)],
        WRONG,
        RIGHT,
    ),
    "rank 5, NDHWC": (lambda: Call(lambda x: x.relu() + 1), lambda: [last(2, 3, 4, 5, 7)], REFUSED, REFUSED),
    "rank 3, NLC": (lambda: calls(nn.Conv1d(3, 8, 3)), lambda: [last(2, 3, 7)], REFUSED, REFUSED),
    "a transposed input": (
        lambda: Call(lambda x: x.relu()),
        lambda: [torch.randn(5, 3, 7, 2).permute(3, 1, 2, 0)],
        REFUSED,
        REFUSED,
    ),
}


def outcome(lower, run, network, inputs):
    with torch.no_grad():
        expected = [network(*inputs)]
    exported = torch.export.export(network, tuple(inputs), strict=False)
    try:
        data = lower(exported)
    except Exception:  # stock lowering ends in whatever comes
        return CRASH
    try:
        found = list(run(data, inputs))
    except RuntimeError:
        return REFUSED
    return WRONG if disagreement(expected, found) else RIGHT


BACKENDS = ("portable", "xnnpack")
# An outcome of each kind.
QUICK_STOCK = [
    ("a 3x3 conv with channels-last weights", "xnnpack"),
    ("C=1", "xnnpack"),
    ("depthwise channels-last weights", "portable"),
    ("cat of channels-last", "portable"),
    ("layer norm", "xnnpack"),
    ("channel shuffle", "xnnpack"),
]
QUICK_OURS = list(zip(CASES, cycle(BACKENDS), strict=False))


@pytest.mark.parametrize(("name", "backend"), slow_but(product(CASES, BACKENDS), QUICK_STOCK))
def test_what_stock_lowering_makes_of_it(name, backend):
    network, inputs, *expected = CASES[name]
    found = outcome(stock(backend), run_bare, network().eval(), inputs())
    assert found == expected[backend == "xnnpack"]


@pytest.mark.parametrize(("name", "backend"), slow_but(product(CASES, BACKENDS), QUICK_OURS))
def test_ours_is_right_in_the_exported_order_and_in_the_other(name, backend):
    network, inputs, *_ = CASES[name]
    network, given = network().eval(), inputs()
    partitioner = guarded(XnnpackPartitioner(), XNNPACK) if backend == "xnnpack" else None
    with torch.no_grad():
        expected = [network(*given)]
        data = lower_legally(torch.export.export(network, tuple(given), strict=False), partitioner)
    for fed in (given, [x.contiguous() for x in given]):
        assert disagreement(expected, list(run_guarded(data, fed))) == ""


def test_a_program_that_calls_a_kernel_in_a_wrong_order_is_refused_at_load(tmp_path):
    network, inputs, *_ = CASES["cat of channels-last"]
    path = tmp_path / "cat.pte"
    path.write_bytes(stock("portable")(torch.export.export(network(), tuple(inputs()))))
    with pytest.raises(UnsupportedError) as caught:
        load(path)
    assert str(caught.value) == (
        f"loading {path}\n"
        "  found: it calls aten::cat.out in NHWC (0, 2, 3, 1), NHWC (0, 2, 3, 1): that kernel returns wrong "
        "numbers, silently\n"
        "  fix: lower it again with canonicalize(program), and with transform_passes=[legalize] or "
        "partitioner=[guarded(XnnpackPartitioner(), XNNPACK)], all of dimorder.executorch; "
        "`dimorder check` lists every such call"
    )


def test_a_view_that_memory_planning_hides_is_refused_at_load_too(tmp_path):
    network, inputs, *_ = CASES["channel shuffle"]
    path = tmp_path / "shuffle.pte"
    path.write_bytes(stock("portable")(torch.export.export(network(), tuple(inputs()))))
    with pytest.raises(
        UnsupportedError, match=r"it calls executorch_prim::et_view\.default in another order"
    ):
        load(path)
