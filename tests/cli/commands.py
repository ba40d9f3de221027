"""Share helpers among the tests of the commands."""

from __future__ import annotations

import re

import torch

from dimorder.cli import main
from tests.cli import networks
from tests.conftest import ROOT

HERE = "tests.cli.networks"
SHAPE = (2, 3, 5, 7)
INPUT = ["--input", "2x3x5x7"]


def tiny():
    torch.manual_seed(0)
    return networks.Tiny(4).eval()


def refused(capfd, argv, code):
    """The three lines that a command ends with."""
    assert main([str(arg) for arg in argv]) == code
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("dimorder: ")]
    assert out == "" and len(lines) == 3, err
    assert lines[1].startswith("  found: ") and lines[2].startswith("  fix: ")
    return "\n".join(lines)


def documented_keys(command):
    sections = (ROOT / "docs" / "json.md").read_text().split("\n## ")
    (section,) = (text for text in sections if text.startswith(f"`dimorder {command} --json`"))
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
