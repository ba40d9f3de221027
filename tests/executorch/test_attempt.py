"""Test how a comparison of results says what differs."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("executorch")

from dimorder.executorch.attempt import disagreement


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        ([1.0, -4.0], [1.0, -4.0], ""),
        ([1.0, -4.0], [1.0, -3.0], "result 0: 1 off, on values up to 4"),
        ([1.0, math.inf], [1.0, 2.0], "result 0: another value where inf or NaN is expected"),
        ([math.nan, math.inf], [math.nan, math.inf], ""),
        ([math.nan, math.inf], [0.0, math.inf], "result 0: another value where inf or NaN is expected"),
    ],
)
def test_a_difference_is_told_with_the_largest_value(expected, found, said):
    assert disagreement([torch.tensor(expected)], [torch.tensor(found)]) == said
