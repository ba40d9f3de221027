"""A network that cannot run in another order is told by line; its own errors pass through."""

from __future__ import annotations

import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dimorder.eager.inspection.compare import compare
from dimorder.eager.inspection.inspection import expect_channels_last
from dimorder.eager.inspection.inspection import inspect as inspect_run
from dimorder.errors import UnsupportedError, UsageError


class Viewing(nn.Module):
    """A classifier of images or of sound that views its channels and pixels as one row."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        y = self.conv(x)
        return y.view(len(y), -1)


LINE = inspect.getsourcelines(Viewing.forward)[1] + 3
NETWORKS = {
    "images": (lambda: Viewing(nn.Conv2d(3, 4, 3)), (2, 3, 5, 7)),
    "sound": (lambda: Viewing(nn.Conv1d(3, 4, 3)), (2, 3, 9)),
}


@pytest.mark.parametrize("run", [inspect_run, compare, expect_channels_last])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_view_is_told_by_its_line(name, run):
    make, shape = NETWORKS[name]
    model = make()
    weight = model.conv.weight.stride()
    told = (
        rf"\AViewing \(test_order_errors.py:{LINE}\)\n.* view size .*\n  fix: write reshape for view in that"
    )
    with pytest.raises(UnsupportedError, match=told):
        run(model, torch.randn(shape))
    assert model.training and model.calls.item() == 0 and model.conv.weight.stride() == weight


def test_it_is_inspected_in_its_own_order():
    make, shape = NETWORKS["images"]
    found = inspect_run(make(), torch.randn(shape), order=None)
    assert found.keeps and found.order is None


def test_an_error_in_every_order_passes_through():
    model = nn.Conv2d(3, 4, 3)
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 2 channels"):
        inspect_run(model, torch.randn(1, 2, 5, 7))
    with pytest.raises(TypeError, match=re.escape("forward()")):
        inspect_run(model, ())


def test_tensors_without_memory_are_refused():
    model = nn.Conv2d(3, 4, 3)
    for given in (model, torch.randn(2, 3, 5, 7, device="meta")), (model.to("meta"), torch.randn(2, 3, 5, 7)):
        with pytest.raises(UsageError, match="a tensor without memory, where the network is run for real"):
            inspect_run(*given)


def test_threads_that_inspect_one_network_leave_it_as_it_was():
    model = nn.Sequential(nn.Conv1d(5, 6, 3), nn.Conv1d(6, 7, 4))
    strides = [each.stride() for each in model.parameters()]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: inspect_run(model, torch.randn(2, 5, 64)), range(24)))
    assert {len(each.calls) for each in found} == {len(found[0].calls)}
    assert type(model) is nn.Sequential
    assert [each.stride() for each in model.parameters()] == strides
