"""What cannot be captured is told in three lines: the construct with its source line, what was found, the way
round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, map as mapped, scan, while_loop

from dimorder.errors import UnsupportedError
from dimorder.lowering.capture.captured import capture


class Net(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.function = forward
        self.kept = torch.zeros(2, 3)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def nonzero(m: Any, x: Tensor) -> Tensor:
    return x.nonzero()  # here


def masked_select(m: Any, x: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0)  # here


def item(m: Any, x: Tensor) -> Tensor:
    return x * x.sum().item()  # here


def size_of_item(m: Any, x: Tensor) -> Tensor:
    return x.new_zeros(int(x.sum().item()) + 1)  # here


def branch(m: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x + 1
    return x - 1


def loop(m: Any, x: Tensor) -> Tensor:
    for _ in range(int(x.sum())):  # here
        x = x + 1
    return x


def cond(m: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))  # here


def looped(m: Any, x: Tensor) -> Tensor:
    return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))[0]  # here


def map_(m: Any, x: Tensor) -> Tensor:
    return mapped(lambda v: v.relu(), x)  # here


def scanned(m: Any, x: Tensor) -> Tensor:
    return scan(lambda a, v: (a + v, a * v), x[0], x)[1]  # here


def scanned_in_any_order(m: Any, x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")  # here


def writes_its_input(m: Any, x: Tensor) -> Tensor:
    return x.add_(1) * 2  # here


def assigns(m: Any, x: Tensor) -> Tensor:
    m.kept = x + 1
    return x


TOLD: dict[Callable[..., Any], tuple[str, str, str]] = {}


@pytest.mark.parametrize("network", TOLD, ids=lambda network: network.__name__)
def test_a_refusal_says_what_and_where_and_the_way_round(network: Callable[..., Any]) -> None:
    place, found, fix = TOLD[network]
    lines, first = inspect.getsourcelines(network)
    number = first + next(i for i, line in enumerate(lines) if "# here" in line)
    with pytest.raises(UnsupportedError) as caught:
        capture(Net(network), (torch.rand(2, 3),))
    at = place.replace("LINE", f"test_refusals.py:{number}")
    assert str(caught.value) == f"{at}\n  found: {found}\n  fix: {fix}"
