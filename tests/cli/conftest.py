"""Build once for a session what several commands are given."""

from __future__ import annotations

import os

import pytest

from dimorder.cli import main
from tests.cli.commands import HERE, INPUT
from tests.conftest import ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with net.pte, plan.json and report.html, all by one `lower`; the width is not the default."""
    folder = tmp_path_factory.mktemp("made")
    os.chdir(ROOT)
    files = ["-o", folder / "net.pte", "--json", folder / "plan.json", "--report", folder / "report.html"]
    assert main(["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, *map(str, files)]) == 0
    return folder


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """The .pte of a network with two inputs and two outputs, of which one is promised in NHWC."""
    file = tmp_path_factory.mktemp("two") / "two.pte"
    os.chdir(ROOT)
    orders = ["--input-order", "NHWC", "--input-order", "NC", "--output-order", "NHWC"]
    inputs = ["--input", "1x3x4x6", "--input", "2x9"]
    assert main(["lower", f"{HERE}:TwoInTwoOut", *inputs, *orders, "-o", str(file)]) == 0
    return file
