"""Test that what docs/inspect.md and docs/ops.md say is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import dimorder
from dimorder.eager.inspection.probe import operators

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def network():
    code = re.findall(r'```python title="segment.py"\n(.*?)```', (DOCS / "inspect.md").read_text(), re.S)[0]
    names: dict = {}
    exec(compile(code, "segment.py", "exec"), names)
    return names["network"]


def test_the_case_has_the_findings_that_the_page_shows(network):
    x = torch.randn(2, 3, 32, 40)
    found = dimorder.inspect(network(), x)
    assert [(f.verdict, f.operator, f.place) for f in found.findings] == [
        ("lost", "aten.clone", "segment.py:14"),
        ("mixed operands", "aten.add", "segment.py:19"),
    ] * 4
    corrected = dimorder.expect_channels_last(network(corrected=True), x)
    assert len(corrected.of("free view")) == len(corrected.findings) == 8


def test_the_corrected_case_computes_the_same(network):
    plain, corrected = network(), network(corrected=True)
    corrected.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 3, 32, 40)
    torch.testing.assert_close(corrected(x), plain(x))


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page is that of torch 2.13")
def test_the_page_of_operators_is_that_of_this_build():
    page = (DOCS / "ops.md").read_text()
    probed = operators().markdown()
    assert page.split("| operator |")[1].split() == probed.split("| operator |")[1].split()
