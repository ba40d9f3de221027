"""Test each pass alone in `to_edge_transform_and_lower`, at every rank, and the program that then runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.partitioner import Partitioner, PartitionResult

from dimorder.algebra.dim_order import DimOrder
from dimorder.executorch import Annotate, InsertDimOrderOperators, RevertDimOrderOperators, canonicalize
from dimorder.executorch.attempt import disagreement
from dimorder.executorch.lowering_paths import run_bare

SHAPES = {3: (2, 3, 7), 4: (2, 3, 5, 7), 5: (2, 3, 4, 5, 7)}
FORMATS = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
MEMORY_FORMATS = EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False)
NAMES = ["_to_copy", "empty", "clone", "_to_copy", "_to_copy"]  # of the operators below that take a format


class Copies(nn.Module):
    """Each operator that takes a memory format, on the result of a convolution where there is a kernel."""

    def __init__(self, rank):
        super().__init__()
        self.form = FORMATS[rank]
        self.first = nn.Identity() if rank == 5 else (nn.Conv1d if rank == 3 else nn.Conv2d)(3, 8, 3)

    def forward(self, x):
        y = self.first(x).to(torch.float64, memory_format=self.form).relu()
        y = y + torch.empty(y.shape, dtype=y.dtype, memory_format=self.form).copy_(y)
        y = y.clone(memory_format=torch.contiguous_format).tanh()
        return y.to(torch.float32).to(torch.float64, memory_format=self.form).sigmoid()


def network(rank):
    return Copies(rank).eval(), torch.randn(SHAPES[rank])


def lowered(program, *passes, config=None, partitioner=()):
    config = config or EdgeCompileConfig(_check_ir_validity=False)
    return to_edge_transform_and_lower(
        program, transform_passes=list(passes), partitioner=list(partitioner), compile_config=config
    )


def exported(rank):
    network_, x = network(rank)
    return canonicalize(torch.export.export(network_, (x,))), network_, x


def copies(edge):
    """The operators that have an order for an argument: dialect, name, the order."""
    found = []
    for node in edge.exported_program().graph.nodes:
        dialect, name, *_ = str(getattr(node.target, "_op", "..")).split(".")
        if name in NAMES or dialect == "dim_order_ops":
            found.append((dialect, name, node.kwargs.get("dim_order", node.kwargs.get("memory_format"))))
    return found


def errors(data, network_, x):
    """How the .pte differs from the network, empty where it does not."""
    with torch.no_grad():
        expected = [network_(x)]
    return disagreement(expected, list(run_bare(data, [x])))


@pytest.mark.parametrize("rank", SHAPES)
def test_insert_gives_dim_order_operators_that_run_right(rank):
    network_, x = network(rank)
    program = torch.export.export(network_, (x,))
    assert [dialect for dialect, _, _ in copies(lowered(program, config=MEMORY_FORMATS))] == ["aten"] * 5
    edge = lowered(program, InsertDimOrderOperators(), config=MEMORY_FORMATS)
    last = [*DimOrder.channels_last(4)] if rank == 4 else [*range(rank)]
    assert copies(edge) == [
        ("dim_order_ops", "_to_dim_order_copy", last),
        ("dim_order_ops", "_empty_dim_order", last),
        ("dim_order_ops", "_clone_dim_order", [*range(rank)]),
        ("dim_order_ops", "_to_dim_order_copy", [*range(rank)]),
        ("dim_order_ops", "_to_dim_order_copy", last),
    ]
    assert errors(edge.to_executorch().buffer, network_, x) == ""


def test_stock_lowering_fails_on_the_memory_format_of_five_dims():
    network_, x = network(5)
    with pytest.raises(AssertionError):
        lowered(torch.export.export(network_, (x,)))


@pytest.mark.parametrize("rank", SHAPES)
def test_revert_gives_memory_formats_again_and_the_same_numbers(rank):
    program, network_, x = exported(rank)
    edge = lowered(program, RevertDimOrderOperators())
    last = torch.channels_last if rank == 4 else torch.contiguous_format
    plain = torch.contiguous_format
    forms = [last, last, plain, plain, last]
    assert copies(edge) == [("aten", name, form) for name, form in zip(NAMES, forms, strict=True)]
    with torch.no_grad():
        assert disagreement([network_(x)], [edge.exported_program().module()(x)]) == ""


@pytest.mark.parametrize("rank", SHAPES)
def test_insert_after_revert_gives_the_graph_of_stock_lowering(rank):
    program, network_, x = exported(rank)
    stock = lowered(program)
    edge = lowered(program, RevertDimOrderOperators(), InsertDimOrderOperators())
    calls = [
        [(node.name, node.target, node.args) for node in one.exported_program().graph.nodes]
        for one in (edge, stock)
    ]
    assert [str(call) for call in calls[0]] == [str(call) for call in calls[1]]
    assert copies(edge) == copies(stock)
    assert errors(edge.to_executorch().buffer, network_, x) == ""


class Reader(Partitioner):
    """Takes nothing, and remembers what is written at each node."""

    def __init__(self):
        super().__init__()
        self.orders = {}

    def partition(self, program):
        self.orders = {node.name: node.meta["dim_order"] for node in program.graph.nodes}
        return PartitionResult(program, {})


@pytest.mark.parametrize("rank", SHAPES)
def test_annotate_tells_a_partitioner_the_orders_that_the_file_has(rank):
    program, network_, x = exported(rank)
    reader = Reader()
    edge = lowered(program, Annotate(), partitioner=[reader])
    data = edge.to_executorch().buffer
    plan = deserialize_pte_binary(data).program.execution_plan[0]
    written = {
        tuple(plan.values[index].val.dim_order)
        for chain in plan.chains
        for call in chain.instructions
        for index in call.instr_args.args
        if type(plan.values[index].val).__name__ == "Tensor"
    }
    assert {tuple(order) for order in reader.orders.values() if order is not None} == written
    tail = next(name for name, order in reversed(reader.orders.items()) if order is not None)
    assert reader.orders["x"] == DimOrder.contiguous(rank)
    assert reader.orders[tail] == (DimOrder.channels_last(4) if rank == 4 else DimOrder.contiguous(rank))
    assert errors(data, network_, x) == ""
