"""Test the words that a shell offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("argcomplete")
BIN = Path(sys.executable).parent
# What bash does as a user presses the tabulator: it sets these variables, and calls the function.
ASK = """
eval "$(register-python-argcomplete dimorder)"
COMP_LINE="$1"; COMP_POINT=${#1}; COMP_TYPE=9; COMP_WORDS=($1)
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete dimorder
echo "${COMPREPLY[@]}"
"""


def offered(typed: str) -> set[str]:
    ran = subprocess.run(
        ["bash", "-c", ASK, "bash", typed],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("dimorder ", {"lower", "plan", "explain", "inspect", "check"}),
        ("dimorder low", {"lower"}),
        ("dimorder plan m:f --rep", {"--report"}),
        ("dimorder lower m:f --target ", {"torch", "xnnpack", "litert", "tosa", "ethos-u85-256"}),
        ("dimorder plan m:f --objective ", {"bytes", "count", "time"}),
        ("dimorder lower m:f --quantize int8-", {"int8-dynamic"}),
    ],
)
def test_bash_offers_what_may_come_next(typed: str, words: set[str]) -> None:
    assert words <= offered(typed)
