"""Test what a guarded partitioner keeps out of delegates, checks and says, for several kinds of delegates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError, UsageError
from dimorder.executorch import XNNPACK, DelegateLayout, canonicalize, guarded
from dimorder.executorch.guard import TAG

NCHW, NHWC = DimOrder.contiguous(4), DimOrder.channels_last(4)


class Everything(Partitioner):
    """Takes every operator, in one partition, with the constants that it reads."""

    def partition(self, program):
        from torch.export.graph_signature import InputKind

        kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            constant = node.op == "placeholder" and kinds[node.name] != InputKind.USER_INPUT
            if node.op == "call_function" or constant:
                node.meta[TAG] = "all"
        return PartitionResult(program, {"all": None})


def edge(network, *inputs):
    return to_edge(torch.export.export(network.eval(), inputs)).exported_program()


def last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).relu()


def refusal(layout, program):
    with pytest.raises(UnsupportedError) as caught:
        guarded(Everything(), layout).partition(program)
    return str(caught.value)


def test_an_input_in_another_order():
    layout = DelegateLayout("Mine", operators={"convolution": (NCHW, NHWC)}, default=(NCHW, NHWC))
    text = refusal(layout, edge(Net(), last(2, 3, 5, 7)))
    assert text.startswith("input x of convolution (")
    assert "test_guard.py:" in text.splitlines()[0] and text.splitlines()[0].endswith(", for Mine")
    found = "  found: NHWC (0, 2, 3, 1), shape (2, 3, 5, 7); accepted: NCHW (0, 1, 2, 3)"
    assert text.splitlines()[1] == found
    assert text.splitlines()[2].startswith("  fix: program = canonicalize(program) before lowering")


def test_a_weight_in_another_order():
    layout = DelegateLayout("Mine", boundary={4: (NCHW, NHWC)}, default=(NCHW, NHWC))
    text = refusal(layout, edge(Net().to(memory_format=torch.channels_last), torch.randn(2, 3, 5, 7)))
    first, found, fix = text.splitlines()
    assert first.startswith("weight p_conv_weight of convolution (") and first.endswith(", for Mine")
    assert found == "  found: NHWC (0, 2, 3, 1), shape (8, 3, 3, 3); accepted: NCHW (0, 1, 2, 3)"
    assert fix == "  fix: program = canonicalize(program) before lowering"


def test_an_output_in_another_order():
    layout = DelegateLayout("Mine", boundary={4: (NHWC,)}, default=(NCHW, NHWC))
    program = edge(_Out(), last(2, 3, 5, 7))
    first, found, fix = refusal(layout, program).splitlines()
    assert first.startswith("output aten_flip_default of flip (") and "test_guard.py:" in first
    assert found == "  found: NCHW (0, 1, 2, 3), shape (2, 3, 5, 7); accepted: NHWC (0, 2, 3, 1)"
    assert fix.startswith("  fix: list the order in the layout's boundary")


class _Out(nn.Module):
    def forward(self, x):
        return torch.stack([x, x], 1).amax(1).flip(1)


def test_a_buffer_in_another_order():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", last(2, 3, 5, 7))

        def forward(self, x):
            return x * self.scale

    layout = DelegateLayout("Mine", boundary={4: (NCHW, NHWC)}, default=(NCHW, NHWC))
    first, found, fix = refusal(layout, edge(Scaled(), last(2, 3, 5, 7))).splitlines()
    assert first.startswith("weight b_scale of mul.Tensor (") and "test_guard.py:" in first
    assert found == "  found: NHWC (0, 2, 3, 1), shape (2, 3, 5, 7); accepted: NCHW (0, 1, 2, 3)"
    assert fix == "  fix: program = canonicalize(program) before lowering"


class Some(Everything):
    """Leaves an operator to portable kernels."""

    def __init__(self, left):
        super().__init__()
        self.left = left

    def partition(self, program):
        result = super().partition(program)
        for node in program.graph.nodes:
            if self.left in node.name:
                del node.meta[TAG]
        return result


class Two(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))


def test_a_value_that_an_operator_hands_to_the_delegate_in_another_order():
    layout = DelegateLayout("Mine", default=(NCHW, NHWC))
    with pytest.raises(UnsupportedError) as caught:
        guarded(Some("relu"), layout).partition(edge(Two(torch.relu, torch.tanh), last(2, 3, 5, 7)))
    first, found, fix = str(caught.value).splitlines()
    assert first.startswith("value aten_relu_default of tanh (") and first.endswith(", for Mine")
    assert found == "  found: NHWC (0, 2, 3, 1), shape (2, 3, 5, 7); accepted: NCHW (0, 1, 2, 3)"
    assert fix == (
        "  fix: lower with to_edge_transform_and_lower(partitioner=[guarded(...)]), which converts it"
    )


def test_a_value_that_the_delegate_hands_to_an_operator_in_another_order():
    layout = DelegateLayout("Mine", boundary={4: (NCHW,)}, default=(NCHW, NHWC))
    network = Two(lambda x: x.to(memory_format=torch.channels_last).tanh(), torch.relu)
    with pytest.raises(UnsupportedError) as caught:
        guarded(Some("relu"), layout).partition(edge(network, torch.randn(2, 3, 5, 7)))
    first, found, _ = str(caught.value).splitlines()
    assert first.startswith("output aten_tanh_default of tanh (") and first.endswith(", for Mine")
    assert found == "  found: NHWC (0, 2, 3, 1), shape (2, 3, 5, 7); accepted: NCHW (0, 1, 2, 3)"


@pytest.mark.parametrize("where", ["in front", "behind"])
def test_a_conversion_at_the_edge_from_or_to_an_order_that_the_delegate_does_not_take_stays_out(where):
    layout = DelegateLayout("Mine", default=(NCHW, NHWC))
    network, x = Two(torch.tanh, lambda x: x.to(memory_format=torch.channels_last)), torch.randn(2, 3, 5, 7)
    if where == "in front":
        network, x = Two(lambda x: x.to(memory_format=torch.contiguous_format), torch.tanh), last(2, 3, 5, 7)
    result = guarded(Everything(), layout).partition(edge(network, x))
    nodes = {node.name: node.meta.get(TAG) for node in result.tagged_exported_program.graph.nodes}
    assert nodes["dim_order_ops__to_dim_order_copy_default"] is None and nodes["aten_tanh_default"]


def test_an_operator_that_is_left_in_an_order_that_its_kernel_misreads():
    layout = DelegateLayout("Mine", boundary={4: (NCHW, NHWC)}, default=(NCHW, NHWC))
    with pytest.raises(UnsupportedError) as caught:
        guarded(Some("flip"), layout).partition(edge(Two(torch.tanh, lambda x: x.flip(2)), last(2, 3, 5, 7)))
    first, found, fix = str(caught.value).splitlines()
    assert first.startswith("flip (aten_flip_default, ") and "test_guard.py:" in first
    assert found == (
        "  found: NHWC (0, 2, 3, 1) in, NHWC (0, 2, 3, 1) out: its kernel returns wrong numbers, silently"
    )
    assert fix.startswith("  fix: it takes NCHW (0, 1, 2, 3): lower with legalize in transform_passes")


def test_an_operator_in_an_order_that_the_delegate_does_not_take_stays_out():
    layout = DelegateLayout(
        "Mine", boundary={4: (NCHW, NHWC)}, operators={"sigmoid": (NCHW,)}, default=(NCHW, NHWC)
    )

    class Three(nn.Module):
        def forward(self, x):
            return x.relu().sigmoid().tanh()

    result = guarded(Everything(), layout).partition(edge(Three(), last(2, 3, 5, 7)))
    tags = {
        node.name: node.meta.get(TAG)
        for node in result.tagged_exported_program.graph.nodes
        if node.op == "call_function"
    }
    assert tags["aten_sigmoid_default"] is None
    assert None not in (tags["aten_relu_default"], tags["aten_tanh_default"])
    assert tags["aten_relu_default"] != tags["aten_tanh_default"], "one partition would depend on itself"
    assert set(result.partition_tags) == {tags["aten_relu_default"], tags["aten_tanh_default"]}


def test_dim_order_operators_stay_outside_where_the_layout_says_so():
    layout = DelegateLayout(
        "Mine", boundary={4: (NCHW, NHWC)}, default=(NCHW, NHWC), dim_order_operators="outside"
    )

    class Copy(nn.Module):
        def forward(self, x):
            return (x + x).to(memory_format=torch.channels_last).relu()

    result = guarded(Everything(), layout).partition(edge(Copy(), torch.randn(2, 3, 5, 7)))
    nodes = {node.name: node.meta.get(TAG) for node in result.tagged_exported_program.graph.nodes}
    (copy,) = (name for name in nodes if "dim_order" in name)
    assert nodes[copy] is None and nodes["aten_relu_default"] and nodes["aten_add_tensor"]


def test_a_graph_that_needs_nothing_is_not_changed():
    exported = torch.export.export(Net().eval(), (torch.randn(2, 3, 5, 7),))
    assert canonicalize(exported) is exported
    wrapped = guarded(XnnpackPartitioner(), XNNPACK)
    assert wrapped.transform_for_pre_decomposition(exported) is exported
    program = edge(Net(), torch.randn(2, 3, 5, 7))
    before = [(n.name, n.target, n.args) for n in program.graph.nodes]
    plain = {
        n.name: n.meta.get(TAG) for n in XnnpackPartitioner()(program).tagged_exported_program.graph.nodes
    }
    for node in program.graph.nodes:
        node.meta.pop(TAG, None)
    tagged = wrapped.partition(program).tagged_exported_program
    assert [(n.name, n.target, n.args) for n in tagged.graph.nodes] == before
    assert {n.name: n.meta.get(TAG) for n in tagged.graph.nodes} == plain


class Pools(nn.Module):
    """Two poolings, of which XNNPACK takes one: its stride is not above its kernel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        x = nn.functional.hardswish(self.conv(x))
        return nn.functional.max_pool2d(nn.functional.max_pool2d(x, 2), 1, 2)


def test_of_one_operator_the_calls_that_the_partitioner_takes_are_kept_whole():
    program = canonicalize(torch.export.export(Pools().eval(), (last(2, 3, 17, 23),)))
    made = guarded(XnnpackPartitioner(), XNNPACK).transform_for_pre_decomposition(program)
    calls = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
    assert calls.count("aten.max_pool2d.default") == 1
    assert calls.count("aten.max_pool2d_with_indices.default") == 1
    assert "aten.hardswish.default" in calls


def test_what_is_decomposed_is_not_traced_again():
    program = canonicalize(torch.export.export(Net().eval(), (last(2, 3, 5, 7),)))
    made = guarded(XnnpackPartitioner(), XNNPACK).transform_for_pre_decomposition(program)
    assert made is not program and made.run_decompositions({}) is made
    decomposed = made.run_decompositions({torch.ops.aten.relu.default: lambda x: x.clamp(min=0)})
    assert "aten.clamp.default" in [str(node.target) for node in decomposed.graph.nodes]


def test_what_is_in_order_is_lowered_as_stock_lowers_it():
    def lowered(partitioner):
        program = canonicalize(torch.export.export(Net().eval(), (last(2, 3, 5, 7),)))
        graph = (
            to_edge_transform_and_lower(program, partitioner=[partitioner]).exported_program().graph_module
        )
        inner = graph.lowered_module_0.original_module.graph
        return [(n.op, str(n.target), str(n.args)) for n in (*graph.graph.nodes, *inner.nodes)]

    assert lowered(guarded(XnnpackPartitioner(), XNNPACK)) == lowered(XnnpackPartitioner())


def test_a_layout_of_the_wrong_rank_is_refused():
    with pytest.raises(UsageError, match="give orders of 3 dims"):
        DelegateLayout("Mine", boundary={3: (NHWC,)})
