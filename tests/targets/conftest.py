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


@pytest.fixture
def datatypes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The types of the values that nodes read in the XNNPACK graphs that are written, each value once."""
    from dimorder.targets.xnnpack.backend import XnnWriter
    from dimorder.targets.xnnpack.graph import reads_of

    found: Counter[str] = Counter()
    finish = XnnWriter.finish

    def finished(writer: Any) -> None:
        finish(writer)
        read = {index for node in writer._nodes for index in reads_of(node.xnode_union)}
        found.update(writer._values[index].datatype.name.removeprefix("xnn_datatype_") for index in read)

    monkeypatch.setattr(XnnWriter, "finish", finished)
    return found
