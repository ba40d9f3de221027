"""Share fixtures among the tests of targets, and make pytest leave `outside` alone.

`outside` is a package that tests install, and that nothing else imports.
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
    from dimorder.targets.xnnpack.graph import kind_of

    return _counted(monkeypatch, lambda graph: map(kind_of, graph.nodes))


@pytest.fixture
def datatypes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The types of the values that nodes read in the XNNPACK graphs that are written, each value once."""

    from dimorder.targets.xnnpack.graph import reads_of

    def look(graph: Any) -> Iterable[str]:
        read = {index for node in graph.nodes for index in reads_of(node.xnode_union)}
        return (graph.values[index].datatype.name.removeprefix("xnn_datatype_") for index in read)

    return _counted(monkeypatch, look)


def _counted(monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], Iterable[str]]) -> Counter[str]:
    """How often `look` finds what in the graphs that are built from now on, once each is finished."""
    from dimorder.targets.xnnpack import passes

    found: Counter[str] = Counter()
    finish = passes.finish

    def finished(graph: Any) -> Any:
        islands = finish(graph)
        found.update(look(graph))
        return islands

    monkeypatch.setattr(passes, "finish", finished)
    return found
