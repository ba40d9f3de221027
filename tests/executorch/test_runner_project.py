"""Test the inputs that a runner project draws, and the folders that it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

pytest.importorskip("executorch")

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UsageError
from dimorder.executorch import export_runner
from dimorder.executorch.lowering_paths import stock
from tests.runtime.networks import TwoInTwoOut, export_pte


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


def test_a_full_disk_is_told_by_its_first_file(program, tmp_path, monkeypatch):
    def copytree(source, target, **how):
        full = "[Errno 28] No space left on device"
        raise shutil.Error([(f"{source}/{name}", f"{target}/{name}", full) for name in ("a.h", "b.h")])

    monkeypatch.setattr(shutil, "copytree", copytree)
    with pytest.raises(UsageError) as caught:
        export_runner(program, tmp_path / "project")
    assert caught.value.found.startswith("cannot be written: [Errno 28] No space left on device (")
    assert "a.h" in caught.value.found and "b.h" not in caught.value.found and not list(tmp_path.iterdir())


def test_no_name_of_a_tensor_reaches_the_shell(tmp_path):
    image, sound = torch.randn(2, 6, 5, 7), torch.randn(2, 11, 3)
    names = ["x'$(touch INJECTED)'", "a=b", "it's", "50% `touch INJECTED`"]
    shapes = [image.shape, sound.shape] * 2
    specs = [
        TensorSpec(name, tuple(shape), "float32", DimOrder.contiguous(len(shape)))
        for name, shape in zip(names, shapes, strict=True)
    ]
    (tmp_path / "net.pte").write_bytes(
        export_pte(TwoInTwoOut(), (image, sound), Contract(tuple(specs[:2]), tuple(specs[2:])))
    )
    project = export_runner(tmp_path / "net.pte", tmp_path / "check", [image, sound])
    runner = tmp_path / "runner"
    runner.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    runner.chmod(0o755)
    done = subprocess.run(["sh", project / "check.sh", runner], capture_output=True, text=True, check=True)
    inputs = ["--input", "inputs/0.npy", "--input", "inputs/1.npy"]
    outputs = ["--expect", "expected/0.npy", "--expect", "expected/1.npy"]
    assert done.stdout.split() == ["network.pte", *inputs, *outputs, "--rtol", "0.0001"]
    assert not [*tmp_path.rglob("INJECTED")]
    assert np.array_equal(np.load(project / "expected" / "0.npy"), image + image)
