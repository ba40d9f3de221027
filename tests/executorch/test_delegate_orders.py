"""Test that operators in stock XNNPACK delegates are judged as they run: right, wrong or refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("executorch")

from dimorder.api import load
from dimorder.errors import UnsupportedError
from dimorder.executorch import check_file
from dimorder.executorch.attempt import disagreement
from dimorder.executorch.lowering_paths import legal, run_bare, stock


class AfterConv(nn.Module):
    def __init__(self, function, before=None):
        super().__init__()
        self.before, self.function = before or nn.Conv2d(3, 8, 3), function

    def forward(self, *inputs):
        return self.function(self.before(inputs[0]), *inputs[1:])


def directly(function):
    return AfterConv(function, nn.Identity())


def last(*shape):
    return tensor(*shape).to(memory_format=torch.channels_last)


def tensor(*shape):
    return torch.linspace(-2, 2, math.prod(shape)).sin().reshape(shape)


IMAGE, GREY = (2, 3, 5, 9), (2, 1, 5, 4)
# Name → what is found inside, the network, and its inputs.
CASES = {
    "softmax after a convolution": (
        {"Softmax": "wrong"},
        AfterConv(lambda y: y.relu().softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax of pixels' channels after a convolution": (
        {"Softmax": "wrong"},
        AfterConv(lambda y: y.permute(0, 2, 3, 1).softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax of a permute that looks like a change of order": (
        {"Softmax": "wrong"},
        AfterConv(lambda y: y.permute(0, 3, 1, 2).softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax of a channels-last input": (
        {"Softmax": "wrong"},
        directly(lambda x: x.softmax(-1)),
        [last(*IMAGE)],
    ),
    "softmax after a sum with a convolution": (
        {"Softmax": "wrong"},
        AfterConv(lambda y, x: (y[..., :1] + x).softmax(-1)),
        [tensor(*IMAGE), tensor(2, 8, 3, 7)],
    ),
    "softmax after a convolution and a view": (
        {},
        AfterConv(lambda y: y.view(2, 8, 7, 3).softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax after a change of order": (
        {},
        AfterConv(lambda y: (y + torch.ones(7)).softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax of a permuted input": (
        {},
        directly(lambda x: x.permute(0, 2, 3, 1).softmax(-1)),
        [tensor(*IMAGE)],
    ),
    "softmax beside a convolution, whose inputs are listed the other way round": (
        {},
        directly(lambda x, y: (x.softmax(-1), F.max_pool2d(y, 2))),
        [tensor(*IMAGE), last(*IMAGE)],
    ),
    "transpose of grey squares": (
        {"StaticTranspose": "wrong"},
        directly(lambda x: x.mT.flatten(1) * 2),
        [last(2, 1, 5, 5)],
    ),
    "convolution of single pixels": (
        {"Conv2d": "refused", "an output": "refused"},
        AfterConv(lambda y: y, nn.Conv2d(3, 8, 1)),
        [last(2, 3, 1, 1)],
    ),
    "softmax of grey images": ({"an output": "refused"}, directly(lambda x: x.softmax(-1)), [last(*GREY)]),
    "softmax of grey images, as rows": ({}, directly(lambda x: x.softmax(-1).flatten(1) * 2), [last(*GREY)]),
    "slice of grey images": (
        {"StaticSlice": "refused"},
        directly(lambda x: x[..., 1:3].flatten(1) * 2),
        [last(*GREY)],
    ),
    "columns of grey images are padded": ({}, directly(lambda x: F.pad(x, (1, 1))), [last(*GREY)]),
    "grey images times columns": ({}, directly(lambda x, y: x * y), [last(*GREY), tensor(4)]),
    "grey images plus contiguous ones": (
        {"Add": "refused", "an output": "refused"},
        directly(lambda x, y: x + y),
        [last(*GREY), tensor(*GREY)],
    ),
    "pixels as rows": ({}, directly(lambda x: x.flatten(1) * 2), [last(2, 3, 1, 1)]),
    "output of one pixel": (
        {"an output": "refused"},
        AfterConv(lambda y: y, nn.MaxPool2d((5, 9))),
        [last(*IMAGE)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_a_delegate_is_how_it_runs(name, tmp_path):
    expected, network, inputs = CASES[name]
    data, path = stock("xnnpack")(torch.export.export(network.eval(), tuple(inputs))), tmp_path / "net.pte"
    path.write_bytes(data)
    bad = [row for row in check_file(path).rows if row.verdict in ("wrong", "refused")]
    found = {row.operator.removesuffix(" in XnnpackBackend"): row.verdict for row in bad}
    assert found == expected
    results = network(*inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    if "refused" in expected.values():
        with pytest.raises(RuntimeError, match="failed with error"):
            run_bare(data, inputs)
    else:
        assert bool(disagreement(results, run_bare(data, inputs))) == bool(expected)
    if "wrong" in expected.values():
        with pytest.raises(UnsupportedError, match=f"{next(iter(expected))} in XnnpackBackend in .*silently"):
            load(path)


@pytest.mark.parametrize(
    "name", ["output of one pixel", "convolution of single pixels", "transpose of grey squares"]
)
def test_a_guarded_delegate_has_no_such_operator(name, tmp_path):
    _, network, inputs = CASES[name]
    data, path = legal("xnnpack")(torch.export.export(network.eval(), tuple(inputs))), tmp_path / "net.pte"
    path.write_bytes(data)
    assert check_file(path).is_safe
    assert disagreement([network(*inputs)], run_bare(data, inputs)) == ""
