"""Write the result of a command: files, JSON and text, and the exit code."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dimorder.cli.console import Console
from dimorder.errors import UsageError, writable

# NO means that a check failed, or that a tensor or a network was refused.
DONE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130
_TWICE = ("given for two files", "give each its own name")


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    Attributes:
        text: The text to print, unless the JSON goes to stdout.
        data: The data that `--json` writes; a str is JSON already, and None is nothing.
        files: For each file, the arguments of `files.with_companions`.
        code: The exit code.
    """

    text: object
    data: object = None
    files: Sequence[tuple[Any, ...]] = ()
    code: int = DONE


def output_paths(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the paths of the files that the options ask for, by option."""
    names = {"-o": "output"} | {f"--{name}": name for name in ("json", "chart", "report", "dot", "explorer")}
    return {option: getattr(options, name, None) for option, name in names.items()}


def input_paths(options: argparse.Namespace) -> Iterator[str]:
    """Yield the words of the options that may be paths of files to read."""
    for name in ("model", "program", "more", "input", "calibrate"):
        value = getattr(options, name, None)
        words = value if isinstance(value, list) else [value]
        for word in filter(None, words):
            yield str(word)
            yield str(word).partition("=")[2]  # NAME=FILE


def check_outputs(paths: Mapping[str, str | None], read: Iterable[str]) -> None:
    """Raise `UsageError` for a path that cannot be written or that is read, before the long work begins."""
    sources = [path for path in read if path]
    files = {option: Path(path) for option, path in paths.items() if path and path != "-"}
    for option, path in files.items():
        where = f"{option} {path}"
        if sum(_is_same(path, str(other)) for other in files.values()) > 1:
            raise UsageError(where, *_TWICE)
        with writable(where, "name a file in a folder that exists and that you can write to"):
            if path.is_dir() or (path.exists() and not path.is_file()):
                raise UsageError(where, "a folder or a device", "name a file")
            if any(_is_same(path, source) for source in sources):
                raise UsageError(where, "a file that the command reads", "give another name")
            real = Path(os.path.realpath(path))  # a link is written where it leads
            probe = real.with_name(f".{real.name}.{os.getpid()}.part")
            probe.touch()
            probe.unlink()


def _is_same(path: Path, source: str) -> bool:
    with suppress(OSError, ValueError):  # one of them is missing
        return path.samefile(source)
    return os.path.realpath(path) == os.path.realpath(source)


def write_files(answer: Answer, options: argparse.Namespace) -> None:
    """Write all files of an answer or none, among them its JSON if `--json` names a file.

    Raises:
        UsageError: if two files have one name, or if a file cannot be written.
    """
    from dimorder import files

    contents: dict[Path, bytes] = {}
    path = getattr(options, "json", None)
    if path not in (None, "-") and answer.data is not None:
        contents[Path(path)] = f"{_json(answer.data)}\n".encode()
    for file in answer.files:
        named = files.with_companions(*file)
        for twice in contents.keys() & named.keys():
            raise UsageError(str(twice), *_TWICE)
        contents |= named
    files.write_all(contents)


def print_answer(answer: Answer, options: argparse.Namespace, console: Console) -> None:
    """Print the JSON of an answer if it goes to stdout, else its text."""
    if getattr(options, "json", None) == "-" and answer.data is not None:
        console.print(_json(answer.data))
    elif text := str(answer.text):
        console.print(text)


def _json(data: object) -> str:
    return data.rstrip() if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False)


def read_json(path: str, fix: str = "give a file that --json wrote") -> Any:
    """Read a file of JSON. Raises `UsageError` with this fix for a file that is missing or no JSON."""
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or f"no JSON: {error}"
        raise UsageError(path, found, fix) from error
