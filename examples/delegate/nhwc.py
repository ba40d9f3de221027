"""A delegate that takes NHWC and nothing else, written with `guarded`: a table and no passes.

    python -m examples.delegate.nhwc

Its "hardware" is torch, which runs each partition; its preprocess refuses any other order.
"""

from __future__ import annotations

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_partitions_from_list_of_nodes,
)
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase

from dimorder.algebra.dim_order import DimOrder
from dimorder.executorch import DelegateLayout, canonicalize, guarded

NHWC = DimOrder.channels_last(4)
OPERATORS = ("convolution", "relu", "add.Tensor", "sigmoid")
# The whole of what the delegate says about orders.
LAYOUT = DelegateLayout("Nhwc", boundary={4: (NHWC,)}, operators=dict.fromkeys(OPERATORS, (NHWC,)))


class NhwcBackend(BackendDetails):
    """Ahead of time: refuses what does not lie in NHWC, and keeps the partition for torch."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        for node in edge_program.graph.nodes:
            if node.name in edge_program.graph_signature.user_inputs:
                assert node.meta["val"].dim_order() == NHWC.dims, f"{node} is not in NHWC"
        return PreprocessResult(edge_program.graph_module.code.encode())


class NhwcPartitioner(Partitioner):
    """Takes every operator of the list, whatever its order: that is not a partitioner's business."""

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules, node):
            return node.op == "call_function" and any(
                f"aten.{name}" in str(node.target) for name in OPERATORS
            )

    def partition(self, exported_program):
        spec = DelegationSpec(NhwcBackend.__name__, [])
        parts = generate_partitions_from_list_of_nodes(
            exported_program.graph_module, op_support=self.Support()
        )
        for part in parts:
            for node in part.nodes:
                node.meta["delegation_tag"] = f"nhwc{part.id}"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {f"nhwc{part.id}": spec for part in parts})


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu().softmax(-1)).sigmoid()


def lower(network: nn.Module, x: torch.Tensor):
    program = canonicalize(torch.export.export(network, (x,)))
    return to_edge_transform_and_lower(program, partitioner=[guarded(NhwcPartitioner(), LAYOUT)])


if __name__ == "__main__":
    network, x = Network().eval(), torch.randn(2, 3, 9, 11)
    lowered = lower(network, x).exported_program()
    print("largest difference", (lowered.module()(x) - network(x)).abs().max().item())
