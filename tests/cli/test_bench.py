"""Test what `dimorder bench` refuses before it measures anything."""

from __future__ import annotations

import pytest

from dimorder.eager import transposition
from dimorder.latency import kernel_times
from dimorder.targets.xnnpack import times
from tests.cli.commands import refused


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    def measure(*args, **kwargs):
        raise AssertionError("measured before the table was read")

    for module in (transposition, kernel_times):
        monkeypatch.setattr(module, "measure", measure)


@pytest.mark.parametrize("what", ["convert", "ops"])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[]", "a list"),
        ("times", "no JSON"),
        ('{"inputs": []}', "'inputs', which has no measurements of this command"),
        ('{"a": {"1": {"2x49": {"tiles": "fast"}}}}', "'a', which has no measurements"),
        ('{"a": {"threads": 1, "kernels": {}}}', "'a', which has no measurements"),
        ('{"a": {"1": 2}}', "'a', which has no measurements"),
    ],
)
def test_a_file_that_is_no_table_is_refused_first(what, content, found, tmp_path, capfd):
    table = tmp_path / "table.json"
    table.write_text(content)
    assert f"found: {found}" in refused(capfd, ["bench", what, "-o", table], 2)
    assert table.read_text() == content


@pytest.mark.parametrize(("what", "table"), [("convert", transposition.TABLE), ("ops", times.TABLE)])
def test_the_table_of_the_command_is_read(what, table, capfd):
    assert "measured before" in refused(capfd, ["bench", what, "-o", table], 1)
