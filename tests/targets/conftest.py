"""Decides what tests of targets share, and what pytest leaves alone here.

That is a package that tests install, and that nothing else imports.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

collect_ignore = ["outside"]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kinds of the nodes in the XNNPACK graphs that are written."""
    from dimorder.targets.xnnpack.backend import XnnWriter

    found: Counter[str] = Counter()
    finish = XnnWriter.finish

    def finished(writer: Any) -> None:
        finish(writer)
        found.update(kind for kind, _, _ in writer.model().nodes)

    monkeypatch.setattr(XnnWriter, "finish", finished)
    return found
