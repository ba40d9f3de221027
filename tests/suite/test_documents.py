"""Test that the documents say what the kept results say."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

from tests.conftest import ROOT
from tests.suite import operators, page

RESULTS = ROOT / "benchmarks" / "results" / "suite.json"


@pytest.mark.parametrize(("name", "write"), [("coverage", page.page), ("operators", operators.page)])
def test_a_document_is_what_is_written_of_the_results(name: str, write: object) -> None:
    assert (ROOT / "docs" / f"{name}.md").read_text() == write(json.loads(RESULTS.read_text())), (  # type: ignore[operator]
        "run: python -m tests.suite --out benchmarks/results/suite.json --page docs/coverage.md"
        " --operators docs/operators.md"
    )


# What the suite found of a case, and below it the row that this makes.
ROWS = (
    (
        {
            "exported": ["aten.acos.default"],
            "torch": {"kind": "right", "operators": 1},
            "xnnpack": {"kind": "outside", "outside": [["aten.acos", "XNNPACK has no aten.acos.default"]]},
            "litert": {"kind": "right", "operators": 2},
            "tosa": {"kind": "refused", "why": "aten.acos (a.py:1) | found: TOSA has none | fix: no"},
        },
        "| aten.acos.default | yes | yes | outside | parts | refused: TOSA has none |",
    ),
    (
        {
            "exported": ["aten.glu.default"],
            "torch": {"kind": "right", "operators": 4},
            "xnnpack": {"kind": "outside", "outside": [["aten.sigmoid", "torch.float64"]]},
        },
        "| aten.glu.default | of its parts | parts | outside: torch.float64 | no case | no case |",
    ),
    (
        {
            "exported": ["aten.relu.default", "aten.topk.default"],
            "torch": {"kind": "right", "operators": 2},
            "xnnpack": {"kind": "outside", "outside": [["aten.relu", "an integer"]]},
            "tosa": {"kind": "refused", "why": "aten.topk.default (a.py:1) | found: TOSA has none | fix: no"},
        },
        "| aten.topk.default | none | yes | no case | yes | refused: TOSA has none |",
    ),
)


@pytest.mark.parametrize(("became", "row"), ROWS, ids=[row.split()[1] for _, row in ROWS])
def test_a_row_is_made_of_the_cases_that_tell_of_it(became: dict[str, object], row: str) -> None:
    assert row in operators.page({"torch:a/0": became}).splitlines()  # type: ignore[dict-item]


def test_an_operator_without_a_case_that_counts_has_no_row() -> None:
    cases = {
        "exported": ["aten.relu.default", "aten.acosh.default"],
        "xnnpack": {"kind": "wrong", "why": "off"},
    }
    core, kept = operators.page({"torch:a/0": cases}).split("## Composite")  # type: ignore[dict-item]
    assert "| aten.acosh.default" not in core and "No case counts for" not in kept
    assert "aten.acosh.default" in core.partition("No case counts for")[2]


def test_a_row_tells_the_best_and_the_worst_of_its_cases() -> None:
    cases = {
        f"torch:a/{i}": {"exported": ["aten.relu.default"], "tosa": became}
        for i, became in enumerate(
            [
                {"kind": "right", "operators": 1},
                {"kind": "refused", "why": "aten.relu.default (a.py:1) | found: no"},
            ]
        )
    }
    assert "| aten.relu.default | yes | no case | yes | yes | yes, some refused |" in operators.page(cases)
