"""Decides that a name has one meaning: type names are unique, and the architecture explains each of their
words.

The page's table of rooms is that of `test_imports`, and what the documents link to exists.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import FILES, MAY_IMPORT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

GRAMMAR = {"Many", "Not", "On", "Too"}  # words that only join others


def types_in(source: str) -> Iterator[str]:
    """The names of classes at any depth, and of aliases of types at the top; type variables are none."""
    tree = ast.parse(source)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If):
            todo += [*node.body, *node.orelse]
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            named = isinstance(target, ast.Name) and re.match(r"_?[A-Z]\w*[a-z]", target.id)
            value = getattr(node, "value", None)
            if named and isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(value, ast.Call):
                yield target.id


def words_of(name: str) -> list[str]:
    """The words of a CamelCase name."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+", name)


def section(title: str) -> dict[str, list[str]]:
    """The rows of the tables below a title, by their first cell; a row that is there twice is an error."""
    text = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in re.findall(r"^\|.*\|$", text, re.M)
    ]
    found = Counter(row[0] for row in rows if row[0].strip("- "))
    twice = {first for first, count in found.items() if count > 1} - {"part", "step", "word", "room"}
    assert not twice, f"{sorted(twice)} have two rows"
    return {row[0].strip("` "): row[1:] for row in rows if row[0].strip("- ")}


HOMES: dict[str, list[str]] = defaultdict(list)
for file in FILES:
    for name in types_in(file.read_text()):
        HOMES[name].append(str(file.relative_to(ROOT)))
PUBLIC = [name for name in HOMES if not name.startswith("_")]
WORDS = {word for name in PUBLIC for word in words_of(name)} - GRAMMAR
GLOSSARY = section("Glossary").keys() - {"word"}


def singular(word: str) -> str:
    """A word as the glossary has it: a plural means several of the same."""
    return word if word in GLOSSARY or not word.endswith("s") else word[:-1]


def test_no_two_types_share_a_name_even_if_one_is_private():
    homes: dict[str, list[str]] = defaultdict(list)
    for name, files in HOMES.items():
        homes[name.lstrip("_")] += files
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_the_glossary_has_every_word_of_a_public_type():
    missing = {
        word: [n for n in PUBLIC if word in words_of(n)] for word in WORDS if singular(word) not in GLOSSARY
    }
    assert not missing, f"docs/architecture.md has no meaning for {missing}"


def test_the_glossary_has_no_word_that_no_public_type_uses():
    assert GLOSSARY - {singular(word) for word in WORDS} == set()
    assert {word for name in PUBLIC for word in words_of(name)} >= GRAMMAR


def test_the_glossary_is_in_alphabetical_order():
    listed = [word for word in section("Glossary") if word != "word"]
    assert listed == sorted(listed)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n    class B: ...\ndef f():\n    class _C: ...", {"A", "B", "_C"}),
        ("Kind = Literal['a']\nProof: TypeAlias = A | B\nNHWC = 3\nx = 4", {"Kind", "Proof"}),
        ("if TYPE_CHECKING:\n    Model = int\nResult = TypeVar('Result')", {"Model"}),
    ],
)
def test_the_reader_of_types_sees(source, found):
    assert set(types_in(source)) == found


def test_words_of_a_name():
    assert words_of("DimOrderOperators") == ["Dim", "Order", "Operators"]


def test_the_page_has_the_rooms_and_what_each_may_import():
    rooms: dict[str, set[str]] = {}
    for room, cells in section("The rooms").items():
        if room in MAY_IMPORT:
            copied = re.match(r"the rooms of `(\w+)`, and ", cells[1])
            rooms[room] = set(re.findall(r"`(\w+)`", cells[1])) | (rooms[copied[1]] if copied else set())
    assert rooms.pop("cli") == set()  # all of them
    assert rooms == {
        part: may for part, may in MAY_IMPORT.items() if part not in ("cli", "__init__", "__main__")
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_what_a_document_links_to_exists(document):
    links = re.findall(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)", document.read_text())
    for label, target in links:
        if "://" in target:
            continue
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
        called = label.strip("`")
        assert not called.endswith(".py") or Path(target).name == called, f"{target} is called {called}"
