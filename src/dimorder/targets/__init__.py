"""Decides which targets there are: one row each."""

from __future__ import annotations

import importlib
from pathlib import Path

from dimorder.errors import UsageError
from dimorder.targets.base import Artifact, Target

__all__ = ["TARGETS", "Artifact", "Target", "find", "that_loads"]

# Name → the module that holds its TARGET, imported when it is asked for: what it needs may be heavy.
TARGETS = {
    "torch": "dimorder.targets.torch",
    "tosa": "dimorder.targets.tosa.target",
    "xnnpack": "dimorder.targets.xnnpack.target",
}


def find(name: str) -> Target:
    """The target of that name.

    >>> find("torch").name
    'torch'
    """
    if name not in TARGETS:
        raise UsageError("target", f"no target {name!r}", f"choose one of {', '.join(TARGETS)}")
    target: Target = importlib.import_module(TARGETS[name]).TARGET
    return target


def that_loads(path: Path) -> Target | None:
    """The target that reads this file back; None where that is left to the runtime of `.pte` files.

    >>> that_loads(Path("net.pt2")).name, that_loads(Path("net.pte"))
    ('torch', None)
    """
    return next((t for t in map(find, TARGETS) if t.load is not None and t.suffix == path.suffix), None)
