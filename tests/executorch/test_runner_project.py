"""Test the inputs that a runner project draws, and the folders that it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

pytest.importorskip("executorch")

from dimorder.errors import UsageError
from dimorder.executorch import export_runner
from dimorder.executorch.lowering_paths import stock


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock program with a dynamic batch, whose other sizes its file does not call static."""
    x = torch.randn(3, 4, 5, 7)
    exported = torch.export.export(nn.Conv2d(4, 2, 3).eval(), (x,), dynamic_shapes=({0: Dim("n", max=6)},))
    path = tmp_path_factory.mktemp("runner") / "net.pte"
    path.write_bytes(stock("portable")(exported))
    return path


def test_a_program_of_another_tool_gets_its_upper_bounds_which_always_fit(program, tmp_path):
    project = export_runner(program, tmp_path / "check")
    assert np.load(project / "inputs" / "0.npy").shape == (6, 4, 5, 7)
    assert np.load(project / "expected" / "0.npy").shape == (6, 2, 3, 5)


def test_a_folder_that_cannot_be_made_is_refused(program, tmp_path):
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        export_runner(program, tmp_path / (300 * "a"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written: (File exists|Not a directory)"):
        export_runner(program, tmp_path / "file" / "check")
