"""Decides which part of dimorder may import which, and what `import dimorder` may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dimorder"

# Part → the parts that it may import. What is not listed here does not exist; a new part needs a row.
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "algebra": {"errors"},
    "planning": {"errors", "algebra"},
    "contract": {"errors", "algebra"},
    "lowering": {"errors", "algebra", "planning", "contract"},
    "targets": {"errors", "algebra", "planning", "contract", "lowering"},
    "runtime": {"errors", "algebra", "planning", "contract"},
    "executorch": {"errors", "algebra", "planning", "contract", "lowering", "runtime"},
    "eager": {"errors", "algebra"},
    "api": {
        "errors",
        "files",
        "algebra",
        "planning",
        "contract",
        "lowering",
        "targets",
        "executorch",
        "runtime",
    },
    "report": {
        "errors",
        "files",
        "algebra",
        "planning",
        "contract",
        "lowering",
        "targets",
        "executorch",
        "runtime",
        "api",
        "eager",
    },
}
EVERYTHING = {*MAY_IMPORT, "cli"}
MAY_IMPORT["cli"] = EVERYTHING - {"cli"}
MAY_IMPORT["__init__"] = EVERYTHING - {"cli", "report"}
MAY_IMPORT["__main__"] = {"cli"}

FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file):
    part = _part(file)
    assert part in MAY_IMPORT, f"{part} has no row in MAY_IMPORT"
    used = {name.split(".")[1] for name in _imports(file) if name.count(".") and name.startswith("dimorder.")}
    # The package's public names are for its users: `from dimorder import DimOrder` would import everything.
    forbidden = used - MAY_IMPORT[part] - {part}
    assert not forbidden, f"{part} must not import {sorted(forbidden)}"


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.relative_to(SOURCE).parts[0] in ("algebra", "planning", "errors.py")],
    ids=lambda file: str(file.relative_to(SOURCE)),
)
def test_algebra_and_planning_import_no_torch(file):
    assert "torch" not in {name.split(".")[0] for name in _imports(file)}


@pytest.mark.parametrize(
    "line", ["import torch", "from torch import nn", "import torch.fx as fx", "def f():\n    import torch"]
)
def test_the_reader_of_imports_sees(line, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(line)
    assert {name.split(".")[0] for name in _imports(file)} == {"torch"}


def test_the_reader_of_imports_resolves_what_is_relative():
    tree = "from . import a\nfrom ..planning import plan\nfrom dimorder import api\n"
    assert _names(tree, package=("dimorder", "program")) == {
        "dimorder.program.a",
        "dimorder.planning",
        "dimorder.planning.plan",
        "dimorder.lowering",
        "dimorder",
        "dimorder.api",
    }


def test_import_dimorder_loads_neither_executorch_nor_torchvision():
    script = (
        "import sys, dimorder\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'executorch', 'torchvision', 'tosa'}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def _part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(file: Path) -> set[str]:
    inside = file.parent.relative_to(SOURCE.parent).parts if file.is_relative_to(SOURCE) else ()
    return _names(file.read_text(), package=inside)


def _names(source: str, package: tuple[str, ...]) -> set[str]:
    """What `source`, a module of `package`, imports at any depth; `from a import b` gives `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*origin, *filter(None, [node.module])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names
