"""Each benchmark uses what `benchmarks.record` has: most take minutes, so that no other test runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import record

FILES = sorted(Path(record.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_reads_of_the_record_exists(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    if "record" in imported:
        assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "record"
        }
        assert "record" in assigned or not [name for name in read if not hasattr(record, name)]
