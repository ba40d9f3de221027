"""Test that the code of the page for authors of delegates runs as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("executorch")

PAGE = Path(__file__).parents[2] / "docs" / "delegates.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    model, x = names["model"], names["x"]
    with torch.no_grad():
        torch.testing.assert_close(names["y"], model(x), atol=1e-5, rtol=1e-5)
    assert "call_delegate" in names["edge"].exported_program().graph_module.code
    assert "dim_order" not in names["reverted"].code
