"""Programs are run at sizes that break what torch assumes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import ExportError
from dimorder.sizes.assumptions import points_against
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.verification.relative_error import relative_error


class Decides(nn.Module):
    """Computes otherwise where the product of two sizes is one number."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        return x * 2 if rows * (columns // 2) != 30 else x * 3


DIMS = ({0: Dim("m", min=2, max=9), 1: 4 * Dim("n", min=2, max=14)},)


def test_an_if_on_multiples_is_wrong_at_few_sizes() -> None:
    program = export_symbolic(Decides(), (torch.randn(3, 32),), None, DIMS)
    assert program is not None
    (point,) = points_against(program, program.corners)
    assert point["m"] * (point["n"] // 2) == 30
    assert points_against(program, [*program.corners, point]) == []


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_a_network_that_decides_by_sizes_is_no_program_for_all(target: str) -> None:
    with pytest.raises(ExportError, match="traces it, as by a size"):
        dimorder.lower(Decides(), (torch.randn(3, 32),), target=target, dynamic_shapes=DIMS)


class Smaller(nn.Module):
    """Resizes by a factor. torch assumes of sizes that it computes in floats."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(
            x, scale_factor=0.5, mode="bilinear", recompute_scale_factor=True
        ).exp()


def test_assumptions_may_be_about_floats() -> None:
    dims = ({2: Dim("H", min=6, max=40), 3: Dim("W", min=5, max=30)},)
    model = Smaller()
    lowered = dimorder.lower(model, (torch.randn(1, 2, 17, 22),), target="torch", dynamic_shapes=dims)
    for high, wide in ((6, 5), (40, 30), (7, 22), (8, 9)):
        x = torch.randn(1, 2, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5
