"""Test that boundaries are logical in the orders in which the truth table has seen a kernel be right.

In any other order the boundary is a dense, permuted tensor, and the caller gets the logical view back.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dimorder
from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import TensorSpec
from dimorder.runtime.kernels import CONTIGUOUS, LAST, LOWER, KernelTable

pytest.importorskip("executorch")

SHAPES = {3: (2, 3, 7), 4: (2, 3, 5, 7), 5: (2, 3, 4, 5, 7)}


def verdicts(rank, letter):
    """Return the table's verdicts on calls whose tensors all lie in one order, or have fewer dims."""
    return {
        verdict
        for operators in KernelTable.shipped().rows.values()
        for found in operators.values()
        for key, verdict in found.items()
        if key.startswith(f"{rank} ") and letter in key and set(key.split(" ")[1]) <= {letter, LOWER}
    }


@pytest.mark.parametrize("rank", SHAPES)
def test_a_boundary_is_logical_where_the_table_has_seen_a_kernel_be_right(rank):
    for letter, order in ((CONTIGUOUS, DimOrder.contiguous(rank)), (LAST, DimOrder.channels_last(rank))):
        spec = TensorSpec("x", SHAPES[rank], "float32", order)
        assert (spec.boundary == "logical") == ("right" in verdicts(rank, letter)), (rank, order)


class Conv1d(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).relu()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, 1, 1, 1))

    def forward(self, x):
        return torch.sigmoid(x * self.scale + 0.5)


NETWORKS = {"NLC": (Conv1d, SHAPES[3]), "NDHWC": (Scaled, SHAPES[5])}


@pytest.mark.parametrize("promised", ["as fed", "contiguous"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_order_that_the_bindings_reject_works_end_to_end(name, promised, tmp_path):
    kind, shape = NETWORKS[name]
    network = kind().eval()
    order = DimOrder.channels_last(len(shape))
    x = torch.randn(order.physical_shape(shape)).permute(order.inverse.dims)
    options = {"input_orders": name, "output_orders": name} if promised == "as fed" else {}
    lowered = dimorder.lower(network, (x,), target="xnnpack", **options)
    program = dimorder.load(lowered.save(tmp_path / "net.pte"))
    with torch.no_grad():
        expected = network(x)
    for fed, copies in ((x, promised != "as fed"), (x.contiguous(), promised == "as fed")):
        torch.testing.assert_close(program(fed), expected, rtol=1e-4, atol=1e-5)
        assert len(program.stats.last) == copies
    assert program.contract.inputs[0].dim_order == (
        order if promised == "as fed" else DimOrder.contiguous(len(shape))
    )
    assert program(x).stride() == program.contract.outputs[0].dim_order.strides(tuple(expected.shape))


def test_a_transposed_view_works_end_to_end(tmp_path):
    network, x = Conv1d().eval(), torch.randn(7, 3, 2).permute(2, 1, 0)
    lowered = dimorder.lower(network, (x,), target="xnnpack", input_orders=[DimOrder(2, 1, 0)])
    program = dimorder.load(lowered.save(tmp_path / "net.pte"), on_mismatch="error")
    with torch.no_grad():
        torch.testing.assert_close(program(x), network(x), rtol=1e-4, atol=1e-5)
    assert program.contract.inputs[0].boundary_shape == (7, 3, 2) and program.stats.conversions == 0
