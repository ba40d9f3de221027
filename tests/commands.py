"""Run a command of a test, and find the Pythons of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def run_command(*command: object, folder: Path | None = None) -> str:
    """Run a command without this clone's variables, and return what it prints.

    A command that fails fails the test with its text.
    """
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    run = subprocess.run(list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


def find_python(version: str) -> Path:
    """Return the Python of a version, such as "3.10", on PATH or of pyenv; skip the test if there is none."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [*filter(None, [on_path]), *sorted(of_pyenv.glob(f"{version}.*/bin/python"))]
    for python in map(Path, candidates):
        # A shim of pyenv is on PATH, and fails if its version is not chosen.
        run = subprocess.run([python, "--version"], capture_output=True, text=True)
        if run.stdout.startswith(f"Python {version}."):
            return python
    pytest.skip(f"no Python {version}, on PATH or of pyenv")
