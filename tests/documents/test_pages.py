"""Test that the code of the documents runs as it is written there, and prints what is shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("skimage")
pytest.importorskip("model_explorer")

from PIL import Image
from skimage import data

from tests.conftest import ROOT
from tests.documents.blocks import blocks, matches, run_page
from tests.zoo import load_torchvision

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in DOCUMENTS if any(block.runs for block in blocks(page))]
SLOW = {
    "use",
    "integers",
    "litert",
    "npu",
    "how-a-plan-is-made",
    "camera",
    "ethos-u",
    "any-size",
    "delegate-kit",
    "state",
    "delegates",
}
# How many blocks a page says that it cannot run. A new one needs a reason that a reader understands.
NOT_RUN = 17
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
MOST_WORDS, MOST_LINES = 500, 120


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
        for page in PAGES
    ],
)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load_torchvision()
    _write_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    try:
        run_page(page, lambda: capfd.readouterr().out)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]


def test_few_blocks_are_not_run() -> None:
    marked = [block.mark for page in DOCUMENTS for block in blocks(page) if block.mark.startswith("not run")]
    assert len(marked) == NOT_RUN, "\n".join(marked)


def test_the_readme_has_at_most_500_words_and_a_tutorial_fewer_than_120_lines() -> None:
    readme = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", readme)) <= MOST_WORDS  # rules of tables are no words
    long = [page.name for page in TUTORIALS if len(page.read_text().splitlines()) >= MOST_LINES]
    assert len(TUTORIALS) > 1 and not long


def test_each_mark_stands_before_a_block() -> None:
    for page in DOCUMENTS:
        marks = page.read_text().count("<!-- not run: ") + page.read_text().count("<!-- output -->")
        assert marks == sum(bool(block.mark) for block in blocks(page)), page


# A page, and what is wrong with it.
WRONG = (
    ("```python\nx = 1\n```\n\n```python\ny = x + z\n```\n", "name 'z'"),
    ("```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```\n", "page.md:6 shows"),
    ("```console\n$ dimorder plan --help\nno such line\n```\n", "page.md:1 shows"),
    ("```sh\ndimorder check nothing.pte\n```\n", "ended with 2"),
    ("```sh\nmake all\n```\n", "mark it as not run"),
)


@pytest.mark.parametrize(("text", "fault"), WRONG, ids=[fault for _, fault in WRONG])
def test_a_page_that_is_wrong_fails(
    text: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(BaseException, match=fault):
        run_page(page, lambda: capfd.readouterr().out)


def test_a_page_that_is_right_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="net.py"\nx = 2\n```\n\n```python\nprint(open("net.py").read(), 3)\n```\n\n'
        "<!-- output -->\n```text\nx = 2\n… 3\n```\n\n<!-- not run: it installs -->\n```sh\nmake\n```\n"
    )
    run_page(page, lambda: capfd.readouterr().out)
    assert not matches("x = 2", "x = 23") and matches("in 5 ms", "in 23.1 ms")


def _write_photos(folder: Path) -> None:
    """Write `photo.jpg` and `photos/`, which stand for a user's own."""
    (folder / "photos").mkdir()
    for name, taken in (("chelsea", data.chelsea), ("coffee", data.coffee), ("rocket", data.rocket)):
        Image.fromarray(taken()).save(folder / "photos" / f"{name}.jpg")
    Image.fromarray(data.astronaut()).save(folder / "photo.jpg")
