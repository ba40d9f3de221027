"""Decides how `dimorder check` finds the target that reads a file: by the content, or else the name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dimorder import targets
from dimorder.errors import UsageError
from dimorder.targets.listing import installed

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from dimorder.targets.base import FileSummary


def check(path: str) -> FileSummary:
    """What the file holds. Raises `UsageError` for one that is missing, damaged or of no known kind."""
    where = f"check {path}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            where, str(error.strerror or error), "give the path of a .tosa or .pte file"
        ) from error
    name = next((name for name, told in targets.listings() if told.is_file(path, data)), None)
    if name is None:
        kinds = " or ".join(told.kind for _, told in targets.listings() if told.kind)
        raise UsageError(where, f"{len(data)} bytes that do not begin as {kinds} does", f"give {kinds}")
    target = targets.find(name)
    assert target.check is not None, "find refuses a target that lists a kind of file and checks none"
    try:
        with installed(name, target.install):
            return target.check(path, data)
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
