"""The forms of a graph of integers: each gives the bits of the plain one, on Arm's reference model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.integers.forms import FORMS, Forms
from dimorder.targets.tosa.target import TARGET, emit_integers
from tests.marks import slow_but
from tests.targets.quantised import INT16, Between, Product
from tests.targets.test_tosa_integers import BETWEEN, FEW_BETWEEN, PRODUCTS, RESULTS

OTHER = Forms()
for _name in FORMS:
    OTHER = OTHER.flipped(_name)


IN_PHASES = frozenset({"aten.convolution/quantized, transposed in phases"})


def lower(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    forms: Forms,
    order: str | None = None,
    more: frozenset[str] = frozenset(),
) -> Lowered:
    """Lower in these forms, with more implementations than target `tosa` has."""
    assert TARGET.quantized is not None
    capabilities = TARGET.quantized.capabilities
    capabilities = replace(
        capabilities, implementations=tuple(each | more for each in capabilities.implementations)
    )
    emit = partial(emit_integers, forms=forms)
    target = replace(TARGET, quantized=replace(TARGET.quantized, emit=emit, capabilities=capabilities))
    return dimorder.lower(
        module, inputs, target=target, input_orders=order, output_orders=order, run_artifact=True
    )


def randn(*shape: int) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", slow_but([*BETWEEN, *PRODUCTS], {*FEW_BETWEEN, *PRODUCTS}))
def test_every_operator_in_the_other_forms(name: str) -> None:
    if name in PRODUCTS:
        module: nn.Module = Product(*PRODUCTS[name])
        inputs: tuple[Tensor, ...] = (randn(2, 6, 5, 7),)
    else:
        module, inputs = Between(BETWEEN[name][0], *RESULTS), BETWEEN[name][1]
    assert lower(module, inputs, OTHER).verified.artifact_ran


def alike(
    module: nn.Module, x: Tensor, form: str | None = None, quanta: int = 0
) -> tuple[set[str], set[str]]:
    """The operators of a graph without a form and with it, or in phases, which give the same bits.

    They differ by a quantum where ties may round the other way.
    """
    plain = lower(module, (x,), Forms(), "NHWC")
    if form is None:
        other = lower(module, (x,), Forms(), "NHWC", IN_PHASES)
    else:
        other = lower(module, (x,), Forms().flipped(form), "NHWC")
    integers = plain.contract.inputs[0].quantized(x)
    wanted, got = (pytree.tree_leaves(made.run(integers)) for made in (plain, other))
    assert len(wanted) == len(got) == 1
    assert int((wanted[0].int() - got[0].int()).abs().max()) <= quanta
    assert float(wanted[0].double().std()) > 0
    kinds = [set(inspect_tosa(made.artifact.data).operators) for made in (plain, other)]
    return kinds[0], kinds[1]


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, int], Any]] = {
    # channels in, kernel; size of the input; stride, padding, output padding
    "twice, as U-Nets do": ((6, 12, 2, 2), (5, 7), (2, 0, 0)),
    "with taps that overlap": ((6, 12, 3, 3), (5, 7), (2, 1, 1)),
    "four by four": ((6, 12, 4, 4), (5, 7), (2, 1, 0)),
    "steps that differ": ((6, 12, 3, 5), (5, 7), ((2, 3), (1, 1), (1, 0))),
    "fewer taps than a step": ((6, 12, 2, 2), (5, 7), (3, 0, 1)),
    "in one direction": ((6, 12, 3, 2), (5, 7), ((1, 2), (1, 0), (0, 0))),
    "the last step has one result of two": ((6, 12, 3, 3), (5, 7), (2, 1, 0)),
    "no result of the last row": ((6, 12, 2, 2), (5, 7), (3, 0, 0)),
    "padding of all taps but one": ((6, 12, 3, 3), (5, 7), (2, 2, 1)),
    "no steps": ((6, 12, 3, 3), (5, 7), (1, 1, 0)),
}


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_transposed_convolution_in_phases(name: str, has_bias: bool) -> None:
    weight, size, options = TRANSPOSED[name]
    product = Product(lambda x, w, b: F.conv_transpose2d(x, w, b, *options), weight, 1, None, has_bias)
    plain, other = alike(product, randn(2, 6, *size))
    assert "TRANSPOSE_CONV2D" in plain
    assert "TRANSPOSE_CONV2D" not in other
    assert {"CONV2D", "RESCALE"} <= other


@pytest.mark.parametrize(
    ("weight", "options"),
    [
        ((6, 12, 2, 2), (4, 1, 0)),  # no result of the last row of the input
        ((6, 6, 3, 3), (2, 1, 1, 2)),  # groups
        ((6, 12, 3, 3), (2, 2, 1, 1, 2)),  # dilated
    ],
)
def test_what_is_not_cut_into_phases_stays_as_it_is(weight: tuple[int, ...], options: Any) -> None:
    product = Product(lambda x, w, b: F.conv_transpose2d(x, w, b, *options), weight, 1)
    plain, other = alike(product, randn(2, 6, 5, 7))
    assert plain == other
    assert "TRANSPOSE_CONV2D" in plain


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def test_channels_that_change_places_are_a_product() -> None:
    plain, other = alike(Between(shuffled, (0.0311, -7)), randn(2, 6, 5, 7), "permutes_by_convolution")
    assert "TRANSPOSE" in plain
    assert "TRANSPOSE" not in other
    assert "CONV2D" in other


def test_what_is_no_channel_is_transposed() -> None:
    turned = Between(lambda x: x.transpose(2, 3), (0.0311, -7))
    plain, other = alike(turned, randn(2, 6, 15, 7), "permutes_by_convolution")
    assert plain == other
    assert "TRANSPOSE" in plain


def test_sums_of_neighbours() -> None:
    gate = Between(lambda x: x.sum((2, 3), keepdim=True) * 0.03 + 0 * x, (0.0311, -7))
    plain, other = alike(gate, randn(2, 6, 5, 7), "sums_windows")
    assert ("DEPTHWISE_CONV2D" in plain, "REDUCE_SUM" in plain) == (True, False)
    assert ("DEPTHWISE_CONV2D" in other, "REDUCE_SUM" in other) == (False, True)


def of_groups(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def grouped(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = x.reshape(n, 4, c // 4, h, w)
        most = parts.amax((2, 3, 4), keepdim=True)
        return compute(parts, most).reshape(n, c, h, w)

    return grouped


@pytest.mark.parametrize("compute", [torch.sub, torch.mul])
def test_groups_fill_lanes(compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Test 4 groups of 6 channels: the number of each group is repeated for its six channels."""
    network = Between(of_groups(compute), (0.0611, -7))
    plain, other = alike(network, randn(1, 24, 5, 7), "fills_lanes")
    assert other - plain == {"TILE"}


RESIZED: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "by 2": ((5, 7), {"scale_factor": 2, "mode": "bilinear"}),
    "by 3 and 4": ((5, 7), {"scale_factor": (3, 4), "mode": "bilinear"}),
    "by 16": ((2, 3), {"scale_factor": 16, "mode": "bilinear"}),
    "by 1.5": ((6, 8), {"scale_factor": 1.5, "mode": "bilinear"}),
    "by 1.5, without the last half": ((5, 7), {"scale_factor": 1.5, "mode": "bilinear"}),
    "to any size": ((5, 7), {"size": (8, 9), "mode": "bilinear"}),
    "to half the size": ((6, 8), {"scale_factor": 0.5, "mode": "bilinear"}),
    "to a fifth, in longer steps than a stride": ((10, 15), {"scale_factor": 0.2, "mode": "bilinear"}),
    "aligned corners": ((5, 7), {"size": (10, 14), "mode": "bilinear", "align_corners": True}),
    "aligned, to one pixel": ((5, 7), {"size": (1, 14), "mode": "bilinear", "align_corners": True}),
    "rows alone": ((5, 7), {"size": (10, 7), "mode": "bilinear"}),
    "columns alone": ((5, 7), {"size": (5, 14), "mode": "bilinear"}),
    "one pixel": ((1, 1), {"size": (5, 7), "mode": "bilinear"}),
    "one row": ((1, 7), {"size": (5, 14), "mode": "bilinear"}),
    "one column": ((5, 1), {"size": (10, 7), "mode": "bilinear"}),
    "nearest by 3": ((5, 7), {"scale_factor": 3}),
    "nearest by 2 and 3": ((5, 7), {"scale_factor": (2, 3)}),
    "nearest by 1.5": ((6, 8), {"scale_factor": 1.5}),
    "nearest to any size": ((5, 7), {"size": (8, 9)}),
    "nearest of one pixel": ((1, 1), {"size": (5, 7)}),
}
OWN = (0.0247, 5)  # the operand's scale and zero point
EXACT = {"by 2", "by 16", "to half the size", "rows alone", "columns alone"}  # by powers of two


@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.parametrize("result", [OWN, (0.0311, -7)])
def test_a_resize_in_phases(name: str, result: tuple[float, int]) -> None:
    size, options = RESIZED[name]
    network = Between(lambda x: F.interpolate(x, **options), result)
    has_ties = name not in EXACT or result != OWN
    plain, other = alike(network, randn(2, 6, *size), "resizes", quanta=int(has_ties))
    assert not plain.isdisjoint({"RESIZE", "GATHER"})
    assert other.isdisjoint({"RESIZE", "GATHER"})
    assert ("DEPTHWISE_CONV2D" in other) == (size != (1, 1))


class OfInt16(Between):
    INTEGERS = INT16


def test_a_nearest_resize_of_16_bits_in_phases() -> None:
    network = OfInt16(lambda x: F.interpolate(x, scale_factor=3), (0.0247, 0))
    network.SCALES = ((0.0247, 0),)
    plain, other = alike(network, randn(1, 6, 5, 7), "resizes")
    assert ("RESIZE" in plain, "DEPTHWISE_CONV2D" in other) == (True, True)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2},  # Ethos-U55 has it
        {"size": (130, 129), "mode": "bilinear", "align_corners": True},  # 129/4 and 128/6: weights up to 129
    ],
)
def test_what_is_resized_in_both_forms(options: dict[str, Any]) -> None:
    network = Between(lambda x: F.interpolate(x, **options), (0.0247, 5))
    plain, other = alike(network, randn(1, 6, 5, 7), "resizes")
    assert plain == other
    assert "RESIZE" in plain


def test_phases_are_rounded_one_by_one_before_they_are_joined() -> None:
    """Test that no sum of 32 or 48 bits is joined, which Vela would write to memory."""
    network = Between(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (0.0247, 5))
    made = lower(network, (randn(1, 6, 5, 7),), Forms(resizes=False), "NHWC")
    found = [(node.kind, node.dtype, node.shape) for node in made.artifact.model.nodes]
    assert [each for each in found if each[0] in ("CONCAT", "DEPTHWISE_CONV2D")] == [
        ("CONCAT", torch.int8, (1, 5, 9, 6)),
        ("CONCAT", torch.int8, (1, 7, 9, 6)),
        *[("DEPTHWISE_CONV2D", torch.int32, (1, 7, 7, 6))] * 2,
        ("CONCAT", torch.int16, (1, 7, 7, 12)),
        *[("DEPTHWISE_CONV2D", torch.int64, (1, 1, 5, 84))] * 2,
        ("CONCAT", torch.int8, (1, 1, 5, 168)),
    ]


UNREAD: dict[str, tuple[tuple[int, int], Any, tuple[int, int]]] = {
    # kernel; stride, padding, dilation; the taps that are left, of an image of 5 × 7
    "dilated beyond the image": ((3, 3), (1, (12, 13), (12, 13)), (1, 1)),
    "beyond its height alone": ((3, 5), (1, (5, 4), (5, 2)), (1, 5)),
    "padded by more than a window reads": ((9, 9), (1, 8), (9, 9)),
    "the first row of one window": ((3, 3), (7, (1, 2)), (2, 3)),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("groups", [1, 6])
def test_taps_that_read_padding_alone_are_left_out(name: str, groups: int) -> None:
    kernel, options, left = UNREAD[name]
    x, weight = randn(2, 6, 5, 7), (12, 6 // groups, *kernel)
    rest = (*options, 1)[:3] if len(options) == 2 else options
    product = Product(lambda x, w, b: F.conv2d(x, w, b, *rest, groups), weight)
    made = lower(product, (x,), Forms(), "NHWC")
    (conv,) = [node for node in made.artifact.model.nodes if "CONV2D" in node.kind]
    held = made.artifact.model.constants[conv.inputs[1]].shape
    assert tuple(held[1:3] if groups == 1 else held[:2]) == left
    floats = nn.Conv2d(6, 12, kernel, *rest, groups).eval()
    dimorder.lower(floats, (x,), target="tosa", run_artifact=True)
