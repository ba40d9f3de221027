"""Test the checker of plain language itself: `make check` runs it on the documents and docstrings."""

from __future__ import annotations

import doctest

import pytest

from tests import language
from tests.language import MOST_WORDS, checked_files, faults, main


def test_its_examples():
    assert doctest.testmod(language).failed == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * MOST_WORDS + "end.", 1),
        ("word " * (MOST_WORDS - 1) + "end.", 0),
        ("What a kernel cannot do is done before it.", 1),
        ("What can it do? It runs.", 0),
        ("The node behind it.", 1),
        ("`where` chooses. Of course.", 1),
        ("```\nWhat a block of code says\n```\n\n| Where | a table |\n\n## What a heading says", 0),
    ],
)
def test_a_sentence_is_a_fault_or_not(text, count):
    assert len(list(faults(text))) == count


def test_it_ends_with_1_and_says_where(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("Where sizes vary, it is slow.\n")
    assert main([str(page)]) == 1
    assert "page.md:1: begins with the object" in capsys.readouterr().out
    page.write_text("It is slow if sizes vary.\n")
    assert main([str(page)]) == 0


def test_it_reads_the_documents_and_the_package():
    names = {path.name for path in checked_files()}
    assert {"README.md", "CHANGELOG.md", "limits.md", "api.py", "target.py"} <= names
    assert "coverage.md" not in names
