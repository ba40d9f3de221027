"""Test a .pte as a graph, with the lines that its operators come from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

import dimorder
from dimorder.errors import ContractError
from dimorder.executorch.file_graph import graph_of_file
from dimorder.executorch.lowering_paths import stock
from dimorder.executorch.stock_graph import stock_graph


class Shared(nn.Module):
    """Two delegates share a constant, so that both get it as an operand."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.randn(1, 3, 5, 7))
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cumsum(x * self.scale, 1)
        return self.conv(x + self.scale)


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(Shared().eval(), (torch.randn(1, 3, 5, 7),))


def test_a_constant_that_delegates_share_is_no_result_of_theirs(exported, tmp_path):
    path = tmp_path / "stock.pte"
    path.write_bytes(stock("xnnpack")(exported))
    nodes = {node.name: node for node in graph_of_file(str(path))}
    groups = {node.group for node in nodes.values() if node.group}
    assert len(groups) == 2
    kinds = [(node.operator, [nodes[name].operator for name in node.reads]) for node in nodes.values()]
    assert kinds == [
        ("input", []),
        ("Multiply", ["input"]),
        ("aten::cumsum.out", ["Multiply"]),
        ("Add", ["aten::cumsum.out"]),
        ("StaticTranspose", ["Add"]),
        ("Conv2d", ["StaticTranspose"]),
        ("StaticTranspose", ["Conv2d"]),
        ("output", ["StaticTranspose"]),
    ]
    assert {node.source for node in nodes.values()} == {""}  # a file has no lines


class Crossed(nn.Module):
    """The delegate numbers its inputs in another order than its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.conv(y)) - x


def test_an_input_of_a_delegate_is_the_argument_whose_place_it_names(tmp_path):
    path = tmp_path / "crossed.pte"
    args = (torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last))
    path.write_bytes(stock("xnnpack")(torch.export.export(Crossed().eval(), args)))
    reads = {node.operator: node.reads for node in graph_of_file(str(path))}
    assert (reads["StaticTranspose"], reads["Conv2d"]) == (["input 0"], ["input 1"])


class Flat(nn.Module):
    """Memory planning removes the view between the two kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.conv(x).flatten(1), 1)


def test_an_operand_that_is_a_view_without_a_call_comes_from_the_tensor_that_it_views(tmp_path):
    path = tmp_path / "flat.pte"
    path.write_bytes(stock("portable")(torch.export.export(Flat().eval(), (torch.randn(1, 3, 5, 7),))))
    nodes = {node.operator: node for node in graph_of_file(str(path))}
    assert nodes["aten::_softmax.out"].reads == [nodes["aten::convolution.out"].name]
    assert nodes["aten::_softmax.out"].facts["reads 0"].startswith("1×60 float")


def test_the_scales_of_integers_are_shown(tmp_path):
    quantized = dimorder.quantize(Flat().eval(), [torch.randn(1, 3, 5, 7)])
    lowered = dimorder.lower(quantized, target="xnnpack", input_types="int8", input_orders="NHWC")
    nodes = {node.operator: node for node in graph_of_file(str(lowered.save(tmp_path / "net.pte")))}
    assert nodes["Conv2d"].facts["filter"] == "4×3×3×3 qcint8, 4 scales, constant"
    (x,) = lowered.contract.inputs
    shown = f"1×5×7×3 qint8, scale {round(x.scale, 6):g}, zero point {x.zero_point}"  # flatc's digits
    assert nodes["Conv2d"].facts["input1"] == shown


def test_lines_are_those_of_the_module_and_inserted_transposes_have_none(exported):
    lines = {node.name.partition("/")[2] or node.name: node.source for node in stock_graph(exported)}
    first = Shared.forward.__code__.co_firstlineno
    assert lines["0 XNNMultiply"] == lines["1 aten::cumsum.out"] == f"test_file_graph.py:{first + 1}"
    assert lines["0 XNNAdd"] == f"test_file_graph.py:{first + 2}"
    assert lines["2 XNNConv2d"] == f"test_file_graph.py:{first + 2}, in conv"
    assert lines["1 XNNStaticTranspose"] == lines["3 XNNStaticTranspose"] == ""


def test_a_delegate_that_flatc_refuses_is_a_damaged_file(exported, tmp_path):
    data = bytearray(stock("xnnpack")(exported))
    data[data.index(b"XN01") + 18] ^= 0xFF
    path = tmp_path / "damaged.pte"
    path.write_bytes(data)
    with pytest.raises(ContractError, match=r"damaged\.pte"):
        graph_of_file(str(path))
