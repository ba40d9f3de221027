"""PatternQuantizer quantises what XNNPACKQuantizer does. No network outlives its quantisation."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import dimorder
from tests.marks import slow_but

executorch = pytest.importorskip("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
pytestmark = pytest.mark.filterwarnings("ignore")


class ReadTwice(nn.Module):
    """A batch norm that is not folded: something else reads the convolution too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.relu(self.norm(y)) + y


NETWORKS = {
    "folded": nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.ConvTranspose2d(5, 4, 2)),
    "first": nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 1)),
    "read twice": ReadTwice(),
}


CASES = [(name, is_dynamic) for name in NETWORKS for is_dynamic in (False, True)]


@pytest.mark.parametrize(("name", "is_dynamic"), slow_but(CASES, [("folded", False), ("read twice", True)]))
def test_it_observes_what_xnnpackquantizer_does(name, is_dynamic):
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    from dimorder.targets.pattern_quantizer import PatternQuantizer

    x = torch.randn(2, 3, 9, 11)
    config = executorch.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    ours, theirs = (
        prepare_pt2e(torch.export.export(NETWORKS[name].eval(), (x,)).module(), quantizer.set_global(config))
        for quantizer in (PatternQuantizer(), executorch.XNNPACKQuantizer())
    )
    assert ours.code == theirs.code
    observers = [
        [type(each) for name, each in prepared.named_modules() if "post_process" in name]
        for prepared in (ours, theirs)
    ]
    assert observers[0] == observers[1] != []


def test_no_network_outlives_its_quantization():
    """Caches of torch and torchao would keep its weights."""
    net, x = nn.Conv2d(3, 5, 3).eval(), torch.randn(2, 3, 9, 11)
    quantised = dimorder.quantize(net, [x])
    kept = weakref.ref(quantised.original)
    parameter = weakref.ref(next(quantised.original.parameters()))
    del quantised, net
    gc.collect()
    assert kept() is None and parameter() is None
