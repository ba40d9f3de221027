"""Decides what tests of targets share, and what pytest leaves alone here.

That is a package that tests install, and that nothing else imports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

collect_ignore = ["outside"]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kinds of the nodes in the XNNPACK graphs that are written."""
    return _counted(monkeypatch, lambda writer: (node.kind for node in writer.model().nodes))


@pytest.fixture
def datatypes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The types of the values that nodes read in the XNNPACK graphs that are written, each value once."""

    def look(writer: Any) -> Iterable[str]:
        from dimorder.targets.xnnpack.graph import reads_of

        read = {index for node in writer._nodes for index in reads_of(node.xnode_union)}
        return (writer._values[index].datatype.name.removeprefix("xnn_datatype_") for index in read)

    return _counted(monkeypatch, look)


def _counted(monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], Iterable[str]]) -> Counter[str]:
    """How often `look` finds what in the writers of graphs, from now on, once each is finished."""
    from dimorder.targets.xnnpack.backend import XnnWriter

    found: Counter[str] = Counter()
    finish = XnnWriter.finish

    def finished(writer: Any) -> None:
        finish(writer)
        found.update(look(writer))

    monkeypatch.setattr(XnnWriter, "finish", finished)
    return found
