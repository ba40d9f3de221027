"""The laws of `DimOrder`, each a test named after it; names, parsing and errors by example."""

import copy
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from dimorder.algebra.dim_order import NAMED_ORDERS, DimOrder
from dimorder.errors import DimorderError, UsageError

RANKS = st.integers(0, 6)
SIZES = st.sampled_from([0, 1, 1, 2, 3, 4, "n", "1"])


def orders(rank):
    return st.permutations(range(rank)).map(lambda dims: DimOrder(*dims))


@st.composite
def order_tuples(draw, count):
    rank = draw(RANKS)
    return tuple(draw(orders(rank)) for _ in range(count))


@st.composite
def orders_and_shape(draw, count, sizes=SIZES, max_rank=6):
    rank = draw(st.integers(0, max_rank))
    shape = tuple(draw(st.lists(sizes, min_size=rank, max_size=rank)))
    return *(draw(orders(rank)) for _ in range(count)), shape


@given(order_tuples(1))
def test_inverse(orders):
    (p,) = orders
    identity = DimOrder.contiguous(len(p))
    assert p.compose(p.inverse) == p.inverse.compose(p) == identity
    assert p.inverse.inverse == p


@given(order_tuples(3))
def test_composition_associates(orders):
    p, q, r = orders
    assert p.compose(q).compose(r) == p.compose(q.compose(r))


@given(order_tuples(2))
def test_composition_is_application_in_turn(orders):
    p, q = orders
    values = "abcdef"[: len(p)]
    assert p.compose(q).apply(values) == q.apply(p.apply(values))


@given(orders_and_shape(3))
def test_equivalence_is_an_equivalence(case):
    p, q, r, shape = case
    assert p.equivalent(p, shape)
    assert p.equivalent(q, shape) == q.equivalent(p, shape)
    if p.equivalent(q, shape) and q.equivalent(r, shape):
        assert p.equivalent(r, shape)


@given(orders_and_shape(3))
def test_equivalence_is_a_congruence_under_permute(case):
    p, q, dims, shape = case
    permuted_shape = dims.apply(shape)
    assert p.equivalent(q, shape) == p.permuted(dims).equivalent(q.permuted(dims), permuted_shape)


@given(orders_and_shape(2, sizes=st.integers(0, 3), max_rank=4))
def test_equivalence_is_the_same_offset_for_every_index(case):
    p, q, shape = case
    same = all(p.offset(i, shape) == q.offset(i, shape) for i in itertools.product(*map(range, shape)))
    assert p.equivalent(q, shape) == same


@given(orders_and_shape(1))
def test_canonical_is_equivalent_and_least(case):
    p, shape = case
    class_ = [DimOrder(*dims) for dims in itertools.permutations(range(min(len(shape), 4)))]
    assert p.canonical(shape).equivalent(p, shape)
    assert p.canonical(shape).canonical(shape) == p.canonical(shape)
    if len(shape) <= 4:
        assert p.canonical(shape) == min(q for q in class_ if q.equivalent(p, shape))


@given(orders_and_shape(1, sizes=st.integers(0, 4), max_rank=4))
def test_offset_agrees_with_brute_force_enumeration(case):
    p, shape = case
    physical = itertools.product(*map(range, p.physical_shape(shape)))
    for place, index in enumerate(physical):
        assert p.offset(p.inverse.apply(index), shape) == place


@given(orders_and_shape(1, sizes=st.integers(0, 4)))
def test_strides_are_those_torch_allocates(case):
    p, shape = case
    ours = torch.empty_strided(shape, p.strides(shape))
    theirs = torch.empty_permuted(shape, p.dims)
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    if 0 not in shape:  # torch's strides of an empty tensor are not those of any order
        assert ours.stride() == theirs.stride()


@given(orders_and_shape(1, sizes=st.integers(2, 4)))
def test_dims_mean_what_torch_means(case):
    p, shape = case
    assert torch.empty_permuted(shape, p.dims).dim_order() == p.dims


@given(orders_and_shape(2, sizes=st.integers(2, 4)))
def test_permuted_is_what_torch_permute_does(case):
    p, dims, shape = case
    assert torch.empty_permuted(shape, p.dims).permute(dims.dims).dim_order() == p.permuted(dims).dims


@pytest.mark.parametrize("shape", [(8, 1, 3, 3), (2, 7, 1, 1), (1, 1, 5, 7), (0, 3, 5, 7)])
def test_nchw_and_nhwc_are_equivalent_where_sizes_of_one_carry_the_difference(shape):
    assert DimOrder.contiguous(4).equivalent(DimOrder.channels_last(4), shape)


def test_a_symbol_is_not_one_even_when_it_prints_as_one():
    assert not DimOrder.contiguous(4).equivalent(DimOrder.channels_last(4), (2, "1", 5, 7))


@pytest.mark.parametrize("name", NAMED_ORDERS)
def test_every_name_parses_to_its_order(name):
    rank = len(NAMED_ORDERS[name])
    assert DimOrder.parse(name, rank).dims == NAMED_ORDERS[name]
    assert DimOrder.parse(name.lower(), rank).dims == NAMED_ORDERS[name]


@pytest.mark.parametrize(
    ("spec", "rank", "dims"),
    [
        (torch.channels_last, 4, (0, 2, 3, 1)),
        (torch.channels_last, 3, (0, 2, 1)),
        (torch.channels_last, 2, (0, 1)),
        (torch.channels_last_3d, 5, (0, 2, 3, 4, 1)),
        (torch.contiguous_format, 3, (0, 1, 2)),
        ("channels_last", 5, (0, 2, 3, 4, 1)),
        ("(3, 0, 1, 2)", 4, (3, 0, 1, 2)),
        ("0", 1, (0,)),
        ((1, 0), 2, (1, 0)),
        (DimOrder(1, 0), 2, (1, 0)),
        ([], 0, ()),
    ],
)
def test_parse(spec, rank, dims):
    assert DimOrder.parse(spec, rank) == DimOrder(*dims)


@pytest.mark.parametrize(
    ("dims", "name"),
    [
        ((0, 2, 3, 1), "NHWC"),
        ((0, 1, 2, 3), "NCHW"),
        ((0, 2, 1), "NLC"),
        ((2, 3, 0, 1), "HWIM"),
        ((1, 0), "(1, 0)"),
    ],
)
def test_name_is_that_of_the_activation_first(dims, name):
    assert DimOrder(*dims).name == str(DimOrder(*dims)) == name


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DimOrder(0, 2, 2), "3 dims that are not a permutation of 0 to 2"),
        (lambda: DimOrder("NHWC"), "a dim that is not an int"),
        (lambda: DimOrder.parse("NHCW", 4), "no order of this name for 4 dims"),
        (lambda: DimOrder.parse("NHWC", 3), "an order of 4 dims for a tensor of 3"),
        (lambda: DimOrder.parse(torch.preserve_format, 4), "no order of this name"),
        (lambda: DimOrder.parse("²", 1), "no order of this name for 1 dims"),
        (lambda: DimOrder.parse("", 0), "no order of this name for 0 dims"),
        (lambda: DimOrder.parse(None, 4), "no order of this name"),
        (lambda: DimOrder(0, 1).strides((2, 3, 5)), "3 entries for 2 dims"),
        (lambda: DimOrder(0, 1).offset((2, 0), (2, 3)), "index (2, 0) outside shape (2, 3)"),
    ],
)
def test_errors_are_three_lines(make, says):
    with pytest.raises(UsageError) as error:
        make()
    assert isinstance(error.value, DimorderError)
    assert len(str(error.value).splitlines()) == 3
    assert says in str(error.value)


def test_is_a_value():
    order = DimOrder(0, 2, 3, 1)
    assert eval(repr(order)) == order == pickle.loads(pickle.dumps(order)) == copy.deepcopy(order)
    assert len({order, DimOrder(0, 2, 3, 1), DimOrder(0, 1, 2, 3)}) == 2
    assert sorted([order, DimOrder(0, 1, 2, 3)])[0] == DimOrder(0, 1, 2, 3)
    assert (len(order), tuple(order), order[1], order[2:]) == (4, (0, 2, 3, 1), 2, (3, 1))
    with pytest.raises(AttributeError):
        order.dims = (0,)
