"""The laws of layouts, a property test each, and how they are written."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.layout import Layout
from dimorder.eager.conversion import convert, unblock
from dimorder.errors import UsageError


@st.composite
def layouts(draw):
    rank = draw(st.integers(1, 4))
    blocks = draw(st.lists(st.tuples(st.integers(0, rank - 1), st.integers(2, 4)), max_size=3))
    return Layout(DimOrder(*draw(st.permutations(range(rank)))), tuple(blocks))


@st.composite
def layout_and_shape(draw, least=0):
    layout = draw(layouts())
    rank = len(layout.order)
    return layout, tuple(draw(st.lists(st.integers(least, 5), min_size=rank, max_size=rank)))


@given(layout_and_shape())
def test_every_element_has_a_place_of_its_own(case):
    layout, shape = case
    places = [layout.offset(index, shape) for index in itertools.product(*map(range, shape))]
    assert len(set(places)) == len(places)
    assert all(0 <= place < math.prod(layout.physical_shape(shape)) for place in places)


@given(layout_and_shape(least=1))
def test_without_blocks_a_layout_is_its_order(case):
    layout, shape = Layout(case[0].order), case[1]
    last = tuple(size - 1 for size in shape)
    assert layout.physical_shape(shape) == layout.order.physical_shape(shape)
    assert layout.offset(last, shape) == layout.order.offset(last, shape)


@given(layout_and_shape())
def test_pieces_lead_from_the_split_to_the_physical_shape(case):
    layout, shape = case
    assert layout.pieces.apply(layout.split_shape(shape)) == layout.physical_shape(shape)
    assert math.prod(layout.split_shape(shape)) == math.prod(layout.padded_shape(shape))


@given(layouts())
def test_tags_round_trip(layout):
    assert Layout.parse(str(layout), len(layout.order)) == layout


@given(layout_and_shape(), st.data())
def test_a_tensor_lies_where_offset_says_and_zeros_elsewhere(case, data):
    layout, shape = case
    x = torch.arange(1, math.prod(shape) + 1).view(shape)
    order = DimOrder(*data.draw(st.permutations(range(len(shape)))))
    physical = convert(convert(x, order), layout)
    assert physical.shape == layout.physical_shape(shape) and physical.is_contiguous()
    memory = [0] * physical.numel()
    for index in itertools.product(*map(range, shape)):
        memory[layout.offset(index, shape)] = x[index].item()
    assert physical.flatten().tolist() == memory


@given(layout_and_shape(), st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.bool]))
def test_there_and_back_is_exact(case, dtype):
    layout, shape = case
    x = torch.arange(math.prod(shape)).remainder(3).to(dtype).view(shape)
    y = unblock(convert(x, layout), layout, shape)
    assert torch.equal(y, x) and y.is_contiguous() and y.dtype == dtype


def test_gradients_pass_both_ways():
    x = torch.randn(2, 5, 3, 4, requires_grad=True)
    layout = Layout.parse("nChw4c", 4)
    unblock(convert(x, layout), layout, x.shape, "NHWC").square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.parametrize(
    ("tag", "physical"),
    [
        ("nChw16c", (2, 3, 5, 7, 16)),
        ("nhwC8c", (2, 5, 7, 5, 8)),
        ("NChw4n16c", (1, 3, 5, 7, 4, 16)),
        ("acdb", (2, 5, 7, 35)),
        ("OIhw4i8o2i", (1, 5, 5, 7, 4, 8, 2)),
    ],
)
def test_tags_of_onednn(tag, physical):
    assert Layout.parse(tag, 4).physical_shape((2, 35, 5, 7)) == physical


@pytest.mark.parametrize("tag", ["nChw", "nchw16c", "nCh16c", "nChw16", "xChw16c", "", "nCcw16c", "abce", 5])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(UsageError, match=r"no layout of 4 dims\n.*nChw16c"):
        Layout.parse(tag, 4)


@pytest.mark.parametrize("order", ["nChw16c", (0, 1, 2, 3)])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(
        UsageError, match=r"no DimOrder\n  fix: write Layout\(DimOrder.*Layout.parse\('nChw16c', 4\)"
    ):
        Layout(order)


@pytest.mark.parametrize("block", [(4, 16), (-1, 16), (1, 1), (1, 0)])
def test_what_is_no_block_is_refused(block):
    with pytest.raises(UsageError, match="dims 0 to 3, by 2 or more"):
        Layout(DimOrder.contiguous(4), (block,))


def test_the_wrong_rank_or_shape_is_refused():
    layout = Layout.parse("nChw16c", 4)
    with pytest.raises(UsageError, match="3 entries for 4"):
        convert(torch.zeros(2, 3, 4), layout)
    with pytest.raises(UsageError, match=r"2×1×3×4×16"):
        unblock(torch.zeros(2, 2, 3, 4, 16), layout, (2, 5, 3, 4))
