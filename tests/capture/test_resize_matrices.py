"""The matrix of a resize gives what torch's resize gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dimorder.capture.resize_matrices import (
    Matrix,
    antialiased_cubic,
    antialiased_linear,
    cubic,
    linear,
    nearest,
    nearest_exact,
    windows,
)

MATRICES: dict[str, tuple[Matrix, dict[str, object]]] = {
    "nearest": (nearest, {"mode": "nearest"}),
    "nearest exact": (nearest_exact, {"mode": "nearest-exact"}),
    "linear": (linear(aligned=False), {"mode": "bilinear"}),
    "linear, aligned": (linear(aligned=True), {"mode": "bilinear", "align_corners": True}),
    "cubic": (cubic(aligned=False), {"mode": "bicubic"}),
    "cubic, aligned": (cubic(aligned=True), {"mode": "bicubic", "align_corners": True}),
    "linear, antialiased": (antialiased_linear, {"mode": "bilinear", "antialias": True}),
    "cubic, antialiased": (antialiased_cubic, {"mode": "bicubic", "antialias": True}),
}


@pytest.mark.parametrize("new", [1, 2, 3, 5, 7, 11, 14, 31])
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_resizes_as_torch_does(name: str, new: int) -> None:
    matrix, options = MATRICES[name]
    x = torch.randn(2, 3, 7, 5)
    if "antialias" in options and new == 1:  # torch is wrong on row-major pictures
        x = x.to(memory_format=torch.channels_last)
    columns = x @ matrix(5, new, None, 4).mT
    torch.testing.assert_close(
        matrix(7, new + 2, None, 4) @ columns,
        F.interpolate(x, (new + 2, new), **options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_resizes_by_a_factor_as_torch_does(name: str, factor: float) -> None:
    matrix, options = MATRICES[name]
    x = torch.randn(2, 3, 9, 5)
    rows, columns = (matrix(size, int(size * factor), factor, 4) for size in x.shape[2:])
    torch.testing.assert_close(rows @ x @ columns.mT, F.interpolate(x, scale_factor=factor, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("new", [1, 2, 3, 5, 7, 11])
def test_windows_pool_as_torch_does(new: int) -> None:
    x = torch.randn(2, 3, 7)
    torch.testing.assert_close(x @ windows(7, new, 3).mT, F.adaptive_avg_pool1d(x, new))
