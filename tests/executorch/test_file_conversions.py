"""Test what counts as a conversion in a .pte: in our files by their plan, in others by their graph."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import fields
from itertools import product
from typing import get_args

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import serialize_xnnpack_binary
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir._serialize._program import deserialize_pte_binary

import dimorder
from dimorder.cli import main
from dimorder.errors import ContractError, UnsupportedError
from dimorder.executorch import conversions_in
from dimorder.executorch.file_conversions import FileConversions, OutsideConversions, conversions_of
from dimorder.executorch.lowering_paths import stock
from dimorder.executorch.xnn_blob import XnnBlob, read_xnn_blob
from tests.cli.commands import refused
from tests.conftest import ROOT
from tests.marks import slow_but
from tests.zoo import network

aten = torch.ops.aten
NHWC_TO_NCHW = [0, 3, 1, 2]


class CumsumBetween(nn.Module):
    """A cumsum, which XNNPACK lacks, between two convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        return self.second(self.first(x).cumsum(1))


class Turns(nn.Module):
    """Permutes, views and copies: of each kind some that move memory, and some that do not."""

    def forward(self, x):
        y = x.permute(0, 2, 3, 1) + 1  # moves all of x
        one = x[:1].permute(1, 0, 2, 3) + 1  # only a dimension of 1 changes places
        last = y.clone(memory_format=torch.channels_last)  # moves all of it again
        return last, one, x.flatten(1).unsqueeze(0) + 1, x.half()


class TurnsBesideLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        return self.linear(x.permute(0, 2, 1)).permute(0, 2, 1)


def lowered(module, *inputs, backend="portable"):
    return stock(backend)(torch.export.export(module.eval(), inputs))


def last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def convs():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))


# Ours


OURS = {
    "shufflenet": (lambda: network("shufflenet_v2_x1_0").build(), (1, 3, 64, 64)),
    "resnet": (lambda: network("resnet18").build(), (1, 3, 64, 64)),
    "cumsum": (lambda: CumsumBetween().eval(), (2, 3, 5, 7)),
}


@pytest.mark.parametrize(
    ("name", "order"),
    slow_but(product(OURS, ["NCHW", "NHWC"]), [("shufflenet", "NHWC"), ("cumsum", "NCHW")]),
)
def test_a_file_of_ours_converts_what_its_plan_says(name, order, tmp_path):
    make, shape = OURS[name]
    found = dimorder.lower(make(), (torch.randn(shape),), target="xnnpack", input_orders=order)
    found.save(tmp_path / "net.pte")
    counted = conversions_in((tmp_path / "net.pte").read_bytes())
    planned = found.plan.conversions
    assert (counted.conversion_count, counted.bytes) == (len(planned), sum(c.bytes for c in planned))
    assert counted.delegates and counted.unread == ()
    if order == "NCHW":
        assert counted.conversion_count > 0


# Other tools'


def test_stock_xnnpack_transposes_at_the_ends_of_a_convolution_that_is_fed_nchw():
    counted = conversions_in(lowered(convs(), torch.randn(2, 3, 9, 11), backend="xnnpack"))
    (delegate,) = counted.delegates
    assert (delegate.backend, delegate.transposes, counted.outside) == ("XnnpackBackend", 2, ())
    assert counted.bytes == delegate.bytes == 4 * (2 * 3 * 9 * 11 + 2 * 4 * 5 * 7)


def test_stock_xnnpack_transposes_nothing_where_all_is_nhwc():
    counted = conversions_in(lowered(convs(), last(2, 3, 9, 11), backend="xnnpack"))
    assert (counted.conversion_count, counted.bytes, len(counted.delegates)) == (0, 0, 1)
    assert str(counted).splitlines()[-1] == "conversions  none"


def test_permutes_of_the_network_that_a_delegate_takes_are_transposes():
    counted = conversions_in(lowered(TurnsBesideLinear(), torch.randn(2, 3, 5), backend="xnnpack"))
    assert counted.conversion_count == 2 and counted.bytes == 4 * (2 * 3 * 5 + 2 * 4 * 5)


@pytest.mark.filterwarnings("ignore")
def test_a_byte_is_counted_for_an_element_of_int8():
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    x = torch.randn(2, 3, 9, 11)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(convs().eval(), (x,)).module(), quantizer)
    prepared(x)
    quantised = torch.export.export(convert_pt2e(prepared), (x,))
    counted = conversions_in(stock("xnnpack")(quantised))
    assert counted.conversion_count == 2 and counted.bytes == 2 * 3 * 9 * 11 + 2 * 4 * 5 * 7


def test_permutes_and_copies_into_another_order_are_counted_and_views_and_casts_are_not():
    counted = conversions_in(lowered(Turns(), torch.randn(2, 3, 5, 7)))
    moved = 4 * 2 * 3 * 5 * 7
    assert counted.outside == (
        OutsideConversions("aten::permute_copy.out", 2, moved),
        OutsideConversions("dim_order_ops::_clone_dim_order.out", 1, moved),
    )
    assert str(counted).splitlines() == [
        f"moved    aten::permute_copy.out x2, {moved} bytes",
        f"moved    dim_order_ops::_clone_dim_order.out x1, {moved} bytes",
        "conversions  3, 1,680 bytes moved",
    ]


def test_a_copy_between_orders_that_sizes_of_1_make_the_same_is_no_conversion():
    class Last(nn.Module):
        def forward(self, x):
            return x.to(memory_format=torch.channels_last)

    (converted,) = conversions_in(lowered(Last(), torch.randn(2, 3, 5, 7))).outside
    assert converted == OutsideConversions("dim_order_ops::_to_dim_order_copy.out", 1, 840)
    assert conversions_in(lowered(Last(), torch.randn(2, 1, 5, 7))).outside == ()


def test_transposes_that_kept_their_names_are_counted_too():
    class Swaps(nn.Module):
        def forward(self, x):
            return x.transpose(-1, 0) + 1, x[0].t() + 1, x[:1].transpose(0, 1) + 1

    config = EdgeCompileConfig(preserve_ops=[aten.transpose.int, aten.t.default], _check_ir_validity=False)
    program = to_edge(torch.export.export(Swaps(), (torch.randn(2, 3, 5),)), compile_config=config)
    assert conversions_in(program.to_executorch().buffer).outside == (
        OutsideConversions("aten::t_copy.out", 1, 4 * 3 * 5),
        OutsideConversions("aten::transpose_copy.int_out", 2, 4 * 2 * 3 * 5),
    )


def test_a_permute_that_takes_the_order_of_its_input_for_its_own_moves_nothing():
    class ToNhwc(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1)

    program = deserialize_pte_binary(lowered(ToNhwc(), torch.randn(2, 3, 5, 7))).program
    plan = program.execution_plan[0]
    assert conversions_of(program).outside == (OutsideConversions("aten::permute_copy.out", 1, 840),)
    plan.values[plan.inputs[0]].val.dim_order[:] = [0, 2, 3, 1]
    assert conversions_of(program).outside == (OutsideConversions("aten::permute_copy.out", 1, 0),)


def test_a_delegate_of_another_backend_is_listed_and_not_counted():
    program = deserialize_pte_binary(lowered(convs(), torch.randn(2, 3, 9, 11), backend="xnnpack")).program
    program.execution_plan[0].delegates[0].id = "VulkanBackend"
    counted = conversions_of(program)
    assert counted.to_dict() == {
        "conversion_count": 0,
        "bytes": 0,
        "delegates": [{"backend": "VulkanBackend", "nodes": None, "transposes": None, "bytes": None}],
        "outside": {},
    }
    assert str(counted) == "conversions  none, besides what VulkanBackend makes"


def test_a_file_without_the_method_names_those_it_has():
    program = deserialize_pte_binary(lowered(nn.ReLU(), torch.randn(2, 3))).program
    program.execution_plan[0].name = "encode"
    with pytest.raises(UnsupportedError, match=r"the methods \['encode'\]"):
        conversions_of(program)


# The bytes of an XNNPACK delegate


def blob(
    kinds=(), shape=(2, 3, 5, 7), datatype=schema.XNNDatatype.xnn_datatype_fp32, quantised=False, perm=None
):
    """Write a graph by ExecuTorch's serializer: one node of each kind, all of them on value 0."""
    value = schema.XNNTensorValue(datatype, len(shape), list(shape), 0, 0, 1, 0)
    if quantised:
        value = schema.XNNQuantizedTensorValue(value, schema.PerTensorQuant(0.5, 3))
    filler = schema.XNNTensorValue(schema.XNNDatatype.xnn_datatype_fp32, 1, [9], 0, 1, 2, 1)
    nodes = [schema.XNode(_node(kind, perm or NHWC_TO_NCHW), 0) for kind in kinds]
    values = [schema.XValue(filler), schema.XValue(value)]  # ids need not be positions
    graph = schema.XNNGraph("0", nodes, values, 2, [0], [1], [schema.ConstantDataOffset(0, 0)])
    return serialize_xnnpack_binary(graph, bytearray(b"constants"))


def _node(kind, perm):
    """A node with 0 in every field, its value's id too, and [0, 1] in every list."""
    given = {"perm": perm, "num_dims": len(perm), "output_id": 1}
    lists = ("offsets", "sizes", "new_shape", "pre_paddings", "post_paddings")
    return kind(**{f.name: given.get(f.name, [0, 1] if f.name in lists else 0) for f in fields(kind)})


@pytest.mark.parametrize("kind", get_args(schema.XNodeUnion), ids=lambda kind: kind.__name__)
def test_of_all_kinds_of_nodes_transposes_alone_are_counted(kind):
    is_transpose = kind is schema.XNNStaticTranspose
    found = read_xnn_blob(blob([schema.XNNAdd, kind]))
    assert found == XnnBlob(2, int(is_transpose), 840 if is_transpose else 0)


@pytest.mark.parametrize("datatype", list(schema.XNNDatatype)[1:], ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("quantised", [False, True])
def test_every_type_of_element_has_its_size(datatype, quantised):
    name = datatype.name
    bits = next(
        bits for end, bits in (("int4", 4), ("16", 16), ("32", 32), ("int8", 8)) if name.endswith(end)
    )
    found = read_xnn_blob(blob([schema.XNNStaticTranspose], datatype=datatype, quantised=quantised))
    assert found.bytes == 210 * bits // 8


def test_a_transpose_that_only_moves_dimensions_of_1_moves_no_bytes():
    assert read_xnn_blob(blob([schema.XNNStaticTranspose], (2, 5, 7, 1))) == XnnBlob(1, 1, 0)
    assert read_xnn_blob(blob([schema.XNNStaticTranspose], (2, 5, 1, 7))) == XnnBlob(1, 1, 4 * 70)


def test_a_delegate_without_a_header_is_read():
    data = blob([schema.XNNStaticTranspose])
    at, size = struct.unpack_from("<II", data, 10)
    assert read_xnn_blob(data[at : at + size]) == XnnBlob(1, 1, 840)
    older = data[at : at + 4] + b"XN00" + data[at + 8 : at + size]
    assert read_xnn_blob(older) == XnnBlob(1, 1, 840)


def test_a_delegate_that_is_cut_anywhere_is_refused():
    data = blob([schema.XNNStaticTranspose])
    for length in range(len(data)):
        with pytest.raises(ContractError, match="cannot be read"):
            read_xnn_blob(data[:length])


def test_a_delegate_with_a_byte_flipped_is_read_or_refused():
    data = blob([schema.XNNAdd, schema.XNNStaticTranspose])
    outcomes = set()
    for at in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            try:
                outcomes.add(type(read_xnn_blob(bytes(damaged))))
            except ContractError as error:
                outcomes.add(type(error))
    assert outcomes == {XnnBlob, ContractError}


@pytest.mark.parametrize(
    ("perm", "words"),
    [([0, 2, 1], "a transpose of 3 dims on a tensor of 4"), ([0, 2, 2, 1], "not a permutation of 0 to 3")],
)
def test_a_transpose_that_contradicts_its_tensor_is_refused(perm, words):
    with pytest.raises(ContractError, match=words):
        read_xnn_blob(blob([schema.XNNStaticTranspose], perm=perm), "net.pte, delegate 0")


# Damaged files


def test_bytes_that_are_no_file_are_refused():
    with pytest.raises(ContractError, match="ExecuTorch: "):
        conversions_in(b"no such thing at all")


def test_a_file_with_a_byte_flipped_is_read_or_refused():
    data = lowered(Turns(), torch.randn(2, 3, 5, 7))
    outcomes = set()
    for at in range(0, len(data), 17):
        try:
            outcomes.add(type(conversions_in(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])))
        except (ContractError, UnsupportedError) as error:
            outcomes.add(type(error))
    assert {FileConversions, ContractError} <= outcomes


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda plan: plan.values.clear(), "IndexError"),
        (lambda plan: plan.operators.clear(), "IndexError"),
        (lambda plan: plan.values[0].val.dim_order.pop(), "UsageError"),
        (lambda plan: plan.values[0].val.sizes.append(3), "UsageError|ValueError"),
        (lambda plan: plan.values[0].val.sizes.clear(), "ZeroDivisionError"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(damage, words):
    class Turned(nn.Module):
        def forward(self, x):
            return x.permute(1, 0)

    program = deserialize_pte_binary(lowered(Turned(), torch.randn(2, 3))).program
    assert conversions_of(program).bytes == 24
    damage(program.execution_plan[0])
    with pytest.raises(ContractError, match=words):
        conversions_of(program)


# The command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conversions")
    torch.manual_seed(0)
    data = lowered(convs(), torch.randn(2, 3, 9, 11), backend="xnnpack")
    (folder / "convs.pte").write_bytes(data)
    (folder / "turns.pte").write_bytes(lowered(Turns(), torch.randn(2, 3, 5, 7)))
    at = data.index(b"XH00")
    (folder / "damaged.pte").write_bytes(data[: at + 12] + b"\xff" + data[at + 13 :])
    return folder


def test_check_prints_what_a_file_converts(files, capfd):
    assert main(["check", str(files / "convs.pte")]) == 0
    assert capfd.readouterr().out.splitlines()[-3:] == [
        "moved    XnnpackBackend x1: 2 transposes in 4 nodes, 3,496 bytes",
        "conversions  2, 3,496 bytes moved",
        "verdict  no operator calls are wrong or refused",
    ]
    assert main(["check", str(files / "turns.pte")]) == 0
    assert "conversions  3, 1,680 bytes moved" in capfd.readouterr().out.splitlines()


def test_the_json_of_check_has_what_a_file_converts(files, capfd):
    assert main(["check", str(files / "convs.pte"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    page = (ROOT / "docs" / "json.md").read_text()
    section = page.partition("## A `.pte` in `dimorder check --json`")[2].partition("\n## ")[0]
    assert set(found) == set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert (found["conversion_count"], found["bytes"], found["outside"]) == (2, 3496, {})
    assert found["delegates"] == [{"backend": "XnnpackBackend", "nodes": 4, "transposes": 2, "bytes": 3496}]
    assert main(["check", str(files / "turns.pte"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["conversion_count"], found["bytes"], found["delegates"]) == (3, 1680, [])
    assert found["outside"] == {
        "aten::permute_copy.out": {"count": 2, "bytes": 840},
        "dim_order_ops::_clone_dim_order.out": {"count": 1, "bytes": 840},
    }


def test_check_refuses_a_damaged_delegate_in_three_lines(files, capfd):
    text = refused(capfd, ["check", files / "damaged.pte"], 1)
    assert text.splitlines()[0].endswith("damaged.pte, delegate 0 (XnnpackBackend)")
