"""dimorder::Program beside `dimorder.load`, on lowered networks: equal outputs, refusals, warnings, counts.

Both get the same memory. Outputs are compared bit for bit, texts character for character.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.contract import Contract, TensorSpec
from tests.device.guarded_programs import (
    FED,
    INVALID_ARGUMENT,
    NHWC,
    PROGRAMS,
    Pair,
    file_of,
    numbers,
    refused,
    right_inputs,
)
from tests.device.native_fixture import MODES, NativeError, NativeProgram, views
from tests.runtime.networks import Pointwise, export_pte

pytestmark = pytest.mark.usefixtures("guard_native")


def _pairs() -> Iterator[Any]:
    """Yield each program with each way to feed it; quick are the right one, and each other one once."""
    for (i, name), (j, fed) in product(enumerate(PROGRAMS), enumerate(FED)):
        is_quick = fed == "as promised" or j % len(PROGRAMS) == i
        yield pytest.param(name, fed, marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "fed"), list(_pairs()))
def test_a_tensor_gets_the_answer_that_it_gets_in_python(name: str, fed: str) -> None:
    contract = dimorder.load(file_of(name)).contract
    for index in range(len(contract.inputs)):
        tensors = right_inputs(contract)
        tensors[index] = FED[fed](tensors[index])
        refused = {}
        for mode in MODES:
            pair = Pair(file_of(name), mode)
            refused[mode] = pair.agree(tensors).error
            pair.agree(right_inputs(contract))  # whatever came before
        if fed == "as promised":
            assert set(refused.values()) == {""}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_answers_all_of_them_in_turn(name: str, mode: str) -> None:
    pair = Pair(file_of(name), mode)
    contract = pair.python.contract
    for size in (0, 1, 0):
        for fed in FED.values():
            tensors = right_inputs(contract, size)
            pair.agree([fed(tensors[0]), *tensors[1:]])
            pair.agree([*tensors[:-1], fed(tensors[-1])])
    pair.agree([])
    pair.agree([*right_inputs(contract), torch.zeros(1)])
    assert pair.agree(right_inputs(contract)).error == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_in_order_are_neither_converted_nor_copied(name: str) -> None:
    program = NativeProgram(file_of(name), "error")
    contract = dimorder.load(file_of(name)).contract
    for size in (0, 1, 1, 0):
        program.run(*right_inputs(contract, size))
    stats = program.stats
    assert (stats.calls, stats.conversions, stats.cost_bytes, stats.last_conversions) == (4, 0, 0, 0)


@pytest.mark.parametrize("name", ["NHWC", "NLC", "two", "foreign"])
def test_the_latest_call_is_counted_apart(name: str) -> None:
    program = NativeProgram(file_of(name))
    right = right_inputs(dimorder.load(file_of(name)).contract)
    wrong = [FED["batch fastest"](tensor) for tensor in right]
    program.run(*wrong)
    program.run(*wrong)
    stats, cost = program.stats, sum(tensor.nbytes for tensor in right)
    assert (stats.conversions, stats.cost_bytes) == (2 * len(right), 2 * cost)
    assert (stats.last_conversions, stats.last_cost_bytes) == (len(right), cost)
    program.run(*right)
    assert (program.stats.last_conversions, program.stats.last_cost_bytes) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["NHWC", "NLC", "dynamic", "two", "foreign"])
def test_a_null_pointer_is_refused(name: str, mode: str) -> None:
    program, tensors = NativeProgram(file_of(name), mode), right_inputs(dimorder.load(file_of(name)).contract)
    for _ in range(2):
        given = views(tensors)
        given[len(tensors) - 1].data = None
        with pytest.raises(NativeError, match="no memory") as error:
            program.run_views(given)
        assert error.value.code == INVALID_ARGUMENT and len(str(error.value).splitlines()) == 3
        program.run(*tensors)


@pytest.mark.parametrize(
    ("rank", "found"),
    [
        (-1, "sizes, strides or an order that do not belong together"),  # what Tensor::in_order gives then
        (17, "17 dimensions"),
        (1000, "1000 dimensions"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(rank: int, found: str) -> None:
    program, tensors = NativeProgram(file_of("NHWC")), right_inputs(dimorder.load(file_of("NHWC")).contract)
    given = views(tensors)
    given[0].rank = rank
    with pytest.raises(NativeError, match=f"found: {found}"):
        program.run_views(given)


def test_sizes_of_two_calls_are_not_mixed() -> None:
    """The first call is refused at its first input; the second would have been taken for one seen before."""
    pair = Pair(file_of("two dynamic"), "error")
    small, large = (right_inputs(pair.python.contract, size) for size in (0, 1))
    pair.agree(small)
    assert "promised in NCHW" in pair.agree([FED["channels last"](large[0]), large[1]]).error
    assert "elsewhere in this call" in pair.agree([large[0], small[1]]).error
    assert pair.agree(small).error == ""


def test_a_contract_that_misdescribes_its_program_is_refused(tmp_path: Path) -> None:
    specs = (
        (TensorSpec("x", (2, 6, 5, 7), "float32", NHWC),),
        (TensorSpec("y", (2, 6, 5, 7), "float32", NHWC),),
    )
    path = tmp_path / "misdescribed.pte"
    path.write_bytes(export_pte(Pointwise(), (numbers(2, 6, 5, 7),), Contract(*specs)))
    assert refused(path) == "a contract that is not the program's: for input 0 that has another order"
