"""Test which outputs of a network no rounding leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dimorder.capture.captured import capture
from dimorder.verification.exact_outputs import exact_outputs
from tests.small_networks import Net

X = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
PLACES = torch.arange(60, dtype=torch.int32).reshape(2, 6, 5) % 7


@pytest.mark.parametrize(
    ("compute", "exact"),
    [
        (lambda m, x, i: (x + 1, i + 1, i > 3), [False, True, True]),
        (lambda m, x, i: (x > 0, (x * 2).int(), i + (x > 0)), [False, False, False]),
        (lambda m, x, i: (i + 1, i.topk(2)[1]), [False, False]),
    ],
    ids=["integers alone", "floats before", "places of equal integers"],
)
def test_an_output_is_exact_if_no_float_leads_to_it(compute: Callable[..., Any], exact: list[bool]) -> None:
    assert exact_outputs(capture(Net(compute), (X, PLACES))) == exact
