"""Describe a target without an import of it: its line in `--help`, its files, and its install command.

This module imports no torch.
"""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dimorder.errors import UsageError, installed

# The objectives of `costs.counted`.
COUNTED: Mapping[str, str] = MappingProxyType(
    {"bytes": "the bytes that conversions move", "count": "the number of conversions"}
)
# The recipes of `by_xnnpack`.
XNNPACK_RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "int8": "weights and activations of 8 bits, with scales from a calibration",
        "int8-dynamic": "the same, with the scales of activations found as the program runs",
    }
)


@dataclass(frozen=True)
class TargetInfo:
    """A target as its entry point names it: a value in a module with only light imports.

    Two targets may share a suffix. One of them, whose files are archives, is then recognised by `member`.

    Attributes:
        suffix: The suffix of its files.
        summary: One line for `--help`.
        install: The command in the error about a missing module.
        target: The place of the `Target` itself, as "package.module:NAME".
        kind: The name in errors of a file that `dimorder check` reads. None if it reads none.
        begins: The offset and the bytes that identify such a file. None means that the suffix identifies it.
        family: The name that stands in lists for several targets that are alike.
        member: A part of a name in the archive, which the archives of the other target do not contain.
        objectives: A line of help for each objective of a plan, the default first.
        recipes: A line of help for each recipe of `quantize`, the default first.
        options: A line of help for each option of `--option`.

    >>> info = TargetInfo(".tosa", "a graph", "pip install it", "m:TARGET", "a .tosa graph", (4, b"TOSA"))
    >>> info.is_file("a name of any kind", bytes(4) + b"TOSA..."), info.is_file("net.tosa", b"else")
    (True, False)
    """

    suffix: str
    summary: str
    install: str
    target: str
    kind: str | None = None
    begins: tuple[int, bytes] | None = None
    member: str | None = None
    family: str = ""
    objectives: Mapping[str, str] = field(default_factory=lambda: COUNTED)
    recipes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module, colon, name = self.target.partition(":")
        if not (module and colon and name.isidentifier()):
            raise UsageError("a target's info", f"target {self.target!r}", "write it as package.module:NAME")
        if not self.suffix.startswith(".") or len(self.suffix) == 1:
            raise UsageError("a target's info", f"suffix {self.suffix!r}", "write it as in .tosa")
        lines = {"summary": self.summary, **self.objectives, **self.recipes, **self.options}
        for name, line in lines.items():
            if not line or "\n" in line:
                raise UsageError("a target's info", f"{name} {line!r}", "say in one line what it is")

    def is_file(self, path: str, data: bytes) -> bool:
        """Return whether this target's `check` reads a file with that name and content."""
        if self.kind is None or self.begins is None:
            return self.kind is not None and path.endswith(self.suffix)
        place, identifier = self.begins
        return data[place : place + len(identifier)] == identifier

    def reads(self, path: Path) -> bool:
        """Return whether this target loads that file, by its suffix and, if it has one, by its `member`."""
        if path.suffix != self.suffix or self.member is None:
            return path.suffix == self.suffix
        try:
            with zipfile.ZipFile(path) as archive:
                return any(self.member in name for name in archive.namelist())
        # no archive, or a damaged one
        except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError):
            return False

    def open(self, name: str) -> Any:
        """Import and return the target itself. Raises `UnsupportedError` if a dependency is not installed."""
        module, _, attribute = self.target.partition(":")
        with installed(f"target {name}", self.install):
            return getattr(importlib.import_module(module), attribute)
