"""Read the code blocks of a page, and run them in order, as a reader would.

- A Python block runs in the page's namespace. One with a title (```python title="net.py") is written to that
  file.
- A block of a shell (sh) runs each `dimorder …` and `python …`. In a console block a command follows `$ `.
  Its output comes next, if it is shown.
- A text block after the comment `<!-- output -->` is what the block before it prints.
- A block after the comment `<!-- not run: REASON -->` cannot run in a test.

Shown output may leave out text by `…`. Times differ from run to run, and are not compared.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dimorder import cli
from tests.conftest import ROOT

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>output|not run: [^\n]+?) -->\n\n?)?"
    r'```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_TIME = re.compile(r"[\d,.]+(?= (?:s|ms|µs|ns)\b)")


@dataclass(frozen=True)
class Block:
    """One code block: its place in the page, its code, and the mark before it ("" without one)."""

    line: int
    language: str
    code: str
    mark: str
    title: str

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh", "console") and not self.mark


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text()
    return [
        Block(
            text.count("\n", 0, match.start("code")),
            match["language"],
            match["code"],
            match["mark"] or "",
            match["title"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]


def matches(shown: str, printed: str) -> bool:
    """Return whether a program printed what a page shows.

    >>> matches("lowered  in 3 ms\\n…\\ncost 3", "lowered in 17 ms\\n1\\n2\\ncost 3\\n")
    True
    >>> matches("cost 3", "cost 34")
    False
    """
    shown, printed = (" ".join(_TIME.sub("0", text).split()) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, re.split(" ?… ?", shown))), printed) is not None


def run_page(page: Path, read: Callable[[], str]) -> None:
    """Run the blocks of a page in the current folder; `read` returns what was printed since its last call."""
    names: dict[str, Any] = {"__name__": page.stem}
    printed = ""
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        if block.mark == "output":
            assert matches(block.code, printed), (
                f"{place} shows\n{block.code}\nand this was printed:\n{printed}"
            )
        elif block.runs and block.title:
            Path(block.title).write_text(block.code)
        elif block.runs:
            read()
            if block.language == "python":
                exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
            else:
                _run_commands(block, place, read)
            printed = read()


def _run_commands(block: Block, place: str, read: Callable[[], str]) -> None:
    """Run the commands of a block; compare their outputs in a console block."""
    code = block.code.replace("\\\n", " ")
    if block.language == "sh":
        for line in code.splitlines():
            _run_command(line, place)
        return
    for session in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        _run_command(command, place)
        printed = read()
        assert not shown.strip() or matches(shown, printed), (
            f"{place} shows\n{shown}\nand this was printed:\n{printed}"
        )


def _run_command(line: str, place: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    program, *arguments = [found for word in words for found in sorted(glob.glob(word)) or [word]]
    assert program in ("dimorder", "python"), f"{place}: mark it as not run, {program} is another program"
    if program == "dimorder" and arguments[:1] == ["bench"]:  # it chooses the threads of its process
        program, arguments = "python", ["-m", "dimorder", *arguments]
    if program == "dimorder":
        try:
            code = cli.main(arguments)
        except SystemExit as end:  # --help
            code = int(end.code or 0)
    else:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        code = subprocess.run(
            [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": paths}, check=False
        ).returncode
    expected = re.search(r"#.*exit code (\d)$", line)
    assert code == int(expected[1] if expected else 0), f"{place}: {line} ended with {code}"
