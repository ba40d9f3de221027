"""Check that documents and docstrings keep the rules of plain language that a program can check.

python -m tests.language [FILE ...]

A sentence has at most 25 words, and begins with its subject. A docstring says what the object does, not what
it decides. Code, tables, and the pages that commands write are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples")
GENERATED = {"coverage.md", "operators.md", "ops.md"}
MOST_WORDS = 25
# A sentence that makes the reader wait for its verb, and words that say nothing.
BANNED = {
    r"^(Of|What|Where|Whoever|Whatever) (?!.*\?$)": "begins with the object: begin with the subject",
    r"^Decides ": "says that it decides: say what it does",
    r"\b(in front of|behind)\b": "says where in space: say before or after",
}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of prose: without code blocks, tables, headings and doctests.

    >>> list(sentences("One fact. Another:\\n\\n- a row; with `x.y(...)`\\n\\n| a | table |\\n"))
    ['One fact.', 'Another:', 'a row; with `…`']
    """
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        prose = paragraph.strip()
        if prose.startswith(("|", "#", ">>>", "    ")) or not prose:
            continue
        prose = re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(prose.split()))
        prose = re.sub(r"`[^`]*`", "`…`", prose)  # however long, code is one word
        prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose)
        yield from re.split(r"(?<=[.!?:]) (?=[A-Z`(“\"*])", prose)


def faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield each fault of a text and the sentence that has it.

    >>> list(faults("Where sizes vary, a plan is proven for all. Decides the order."))
    [('begins with the object: begin with the subject', 'Where sizes vary, a plan is proven for all.'), \
('says that it decides: say what it does', 'Decides the order.')]
    """
    for sentence in sentences(text):
        words = len(sentence.split())
        if words > MOST_WORDS:
            yield f"{words} words: at most {MOST_WORDS}", sentence
        yield from ((fault, sentence) for pattern, fault in BANNED.items() if re.search(pattern, sentence))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a document or the docstrings of a module, each with its line.

    Sections of a docstring (Args, Returns, Raises) are lists, and count as such.
    """
    if path.suffix == ".md":
        yield 1, path.read_text()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "lineno", 1), re.split(r"\n(?:Args|Returns|Raises):\n", docstring)[0]


def checked_files() -> list[Path]:
    """Return the documents, and the modules of the package, the tests, the benchmarks and the examples."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return sorted(path for path in documents if path.name not in GENERATED) + modules


def main(paths: Sequence[str]) -> int:
    """Print every fault, and return the exit code."""
    count = 0
    for path in [Path(each) for each in paths] or checked_files():
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for line, text in texts(path):
            for fault, sentence in faults(text):
                count += 1
                print(f"{shown}:{line}: {fault}: {sentence}")
    print(f"{count} sentences to rewrite" if count else "All sentences keep the rules of plain language")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
