"""A graph's values are computed by one interpreter, which keeps no value longer than its readers need it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dimorder.graph.interpreter import GraphNode, GraphRun, interpret
from tests.test_imports import FILES, SOURCE

INTERPRETER = SOURCE / "graph" / "interpreter.py"
# Computes the shapes of a program for all sizes, on tensors without data.
SHAPES_ONLY = SOURCE / "sizes" / "merge_specializations.py"


def interpreters_in(tree: ast.AST) -> Iterator[str]:
    """Yield each interpreter of a file's own: a use of torch's, or a loop that calls each node's operator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.fx"):
            yield from (name.name for name in node.names if "Interpreter" in name.name)
        elif isinstance(node, ast.Attribute) and node.attr in ("Interpreter", "run_node"):
            yield node.attr
        elif isinstance(node, ast.For):
            yield from (ast.unparse(each) for each in ast.walk(node) if stores_a_result(each))


def stores_a_result(statement: ast.AST) -> bool:
    """Whether a statement stores what an operator gives, as `values[…] = node.target(…)` does."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
        return False
    calls = (each.func for each in ast.walk(statement.value) if isinstance(each, ast.Call))
    called = (each.slice if isinstance(each, ast.Subscript) else each for each in calls)
    return any(isinstance(each, ast.Attribute) and each.attr in ("target", "kind") for each in called)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nclass Mine(torch.fx.Interpreter): pass",
        "from torch.fx import Graph, Interpreter",
        "for node in graph.nodes:\n    values[node] = node.target(*args)",
        "for node in nodes:\n    held[node.output] = _COMPUTE[node.kind](*operands)",
    ],
)
def test_a_second_interpreter_would_be_found(source: str) -> None:
    assert list(interpreters_in(ast.parse(source)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_there_is_one_interpreter(file: Path) -> None:
    found = list(interpreters_in(ast.parse(file.read_text())))
    assert file in (INTERPRETER, SHAPES_ONLY) or not found


def test_a_value_is_released_after_its_last_reader() -> None:
    nodes = [
        GraphNode("a", ("x",), "a", None),
        GraphNode("b", ("x", "a"), "b", None),
        GraphNode("c", ("b", "b"), "c", None),
    ]
    alive = list[int]()

    class Value:
        count = 0

        def __init__(self) -> None:
            Value.count += 1

        def __del__(self) -> None:
            Value.count -= 1

    def compute(node: GraphNode, read: object) -> Value:
        alive.append(Value.count)
        return Value()

    held = interpret(nodes, {"x": 0}, {"x", "c"}, compute)
    assert held.keys() == {"x", "c"}
    assert alive == [0, 1, 1]  # at the last one `a` is gone


def test_a_torch_graph_runs_as_torch_runs_it() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.tensor([3.0, 4.0]))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            low, high = torch.aminmax(x * y, dim=0)
            return {"low": low + self.shift, "high": torch.where(high > 0, high, y)}

    x, y = torch.randn(5, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([0.5, -2.0])
    program = torch.export.export(Net(), (x, y))
    wanted = Net()(x, y)
    low, high = GraphRun(program.module(check_guards=False)).run(x, y)
    assert torch.equal(low, wanted["low"]) and torch.equal(high, wanted["high"])
