"""Test networks that select places by index, as mixtures of experts do, and write or add there."""

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

TOKENS = {"args": ({0: Dim("N", min=1, max=20)},)}


class Experts(nn.Module):
    """Computes each token by the two experts that a gate chooses, and weights what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.up = nn.ModuleList(nn.Linear(6, 14) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(7, 6) for _ in range(4))

    def expert(self, number: int, x: Tensor) -> Tensor:
        gate, up = self.up[number](x).chunk(2, -1)
        return self.down[number](F.silu(gate) * up)

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, indices = self.gate(x).softmax(-1).topk(2, -1)
        return weights / weights.sum(-1, keepdim=True), indices


class DeepSeek(Experts):
    """Adds to the rows of an expert, as DeepSeek's and litgpt's networks do."""

    def forward(self, x: Tensor) -> Tensor:
        (weights, indices), y = self.chosen(x), torch.zeros_like(x)
        for number in range(4):
            rows, which = torch.where(indices == number)
            y[rows] += weights[rows, which, None] * self.expert(number, x[rows])
        return y


class Mixtral(Experts):
    """Adds by `index_add_`, as Mixtral of transformers did."""

    def forward(self, x: Tensor) -> Tensor:
        (weights, indices), y = self.chosen(x), torch.zeros_like(x)
        masks = F.one_hot(indices, 4).permute(2, 1, 0)
        for number in range(4):
            which, rows = torch.where(masks[number])
            found = x[None, rows].reshape(-1, x.shape[-1])
            y.index_add_(0, rows, self.expert(number, found) * weights[rows, which, None])
        return y


class Slots(Experts):
    """Writes what each expert computes to a slot of its own, and sums the slots."""

    def forward(self, x: Tensor) -> Tensor:
        weights, indices = self.chosen(x)
        slots = x.new_zeros(2, x.shape[0], 6)
        for number in range(4):
            rows, which = (indices == number).nonzero().t().unbind(0)
            slots[which, rows] = self.expert(number, x.index_select(0, rows))
        return (slots * weights.t().unsqueeze(-1)).sum(0)


@pytest.mark.parametrize("experts", [DeepSeek, Mixtral, Slots])
@pytest.mark.parametrize("target", slow_but(["torch", "xnnpack", "litert"], ["torch"]))
def test_experts_compute_any_number_of_tokens(experts: Any, target: str) -> None:
    require_runtime(target)
    module = experts().eval()
    dims = ({0: Dim("N", min=1, max=20)},)
    lowered = dimorder.lower(module, (torch.randn(5, 6),), target=target, dynamic_shapes=dims)
    for tokens in (1, 5, 20):
        assert max(errors(lowered, module, torch.randn(tokens, 6))) <= 1e-5


def each_spelling_of_coordinates(_: Any, x: Tensor) -> list[Tensor]:
    mask, results = x[:, 0] > 0, []
    for rows in (
        *(mask.nonzero().squeeze(-1), mask.nonzero().flatten(), mask.nonzero()[:, 0], mask.nonzero().T[0]),
        *(torch.nonzero(mask, as_tuple=True)[0], torch.argwhere(mask).view(-1), torch.where(mask.int())[0]),
        *(mask.nonzero().unbind(1)[0].int().long(), torch.where(x[:, 0].relu())[0]),
    ):
        y = x * 2
        y[rows] = F.rms_norm(x[rows], (6,))
        results.append(y)
    y = x * 2
    y[mask] = x[torch.where(mask)[0]].sin() - x[mask]
    return [*results, y]


def repeated_rows(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    rows, columns = torch.where(x[:, :3] > 0)
    each = x[:, 3:][rows, columns, None]
    last, y = x * 2, x * 3
    last[rows] += each * x[rows]
    y[rows] = F.glu(x[rows]).sum(-1, keepdim=True).exp()
    written = (
        y.index_copy(0, rows, each + x[rows]),
        x[:, :3].index_copy(1, columns, x[:, 3:][:, columns].cos()),
    )
    added = x.index_put((rows,), each * x[rows], accumulate=True), x.index_add(0, rows, x[rows], alpha=0.5)
    numbers = (x * 8).long().index_add(0, rows, (x * 8).long()[rows])
    return last, y, *written, *added, numbers, x[rows].sum(0), (x[rows] > 0.5).sum()


def constants(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    rows, columns = torch.where(x[:, :3] > 0)
    y, z = x * 2, x[:, :3] * 3
    y[rows] = 0.5
    z[rows, columns] = 2.0
    one = torch.tensor(1.0)
    counts = torch.zeros(x.shape[0]).index_put((rows,), one, accumulate=True)
    return y, z, counts, x.index_put((rows,), one, accumulate=True)


def three_dimensions(_: Any, x: Tensor) -> tuple[Tensor, ...]:
    mask = x[:, :3, None] > x[:, None, 2:]  # (N, 3, 4)
    a, b, c = torch.where(mask)
    y, z, w = x[:, :3] * 2, x[:, :4].t() * 3, mask.float().permute(2, 0, 1) * 4
    y[a, b] += x[:, :3][a, b] * mask.float().cumsum(2)[a, b, c]
    z[c, a] += x[:, :4][a, c] * x[:, :3][a, b]
    w[c, a, b] = mask.float().cumsum(1)[a, b, c]
    return y, z, w


@pytest.mark.parametrize("target", slow_but(["torch", "xnnpack", "litert"], ["torch"]))
@pytest.mark.parametrize(
    "compute",
    [each_spelling_of_coordinates, repeated_rows, constants, three_dimensions],
    ids=lambda each: each.__name__,
)
def test_places_by_index_are_those_of_the_mask(compute: Any, target: str) -> None:
    require_runtime(target)
    module = Net(compute)
    lowered = dimorder.lower(module, (torch.randn(5, 6),), target=target, dynamic_shapes=TOKENS)
    for tokens in (1, 5, 20):
        x = torch.randn(tokens, 6)
        for each in (x, x.abs() + 0.6, -x.abs()):  # masks of some places, all and none
            assert max(errors(lowered, module, each)) <= 1e-5


def rows_of_another_mask(_: Any, x: Tensor) -> Tensor:
    y, (rows,), (others,) = x * 2, torch.where(x[:, 0] > 0), torch.where(x[:, 1] > 0)
    y[rows] = x[others].sum(0) + x[others]
    return y


def rows_beyond_the_mask(_: Any, x: Tensor) -> Tensor:
    (rows,), y = torch.where(x[1:, 0] > 0), x * 2
    y[rows] = x[rows].sin()
    return y


def coordinates_themselves(_: Any, x: Tensor) -> Tensor:
    return x[torch.where(x[:, 0] > 0)[0].flip(0)]


def a_diagonal(_: Any, x: Tensor) -> Tensor:
    (rows,), y = torch.where(x[:, 0] > 0), x[:, :5] * 2
    y[rows, rows] = x[rows, rows].sin()
    return y


@pytest.mark.parametrize(
    "compute",
    [rows_of_another_mask, rows_beyond_the_mask, coordinates_themselves, a_diagonal],
    ids=lambda each: each.__name__,
)
def test_other_places_are_refused(compute: Any) -> None:
    with pytest.raises(UnsupportedError, match="a result whose size the data decide"):
        dimorder.lower(Net(compute), (torch.randn(5, 6),), target="torch")
