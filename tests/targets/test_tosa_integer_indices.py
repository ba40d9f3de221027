"""On target tosa, quantised values are read and written at computed positions: their integers are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("tosa_serializer")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from tests.small_networks import Net
from tests.targets.quantised import by_arm, quantised

aten = torch.ops.aten

X = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
V = torch.randn(2, 7, generator=torch.Generator().manual_seed(2)).clamp(-2, 2)
MANY = torch.randn(1031, 64, generator=torch.Generator().manual_seed(4)).clamp(-2, 2)
ROWS, COLUMNS = torch.tensor([2, 0]), torch.tensor([4, 1])
FROM_END, TWICE = COLUMNS - 5, torch.tensor([1, 1])
OF_ROWS = torch.tensor([[[0], [4], [2]], [[1], [1], [3]], [[2], [0], [4]]]).expand(3, 3, 7).contiguous()

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], set[str]]] = {
    "rows": (lambda m, x, i: torch.relu(x.index_select(1, i)), (X, COLUMNS), {"GATHER"}),
    "rows of a transpose": (lambda m, x, i: x.mT.index_select(2, i.int()) * 2, (X, COLUMNS), {"GATHER"}),
    "pairs, one from the end": (
        lambda m, x, i, j: x[i, j],
        (X, ROWS, FROM_END),
        {"GATHER", "GREATER", "SELECT"},
    ),
    "a position for each element": (lambda m, x, i: x.gather(1, i), (X, OF_ROWS), {"GATHER"}),
    "rows written": (
        lambda m, x, v, i, j: aten.index_put(x, [i, j], v),
        (X, V, ROWS, COLUMNS),
        {"EQUAL", "SELECT", "REDUCE_MAX", "REDUCE_ANY"},
    ),
    "rows added up": (  # Arm's quantizer writes a sum of the rows at their places
        lambda m, x, v, i, j: aten.index_put(x, [i, j], v, accumulate=True),
        (X, V, ROWS, COLUMNS),
        {"GATHER", "REDUCE_MAX"},
    ),
    "many rows written": (  # so many that their places are not compared with all others
        lambda m, x, v, i: aten.index_put(x, [i], v),
        (MANY, MANY[300:600].flip(0), torch.arange(300) * 3 % 1031),
        {"SCATTER"},
    ),
    "rows written into zeros": (
        lambda m, v, i: aten.index_put(torch.zeros(5, 7), [i], v),
        (V, COLUMNS),
        {"EQUAL", "SELECT", "REDUCE_MAX", "REDUCE_ANY"},
    ),
    "unpooled": (
        lambda m, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(5, 7)),
        (X,),
        {"EQUAL", "SELECT"},
    ),
    "the largest": (lambda m, x: (x * 2).topk(3, 1)[0], (X,), {"GATHER", "REDUCE_SUM"}),
    "a sorted dimension": (lambda m, x: (x * 2).sort(-1)[0], (X,), {"GATHER", "REDUCE_SUM"}),
    "rows of the largest scores": (
        lambda m, x: torch.relu(x).gather(1, x.amax(-1, keepdim=True).topk(2, 1)[1].expand(3, 2, 7)),
        (X,),
        {"GATHER", "REDUCE_SUM", "REDUCE_MAX"},
    ),
    "a row written twice": (lambda m, x, v, i: aten.index_put(x, [i, i], v), (X, V, TWICE), {"REDUCE_MAX"}),
}
# Networks whose integers are written by hand.
ONE, OTHER = (0.0247, 5), (0.0313, -17)
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "rows of a constant": (
        lambda m, x, i: quantised(x, *ONE)[:2, 0] + m.table[i],
        (X, ROWS),
        "of a constant",
    ),
    "rows written into a constant": (
        lambda m, v, i: aten.index_put(m.table, [i], quantised(v, *ONE)),
        (V, ROWS),
        "written into a constant of which no integers stand for the numbers",
    ),
    "rows added up": (
        lambda m, x, v, i: aten.index_put(quantised(x, *ONE), [i, i], quantised(v, *ONE), True),
        (X, V, ROWS),
        "numbers added up at places",
    ),
    "rows of another scale": (
        lambda m, x, v, i: aten.index_put(quantised(x, *ONE), [i, i], quantised(v, *OTHER)),
        (X, V, ROWS),
        "different scales",
    ),
}


@cache
def network(name: str, recipe: str = "int8") -> torch.nn.Module:
    function, inputs, _ = CASES[name]
    return by_arm(Net(function), *inputs, recipe=recipe)


@cache
def lowered(name: str, recipe: str = "int8") -> Lowered:
    return dimorder.lower(network(name, recipe), CASES[name][1], target="tosa", run_artifact=True)


@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
@pytest.mark.parametrize("name", CASES)
def test_the_reference_model_gives_the_quantised_networks_integers(name: str, recipe: str) -> None:
    _, inputs, operators = CASES[name]
    made = lowered(name, recipe)
    assert made.verified.artifact_ran and operators <= inspect_tosa(made.artifact.data).operators.keys()
    wanted, (of,) = network(name, recipe)(*inputs), made.contract.outputs
    given = [
        spec.quantized(x) if x.is_floating_point() else x
        for spec, x in zip(made.contract.inputs, inputs, strict=True)
    ]
    (got,) = made.artifact.run(given)
    assert torch.equal(of.real(got), wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_integers_is_refused_with_the_reason(name: str) -> None:
    function, inputs, reason = REFUSED[name]
    table = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    net = Net(lambda m, *given: quantised(function(m, *given), *OTHER), table=table)
    with pytest.raises(UnsupportedError, match=reason):
        dimorder.lower(net, inputs, target="tosa")


def test_rows_are_requantised() -> None:
    net = Net(lambda m, x, i: quantised(quantised(x, *ONE).index_select(1, i), *OTHER))
    made = dimorder.lower(net, (X, COLUMNS), target="tosa", run_artifact=True)
    operators = inspect_tosa(made.artifact.data).operators
    assert made.verified.artifact_ran and (operators["GATHER"], operators["TABLE"]) == (1, 1)


def test_rows_of_a_value_are_written_into_itself() -> None:
    def moved(m: torch.nn.Module, x: Tensor, i: Tensor) -> Tensor:
        y = quantised(x, *ONE)
        return quantised(aten.index_put(y, [i], y), *ONE)

    inputs = X, torch.tensor([2, 0, 1])
    made = dimorder.lower(Net(moved), inputs, target="tosa", run_artifact=True)
    (got,) = made.artifact.run([made.contract.inputs[0].quantized(X), inputs[1]])
    assert torch.equal(made.contract.outputs[0].real(got), moved(torch.nn.Module(), *inputs))


def test_ethos_u85_reads_and_writes_rows() -> None:
    pytest.importorskip("ethosu")
    net = Net(lambda m, x, v, i: aten.index_put(x, [ROWS, COLUMNS], v).index_select(1, i))
    inputs = (X, V, COLUMNS.int())
    made = dimorder.lower(by_arm(net, *inputs), inputs, target="ethos-u85-256")
    npu = made.artifact.npu
    assert npu is not None
    assert (made.artifact.delegates, npu.cpu_operators) == (1, 0)


def test_integers_of_a_constant_are_read_at_computed_positions() -> None:
    """As the types of tokens are, which RoBERTa gathers from a buffer."""
    net = Net(
        lambda m, x, i: (quantised(x, *ONE), m.types[:1].expand(3, 5).gather(1, i * 2 % 5)),
        types=torch.arange(10).reshape(2, 5) % 3,
    )
    inputs = X, torch.tensor([[0, 3, 1], [2, 4, 4], [1, 0, 2]])
    made = dimorder.lower(net, inputs, target="tosa", run_artifact=True)
    assert made.verified.artifact_ran and "GATHER" in inspect_tosa(made.artifact.data).operators
    _, got = made.artifact.run([made.contract.inputs[0].quantized(X), inputs[1]])
    assert torch.equal(got.long(), net(*inputs)[1])
