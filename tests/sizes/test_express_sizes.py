"""A size is written in other sizes: in those that a delegate reads, which may be quotients of the inputs'."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.utils._sympy.functions import FloorDiv

import dimorder
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.express_sizes import express, place_symbols
from tests.sizes.symbols import errors

H = sympy.Symbol("H", integer=True, positive=True)
W = sympy.Symbol("W", integer=True, positive=True)


@pytest.mark.parametrize(
    ("size", "others"),
    [
        (FloorDiv(H, 20) - 1, [W, FloorDiv(H, 5) - 1]),
        (FloorDiv(H + 17, 12) * FloorDiv(W - 1, 2), [2 * FloorDiv(H + 2, 3) + 5, W + 4]),
        (3 * H + FloorDiv(H, 2), [None, 2 * H + 7]),
        (H * W + 4, [H * W - 3, FloorDiv(H, 2)]),
    ],
)
def test_a_size_is_written_in_others(size: sympy.Expr, others: list[sympy.Expr | None]) -> None:
    written = express(size, others)
    for point in ({H: 23, W: 9}, {H: 24, W: 2}, {H: 25, W: 40}, {H: 39, W: 7}):
        sizes = {symbol: point[symbol] for symbol in (H, W)}
        known = zip(place_symbols(len(others)), others, strict=True)
        places = {symbol: other.xreplace(sizes) for symbol, other in known if other is not None}
        assert written.xreplace(places) == size.xreplace(sizes)


def test_a_size_that_others_do_not_decide_is_not_written_in_them() -> None:
    assert express(FloorDiv(H, 20), [FloorDiv(H + 1, 5), FloorDiv(H, 3), None]) is None


class Pooled(nn.Module):
    """The running sum is computed outside the delegates: the second one reads a fifth of the length alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.max_pool2d(x, (1, 10), (1, 5)).relu().cumsum(3).sigmoid()
        y = nn.functional.max_pool2d(nn.functional.max_pool2d(y, (1, 3), (1, 2)), (1, 3), (1, 2))
        return y.cumsum(1).transpose(1, 3).flatten(1)


def test_a_delegate_after_a_stride_knows_its_sizes_at_every_length() -> None:
    module, dims = Pooled().eval(), ({0: Dim("N", min=1, max=4), 3: Dim("T", min=200, max=800)},)
    lowered = dimorder.lower(module, (torch.randn(2, 3, 2, 333),), dynamic_shapes=dims, target="xnnpack")
    for count, length in ((1, 200), (4, 219), (3, 220), (1, 539), (2, 800), (1, 799), (3, 201)):
        assert max(errors(lowered, module, torch.randn(count, 3, 2, length))) <= 1e-5


class Quarters(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(nn.functional.pad(x, (0, 1)), (1, 4))


def test_quotients_that_are_equal_at_both_ends_are_not_one_size() -> None:
    """T // 4 and (T + 1) // 4 are equal at the ends of this range, next to them, and in its middle."""
    dims = ({2: Dim("T", min=16, max=50)},)
    program = export_symbolic(Quarters(), (torch.randn(1, 2, 19),), None, dims)
    assert program is not None
    lengths, quarters = (20, 24, 28), (5, 6, 7)
    table = program.table([{"T": length} for length in lengths])
    assert quarters in table.known
    assert table.fit(quarters, [lengths]) is None
    assert table.quotient(quarters, [lengths]) is None
    compute = table.formula(quarters, [lengths])
    assert compute is not None and compute([23]) == 6
