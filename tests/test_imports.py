"""Test which part of dimorder may import which, and what `import dimorder` may load."""

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
    "text": set(),
    "modules": set(),
    "files": {"errors"},
    "cpu": {"errors"},
    "clock": {"errors"},
    "algebra": {"errors"},
    "planning": set(),
    "contract": {"errors", "text", "algebra"},
    "contract_file": {"errors", "contract"},
    "cmake": {"errors"},
    "graph": {"errors", "contract"},
    "ops": {"errors", "graph"},
    "capture": {"errors", "files", "modules", "graph", "ops"},
    "physical": {"graph", "ops", "capture"},
    "layout": {"errors", "algebra", "planning", "contract", "graph", "ops", "capture", "physical"},
    "sizes": {"errors", "modules", "clock", "planning", "contract", "graph", "ops", "capture", "layout"},
    "plans": {
        "errors",
        "text",
        "algebra",
        "planning",
        "contract",
        "graph",
        "ops",
        "capture",
        "layout",
        "sizes",
    },
    "verification": {"errors", "modules", "contract", "graph", "ops", "capture", "layout"},
    "runtime": {"errors", "algebra", "contract"},
    "executorch": {
        "errors",
        "clock",
        "text",
        "algebra",
        "planning",
        "contract",
        "contract_file",
        "cmake",
        "graph",
        "runtime",
    },
    "targets": {
        "text",
        "errors",
        "files",
        "cpu",
        "planning",
        "contract",
        "contract_file",
        "graph",
        "ops",
        "capture",
        "physical",
        "layout",
        "sizes",
        "plans",
        "verification",
        "executorch",
    },
    "eager": {"errors", "text", "modules", "cpu", "clock", "algebra"},
    "lowered": {
        "errors",
        "text",
        "files",
        "contract",
        "ops",
        "capture",
        "physical",
        "sizes",
        "plans",
        "verification",
        "runtime",
        "targets",
    },
    "signatures": {
        "errors",
        "text",
        "files",
        "contract",
        "capture",
        "verification",
        "runtime",
        "targets",
        "lowered",
    },
    "reading": {"errors", "text", "contract"},
    "quantization": {
        "errors",
        "modules",
        "clock",
        "contract",
        "graph",
        "ops",
        "capture",
        "physical",
        "sizes",
        "targets",
        "lowered",
        "reading",
    },
    "pipeline": {
        "errors",
        "clock",
        "planning",
        "contract",
        "graph",
        "ops",
        "capture",
        "physical",
        "layout",
        "sizes",
        "plans",
        "verification",
        "targets",
        "quantization",
    },
    "api": {
        "errors",
        "files",
        "cpu",
        "clock",
        "modules",
        "capture",
        "plans",
        "sizes",
        "runtime",
        "targets",
        "lowered",
        "pipeline",
    },
    "latency": {
        "text",
        "errors",
        "modules",
        "cpu",
        "clock",
        "graph",
        "ops",
        "capture",
        "physical",
        "plans",
        "verification",
        "executorch",
        "targets",
        "api",
    },
    "explorer": {"errors", "text", "plans", "report", "executorch"},
    "demo": {"errors", "clock", "runtime"},
    "report": {
        "errors",
        "clock",
        "text",
        "cpu",
        "algebra",
        "contract",
        "graph",
        "ops",
        "capture",
        "plans",
        "executorch",
        "targets",
        "eager",
        "lowered",
        "latency",
    },
}
EVERYTHING = {*MAY_IMPORT, "cli"}
MAY_IMPORT["cli"] = EVERYTHING - {"cli"}
MAY_IMPORT["__init__"] = EVERYTHING - {"cli", "report", "demo"}
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


TARGETS = SOURCE / "targets"
# Target → the targets whose files it compiles further.
BUILT_ON = {"ethos_u": {"tosa"}}


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.parent.parent == TARGETS],
    ids=lambda file: str(file.relative_to(TARGETS)),
)
def test_no_target_imports_another(file):
    others = {f"dimorder.targets.{folder.name}" for folder in TARGETS.iterdir() if folder.is_dir()}
    others -= {
        f"dimorder.targets.{folder}" for folder in (file.parent.name, *BUILT_ON.get(file.parent.name, ()))
    }
    forbidden = {name for name in _imports(file) if ".".join(name.split(".")[:3]) in others}
    assert not forbidden, f"{file.name} imports {sorted(forbidden)}"


def test_a_target_is_one_folder_with_a_listing():
    from dimorder import targets

    folders = {folder.name for folder in TARGETS.iterdir() if (folder / "__init__.py").exists()}
    assert folders == {value.split(":")[0].split(".")[-1] for value in targets.BUILT_IN.values()}


def test_modules_import_one_another_in_no_circle():
    modules = {_module(file): file for file in FILES}
    used = {name: _at_import(file.read_text(), name, set(modules)) for name, file in modules.items()}
    assert _circle(used) is None


def test_nor_do_they_where_imports_for_types_and_in_functions_count():
    modules = {_module(file): file for file in FILES}
    used = {name: (_imports(file) & set(modules)) - _packages(name) for name, file in modules.items()}
    assert _circle(used) is None


@pytest.mark.parametrize(
    ("used", "circle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, None),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}, None),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_the_finder_of_circles_finds(used, circle):
    assert _circle(used) == circle


def test_what_is_imported_later_or_for_types_alone_makes_no_circle():
    source = (
        "import dimorder.api\n"
        "from dimorder.targets import base, find\n"
        "if TYPE_CHECKING:\n    import dimorder.errors\nelse:\n    import dimorder.files\n"
        "class A:\n    import dimorder.contract\n"
        "def f():\n    import dimorder.report\n"
    )
    modules = {f"dimorder.{name}" for name in ("api", "errors", "files", "contract", "report", "targets")}
    found = _at_import(source, "dimorder.cli", {*modules, "dimorder.targets.base"})
    assert found == {f"dimorder.{name}" for name in ("api", "targets.base", "targets", "files", "contract")}


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
    assert _names(tree, package=("dimorder", "lowering")) == {
        "dimorder.lowering.a",
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


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _at_import(source: str, module: str, modules: set[str]) -> set[str]:
    """Return which of `modules` the source of `module` imports when it is imported itself.

    `from package import module` is an import of the module alone. The package is imported before the module,
    but that makes no circle if the package does not wait for the module.
    """
    used: set[str] = set()
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{module}: write imports in full"
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            used |= {inner[name] if inner[name] in modules else node.module for name in inner}
        todo += ast.iter_child_nodes(node)
    return used & modules


def _circle(used: dict[str, set[str]]) -> list[str] | None:
    """Modules that import one another, the first also last; None where there is no such circle."""
    done: set[str] = set()

    def follow(path: list[str]) -> list[str] | None:
        name = path[-1]
        if name in path[:-1]:
            return path[path.index(name) :]
        if name in done:
            return None
        found = next(filter(None, (follow([*path, other]) for other in sorted(used[name]))), None)
        done.add(name)
        return found

    return next(filter(None, (follow([name]) for name in sorted(used))), None)


def _part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def _packages(name: str) -> set[str]:
    """A module and the packages that it is in."""
    parts = name.split(".")
    return {".".join(parts[: end + 1]) for end in range(len(parts))}


def _imports(file: Path) -> set[str]:
    inside = file.parent.relative_to(SOURCE.parent).parts if file.is_relative_to(SOURCE) else ()
    return _names(file.read_text(), package=inside)


def _names(source: str, package: tuple[str, ...]) -> set[str]:
    """Return all that `source`, of `package`, imports at any depth; `from a import b` gives `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*origin, *filter(None, [node.module])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names
