"""Test that rows of a state are written in place, unless something still reads the rows from before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import DimorderError


class Cache(nn.Module):
    """Writes rows of a buffer at positions that are an input."""

    def __init__(self, write: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.write = write
        for seed, name in enumerate(("rows", "other")):
            self.register_buffer(name, torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return self.write(self, x, at)


def drawn(length: int, call: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(call, call + length) % 6
    return torch.randn(length, 6, generator=torch.Generator().manual_seed(call)), at


def attends(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    return torch.softmax(m.rows @ m.rows.sum(0, keepdim=True).T, 0)


def writes_columns(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[:, at] = x.T
    return m.rows * 2


def reads_before(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    before = m.rows.clone()
    m.rows[at] = x
    return before.reshape(4, 9) + m.rows.reshape(4, 9)


def returns(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    return m.rows


def returns_view(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    return m.rows.reshape(4, 9)


def keeps_transposed(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    m.other.copy_(m.rows.T)
    return m.rows @ m.other


def keeps_twice(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    m.other.copy_(m.rows.reshape(4, 9).reshape(6, 6))
    return m.rows @ m.other


def swaps(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    before = m.rows.clone()
    m.rows.copy_(m.other)
    m.other.copy_(before.index_put((at,), x))
    return m.rows - m.other


def writes_twice(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    middle = m.rows * 2
    m.rows[at - 1] = x * 3
    return middle + m.rows


def writes_itself(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows.copy_(m.rows.index_put((at,), m.rows))
    return m.rows + x


def adds(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows.index_put_((at,), x, accumulate=True)
    return m.rows * 2


def repeats_value(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x[:1]
    return m.rows * 2


def writes_elements(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at, at] = x[:, 0]
    return m.rows * 2


def writes_at_a_table(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at[None]] = x[None]
    return m.rows * 2


def compares_view(m: Cache, x: Tensor, at: Tensor) -> Tensor:
    m.rows[at] = x
    return (m.rows.reshape(4, 9) > 0).int()


IN_PLACE = {attends: 1, writes_columns: 1, returns: 1, returns_view: 1, keeps_transposed: 1, keeps_twice: 1}
NOT = (reads_before, compares_view, swaps, writes_twice, writes_itself)
NOT += (adds, repeats_value, writes_elements, writes_at_a_table)
CASES = {**IN_PLACE, **dict.fromkeys(NOT, 0)}


@pytest.mark.parametrize("write", CASES, ids=lambda write: write.__name__)
def test_rows_are_written_in_place(write: Callable[..., Tensor], tmp_path: Path) -> None:
    network, length = Cache(write), 6 if write is writes_itself else 2
    calls = [drawn(length, call) for call in range(8)]
    lowered = dimorder.lower(copy.deepcopy(network), calls[0], target="xnnpack")
    program = dimorder.load(lowered.save(tmp_path / "net.pte"))
    for run in ("at first", "after a reset"):
        own = copy.deepcopy(network)
        for number, call in enumerate(calls):
            torch.testing.assert_close(program(*call), own(*call), msg=f"call {number} {run}")
        program.reset()
    assert lowered.artifact.outside.get("aten::index_put_", 0) == CASES[write]


def test_positions_may_be_counted_from_the_last(tmp_path: Path) -> None:
    network = Cache(attends)
    lowered = dimorder.lower(copy.deepcopy(network), drawn(2, 0), target="xnnpack")
    program = dimorder.load(lowered.save(tmp_path / "net.pte"))
    for number, first in enumerate((0, -6, 0, -6)):
        x, at = drawn(2, number)
        torch.testing.assert_close(program(x, at + first), network(x, at + first))
    with pytest.raises(DimorderError):
        program(x, torch.tensor([0, 6]))
