"""The built wheel has what C++ needs: from an empty environment it builds the example application."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")
pytest.importorskip("hatchling")

import dimorder
from dimorder.cmake import CPP
from dimorder.errors import UsageError
from dimorder.executorch import export_runner
from tests.commands import run_command
from tests.device import emulation
from tests.device.networks import image

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 10 * 14, 5)).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if reason := emulation.missing(emulation.HOST):
        pytest.skip(reason)
    return tmp_path


@pytest.mark.slow
def test_the_wheel_builds_the_example_application(net: nn.Module, folder: Path) -> None:
    run_command(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("dimorder-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    run_command(
        *PIP, "--python", python, "install", "--no-deps", wheel, f"executorch=={executorch_version()}"
    )
    # torch and all else that is not under test comes from the environment of the tests.
    site = run_command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    package = run_command(python, "-m", "dimorder.cmake").strip()
    assert package.startswith(str(folder))
    build = folder / "build"
    run_command("cmake", "-S", ROOT / "examples" / "device", "-B", build, f"-Ddimorder_DIR={package}")
    run_command("cmake", "--build", build)
    for order, conversions in (("NCHW", 1), ("NHWC", 0)):
        path = dimorder.lower(net, (image((1, 3, 12, 16)),), target="xnnpack", input_orders=order).save(
            folder / f"{order}.pte"
        )
        told = run_command(build / "camera", path)
        assert re.fullmatch(rf"5 numbers, the first \S+; {conversions} conversions of the input\n", told)


def executorch_version() -> str:
    from importlib import metadata

    return metadata.version("executorch").split("+")[0]


def test_an_exported_runner_checks_the_network(net: nn.Module, folder: Path) -> None:
    path = dimorder.lower(net, (image((1, 3, 12, 16)),), target="xnnpack").save(folder / "net.pte")
    project = export_runner(path, folder / "check")
    assert {p.name for p in project.iterdir()} == {
        *("CMakeLists.txt", "README.md", "check.sh", "dimorder", "expected", "inputs", "network.pte")
    }
    copied = {p.relative_to(project / "dimorder") for p in (project / "dimorder").rglob("*") if p.is_file()}
    assert copied == {
        p.relative_to(CPP)
        for p in CPP.rglob("*")
        if p.is_file() and "project" not in p.relative_to(CPP).parts
    }
    assert "input   input    1 x 3 x 12 x 16  float32  NCHW" in (project / "README.md").read_text()
    runner = emulation.built()
    assert "equal" in run_command("sh", project / "check.sh", runner)
    other = net[3].bias.detach().clone()
    with torch.no_grad():
        net[3].bias += 0.1
        dimorder.lower(net, (image((1, 3, 12, 16)),), target="xnnpack").save(project / "network.pte")
        net[3].bias.copy_(other)
    finished = subprocess.run(["sh", str(project / "check.sh"), str(runner)], capture_output=True, text=True)
    assert finished.returncode == 1 and "expected as in" in finished.stderr


@pytest.mark.slow
def test_an_exported_runner_is_built_from_its_own_sources(net: nn.Module, folder: Path) -> None:
    from dimorder.cmake import executorch_package

    path = dimorder.lower(net, (image((1, 3, 12, 16)),), target="xnnpack").save(folder / "net.pte")
    project = export_runner(path, folder / "check")
    run_command("cmake", "-S", project, "-B", project / "build", f"-Dexecutorch_DIR={executorch_package()}")
    run_command("cmake", "--build", project / "build", "--parallel", "2")
    runner = project / "build" / "dimorder" / "runner" / "dimorder-run"
    assert "equal" in run_command("sh", project / "check.sh", runner)


def test_a_folder_that_holds_something_is_left_alone(net: nn.Module, folder: Path) -> None:
    path = dimorder.lower(net, (image((1, 3, 12, 16)),), target="xnnpack").save(folder / "net.pte")
    with pytest.raises(UsageError, match="not empty"):
        export_runner(path, folder)
    assert [p.name for p in folder.iterdir()] == ["net.pte"]


def test_integers_that_are_no_numbers_must_be_given(folder: Path) -> None:
    class Shift(nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x).index_select(1, by)

    args = (image((2, 5)), torch.tensor([3, 1]))
    path = dimorder.lower(Shift(), args, target="xnnpack").save(folder / "net.pte")
    with pytest.raises(UsageError, match="int64, of which nobody knows"):
        export_runner(path, folder / "check")
    assert not (folder / "check").exists()
    assert export_runner(path, folder / "check", args).exists()
