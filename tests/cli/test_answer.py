"""Test that a path which cannot be written is refused before the work begins."""

from __future__ import annotations

import pytest

from dimorder.cli.answer import check_outputs
from dimorder.errors import UsageError


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".", "a folder or a device"),
        ("/dev/null", "a folder or a device"),
        ("missing/net.pte", "cannot be written: No such file or directory"),
        (300 * "a", "cannot be written: File name too long"),
        (f"{300 * 'a'}/net.pte", "cannot be written: File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(path, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=found) as caught:
        check_outputs({"-o": path})
    assert caught.value.where == f"-o {path}"


def test_a_path_that_may_not_be_looked_at_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        check_outputs({"-o": str(tmp_path / "net.pte")})


def test_two_files_need_two_names(tmp_path):
    path = str(tmp_path / "net")
    with pytest.raises(UsageError, match="given for two files"):
        check_outputs({"-o": path, "--json": path})
    assert not list(tmp_path.iterdir())
