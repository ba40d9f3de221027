"""Keep the results of a benchmark with its command, machine and versions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dimorder.cpu import describe_machine, machine
from dimorder.files import write_whole


def rows_kept(
    path: Path, environment: Mapping[str, object], of: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The rows of an earlier run, if there was one in the same environment: figures of two are not mixed.

    With `of`, only these entries of the environment must be the same.
    """
    same = tuple(environment) if of is None else of
    rows: list[dict[str, Any]] = record_kept(path, environment, same).get("rows", [])
    return rows


def record_kept(path: Path, environment: Mapping[str, object], of: Sequence[str]) -> dict[str, Any]:
    """The record of an earlier run, if there was one in an environment with the same of these entries."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    earlier = record.get("environment", {})
    return record if all(earlier.get(key) == environment.get(key) for key in of) else {}


def failed(error: Exception) -> dict[str, str]:
    """Return what a record has in place of figures, for a way that raised this error."""
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def record_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the lines above the table of a record: the command that measured it, and the machine."""
    return [f"    {record['command']}", "", describe_machine(record["environment"]) + ".", ""]


def keep(
    path: Path,
    module: str,
    environment: Mapping[str, object],
    rows: Sequence[Mapping[str, Any]],
    table: Callable[[Mapping[str, Any]], str],
) -> None:
    """Write the rows that `python -m benchmarks.MODULE` has so far as JSON, and their table beside it."""
    record = {"command": _command(module), "environment": environment, "rows": rows}
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
    write_whole(path.with_suffix(".md"), table(record).encode())


def _command(module: str) -> str:
    return shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])


def write(out: Path, module: str, packages: Sequence[str], **results: object) -> None:
    """Write the results of `python -m benchmarks.MODULE` as JSON."""
    record = {"command": _command(module), "machine": machine(packages), **results}
    write_whole(out, (json.dumps(record, indent=2) + "\n").encode())
