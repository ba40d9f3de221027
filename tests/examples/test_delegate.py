"""Test that the example's delegate gets NHWC alone and computes its network, whatever order is fed."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("executorch")

from examples.delegate.nhwc import Network, lower


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_the_partitions_get_nhwc_and_compute_the_network(form):
    network = Network().eval()
    x = torch.randn(2, 3, 9, 11).to(memory_format=form)
    lowered = lower(network, x).exported_program()
    calls = [node for node in lowered.graph.nodes if "call_delegate" in str(node.target)]
    assert len(calls) == 2
    torch.testing.assert_close(lowered.module()(x), network(x), atol=1e-5, rtol=1e-5)
