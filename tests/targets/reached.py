"""Find the rows of a target's table that no network of a test reaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.fx import Node

from dimorder.lowered import Lowered
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.targets.table import Table, is_getitem


def called(nodes: Iterable[Node]) -> set[Any]:
    """The operators that nodes call."""
    return {node.target for node in nodes if node.op == "call_function" and not is_getitem(node)}


def unreached(table: Table, networks: Iterable[Lowered]) -> set[str]:
    """The rows of a target's table that no network's program calls."""
    reached = {SLICE_CONSTANT}  # only networks with dynamic sizes have it: tests/sizes/test_litert.py
    # tests/targets/litert/test_litert_dynamic.py and test_xnnpack_dynamic.py
    reached.add(FAKE_QUANTIZE_DYNAMIC)
    reached.update(*(called(each.physical.graph.nodes) for each in networks))
    return {str(name) for name in set(table.rows) - reached}
