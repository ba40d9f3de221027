"""The sites of one network at several points differ only in sizes, or the operator is named that does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx import Graph

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import EXPORTED, set_meta
from dimorder.layout.site_map import require_alike


def _map(kind: str) -> Any:
    node = Graph().call_function(torch.ops.aten.slice.Tensor)
    set_meta(node, EXPORTED, "index_select")
    empty: Any = dict.fromkeys(("reads", "writes", "tokens", "implementations", "forms"), ())
    return SimpleNamespace(sites=[SimpleNamespace(node=node, kind=kind, **empty)], buffers=())


def test_the_networks_own_operator_is_named_if_a_size_decides_its_pieces() -> None:
    require_alike([_map("indexed"), _map("indexed")], ["N = 9", "N = 11"])
    with pytest.raises(UnsupportedError) as refused:
        require_alike([_map("indexed"), _map("opaque")], ["N = 9", "N = 11"])
    assert str(refused.value).splitlines()[1:] == [
        "  found: 'index_select': a dynamic size decides which elements or pieces it takes "
        "(N = 11 differs from N = 9 in more than sizes)",
        "  fix: fix the size, or lower one program for each size that is needed",
    ]
