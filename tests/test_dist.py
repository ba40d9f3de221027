"""Build the packages, install them into an empty environment, and lower a network there."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = """
import dimorder, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
x = torch.randn(1, 3, 17, 19)
dimorder.lower(model, (x,), target="xnnpack", input_orders="NHWC").save("net.pte")
y = dimorder.load("net.pte")(x)
assert torch.allclose(y, model(x), atol=1e-5)
from dimorder.eager.transposition import ways
print(sorted(ways()))
"""


def done(*command: object, folder: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    run = subprocess.run(list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The packages, built from a copy of what an sdist has."""
    folder = tmp_path_factory.mktemp("dist")
    done("make", "dist", f"DIST={folder}", folder=ROOT)
    return folder


@pytest.mark.slow
def test_the_packages_are_an_sdist_a_manylinux_wheel_and_one_without_compiled_code(dist):
    names = sorted(path.name for path in dist.iterdir())
    assert len(names) == 3
    assert [name for name in names if re.fullmatch(r"dimorder-[\d.]+-py3-none-any\.whl", name)]
    assert [name for name in names if re.fullmatch(r"dimorder-[\d.]+-py3-none-manylinux.*\.whl", name)]
    assert [name for name in names if re.fullmatch(r"dimorder-[\d.]+\.tar\.gz", name)]


@pytest.mark.slow
def test_the_wheels_work_in_an_empty_environment(dist, tmp_path):
    (tmp_path / "example.py").write_text(EXAMPLE)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    compiled, plain = dist.glob("*manylinux*.whl"), dist.glob("*none-any.whl")
    done(*pip, f"{next(compiled)}[executorch]", folder=tmp_path)  # plain pip, without constraints
    assert "tiles" in done(python, "example.py", folder=tmp_path).splitlines()[-1]
    done(*pip, "--no-deps", "--force-reinstall", next(plain), folder=tmp_path)
    assert "tiles" not in done(python, "example.py", folder=tmp_path).splitlines()[-1]
