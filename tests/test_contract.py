"""A contract as a value, as JSON and as a seal: what it holds and what it refuses."""

import json

import pytest
import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.capture.captured import capture
from dimorder.contract import (
    Contract,
    StateSpec,
    Symbol,
    TensorSpec,
)
from dimorder.contract_file import CONTRACT_METHOD, SEAL_METHOD, constant_methods, is_intact, seal
from dimorder.errors import ContractError, UsageError
from dimorder.plans.make_contract import make_contract

NCHW, NHWC = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)
IMAGE = TensorSpec("image", ("n", 3, 5, 7), "float32", NHWC)
SOUND = TensorSpec("sound", (2, 3, 11), "float16", DimOrder(0, 2, 1))
CONTRACT = Contract(
    (IMAGE, SOUND), (TensorSpec("image", ("2*n", 4), "int64", DimOrder(0, 1)),), (Symbol("n", 1, 8),)
)


@pytest.mark.parametrize(
    ("shape", "dims", "boundary", "boundary_shape", "boundary_order"),
    [
        ((2, 3, 5, 7), (0, 1, 2, 3), "logical", (2, 3, 5, 7), (0, 1, 2, 3)),
        ((2, 3, 5, 7), (0, 2, 3, 1), "logical", (2, 3, 5, 7), (0, 2, 3, 1)),
        ((1, 3, 5, 7), (0, 2, 3, 1), "logical", (1, 3, 5, 7), (0, 2, 3, 1)),
        ((2, 3, 5, 1), (2, 0, 1, 3), "physical", (5, 2, 3, 1), (0, 1, 2, 3)),
        ((2, 3, 5, 1), (0, 2, 1, 3), "logical", (2, 3, 5, 1), (0, 2, 3, 1)),
        ((2, 1, 5, 7), (0, 2, 3, 1), "logical", (2, 1, 5, 7), (0, 1, 2, 3)),
        ((2, 6, 1, 1), (0, 2, 3, 1), "logical", (2, 6, 1, 1), (0, 1, 2, 3)),
        ((2, 3, 5, 7), (1, 2, 3, 0), "physical", (3, 5, 7, 2), (0, 1, 2, 3)),
        ((2, 3, 5), (0, 2, 1), "physical", (2, 5, 3), (0, 1, 2)),
        ((1, 1, 5), (0, 2, 1), "logical", (1, 1, 5), (0, 1, 2)),
        (("n", "c", 1), (0, 2, 1), "logical", ("n", "c", 1), (0, 1, 2)),
        (("n", "c", "t"), (0, 2, 1), "physical", ("n", "t", "c"), (0, 1, 2)),
        ((2, 3, 5, 7, 11), (0, 2, 3, 4, 1), "physical", (2, 5, 7, 11, 3), (0, 1, 2, 3, 4)),
        ((), (), "logical", (), ()),
    ],
)
def test_a_boundary_is_logical_where_the_runtime_can_be_given_it(
    shape, dims, boundary, boundary_shape, boundary_order
):
    spec = TensorSpec("x", shape, "float32", DimOrder(*dims))
    assert (spec.boundary, spec.boundary_shape, spec.boundary_order.dims) == (
        boundary,
        boundary_shape,
        boundary_order,
    )


def test_a_boundary_can_be_chosen():
    assert TensorSpec("x", (2, 3, 5, 7), "float32", NHWC, "physical").boundary_shape == (2, 5, 7, 3)
    assert TensorSpec("x", (2, 3, 5), "float32", DimOrder(0, 2, 1), "logical").boundary_order == DimOrder(
        0, 2, 1
    )


def test_json_round_trips_and_is_stable():
    text = CONTRACT.to_json()
    assert Contract.from_json(text) == CONTRACT
    assert Contract.from_json(text).to_json() == text
    assert text.isascii() and "\n" not in text


def test_json_says_what_another_reader_needs():
    data = json.loads(CONTRACT.to_json())
    assert (data["format"], data["version"]) == ("dimorder.contract", 1)
    assert data["inputs"][0] == {
        "name": "image",
        "shape": ["n", 3, 5, 7],
        "dtype": "float32",
        "dim_order": [0, 2, 3, 1],
        "order": "NHWC",
        "boundary": "logical",
    }
    assert data["symbols"] == [{"name": "n", "minimum": 1, "maximum": 8}]


def test_a_contract_is_hashable():
    assert len({CONTRACT, Contract.from_json(CONTRACT.to_json())}) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(format="other"), "format 'other'"),
        (lambda d: d.pop("format"), "no JSON of the format"),
        (lambda d: d.pop("symbols"), "KeyError('symbols')"),
        (lambda d: d["inputs"][0].pop("shape"), "KeyError('shape')"),
        (lambda d: d["inputs"][0].update(dim_order=[0, 1]), "dim order NC for shape ('n', 3, 5, 7)"),
        (lambda d: d["inputs"][0].update(dim_order=[0, 1, 1, 1]), "not a permutation"),
        (lambda d: d["inputs"][0].update(dtype="float31"), "dtype 'float31'"),
        (lambda d: d["inputs"][0].update(boundary="odd"), "boundary 'odd'"),
        (lambda d: d["inputs"][0].update(shape=[-1, 3, 5, 7]), "-1 is no size"),
        (lambda d: d["inputs"][0].update(shape=[1.5, 3, 5, 7]), "1.5 is no size"),
        (lambda d: d.update(inputs=7), "a wrong type"),
        (lambda d: d["inputs"][0].update(scale="a"), "a wrong type"),
        (lambda d: d["inputs"][0].update(scale=10**400), "a wrong type"),
        (lambda d: d["symbols"][0].update(minimum=9), "range 9 to 8"),
    ],
)
def test_json_that_to_json_did_not_write_is_an_error_of_three_lines(change, says):
    data = CONTRACT.to_dict()
    change(data)
    with pytest.raises(ContractError) as error:
        Contract.from_json(json.dumps(data))
    assert says in str(error.value) and len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '"text"', "null"])
def test_text_that_is_no_contract_is_an_error_of_three_lines(text):
    with pytest.raises(ContractError) as error:
        Contract.from_json(text)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TensorSpec("", (2,), "float32", DimOrder(0)), "name ''"),
        (lambda: TensorSpec("x", ("",), "float32", DimOrder(0)), "'' is no size"),
        (lambda: TensorSpec("x", (2, 3), "float32", DimOrder(0)), "dim order (0,) for shape (2, 3)"),
        (lambda: Contract((IMAGE, IMAGE), ()), "['image'] more than once"),
        (
            lambda: Contract((TensorSpec("x", ("2*n",), "float32", DimOrder(0)),), ()),
            "computed sizes ['2*n']",
        ),
        (lambda: Symbol("2*n"), "symbol '2*n'"),
    ],
)
def test_a_contract_that_cannot_be_meant_is_an_error_of_three_lines(make, says):
    with pytest.raises(UsageError) as error:
        make()
    assert says in str(error.value) and len(str(error.value).splitlines()) == 3


def test_print_is_a_table():
    assert str(CONTRACT).splitlines() == [
        "input   image  n x 3 x 5 x 7  float32  NHWC (0, 2, 3, 1)",
        "input   sound  2 x 3 x 11     float16  NLC (0, 2, 1)",
        "output  image  2*n x 4        int64    NC (0, 1)",
    ]


def test_a_seal_tells_every_single_changed_byte():
    methods = constant_methods(CONTRACT)
    assert Contract.from_json(methods[CONTRACT_METHOD]) == CONTRACT
    program = b"ET12 some program " + f"{SEAL_METHOD} {methods[SEAL_METHOD]}".encode() + b" its weights"
    assert is_intact(program) is None
    sealed = seal(program)
    assert is_intact(sealed) is True and len(sealed) == len(program)
    for place in range(len(sealed)):
        damaged = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        assert is_intact(damaged) is False
    assert is_intact(b"ET12 a program of another tool") is None


@pytest.mark.parametrize("program", [b"no room", seal(b"dimorder sha256 " + b"0" * 64), b"dimorder sha256 "])
def test_what_has_no_room_for_a_seal_cannot_be_sealed(program):
    with pytest.raises(UsageError):
        seal(program)


def test_a_contract_says_what_integers_stand_for():
    photo = TensorSpec("x", (1, 3, 5, 7), "uint8", NHWC, None, 1 / 128, 127)
    contract = Contract((photo,), (TensorSpec("y", (1, 4), "float32", DimOrder(0, 1)),))
    assert Contract.from_json(contract.to_json()) == contract
    told = contract.to_dict()
    assert (told["inputs"][0]["scale"], told["inputs"][0]["zero_point"]) == (1 / 128, 127)
    assert "scale" not in told["outputs"][0]
    assert "uint8, scale 0.0078125, zero point 127" in str(contract)


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "found"),
    [
        ("float32", 0.5, 0, "a scale, of float32"),
        ("uint8", -0.5, 0, "scale -0.5, zero point 0 in uint8"),
        ("uint8", 0.5, 256, "scale 0.5, zero point 256 in uint8"),
        ("int8", None, 3, "a zero point without a scale"),
    ],
)
def test_scales_that_nothing_can_stand_for_are_refused(dtype, scale, zero_point, found):
    with pytest.raises(UsageError) as error:
        TensorSpec("x", (2, 3), dtype, DimOrder(0, 1), None, scale, zero_point)
    assert (error.value.where, error.value.found) == ("tensor 'x'", found)


def test_state_travels_in_the_contract_and_is_no_input():
    x = TensorSpec("x", (2, 3), "float32", DimOrder(0, 1))
    state = StateSpec("last.frames", (1, 8, 4), "float32", "NLC (0, 2, 1)")
    contract = Contract((x,), (x,), state=(state,))
    assert Contract.from_json(contract.to_json()) == contract
    assert str(contract).splitlines() == [
        "input   x            2 x 3      float32  NC (0, 1)",
        "output  x            2 x 3      float32  NC (0, 1)",
        "state   last.frames  1 x 8 x 4  float32  NLC (0, 2, 1)",
    ]
    assert "state" not in json.loads(Contract((x,), (x,)).to_json())
    with pytest.raises(UsageError, match="more than once"):
        Contract((x,), (x,), state=(state, state))


@pytest.mark.parametrize(
    ("orders", "found", "fix"),
    [
        (
            "NHCW",
            "NHCW fits no input of shape (2, 3, 5, 7): no order of this name for 4 dims",
            "give one of NC",
        ),
        (
            "NLC",
            "NLC fits no input of shape (2, 3, 5, 7): an order of 3 dims for a tensor of 4",
            "give an order",
        ),
        (torch.preserve_format, "torch.preserve_format fits no input", "give one of NCHW"),
        ({"x": "NHWC"}, "a dict", "give a list with one order per input"),
        ((0, 2, 3, 1), "(0, 2, 3, 1), which is one order", "write DimOrder(0, 2, 3, 1)"),
    ],
    ids=str,
)
def test_orders_that_no_input_can_have_are_refused_with_those_that_it_can_have(orders, found, fix):
    with pytest.raises(UsageError) as caught:
        make_contract(capture(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),)), orders, None)
    assert caught.value.where == "input orders"
    assert caught.value.found.startswith(found) and caught.value.fix.startswith(fix)
