"""Test networks that compute of places under a mask, and write there: the mask chooses between all places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import dimorder
from dimorder.errors import UnsupportedError
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import errors
from tests.small_networks import Net


class Masked(nn.Module):
    """Writes hues of colours, a slope for negative elements, and a linear of some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        most, span = x.amax(1), x.amax(1) - x.amin(1) + 0.1
        hue = torch.zeros_like(most)
        for i in range(3):
            hue[x[:, i] == most] = 2.0 * i + ((x[:, i - 2] - x[:, i - 1]) / span)[x[:, i] == most]
        leaky = x * 1.5
        leaky[leaky < 0] = (leaky[leaky < 0] * 0.1).exp()
        rows = x.sum(-1) > 0
        changed = x.clone()
        changed[rows] = self.linear(x[rows]).double().relu().float() + x[rows] * x.mean((0, 1, 2))
        changed[rows] = changed[rows].softmax(-1) + x[rows].mean(1, keepdim=True).contiguous()
        rest = x.masked_scatter(x > 0.5, x.masked_select(x > 0.5) * 3)
        columns = x[0, :, 0, 1] > 0
        rest[:, columns] = rest[:, columns].sin()
        return hue, leaky, changed, rest


@pytest.mark.parametrize("target", slow_but(["torch", "xnnpack", "litert"], ["xnnpack"]))
def test_what_is_computed_under_a_mask_is_chosen_by_it(target: str) -> None:
    require_runtime(target)
    module = Masked().eval()
    dims = ({0: Dim("N", min=1, max=6), 2: Dim("H", min=2, max=9)},)
    lowered = dimorder.lower(module, (torch.randn(2, 3, 4, 5),), target=target, dynamic_shapes=dims)
    for pictures, rows in ((1, 2), (6, 9), (3, 7)):
        x = torch.randn(pictures, 3, rows, 5)
        assert max(errors(lowered, module, x)) <= 1e-5
        assert max(errors(lowered, module, x.abs() + 0.6)) <= 1e-5  # one mask has all places, one has none


def by_another_mask(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    values = y[y < 0]
    y = y + 1
    y[y < 1.0] = values * 2
    return y


def by_the_places_before(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    y[x > 0] = x[x > 0].cumsum(0)
    return y


def by_integers_that_may_be_zero(_: Any, x: Tensor) -> Tensor:
    y = (x * 8).long()
    y[x > 0.2] = y[x > 0.2] // (x * 8).long()[x > 0.2]
    return y


def by_the_number_of_places(_: Any, x: Tensor) -> Tensor:
    y = x * 2
    y[x > 0] = x[x > 0] / x[x > 0].shape[0]
    return y


def by_an_operator_that_asks_whether_there_are_places(_: Any, x: Tensor) -> Tensor:
    rows = x[:, 0] > 0
    return F.cross_entropy(x[rows], torch.arange(x.shape[0])[rows])


def numbers_of_places(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    rows, colours = x[..., 0] > 0, x[0, :, 0, 1] > 0
    found = x[rows]
    losses = (found.exp().sum(-1).log() - found[:, 1]).mean(), x[x > 0.5].sum() / (x > 0.5).sum()
    sums = (
        found.sum(0),
        found.mean((0, 1)),
        found.mean(0, keepdim=True),
        x[:, colours].sum((1, 3), keepdim=True),
    )
    return *losses, *sums, x[rows].half().mean().float(), (x[rows] > 0).sum()


def rows_of_other_shapes(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    rows, y = x[..., 0] > 0, x * 2
    found = x[rows].view(-1, x.shape[-1])
    y[rows] = F.normalize(found, dim=-1)
    pairs = (found.unsqueeze(1) * found.unsqueeze(2)).flatten(1).unflatten(1, (5, 5)).sum(1)
    z = torch.index_put(x, (rows,), pairs - x[rows].mean(0))
    return (
        y,
        z,
        torch.index_put(
            x, (rows,), found[:, 1:2].squeeze(1).unsqueeze(1).expand(-1, 5) / found.std(1)[:, None]
        ),
    )


def rows_by_matrices(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    rows, of_one, y = x[..., 0] > 0, x[:, 0, 0, 0] > 0, x * 2
    matrix = torch.arange(25.0).view(5, 5) / 25
    found = x[rows]
    y[rows] = found.max(-1, keepdim=True)[0] - found.mm(matrix) * matrix[1:2] / (found.min(1)[0][:, None] - 9)
    return y, x[:, 0, 0].index_put((of_one,), x[:, 0, 0][of_one].mm(matrix))


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
@pytest.mark.parametrize(
    "compute", [numbers_of_places, rows_of_other_shapes, rows_by_matrices], ids=lambda each: each.__name__
)
def test_sums_and_shapes_of_places_are_those_of_all(compute: Any, target: str) -> None:
    require_runtime(target)
    dims = {"args": ({0: Dim("N", min=1, max=6)},)} if target != "litert" else None
    lowered = dimorder.lower(Net(compute), (torch.randn(2, 3, 4, 5),), target=target, dynamic_shapes=dims)
    for pictures in (1, 2, 4) if dims else (2,):
        x = torch.randn(pictures, 3, 4, 5)
        assert max(errors(lowered, Net(compute), x)) <= 1e-5


@pytest.mark.parametrize("compute", [torch.sum, torch.mean])
def test_no_places_have_torchs_sum_and_mean(compute: Any) -> None:
    lowered = dimorder.lower(Net(lambda _, x: compute(x[x > 0])), (torch.randn(3, 4),), target="torch")
    x = -torch.ones(3, 4)
    torch.testing.assert_close(lowered(x), compute(x[x > 0]), equal_nan=True)


@pytest.mark.parametrize(
    "compute",
    [
        by_another_mask,
        by_the_places_before,
        by_an_operator_that_asks_whether_there_are_places,
        by_integers_that_may_be_zero,
        by_the_number_of_places,
    ],
    ids=lambda compute: compute.__name__,
)
@pytest.mark.parametrize("dims", [None, {"args": ({0: Dim("N", min=2, max=9)},)}], ids=["fixed", "dynamic"])
def test_what_depends_on_other_places_is_refused(compute: Any, dims: Any) -> None:
    with pytest.raises(UnsupportedError, match="a result whose size the data decide"):
        dimorder.lower(Net(compute), (torch.randn(3, 4),), target="torch", dynamic_shapes=dims)
