"""Errors at certain sizes are told in the network's or in torch's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dimorder.errors import ExportError, UnsupportedError, VerificationError
from dimorder.graph.construct import replace_parts
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.point_errors import explained_at, explained_by_points


class Accepting:
    """Sizes that every operator accepts."""

    def require(self, point: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [AssertionError, RuntimeError])
def test_a_guard_of_torch_is_a_refusal(kind: type[Exception]) -> None:
    sizes: Any = Accepting()
    with pytest.raises(UnsupportedError) as refused, explained_at({"rows": 4}, sizes):
        raise kind("Guard failed: (1 + x.size()[3]) // 3 != 1\n\nWhile executing it")
    assert str(refused.value).splitlines()[1] == "  found: Guard failed: (1 + x.size()[3]) // 3 != 1"


@pytest.mark.parametrize(
    ("error", "told"), [(VerificationError, "too few sizes in N"), (ExportError, "an if on a size")]
)
def test_few_sizes_explain_no_network_that_decides_by_them(error: type[Exception], told: str) -> None:
    dims = ({0: torch.export.Dim("N", min=2, max=8)},)
    program = export_symbolic(torch.nn.ReLU(), (torch.ones(3, 5),), None, dims)
    refused = pytest.raises((UnsupportedError, ExportError), match=told)
    with refused, explained_by_points(program, [{"N": 3}, {"N": 3}]):
        raise error("output 0", "an if on a size", "narrow the ranges")


def test_an_assertion_of_dimorder_is_none() -> None:
    sizes: Any = Accepting()
    with pytest.raises(AssertionError), explained_at({"rows": 4}, sizes):
        raise AssertionError("two nodes of one name")


def test_guards_of_torch_that_begin_at_two_do_not_refuse_a_size_of_one() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    dims = ({0: torch.export.Dim("N", min=1, max=8)},)
    program = export_symbolic(Doubled(), (torch.ones(3, 5),), None, dims)
    assert program is not None
    program.exported._guards_code = ["x.size()[0] != 1"]  # as torch derives it from sizes of at least 2
    assert program.at({"N": 1})._guards_code == []
    kept = replace_parts(program.at({"N": 4}))
    assert kept._guards_code == ["x.size()[0] != 1"]
    assert replace_parts(program.at({"N": 1})).run_decompositions({}).module()(torch.ones(1, 5)).sum() == 10
