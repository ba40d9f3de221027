"""contract.h beside Python's guard, on drawn contracts and tensors: the same verdicts in the same words."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, StateSpec, Symbol, TensorSpec, range_of
from dimorder.contract_file import contract_lines
from dimorder.errors import ContractError
from dimorder.runtime.guard import check
from tests.device.native_fixture import DAMAGED, DTYPES, OK, OTHER_ORDER, REFUSED, NativeContract, NativeError
from tests.marks import slow_but

TYPES = [dtype for dtype, number in DTYPES.items() if number < 16 and not dtype.is_complex]
INTEGERS = ("int8", "uint8", "int16")
SYMBOLS = ("n", "Height", "größe", "_w", "s5")
SELDOM = st.sampled_from([*[False] * 15, True])


@pytest.fixture(scope="session")
def native() -> NativeContract:
    return NativeContract()


def is_named_in_c(name: str) -> bool:
    """Whether C shows this name as Python does: it does not know what is unprintable beyond ASCII."""
    return name.isascii() or name.isprintable()


NAMES = st.one_of(
    st.sampled_from(
        ["x", "image", "_1", "input ids", "a[0]", "x.1", "1x", "photo (RGB)", "größe in px", "x%20", "class"]
    ),
    st.text("ab_1 .:[](){}%$=\\'\"\n\t\r\x7f\x01–é猫", min_size=1, max_size=6),
    st.text(min_size=1, max_size=5).filter(lambda text: text.isprintable()),
).filter(is_named_in_c)
SCALES = st.one_of(
    st.floats(1e-30, 1e30, allow_nan=False),
    st.sampled_from(
        [1 / 128, 0.021, 1.0, 0.1, 1e-7, 123456.789, 2**-1022, 1.7976931348623157e308, 1e16, 1e22, 1e-5]
    ),
)


@st.composite
def symbols(draw: st.DrawFn) -> tuple[Symbol, ...]:
    """Dynamic sizes with ranges and steps, or without one, which is any size."""
    found = []
    for name in draw(st.lists(st.sampled_from(SYMBOLS), unique=True, max_size=3)):
        step = draw(st.integers(1, 3))
        low = draw(st.integers(0, 3))
        high = draw(st.none() | st.integers(low, 5))
        found.append(Symbol(name, low * step, None if high is None else high * step, step))
    return tuple(found)


@st.composite
def specs(draw: st.DrawFn, name: str, sizes: st.SearchStrategy[int | str]) -> TensorSpec:
    shape = tuple(draw(st.lists(sizes, min_size=draw(st.sampled_from([2, 3, 4, 4, 1, 0])), max_size=6)))
    order = DimOrder(*draw(st.permutations(range(len(shape)))))
    dims = [DimOrder.contiguous(len(shape)), DimOrder.channels_last(len(shape)), order]
    order = draw(st.sampled_from(dims))
    boundary = draw(st.sampled_from([None, "logical", "physical"]))
    dtype = draw(st.sampled_from(TYPES))
    text = str(dtype).removeprefix("torch.")
    if text not in INTEGERS or draw(st.booleans()):
        return TensorSpec(name, shape, text, order, boundary)
    return TensorSpec(name, shape, text, order, boundary, draw(SCALES), draw(st.integers(*range_of(dtype))))


@st.composite
def contracts(draw: st.DrawFn, least: int = 0) -> Contract:
    declared = draw(symbols())
    sizes = st.sampled_from([2, 3, 4, 5, 1, 1, 2, 3, 5, 7, 0, *SYMBOLS])
    computed = st.sampled_from([2, 1, 0, 5, "n", "2*n + 1", "größe//3"])
    least = max(least, 0 if draw(SELDOM) else 1)
    names = draw(st.lists(NAMES, min_size=least, max_size=3, unique=True))
    outputs = draw(st.lists(NAMES, max_size=2, unique=True))
    state = draw(
        st.lists(st.builds(StateSpec, NAMES, st.just((2, 3)), st.just("float32"), NAMES), max_size=1)
    )
    return Contract(
        tuple(draw(specs(name, sizes)) for name in names),
        tuple(draw(specs(name, computed)) for name in outputs),
        declared,
        tuple(state),
    )


@st.composite
def fed(draw: st.DrawFn, spec: TensorSpec, sizes: dict[str, int]) -> torch.Tensor:
    """A tensor that is sometimes what is promised and mostly a view that is something else."""
    shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
    flaw = draw(st.sampled_from([*[""] * 16, "dtype", "rank", "size", "last", "batch"]))
    dtype = (
        draw(st.sampled_from([dtype for dtype in DTYPES if dtype != torch.complex32]))
        if flaw == "dtype"
        else getattr(torch, spec.dtype)
    )
    if flaw == "rank":
        shape = shape[1:] if draw(st.booleans()) else [*shape, draw(st.integers(0, 3))]
    if flaw == "size" and shape:
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(0, 7))
    if flaw == "last" and len(shape) > 2:
        shape = [shape[0], *shape[2:], shape[1]]
    if flaw == "batch":
        shape = shape[1:]
    orders = [DimOrder(*draw(st.permutations(range(len(shape)))))]
    if len(shape) == len(spec.shape):
        orders = [spec.memory_order, *orders, spec.dim_order, DimOrder.channels_last(len(shape))]
    order = draw(st.sampled_from(orders))
    strides = list(order.strides(shape))
    room = 1 + sum(max(0, size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    how = draw(st.sampled_from(["dense", "ones", "slice", "step", "dense", "expand", "wild"]))
    if shape and how in ("slice", "step"):
        wide = [size + draw(st.integers(0, 2)) for size in shape]
        steps = [draw(st.sampled_from([1, 1, 2])) if how == "step" else 1 for _ in shape]
        strides = [a * b for a, b in zip(order.strides(wide), steps, strict=True)]
    if shape and how == "expand":
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    if how == "ones":  # what a dim of size 1 has for a stride says nothing
        strides = [
            draw(st.integers(0, 999)) if size == 1 else stride
            for size, stride in zip(shape, strides, strict=True)
        ]
    if how == "wild":
        strides = [draw(st.integers(0, 12)) for _ in shape]
    room = 1 + sum(max(0, size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.zeros(room, dtype=dtype).as_strided(shape, strides)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Contract, list[torch.Tensor]]:
    contract = draw(contracts())
    sizes = {
        name: draw(st.integers(0, 9))
        if name not in {s.name for s in contract.symbols} or draw(SELDOM)
        else draw(in_range(next(s for s in contract.symbols if s.name == name)))
        for name in SYMBOLS
    }
    tensors = []
    for spec in contract.inputs:
        own = {**sizes, draw(st.sampled_from(SYMBOLS)): 4} if draw(SELDOM) else sizes
        tensors.append(draw(fed(spec, own)))
    if draw(SELDOM):
        tensors = tensors[1:] if draw(st.booleans()) else [*tensors, torch.zeros(2)]
    return contract, tensors


def in_range(symbol: Symbol) -> st.SearchStrategy[int]:
    last = symbol.minimum + 3 * symbol.step if symbol.maximum is None else symbol.maximum
    return st.sampled_from(range(symbol.minimum, last + 1, symbol.step))


def verdict(contract: Contract, tensors: list[torch.Tensor]) -> tuple[bool, str]:
    try:
        check(contract, tensors, "error")
    except ContractError as error:
        return False, str(error)
    return True, ""


# A third is accepted, a third lies in another order or is not dense.
@pytest.mark.parametrize("count", slow_but((150, 1000), (150,)))
def test_verdicts_and_texts_are_those_of_python(native, count):
    @settings(max_examples=count, deadline=None)
    @given(calls())
    @example(
        (
            Contract((TensorSpec("class", (1, 3, 5, 7), "float32", DimOrder(0, 2, 3, 1)),), ()),
            [torch.zeros(3, 5, 7)],
        )
    )
    def compare(call):
        contract, tensors = call
        accepted, text = verdict(contract, tensors)
        status, why = native.check(contract_lines(contract), tensors)
        assert why == text
        assert (status == OK) == accepted
        assert (status == OTHER_ORDER) == ("promised in" in text.split("\n")[0])

    compare()


@pytest.mark.parametrize("count", slow_but((75, 300), (75,)))
def test_what_has_another_order_alone_is_adapted_by_python(native, count):
    @settings(max_examples=count, deadline=None)
    @given(calls())
    def compare(call):
        contract, tensors = call
        status, _ = native.check(contract_lines(contract), tensors)
        if status == REFUSED:
            with pytest.raises(ContractError):
                check(contract, tensors, "adapt")
        else:
            assert bool(check(contract, tensors, "adapt").conversions) == (status == OTHER_ORDER)

    compare()


@pytest.mark.parametrize("count", slow_but((100, 500), (100,)))
def test_every_contract_is_read_and_held_in_the_same_order(native, count):
    @settings(max_examples=count, deadline=None)
    @given(contracts(least=1))
    def compare(contract):
        assert native.parse(contract_lines(contract)) == (OK, "")
        for index, spec in enumerate(contract.inputs):
            assert native.memory_order(contract, index) == spec.memory_order.dims

    compare()


SCALED = st.one_of(st.floats(1e-7, 1e7), st.sampled_from([1 / 128, 0.5, 0.021, 1e-30, 1e30]))


@pytest.mark.parametrize("count", slow_but((100, 500), (100,)))
def test_integers_stand_for_the_same_numbers_bit_for_bit(native, count):
    @settings(max_examples=count, deadline=None)
    @given(st.sampled_from(INTEGERS), SCALED, st.data())
    def compare(dtype, scale, data):
        low, high = range_of(getattr(torch, dtype))
        zero_point = data.draw(st.integers(low, high))
        spec = TensorSpec("x", (1,), dtype, DimOrder(0), scale=scale, zero_point=zero_point)
        contract = Contract((spec,), ())
        steps = st.integers(-300, 300) | st.sampled_from([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e6, -1e9])
        floats = st.floats(width=32, allow_nan=False, allow_infinity=True)
        drawn = data.draw(st.lists(floats | steps, min_size=1))
        near = [number * scale for number in drawn if abs(number) <= 300]
        numbers = torch.tensor([*drawn, *near], dtype=torch.float32)
        numbers = numbers[~(numbers * (1 / scale)).isnan()]
        assert torch.equal(native.quantize(contract, numbers), spec.quantized(numbers))
        integers = torch.arange(low, high + 1).to(getattr(torch, dtype))
        ours, python = native.dequantize(contract, integers), spec.real(integers)
        assert torch.equal(ours.view(torch.int32), python.view(torch.int32))

    compare()


def test_no_number_becomes_the_zero_point(native):
    spec = TensorSpec("x", (1,), "uint8", DimOrder(0), scale=0.5, zero_point=127)
    assert native.quantize(Contract((spec,), ()), torch.tensor([math.nan])).tolist() == [127]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_a_tensor_without_a_scale_is_neither_quantized_nor_dequantized(native, dtype):
    contract = Contract((TensorSpec("x", (3,), dtype, DimOrder(0)),), ())
    with pytest.raises(NativeError) as error:
        native.quantize(contract, torch.tensor([0.0, 0.25, 3.0]))
    assert error.value.code == REFUSED
    with pytest.raises(NativeError):
        native.dequantize(contract, torch.arange(3).to(getattr(torch, dtype)))


def one(*shape, dtype="float32", count=1, **more):
    order = DimOrder.contiguous(len(shape))
    return Contract(tuple(TensorSpec(f"x{i}", shape, dtype, order, **more) for i in range(count)), ())


@pytest.mark.parametrize(
    ("contract", "found"),
    [
        (one(*[1] * 17), "a tensor of more than 16 dimensions"),
        (one(2**16, 2**15), "a tensor of 2147483648 elements or more"),
        (one(2**31, 0), "a tensor of 2147483648 elements or more"),
        (one(2, dtype="complex64"), "a tensor of a type that C does not know"),
        (one(2, dtype="uint16"), "a tensor of a type that C does not know"),
        (one(2, dtype="int8", scale=5e-324), "a scale or zero point that cannot be"),
        (one(*[f"n{i}" for i in range(33)][:16]), None),
        (
            Contract(tuple(TensorSpec(f"x{i}", (f"n{i}",), "int8", DimOrder(0)) for i in range(33)), ()),
            "more than 32 dynamic sizes",
        ),
        (one(2, count=4097), "more than 4096 inputs, outputs or states"),
        (
            Contract((), (), (Symbol("n", 2**31, None),)),
            "a dynamic size whose range does not fit in 32 bits",
        ),
        (Contract((), (), (Symbol("n", 0, 10**18),)), "a dynamic size whose range does not fit in 32 bits"),
        (Contract((), (), (Symbol("n", 0, 10**17),)), None),
        (one(*[1] * 16), None),
        (one(2**16, 2**14), None),
        (one(2**31 - 1), None),
    ],
)
def test_a_limit_of_c_is_an_error_that_names_it(native, contract, found):
    lines = (
        "the contract of a program\n"
        f"  found: {found}\n"
        "  fix: lower the program again, within the limits of dimorder/contract.h"
    )
    wanted = (OK, "") if found is None else (DAMAGED, lines)
    assert native.parse(contract_lines(contract)) == wanted


@pytest.mark.parametrize(
    ("change", "found", "fix"),
    [
        (
            ("contract 1 1", "contract 2 1"),
            "another version of its lines than this header reads",
            "build with",
        ),
        (("dimorder-contract", "dimorder_contract"), "no lines of the format dimorder-contract", "lower"),
        (("contract 1 1 0", "contract 1 1 x"), "counts that cannot be", "lower"),
        (("float32", "float23"), "a tensor of a type that C does not know", "lower"),
        (("0 1\nend", "1 1\nend"), "a line of an input or output that is missing or damaged", "lower"),
        (("end", "stop"), "lines that do not end with `end`", "lower"),
        (("logical", "loGical"), "a line of an input or output that is missing or damaged", "lower"),
    ],
)
def test_a_damaged_line_is_an_error_of_three_lines(native, change, found, fix):
    status, why = native.parse(contract_lines(one(2, 3)).replace(*change))
    assert status == DAMAGED and len(why.splitlines()) == 3
    assert f"  found: {found}\n  fix: {fix}" in why


def test_more_elements_than_32_bits_count_are_refused(native):
    contract = one("n", "m")
    huge = torch.zeros(1).expand(2**20, 2**11)
    status, why = native.check(contract_lines(contract), [huge])
    assert (status, why) == (
        REFUSED,
        "input 'x0'\n"
        "  found: shape (1048576, 2048), which is 2147483648 elements or more\n"
        "  fix: pass fewer elements: ExecuTorch counts them in 32 bits",
    )
    assert native.check(contract_lines(contract), [torch.empty(0, 2**30)])[0] == OK


def test_lines_are_found_among_other_bytes(native):
    lines = contract_lines(one(2, 3)).encode()
    assert native.find(b"\0dimorder-contrac\n" + lines + b"\0end\n") == lines
    assert native.find(lines[:-1]) is None and native.find(b"") is None and native.find(b"\nend\n") is None


@given(st.binary(max_size=200) | st.text(" \n$=%0123456789abcdefn-", max_size=200).map(str.encode))
def test_any_bytes_are_read_to_a_verdict(native, tail):
    status, why = native.parse(b"dimorder-contract 1 1 1 1 0\n" + tail)
    assert (status, why == "") in ((OK, True), (DAMAGED, False))
