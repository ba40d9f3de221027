"""Every operator of TOSA gives PyTorch's numbers on the reference model. Calls of physical programs run as
they stand. Networks are lowered, and their graphs hold the TRANSPOSEs of the plan and no other."""

from __future__ import annotations

from functools import cache

import pytest
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("tosa_serializer")

from dimorder.lowered import Lowered
from dimorder.targets.tosa.ops import OPERATORS
from tests.targets.cases import Net, r
from tests.targets.reached import unreached
from tests.targets.tosa_cases import CALLS
from tests.targets.tosa_cases import CASES as SHARED
from tests.targets.tosa_pointwise_cases import TOSA_ALONE
from tests.targets.tosa_runs import compare, compare_lowered

CASES = {**SHARED, **TOSA_ALONE}


@cache
def lowered(name: str) -> Lowered:
    function, inputs, constants = CASES[name]
    return compare_lowered(Net(function, constants), inputs)


@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str) -> None:
    function, inputs, constants = CALLS[name]
    compare(Net(function, constants), inputs)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    assert lowered(name).artifact.delegates == 1


def test_each_row_is_reached_by_a_network() -> None:
    assert unreached(OPERATORS, map(lowered, CASES)) == set()


def test_a_layer_norm_of_pieces_takes_turns_with_more_dimensions_than_tosa_has() -> None:
    def norm(x: Tensor) -> Tensor:
        patches = x.view(3, 3, 2, 2, 4, 3, 5).permute(1, 3, 5, 4, 6, 2, 0).reshape(18, 120)
        return F.layer_norm(patches, (120,)).exp().sum(1)

    compare_lowered(Net(norm, ()), (r(3, 6, 8, 15),))
