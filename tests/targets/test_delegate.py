"""How a delegate is called in a program that is not traced, and what is left of it afterwards."""

from __future__ import annotations

import gc
import operator
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule

pytest.importorskip("executorch")

from executorch.exir.lowered_backend_module import LoweredBackendModule

import dimorder
from dimorder.graph.nodes import set_value
from dimorder.targets.delegate import make_delegate, outer_program
from dimorder.targets.program_io import empty

aten = torch.ops.aten
X = torch.empty(6, 3, 5, 7)
PLAIN = torch.empty(6, 4)
NHWC = empty(torch.empty(6, 4, 3, 7), channels_last=True)


@pytest.mark.slow
def test_delegates_and_their_weights_are_freed_with_the_lowered_network() -> None:
    before = _delegates()
    for _ in range(3):
        lowered = dimorder.lower(torch.nn.Linear(5, 7).eval(), (torch.randn(3, 5),), target="xnnpack")
        assert lowered.artifact.delegates == 1
    del lowered
    assert _delegates() <= before + 1  # PyTorch itself keeps the graph that was traced last


def calling(delegate: LoweredBackendModule, count: int) -> GraphModule:
    """A graph that returns the results of a delegate of one operand."""
    root, graph = torch.nn.Module(), Graph()
    root.add_module("delegate", delegate)
    call = graph.call_module("delegate", (graph.placeholder("x"),))
    graph.output(tuple(graph.call_function(operator.getitem, (call, i)) for i in range(count)))
    return GraphModule(root, graph)


def text(program: ExportedProgram) -> list[tuple[str, str, Any]]:
    """Each node with its operator, and the shapes, strides and types of its values at the example."""

    def known(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [known(each) for each in value]
        return [[int(n) for n in (*value.shape, *value.stride())], str(value.dtype)]

    return [
        (node.op, "" if node.op == "placeholder" else str(node.target), known(node.meta.get("val", [])))
        for node in program.graph.nodes
        if not str(node.target).startswith("aten.sym_")
    ]


def test_a_program_of_delegates_is_what_torch_export_gives() -> None:
    module = calling(make_delegate("XnnpackBackend", [X], [PLAIN, NHWC.long()], b"bytes"), 2)
    program, wanted = outer_program(module, (X,)), torch.export.export(module, (X,))
    assert text(program) == text(wanted)
    assert text(program)[1:3] == [
        ("get_attr", "lowered_module_0", []),
        (
            "call_function",
            "executorch_call_delegate",
            [[[6, 4, 4, 1], "torch.float32"], [[6, 4, 3, 7, 84, 1, 28, 4], "torch.int64"]],
        ),
    ]


def test_so_is_one_of_dynamic_sizes() -> None:
    dims = {0: Dim("n", min=2, max=8), 2: Dim("h", min=3, max=16)}
    symbolic = torch.export.export(torch.nn.ReLU(), (X,), dynamic_shapes=(dims,))
    (value,) = (node.meta["val"] for node in symbolic.graph.find_nodes(op="placeholder"))
    shapes = [[lambda sizes: sizes[0], 4, lambda sizes: (sizes[2] + 1) // 2, 7]]
    module = calling(make_delegate("XnnpackBackend", [value], [NHWC], b"bytes", shapes=shapes), 1)
    set_value(next(iter(module.graph.nodes)), value)
    program = outer_program(module, (X,), symbolic.range_constraints)
    assert text(program) == text(torch.export.export(module, (X,), dynamic_shapes=(dims,)))
    (delegate,) = (each for each in program.graph_module.children())
    (result,) = delegate.original_module.module()(torch.empty(2, 3, 9, 7))  # type: ignore[union-attr,operator]
    assert (result.shape, result.stride()) == ((2, 4, 5, 7), (140, 1, 28, 4))


def test_so_is_one_with_operators_a_constant_and_an_input_that_is_returned() -> None:
    module = calling(make_delegate("XnnpackBackend", [X], [PLAIN], b"bytes"), 1)
    module.register_buffer("row", torch.tensor([2.0, 3, 5, 7]))
    (x, *_, result), output = [*module.graph.nodes][:-1], module.graph.output_node()
    with module.graph.inserting_before(output):
        total = module.graph.call_function(aten.add.Tensor, (result, module.graph.get_attr("row")))
        largest = module.graph.call_function(aten.topk.default, (total, 2))
        values, places = (module.graph.call_function(operator.getitem, (largest, i)) for i in range(2))
    output.args = ((values, total, places, x, places),)
    program, wanted = outer_program(module, (X,)), torch.export.export(module, (X,))
    assert text(program) == text(wanted)
    assert [[*each.state_dict] for each in (program, wanted)] == [["row"]] * 2


def test_an_operator_asks_nothing_of_dynamic_sizes() -> None:
    dims = {2: Dim("h", min=3, max=16)}
    symbolic = torch.export.export(torch.nn.ReLU(), (X,), dynamic_shapes=(dims,))
    (value,) = (node.meta["val"] for node in symbolic.graph.find_nodes(op="placeholder"))
    graph = Graph()
    x = set_value(graph.placeholder("x"), value)
    size = graph.call_function(aten.sym_size.int, (x, 2))
    more = graph.call_function(operator.mod, (size, 2))
    padded = graph.call_function(aten.constant_pad_nd.default, (x, [0, 0, 0, more], 0.5))
    graph.output((padded, graph.call_function(aten.mul.Tensor, (padded, padded))))
    program = outer_program(GraphModule(torch.nn.Module(), graph), (X,), symbolic.range_constraints)
    for height in range(3, 17):
        result, square = program.module(check_guards=False)(torch.ones(6, 3, height, 7))
        assert result.shape == square.shape == (6, 3, height + height % 2, 7)


def _delegates() -> int:
    gc.collect()
    return sum(type(thing) is LoweredBackendModule for thing in gc.get_objects())
