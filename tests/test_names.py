"""A name has one meaning: type names are unique, and the architecture explains the words that need it.

The page's tree of rooms is that of `test_imports`, and what the documents link to exists.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import FILES, MAY_IMPORT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

MOST_WORDS, MOST_LINES = 30, 150  # a reader learns few words, and three screens


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


def section(title: str) -> str:
    """The text below a title."""
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def plain(text: str) -> str:
    """A word or a source in small letters without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", text.lower())


HOMES: dict[str, list[str]] = defaultdict(list)
for file in FILES:
    for name in types_in(file.read_text()):
        HOMES[name].append(str(file.relative_to(ROOT)))
SOURCES = plain("".join(file.read_text() for file in FILES))
GLOSSARY = re.findall(r"^\| ([a-z ]+) \|", section("Glossary"), re.M)[1:]


def test_no_two_types_share_a_name_even_if_one_is_private():
    homes: dict[str, list[str]] = defaultdict(list)
    for name, files in HOMES.items():
        homes[name.lstrip("_")] += files
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_the_glossary_is_short_and_in_alphabetical_order():
    assert 0 < len(GLOSSARY) <= MOST_WORDS
    assert sorted(set(GLOSSARY)) == GLOSSARY


@pytest.mark.parametrize("word", GLOSSARY)
def test_a_word_of_the_glossary_is_one_of_the_code(word):
    stem = plain(word).removesuffix("s").removesuffix("uration")  # a configuration is a `Config`
    assert stem in SOURCES


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


def test_the_page_fits_on_three_screens():
    assert len(PAGE.read_text().splitlines()) <= MOST_LINES


def test_the_tree_has_the_rooms_each_above_what_it_imports():
    tree = re.findall(r"^  (\w+)(?:/|\.py) ", section("The rooms"), re.M)
    assert sorted(tree) == sorted(MAY_IMPORT.keys() - {"__init__", "__main__"})
    for place, room in enumerate(tree):
        above = MAY_IMPORT[room] & set(tree[:place])
        assert not above, f"{room} imports {sorted(above)}, which stand above it"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_what_a_document_links_to_exists(document):
    links = re.findall(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)", document.read_text())
    for label, target in links:
        if "://" in target:
            continue
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
        called = label.strip("`")
        assert not called.endswith(".py") or Path(target).name == called, f"{target} is called {called}"
