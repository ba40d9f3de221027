"""Decides which kinds of file `dimorder check` reads. It knows them by their content, not by their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dimorder.errors import UsageError

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class FileSummary(Protocol):
    """What was found: printed as it is, or written as JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Kind:
    """A kind of file: what a flatbuffer of it has at byte 4, and what reads it, from path and bytes."""

    name: str
    identifier: bytes
    read: Callable[[str, bytes], FileSummary]


def check(path: str) -> FileSummary:
    """What the file holds. Raises `UsageError` for one that is missing, damaged or of no known kind."""
    where = f"check {path}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            where, str(error.strerror or error), "give the path of a .tosa or .pte file"
        ) from error
    kind = next((kind for kind in KINDS if data[4:8].startswith(kind.identifier)), None)
    if kind is None:
        names = " or ".join(kind.name for kind in KINDS)
        raise UsageError(where, f"{len(data)} bytes that do not begin as {names} does", f"give {names}")
    try:
        return kind.read(path, data)
    except UsageError as error:
        raise UsageError(where, error.found, error.fix) from error


def exported(model: Any, args: Any, kwargs: Any, order: str | None) -> ExportedProgram:
    """A network as an exported program, its inputs of the order's rank lying in that order."""
    import torch

    from dimorder.algebra.dim_order import DimOrder

    if isinstance(model, torch.export.ExportedProgram):
        return model

    def placed(x: Any) -> Any:
        if order is None or not isinstance(x, torch.Tensor):
            return x
        try:
            wanted = DimOrder.parse(order, x.dim())
        except UsageError:
            return x  # of another rank
        return torch.empty_strided(x.shape, wanted.strides(x.shape), dtype=x.dtype).copy_(x)

    args, kwargs = torch.utils._pytree.tree_map(placed, (tuple(args), dict(kwargs or {})))
    return torch.export.export(model, args, kwargs)


def _pte(path: str, data: bytes) -> FileSummary:
    from dimorder.executorch import check_file

    return check_file(path)


def _tosa(path: str, data: bytes) -> FileSummary:
    from dimorder.targets.tosa import inspect_tosa

    return inspect_tosa(data)


KINDS = (Kind("a .tosa graph", b"TOSA", _tosa), Kind("a .pte program", b"ET", _pte))
