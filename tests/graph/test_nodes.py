"""Nodes are written by one module: their calls and their metadata."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.fx import Graph, Node

from dimorder.graph import nodes

SOURCE = Path(__file__).parents[2] / "src" / "dimorder"


@pytest.fixture
def x() -> Node:
    node = Graph().placeholder("x")
    return nodes.set_value(node, torch.ones(3, 5))


def test_a_call_has_the_metadata_of_its_place(x: Node) -> None:
    nodes.set_meta(x, "stack_trace", "line 7")
    relu = nodes.call_after(x, torch.relu, (x,))
    assert (relu.meta["stack_trace"], relu.meta["val"].shape) == ("line 7", (3, 5))
    assert nodes.source_of(relu) == {"stack_trace": "line 7"}


def test_a_call_may_be_like_another_node_and_give_another_value(x: Node) -> None:
    total = nodes.call_after(x, torch.sum, (x,), {"dim": 1}, value=torch.ones(3))
    nodes.set_meta(total, nodes.EXPORTED, "sum_1")
    relu = nodes.call_before(total, torch.relu, (x,), like=total, value=x.meta["val"])
    assert [node.name for node in x.graph.nodes] == ["x", "relu", "sum_1"]
    assert relu.meta[nodes.EXPORTED] == "sum_1"
    assert (relu.meta["val"].shape, total.meta["val"].shape) == ((3, 5), (3,))


def test_copied_metadata_is_the_nodes_own(x: Node) -> None:
    other = nodes.copy_meta(x.graph.placeholder("other"), x)
    nodes.set_value(other, None)
    assert x.meta["val"] is not None


def test_a_replaced_node_is_gone(x: Node) -> None:
    relu = nodes.call_after(x, torch.relu, (x,))
    absolute = nodes.call_after(relu, torch.abs, (relu,))
    nodes.replace_node(relu, x)
    assert absolute.args == (x,)
    assert [node.name for node in x.graph.nodes] == ["x", "abs_1"]


def test_an_origin_grows(x: Node) -> None:
    nodes.add_meta(x, nodes.with_origin({"stack_trace": "line 7"}, site=3))
    nodes.add_origin(x, converts=True)
    assert nodes.origin_of(x) == {"site": 3, "converts": True}


@pytest.mark.parametrize("path", ["/net.py", "/pipeline v2/net.py", "/a, line 3, in b/net.py"])
def test_the_path_of_a_source_line_may_have_any_words(x: Node, path: str) -> None:
    trace = (
        f'  File "/outer.py", line 2, in call\n    net(x)\n  File "{path}", line 12, in forward\n    x + 1\n'
    )
    nodes.set_meta(x, "stack_trace", trace)
    assert nodes.source_frames(x) == [("/outer.py", "2"), (path, "12")]
    assert nodes.where(x) == "net.py:12"


def writes_of_meta(source: str) -> list[int]:
    """The lines that assign a node's metadata, delete a key of it, or change it by a method."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            found += [node.lineno for target in targets if _is_meta(target)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes = node.func.attr in ("update", "pop", "setdefault", "clear")
            found += [node.lineno] if changes and _is_meta(node.func.value) else []
    return found


def _is_meta(target: ast.AST | None) -> bool:
    if isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and target.attr == "meta"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("node.meta = {}", [1]),
        ("node.meta['val'] = x", [1]),
        ("made[node].meta |= {}", [1]),
        ("a = node.meta['val'] = x", [1]),
        ("node.meta.update(a=1)", [1]),
        ("node.meta.pop('val', None)", [1]),
        ("del node.meta['val']", [1]),
        ("x = node.meta['val']", []),
        ("node.meta.get('val')", []),
    ],
)
def test_the_finder_of_writes_finds(line: str, found: list[int]) -> None:
    assert writes_of_meta(line) == found


def test_only_the_room_graph_writes_metadata() -> None:
    files = {str(file.relative_to(SOURCE)): writes_of_meta(file.read_text()) for file in SOURCE.rglob("*.py")}
    assert {name for name, lines in files.items() if lines} <= {"graph/nodes.py", "graph/tracing.py"}
