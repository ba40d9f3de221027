"""Test the source line that a fault names."""

from __future__ import annotations

import pytest
from torch.fx import Graph

pytest.importorskip("executorch")

from dimorder.executorch.rules import source_line
from dimorder.graph import nodes


@pytest.mark.parametrize(
    ("paths", "line"),
    [
        ((), ""),
        (("/net.py", "/lib/torch/nn/functional.py"), "/net.py:12"),
        (("/lib/torch/nn/functional.py",), "/lib/torch/nn/functional.py:12"),
        (("/nets, line 2/net.py",), "/nets, line 2/net.py:12"),
    ],
)
def test_it_is_the_last_one_outside_of_torch_if_there_is_one(paths, line):
    node = Graph().placeholder("x")
    trace = "".join(f'  File "{path}", line 12, in forward\n    x + 1\n' for path in paths)
    nodes.set_meta(node, "stack_trace", trace)
    assert source_line(node) == line
