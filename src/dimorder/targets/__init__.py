"""Find targets by name or by file: the built-in ones, and those that other packages declare.

Another package declares a target in the entry-point group `dimorder.targets`, as `NAME = "package:INFO"`.
A question about a target imports only its info. The target itself is imported when it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dimorder.errors import UsageError, require_type
from dimorder.targets import ethos_u
from dimorder.targets.target_info import TargetInfo

if TYPE_CHECKING:
    from dimorder.targets.base import Target

GROUP = "dimorder.targets"
DEFAULT = "torch"  # the one that needs nothing else installed

# This is no entry point of our own, since only an installed package has those. dimorder also runs from its
# sources.
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        # before torch: it recognises its files by their content
        "inductor": "dimorder.targets.inductor:INFO",
        "torch": "dimorder.targets.torch:INFO",
        "litert": "dimorder.targets.litert:INFO",
        "tosa": "dimorder.targets.tosa:INFO",
        "xnnpack": "dimorder.targets.xnnpack:INFO",
        **{
            name: f"dimorder.targets.ethos_u:{name.upper().replace('-', '_')}"
            for name in ethos_u.ACCELERATORS
        },
    }
)
# ExecuTorch files have many suffixes, so a file with an unknown suffix is read as one
_READS_THE_REST = "xnnpack"


def names() -> list[str]:
    """Return the names of all targets, ours first, without any import.

    >>> names()[:5]
    ['inductor', 'torch', 'litert', 'tosa', 'xnnpack']
    """
    return list(_entries())


def info(name: str) -> TargetInfo:
    """Return the facts about a target that are known without an import of it.

    Raises `UsageError` for a name that no package or that two packages declare, and for a broken declaration.

    >>> info("tosa").suffix
    '.tosa'
    """
    declared = _entries().get(name) if isinstance(name, str) else None
    if declared is None:
        raise UsageError("target", f"no target {name!r}", _closest(name))
    return _load(name, declared)


def _load(name: str, declared: Sequence[EntryPoint]) -> TargetInfo:
    owners = [_owner(entry) for entry in declared]
    if len(declared) > 1:
        found, fix = f"declared by {' and by '.join(owners)}", f"uninstall or rename that of {owners[-1]}"
        raise UsageError(f"target {name}", found, fix)
    entry, owner = declared[0], owners[0]
    try:
        found = entry.load()
    except Exception as error:  # the module of another package may raise anything
        text = f"{owner} declares {entry.value}, which raises {type(error).__name__}: {error}"
        raise UsageError(f"target {name}", text, f"fix or uninstall {owner}") from error
    if not isinstance(found, TargetInfo):
        text = f"{owner} declares {entry.value}, a {type(found).__name__}"
        raise UsageError(f"target {name}", text, "name a dimorder.targets.target_info.TargetInfo there")
    return found


def find(target: str | Target) -> Target:
    """Return the target of that name. A `Target` is returned as it is.

    Raises `UsageError` as `info` does, and `UnsupportedError` if a dependency of the target is not
    installed.

    >>> find("torch").name, find(find("torch")).suffix
    ('torch', '.pt2')
    """
    from dimorder.targets.base import Target

    if isinstance(target, Target):
        return target
    about = info(target)
    found = about.open(target)
    if not isinstance(found, Target):
        raise UsageError(
            f"target {target}", f"{about.target} is a {type(found).__name__}", "name a Target there"
        )
    for what, its, listed in (
        ("name", found.name, target),
        ("suffix", found.suffix, about.suffix),
        ("check", found.files.check is not None, about.kind is not None),
        ("objectives", list(found.objectives), list(about.objectives)),
        ("recipes", list(found.recipes), list(about.recipes)),
        ("options", found.with_options is not None, bool(about.options)),
    ):
        if its != listed:
            text = f"{about.target} has {what} {its!r}, where its info promises {listed!r}"
            raise UsageError(f"target {target}", text, "fix one of the two")
    return found


def target_for_file(path: Path) -> Target:
    """Return the target that reads this file back, by the file's suffix.

    Several targets may share a suffix. The first one whose info accepts the content is chosen, ours before
    others.

    >>> target_for_file(Path("net.pt2")).name, target_for_file(Path("net.bin")).name
    ('torch', 'xnnpack')
    """
    return find(next((name for name, about in infos() if about.reads(path)), _READS_THE_REST))


def name_for_suffix(suffix: str) -> str | None:
    """Return the name of the target that writes files with that suffix, the most general one if several do.

    >>> name_for_suffix(".pte"), name_for_suffix(".pt2"), name_for_suffix(".jpg")
    ('xnnpack', 'torch', None)
    """
    return next((name for name, about in infos() if about.suffix == suffix and about.member is None), None)


def infos() -> Iterator[tuple[str, TargetInfo]]:
    """Return each target's name and info, ours first.

    A broken info raises as in `info`, on its turn.
    """
    return ((name, _load(name, declared)) for name, declared in _entries().items())


def choices(kind: str) -> list[tuple[str, str, str]]:
    """Return what the targets offer of a kind: its name, its line of help, and the targets that have it.

    `kind` is "objectives", "recipes" or "options". No targets means all of them. Targets with broken infos
    are left out.

    >>> [name for name, _, owners in choices("objectives") if owners == "xnnpack"]
    ['time']
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    known: dict[str, None] = {}
    for name, declared in _entries().items():
        with suppress(UsageError):
            about = _load(name, declared)
            known[about.family or name] = None
            offered: Mapping[str, str] = getattr(about, kind)
            for item in offered.items():
                found.setdefault(item, {})[about.family or name] = None
    return [
        (name, line, "" if owners == known else ", ".join(owners)) for (name, line), owners in found.items()
    ]


def require_objective(target: str, known: Collection[str], objective: str) -> None:
    """Raise `UsageError` for an objective that is not among those known of a target of that name.

    >>> require_objective("torch", info("torch").objectives, "time")
    Traceback (most recent call last):
    dimorder.errors.UsageError: objective 'time'
      found: no objective of target torch, but of xnnpack
      fix: choose bytes or count
    """
    require_type(objective, str, "objective", f"choose {' or '.join(known)}")
    if objective not in known:
        owners = next((owners for name, _, owners in choices("objectives") if name == objective), "")
        found = f"no objective of target {target}{f', but of {owners}' if owners else ''}"
        raise UsageError(f"objective {objective!r}", found, f"choose {' or '.join(known)}")


def _entries() -> dict[str, list[EntryPoint]]:
    """Return the declarations of each name.

    They are read on each call (5 ms), since packages may be installed later.
    """
    declared = {name: [EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        declared.setdefault(entry.name, []).append(entry)
    return declared


def _closest(name: str) -> str:
    """Return the advice for a name that no target has: those like it, or the target of such files, or all."""
    known, name = names(), str(name).lower()
    of_files = name_for_suffix(f".{name}")
    close = [of_files] if of_files else difflib.get_close_matches(name, known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}choose one of {', '.join(known)}"


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "dimorder"
