"""Test that `read` finds the order of strides: round trips as a law, and every doubtful case by example."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import NotDense, read
from dimorder.errors import UsageError


@st.composite
def order_and_shape(draw, sizes):
    rank = draw(st.integers(0, 6))
    return DimOrder(*draw(st.permutations(range(rank)))), tuple(
        draw(st.lists(sizes, min_size=rank, max_size=rank))
    )


@given(order_and_shape(st.integers(0, 4)))
def test_order_to_strides_to_order_round_trips(case):
    order, shape = case
    assert read(shape, order.strides(shape)) == order.canonical(shape)


@given(order_and_shape(st.integers(1, 4)))
def test_strides_to_order_to_strides_round_trips_on_dense_tensors(case):
    order, shape = case
    tensor = torch.empty_permuted(shape, order.dims)
    back = read(shape, tensor.stride()).strides(shape)
    assert [s for s, size in zip(back, shape, strict=True) if size > 1] == [
        s for s, size in zip(tensor.stride(), shape, strict=True) if size > 1
    ]


@given(order_and_shape(st.integers(1, 3)), st.lists(st.integers(-50, 50), min_size=6, max_size=6))
def test_strides_of_size_one_are_not_looked_at(case, noise):
    order, shape = case
    strides = order.strides(shape)
    noisy = tuple(n if size == 1 else s for n, size, s in zip(noise, shape, strides, strict=False))
    assert read(shape, noisy) == read(shape, strides)


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
def test_dense_is_said_exactly_of_strides_that_reach_every_element_once(shape, data):
    strides = data.draw(st.lists(st.integers(-2, 12), min_size=len(shape), max_size=len(shape)))
    places = [0]
    for size, stride in zip(shape, strides, strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    dense = sorted(places) == list(range(len(places)))
    assert isinstance(read(shape, strides), NotDense) != dense


X = torch.empty(2, 6, 10, 14)
Y = X.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (X, (0, 1, 2, 3)),
        (Y, (0, 2, 3, 1)),
        (X.transpose(2, 3), (0, 1, 3, 2)),
        (Y.permute(1, 2, 3, 0), (3, 1, 2, 0)),
        (torch.empty(3), (0,)),
        (torch.empty(1), (0,)),
        (torch.empty(()), ()),
    ],
)
def test_only_one_order_fits(tensor, order):
    assert read(tensor.shape, tensor.stride()) == DimOrder(*order)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (Y[:, :1].clone(), (0, 1, 2, 3)),  # C = 1
        (X[:, :, :1, :1].clone(), (0, 1, 2, 3)),  # H = W = 1
        (Y[0].unsqueeze(0), (0, 2, 3, 1)),  # batch 1, strides (6, 1, 84, 6)
        (torch.empty(0, 3, 5), (0, 1, 2)),
        (torch.empty(1, 1), (0, 1)),
        (X[:1, 1:3], (0, 1, 2, 3)),  # a channel slice at batch 1 has no gap
    ],
)
def test_the_least_of_several_orders_is_read(tensor, order):
    assert read(tensor.shape, tensor.stride()) == DimOrder(*order)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (X[:, 1:3], "dim 0 steps over 6 steps of dim 1 where dim 1 holds 2 (a slice of dim 1"),
        (Y[:, 1:3], "dim 3 steps over 6 elements where dim 1 holds 2 (a slice of dim 1"),
        (X[..., ::2], "dim 3, the fastest, steps over 2 elements (a step in dim 3"),
        (
            X[:, :, ::2],
            "dim 2 steps over 28 elements where dim 3 holds 14 (a slice of dim 3, or a step in dim 2)",
        ),
        (X[:, :1].expand(2, 6, 10, 14), "dim 1 of size 6 is expanded (stride 0)"),
        (
            torch.empty(9).as_strided((3, 4), (2, 1)),
            "dim 0 steps over 2 elements where the faster dims hold 4",
        ),
        (torch.empty(99).as_strided((3, 4), (7, 2)), "dim 1, the fastest, steps over 2 elements"),
        (
            torch.empty(99).as_strided((3, 4, 2), (14, 3, 1)),
            "dim 1 steps over 3 elements where dim 2 holds 2",
        ),
    ],
)
def test_not_dense(tensor, why):
    reading = read(tensor.shape, tensor.stride())
    assert isinstance(reading, NotDense)
    assert reading.why.startswith(why)


def test_backwards_is_not_dense():
    assert read((3, 5), (5, -1)) == NotDense("dim 1 runs backwards (stride -1)")


@pytest.mark.parametrize(("shape", "strides"), [((2, 3), (1,)), (("n", 3), (3, 1)), ((2, 3), (3, None))])
def test_wrong_use_is_an_error_of_three_lines(shape, strides):
    with pytest.raises(UsageError) as error:
        read(shape, strides)
    assert len(str(error.value).splitlines()) == 3
