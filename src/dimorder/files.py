"""Write files whole, or not at all, and find damage in archives."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dimorder.errors import require_type, writable


def as_path(path: str | os.PathLike[str], where: str) -> Path:
    """Return a path. Raises `UsageError` for what is none: `where` says what reads or writes it.

    >>> as_path("net.pte", "saving")
    PosixPath('net.pte')
    """
    require_type(path, (str, os.PathLike), f"{where} {path!r:.60}", "give a path, such as 'net.pte'")
    return Path(path)


def require_sound_archive(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` if an archive, such as a `.pt2`, is damaged: torch compares no checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    # of a damaged directory zipfile may raise each of these
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"damaged: {error}") from error
    if damaged is not None:
        raise ValueError(f"damaged: {damaged}")


def require_exported_program(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` if an archive has no exported program; it names the writer, if that is known."""
    with zipfile.ZipFile(path) as archive:
        paths = archive.namelist()
    names = {name.partition("/")[2] for name in paths}
    if "models/model.json" in names or "version" in paths:  # the latter is in files of torch 2.7
        return
    writer = "torch.jit.save" if "constants.pkl" in names else "torch.save"
    by = f"{writer} wrote it, and " if "data.pkl" in names else ""
    raise ValueError(f"{by}it holds no exported program")


def write_whole(
    path: str | os.PathLike[str], data: bytes, companions: Mapping[str, bytes] | None = None
) -> Path:
    """Write a file with its companions by `write_all`, and return its path."""
    write_all(with_companions(path, data, companions))
    return Path(path)


def with_companions(
    path: str | os.PathLike[str], data: bytes, companions: Mapping[str, bytes] | None = None
) -> dict[Path, bytes]:
    """Return the content of each file: `companions` has more files, by the suffix after the name of `path`.

    >>> list(with_companions("net.tosa", b"", {".json": b""}))
    [PosixPath('net.tosa.json'), PosixPath('net.tosa')]
    """
    path = Path(path)
    return {
        **{path.with_name(path.name + suffix): content for suffix, content in (companions or {}).items()},
        path: data,
    }


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write files under temporary names and rename them, so that no partial file is left.

    All files are written, or none: if one cannot be written, those that were replaced get their old content
    back. A file that is replaced keeps its permissions, and a link leads to the new content.
    """
    contents = {Path(os.path.realpath(file)): content for file, content in contents.items()}
    parts = {file: file.with_name(f".{file.name}.{os.getpid()}.part") for file in contents}
    replaced: dict[Path, bytes | None] = {}
    file, last = None, list(contents)[-1:]
    try:
        for file, content in contents.items():
            parts[file].write_bytes(content)
            if file.exists():
                shutil.copymode(file, parts[file])
        for file, part in parts.items():
            before = file.read_bytes() if [file] != last and file.exists() else None
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
