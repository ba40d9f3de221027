"""Run the GitHub Action and the pre-commit hook as scripts, on files within their budget and above it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

pytest.importorskip("executorch")

from dimorder.cli import main
from dimorder.executorch.lowering_paths import stock
from tests.cli.test_check import Turned
from tests.marks import slow_but

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.fixture
def folder(tmp_path):
    for name, network in (("plain", nn.ReLU()), ("turned", Turned())):
        program = torch.export.export(network, (torch.randn(2, 3, 5),))
        (tmp_path / f"{name}.pte").write_bytes(stock("portable")(program))
    return tmp_path


def run(script, folder, **variables):
    """Run a script with the `dimorder` of this environment, and return its exit code and text."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT / "src") + os.pathsep + str(ROOT),
        **variables,
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def step(name):
    """The script of a step and the variables that the inputs' defaults give it."""
    (found,) = (each for each in ACTION["runs"]["steps"] if each["name"] == name)
    inputs = {key: value["default"] for key, value in ACTION["inputs"].items()}
    variables = {
        key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)
        for key, text in found["env"].items()
    }
    return found["run"], variables


@pytest.mark.parametrize(
    ("files", "most", "code"),
    slow_but([("", "0", 0), ("*.pte", "0", 1), ("*.pte", "1", 0)], [("", "0", 0), ("*.pte", "1", 0)]),
)
def test_the_action_holds_files_to_a_number_of_conversions(files, most, code, folder):
    script, variables = step("files")
    assert set(variables) == {"FILES", "MAX_CONVERSIONS"} and variables["MAX_CONVERSIONS"] == "0"
    ended, said = run(script, folder, **{**variables, "FILES": files, "MAX_CONVERSIONS": most})
    assert ended == code, said
    assert ("budget   1 conversions, at most 0 allowed" in said) == (code == 1)


@pytest.mark.parametrize(("network", "code"), [("", 0), ("Keeps", 0), ("Loses", 1)])
def test_the_action_holds_a_network_to_channels_last(network, code, folder):
    script, variables = step("network")
    name = f"tests.cli.test_budget:{network}" if network else ""
    ended, said = run(script, folder, **{**variables, "NETWORK": name, "INPUT": "2x3x5x7"})
    assert ended == code, said


class Keeps(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())


class Loses(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4))


def test_the_hook_refuses_a_file_above_its_budget(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    program, *argv = [*HOOK["entry"].split(), *HOOK["args"]]  # pre-commit appends the names of the files
    assert program == "dimorder"
    assert main([*argv, "plain.pte"]) == 0
    capfd.readouterr()
    assert main([*argv, "plain.pte", "turned.pte"]) == 1
    assert "budget   1 conversions, at most 0 allowed" in "".join(capfd.readouterr())


def test_the_hook_installs_what_the_extras_pin():
    project = (ROOT / "pyproject.toml").read_text()
    pins = HOOK["additional_dependencies"]
    assert all(f'"{pin}"' in project for pin in pins)
    # ExecuTorch names no torch, and is built for one: pip would take the newest.
    assert [pin.partition("==")[0] for pin in pins] == ["executorch", "torch", "ai-edge-litert", "tosa-tools"]
    assert [name for name in ("a.pte", "b.tflite", "c.tosa", "d.pt2") if re.search(HOOK["files"], name)] == [
        *("a.pte", "b.tflite", "c.tosa")
    ]
