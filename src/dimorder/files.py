"""Write files whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dimorder.errors import writable


def write_whole(
    path: str | os.PathLike[str], data: bytes, companions: Mapping[str, bytes] | None = None
) -> Path:
    """Write a file under a temporary name and rename it, so that no partial file is left; return its path.

    `companions` has the contents of further files, by the suffix that follows the whole name of `path`. All
    files are written, or none: if one cannot be written, those that were replaced get their old content back.
    """
    path = Path(path)
    contents = {path.with_name(path.name + suffix): content for suffix, content in (companions or {}).items()}
    contents[path] = data
    parts = {file: file.with_name(f".{file.name}.{os.getpid()}.part") for file in contents}
    replaced: dict[Path, bytes | None] = {}
    file = path
    try:
        for file, content in contents.items():
            parts[file].write_bytes(content)
        for file, part in parts.items():
            before = file.read_bytes() if file != path and file.exists() else None
            part.replace(file)
            replaced[file] = before
    except OSError:
        for done, before in replaced.items():
            done.unlink() if before is None else done.write_bytes(before)
        with writable(str(file), "name a file in a folder that you can write to"):
            raise
    finally:
        for part in parts.values():
            with suppress(OSError):  # a name that is too long to write is also too long to delete
                part.unlink(missing_ok=True)
    return path
