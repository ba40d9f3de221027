"""Test that delegates with another runtime (Arm, Vulkan) get NCHW, whatever the order of the export."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.exir import to_edge_transform_and_lower

from dimorder.executorch import ARM_TOSA, VULKAN, canonicalize, guarded


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3)

    def forward(self, x):
        return (self.second(self.first(x).relu()) * 0.5).sigmoid()


def arm():
    pytest.importorskip("tosa_serializer")
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    return TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))


def vulkan():
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    return VulkanPartitioner()


def delegates(program):
    """The graphs inside of the delegates of a lowered program."""
    module = program.graph_module
    calls = [node for node in module.graph.nodes if "executorch_call_delegate" in str(node.target)]
    return [getattr(module, call.args[0].target).original_module for call in calls]


@pytest.mark.parametrize(
    ("partitioner", "layout"), [(arm, ARM_TOSA), pytest.param(vulkan, VULKAN, marks=pytest.mark.slow)]
)
def test_a_channels_last_network_is_delegated_as_the_contiguous_one_between_two_conversions(
    partitioner, layout
):
    network, x = Net().eval(), torch.randn(2, 3, 9, 11)
    found = {}
    for form in (torch.contiguous_format, torch.channels_last):
        program = canonicalize(torch.export.export(network, (x.to(memory_format=form),)))
        edge = to_edge_transform_and_lower(program, partitioner=[guarded(partitioner(), layout)])
        found[form] = edge.exported_program()
    plain, last = (delegates(program) for program in found.values())
    assert len(plain) == len(last) > 0
    for inner in last:
        values = [node.meta["val"] for node in inner.graph.nodes if node.op == "placeholder"]
        assert all(value.is_contiguous() for value in values)
    outside = [str(node.target) for node in found[torch.channels_last].graph.nodes]
    assert sum("_to_dim_order_copy" in target for target in outside) == 2
    torch.testing.assert_close(
        found[torch.channels_last].module()(x.to(memory_format=torch.channels_last)),
        network(x),
        atol=1e-5,
        rtol=1e-5,
    )
