"""The guard without a runtime: what it lets pass, what it copies, what it refuses and in which words."""

import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.errors import ContractError, UsageError
from dimorder.runtime.guard import check, restore
from dimorder.runtime.quick_guard import quick_check, quick_restore

NCHW, NHWC, NLC = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1), DimOrder(0, 2, 1)


def one(shape, order, dtype="float32", name="image", boundary=None):
    return Contract((TensorSpec(name, shape, dtype, order, boundary),), ())


def numbers(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


X = numbers(2, 6, 5, 7)
WRONG = {
    "channels last": X.to(memory_format=torch.channels_last),
    "channel slice": numbers(2, 9, 5, 7)[:, 1:7],
    "channel slice of channels last": numbers(2, 9, 5, 7).to(memory_format=torch.channels_last)[:, 1:7],
    "strided step": numbers(2, 6, 10, 7)[:, :, ::2],
    "strided step in the last dim": numbers(2, 6, 5, 14)[..., ::2],
    "transposed view": numbers(2, 6, 7, 5).transpose(2, 3),
    "expanded": numbers(2, 1, 5, 7).expand(2, 6, 5, 7),
    "flipped batch": numbers(6, 2, 5, 7).transpose(0, 1),
}
RIGHT = {
    "as promised": X,
    "a part of a larger one": numbers(3, 6, 5, 7)[1:],
    "a parameter": torch.nn.Parameter(X),
}


@pytest.mark.parametrize("order", [NCHW, NHWC, DimOrder(1, 2, 3, 0)])
@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_adapt_gives_the_values_in_the_promised_order(name, order):
    tensor = {**WRONG, **RIGHT}[name]
    guarded = check(one((2, 6, 5, 7), order, boundary="logical"), [tensor])
    assert torch.equal(guarded.tensors[0], tensor)
    assert guarded.tensors[0].stride() == order.strides(tensor.shape)
    copied = guarded.tensors[0].data_ptr() != tensor.data_ptr()
    assert copied == bool(guarded.conversions) and guarded.cost_bytes == (X.nbytes if copied else 0)
    keeps = name in RIGHT if order == NCHW else order == NHWC and name == "channels last"
    assert copied != keeps


@pytest.mark.parametrize("name", WRONG)
def test_error_names_the_input_and_both_orders_and_its_fix_mends_it(name):
    contract = one((2, 6, 5, 7), NCHW)
    with pytest.raises(ContractError) as error:
        check(contract, [WRONG[name]], "error")
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == "input 'image', promised in NCHW (0, 1, 2, 3)"
    assert ("NHWC" in lines[1]) if name == "channels last" else ("not dense" in lines[1] or "(" in lines[1])
    assert not check(contract, [run_line(error.value.fix, WRONG[name])], "error").conversions


@pytest.mark.parametrize("order", [NCHW, NHWC, DimOrder(1, 2, 3, 0), DimOrder(3, 0, 2, 1)])
@pytest.mark.parametrize("name", [*WRONG, "as promised"])
def test_the_fix_of_an_order_mends_it_in_one_line(name, order):
    tensor = {**WRONG, **RIGHT}[name]
    contract = one((2, 6, 5, 7), order, boundary="logical")
    try:
        check(contract, [tensor], "error")
    except ContractError as error:
        tensor = run_line(error.fix, tensor)
    assert not check(contract, [tensor], "error").conversions


def run_line(line, tensor):
    names = {"image": tensor, "torch": torch}
    exec(line, names)
    return names["image"]


def test_what_is_found_is_named_even_where_dims_of_one_hide_it():
    with pytest.raises(ContractError, match=r"found: NHWC \(0, 2, 3, 1\), shape \(2, 6, 5, 1\)"):
        check(
            one((2, 6, 5, 1), NCHW),
            [numbers(2, 6, 5, 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)],
            "error",
        )


@pytest.mark.parametrize(
    ("shape", "tensor"),
    [
        ((2, 1, 5, 7), numbers(2, 1, 5, 7).as_strided((2, 1, 5, 7), (35, 1, 7, 1))),
        ((2, 6, 1, 1), numbers(2, 6, 1, 1).as_strided((2, 6, 1, 1), (6, 1, 6, 6))),
        ((1, 1, 5, 7), numbers(2, 1, 5, 7)[1].unsqueeze(0)),
        ((0, 3, 5, 7), torch.empty(0, 3, 5, 7).to(memory_format=torch.channels_last)),
    ],
)
@pytest.mark.parametrize("order", [NCHW, NHWC])
@pytest.mark.parametrize("on_mismatch", ["adapt", "error", "warn"])
def test_an_equivalent_order_is_restrided_and_never_copied(shape, tensor, order, on_mismatch):
    guarded = check(one(shape, order), [tensor], on_mismatch)
    assert guarded.conversions == ()
    assert guarded.tensors[0].data_ptr() == tensor.data_ptr()
    assert guarded.tensors[0].stride() == DimOrder.contiguous(4).strides(shape)
    assert torch.equal(guarded.tensors[0], tensor)


def test_batch_one_of_a_channels_last_batch_is_channels_last():
    tensor = WRONG["channels last"][1].unsqueeze(0)
    assert tensor.stride() == (6, 1, 42, 6)
    guarded = check(one((1, 6, 5, 7), NHWC), [tensor], "error")
    assert guarded.tensors[0].stride() == (210, 1, 42, 6)
    assert check(one((1, 6, 5, 7), NCHW), [tensor]).cost_bytes == 840


def test_a_lazily_negated_tensor_is_not_what_its_memory_says():
    lazy = torch._neg_view(X)
    guarded = check(one((2, 6, 5, 7), NCHW), [lazy])
    assert not guarded.tensors[0].is_neg() and torch.equal(guarded.tensors[0], -X)
    assert guarded.conversions[0].found == "lazily negated or conjugated"
    with pytest.raises(ContractError) as error:
        check(one((2, 6, 5, 7), NCHW), [lazy], "error")
    assert torch.equal(run_line(error.value.fix, lazy), -X)


def test_warn_adapts_and_says_so_where_the_caller_is():
    with pytest.warns(UserWarning, match="input 'image', promised in NCHW"):
        guarded = check(one((2, 6, 5, 7), NCHW), [WRONG["transposed view"]], "warn")
    assert torch.equal(guarded.tensors[0], WRONG["transposed view"]) and guarded.cost_bytes == 1680
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(one((2, 6, 5, 7), NCHW), [X], "warn")


@given(
    st.permutations(range(3)), st.permutations(range(3)), st.lists(st.integers(0, 4), min_size=3, max_size=3)
)
def test_a_physical_boundary_gets_the_dense_physical_shape_and_gives_it_back(promised, fed, shape):
    order = DimOrder(*promised)
    tensor = torch.empty_permuted(shape, fed).copy_(numbers(*shape))
    spec = TensorSpec("x", tuple(shape), "float32", order, "physical")
    guarded = check(Contract((spec,), ()), [tensor])
    (physical,) = guarded.tensors
    assert physical.is_contiguous() and tuple(physical.shape) == order.physical_shape(shape)
    assert bool(guarded.conversions) != order.equivalent(DimOrder(*fed), shape)
    back = restore(Contract((), (spec,)), [physical])
    assert torch.equal(back.tensors[0], tensor) and back.conversions == ()


def test_an_output_in_another_order_than_promised_is_not_handed_on():
    contract = Contract((), (TensorSpec("logits", (2, 6, 5, 7), "float32", NHWC),))
    assert restore(contract, [X]).tensors[0].stride() == NHWC.strides(X.shape)
    with pytest.raises(ContractError, match="output 'logits', promised in NHWC"):
        restore(contract, [X], "error")


@pytest.mark.parametrize("boundary", ["logical", "physical"])
@pytest.mark.parametrize("order", [NCHW, NHWC, DimOrder(1, 2, 3, 0), DimOrder(3, 0, 2, 1)])
@pytest.mark.parametrize("name", [*WRONG, *RIGHT, "as promised by that order", "negated", "int32", "smaller"])
def test_the_quick_way_takes_what_lies_to_the_letter_and_gives_what_the_long_way_gives(name, order, boundary):
    ordered = X.permute(order.dims).contiguous().permute(order.inverse.dims)
    negated = torch.view_as_complex(numbers(2, 6, 5, 7, 2)).conj().imag
    odd = {"as promised by that order": ordered, "negated": negated, "int32": ordered.int(), "smaller": X[:1]}
    tensor = {**WRONG, **RIGHT, **odd}[name]
    contract = one(tuple(X.shape), order, boundary=boundary)
    taken = quick_check(contract)([tensor])
    if taken is None:
        exact = (tensor.dtype, tensor.shape, tensor.stride()) == contract.inputs[0].memory_of(tuple(X.shape))
        assert not exact or name in ("negated", "a parameter")
        return
    (slowly,) = check(contract, [tensor], "error").tensors
    assert taken[0].data_ptr() == slowly.data_ptr() == tensor.data_ptr()
    assert (taken[0].shape, taken[0].stride()) == (slowly.shape, slowly.stride())
    assert not taken[0].requires_grad
    back = Contract((), (TensorSpec("y", tuple(X.shape), "float32", order, boundary),))
    (given,), (wanted,) = quick_restore(back)(taken), restore(back, taken, "error").tensors
    assert (given.shape, given.stride(), given.data_ptr()) == (
        wanted.shape,
        wanted.stride(),
        tensor.data_ptr(),
    )


def test_the_quick_way_takes_no_other_number_of_tensors():
    fixed = one((2, 6, 5, 7), NCHW)
    assert quick_check(fixed)([]) is None and quick_check(fixed)([X, X]) is None
    assert quick_restore(Contract((), fixed.inputs))([X.permute(0, 2, 3, 1)]) is None


RANGES = (Symbol("N", 2, 6, 2), Symbol("W", 3, 9))


@pytest.mark.parametrize("boundary", ["logical", "physical"])
@pytest.mark.parametrize("order", [NCHW, NHWC, DimOrder(3, 0, 2, 1)])
def test_the_quick_way_takes_symbols_of_every_size_in_their_ranges(order, boundary):
    specs = (
        TensorSpec("x", ("N", 6, 5, "W"), "float32", order, boundary),
        TensorSpec("y", ("N", 3), "float32", DimOrder(0, 1)),
    )
    contract = Contract(specs, specs, symbols=RANGES)
    take, give = quick_check(contract), quick_restore(contract)
    for n, w in ((2, 7), (4, 3), (2, 7), (6, 9)):
        ordered = order.physical_shape((n, 6, 5, w))
        tensors = [numbers(*ordered).permute(order.inverse.dims), numbers(n, 3)]
        slowly = check(contract, tensors, "error").tensors
        for quick, wanted in ((take(tensors), slowly), (give(slowly), tensors)):
            assert [(t.data_ptr(), t.shape, t.stride()) for t in quick] == [
                (t.data_ptr(), t.shape, t.stride()) for t in wanted
            ]
        assert take([tensors[0].clone(memory_format=torch.contiguous_format).mT, tensors[1]]) is None
    for shape, n in (((3, 6, 5, 7), 3), ((8, 6, 5, 7), 8), ((2, 6, 5, 2), 2), ((2, 6, 5, 7), 4)):
        tensors = [numbers(*order.physical_shape(shape)).permute(order.inverse.dims), numbers(n, 3)]
        assert take(tensors) is None
        with pytest.raises(ContractError):
            check(contract, tensors, "error")
    assert take([numbers(2, 6, 5), numbers(2, 3)]) is None and take(["x", numbers(2, 3)]) is None


def test_the_quick_way_forgets_sizes_where_there_are_many():
    contract = Contract((TensorSpec("x", ("n", 3), "float32", DimOrder(0, 1)),), ())
    take = quick_check(contract)
    for n in [*range(1, 150), *range(1, 150)]:
        assert take([torch.zeros(n, 3)]) is not None


@pytest.mark.parametrize("on_mismatch", ["adapt", "error", "warn"])
@pytest.mark.parametrize(
    ("contract", "tensors", "says", "fix"),
    [
        (one((2, 3), DimOrder(0, 1)), [], "0 where 1 are promised", "pass exactly: image"),
        (one((2, 3), DimOrder(0, 1)), [numbers(2, 3)] * 2, "2 where 1 are promised", "pass exactly: image"),
        (
            one((2, 3), DimOrder(0, 1)),
            [numbers(2, 3).numpy()],
            "a numpy.ndarray",
            "image = torch.as_tensor(image)",
        ),
        (one((2, 3), DimOrder(0, 1)), [[numbers(2, 3)]], "a list", "pass each tensor by itself"),
        (
            one((2, 3), DimOrder(0, 1)),
            [numbers(2, 3).to_sparse()],
            "torch.sparse_coo",
            "image = image.to_dense()",
        ),
        *(
            (
                one((2, 4, 3), DimOrder(0, 1, 2)),
                [torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=layout)],
                "a nested tensor",
                r"image = torch.nested.to_padded_tensor(image, 0.0)",
            )
            for layout in (torch.strided, torch.jagged)
        ),
        (
            one((2, 3), DimOrder(0, 1)),
            [numbers(2, 3).double()],
            "torch.float64, where torch.float32 is promised",
            "image = image.to(torch.float32)",
        ),
        (
            one((1, 6, 5, 7), NHWC),
            [numbers(6, 5, 7)],
            "(6, 5, 7), where (1, 6, 5, 7)",
            "image = image.unsqueeze(0)",
        ),
        (
            one((2, 6, 5, 7), NHWC),
            [numbers(2, 5, 7, 6)],
            "(2, 5, 7, 6)",
            "image = image.permute(0, 3, 1, 2), if",
        ),
        (
            one((2, 6, 5, 7), NCHW),
            [numbers(2, 6, 5, 8)],
            "(2, 6, 5, 8)",
            "pass a tensor of the shape (2, 6, 5, 7)",
        ),
        (
            one(("n", 3), DimOrder(0, 1)),
            [numbers(3)],
            "shape (3,), where (n, 3)",
            "pass a tensor of the shape (n, 3)",
        ),
        (
            one((2, 3), DimOrder(0, 1)),
            [torch.empty(2, 3, device="meta")],
            "a tensor on meta",
            'image = image.to("cpu")',
        ),
        (
            Contract((TensorSpec("a b", ("n", "n"), "float32", DimOrder(0, 1)),), ()),
            [numbers(2, 3)],
            "size 3 in dim 1, where n is 2 elsewhere",
            "pass inputs that agree on n",
        ),
        (
            Contract((TensorSpec("x", ("n",), "float32", DimOrder(0)),), (), (Symbol("n", 1, 8),)),
            [numbers(9)],
            "size 9 in dim 0, where n is from 1 to 8",
            "lower the program for a wider n",
        ),
    ],
)
def test_what_is_no_matter_of_order_is_never_adapted(contract, tensors, says, fix, on_mismatch):
    with pytest.raises(ContractError) as error:
        check(contract, tensors, on_mismatch, device="cpu")
    assert says in error.value.found and fix in error.value.fix
    assert len(str(error.value).splitlines()) == 3


def test_symbols_take_any_size_that_agrees():
    spec = TensorSpec("x", ("n", 3, "h", "w"), "float32", NHWC)
    guarded = check(Contract((spec,), ()), [numbers(2, 3, 5, 7)])
    assert guarded.tensors[0].stride() == (105, 1, 21, 3)


def test_on_mismatch_is_one_of_three():
    with pytest.raises(UsageError, match="adapt, error, warn"):
        check(one((2, 6, 5, 7), NCHW), [X], "ignore")


PHOTO = TensorSpec("image", (2, 3), "uint8", DimOrder(0, 1), scale=1 / 128, zero_point=127)
REAL = torch.tensor([[0.5, -0.25, 0.0], [-0.9921875, 1.0, 0.0078125]])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (REAL, "torch.float32, where torch.uint8, scale 0.0078125, zero point 127 is promised"),
        (
            torch.quantize_per_tensor(REAL, 1 / 64, 64, torch.quint8),
            "torch.quint8 of scale 0.015625, zero point 64, "
            "where uint8, scale 0.0078125, zero point 127 is promised",
        ),
        (
            torch.quantize_per_tensor(REAL, 1 / 128, 127, torch.quint8),
            "torch.quint8, whose integers are promised",
        ),
    ],
)
def test_integers_of_another_type_or_scale_are_refused_with_the_line_that_mends_them(given, found):
    with pytest.raises(ContractError) as error:
        check(Contract((PHOTO,), ()), [given])
    assert (error.value.where, error.value.found) == ("input 'image'", found)
    held = {"image": given, "torch": torch}
    exec(error.value.fix, held)
    assert torch.equal(
        check(Contract((PHOTO,), ()), [held["image"]]).tensors[0],
        PHOTO.quantized(given.dequantize() if given.is_quantized else given),
    )
