"""Test that a channels-last network of torchvision is lowered whole, and is right however it is fed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from dimorder.api import load
from dimorder.executorch import XNNPACK, canonicalize, guarded, legalize
from dimorder.executorch.attempt import disagreement
from tests import zoo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="no torchvision"),
]
NETWORKS = ("squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v2", "mobilenet_v3_small", "resnet18")


def made(name):
    row = zoo.Network(name, zoo.torchvision(name), (1, 3, 96, 96), frozenset())
    network, (x,) = row.build(), row.inputs()
    return network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NETWORKS)
def test_stock_lowering_to_xnnpack_crashes(name):
    network, x = made(name)
    with pytest.raises(Exception, match="ChannelsLastTaggedReshapePass"):
        to_edge_transform_and_lower(torch.export.export(network, (x,)), partitioner=[XnnpackPartitioner()])


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_ours_is_right_with_either_input_order(name, backend, tmp_path):
    network, x = made(name)
    with torch.no_grad():
        expected = [network(x)]
    options = {"transform_passes": [legalize]}
    if backend == "xnnpack":
        options = {"partitioner": [guarded(XnnpackPartitioner(), XNNPACK)]}
    program = canonicalize(torch.export.export(network, (x,)))
    path = tmp_path / "net.pte"
    path.write_bytes(to_edge_transform_and_lower(program, **options).to_executorch().buffer)
    loaded = load(path)
    for fed in (x, x.contiguous()):
        assert disagreement(expected, list(loaded.run(fed))) == ""
