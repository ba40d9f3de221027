"""Decides which targets there are and finds them: ours, and those that other packages declare.

Another package declares one in the entry-point group `dimorder.targets`, as `NAME = "package:LISTING"`. What
is imported is the listing of a target that is asked about, and the target itself when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dimorder.errors import UsageError
from dimorder.targets import ethos_u
from dimorder.targets.target_info import Listing

if TYPE_CHECKING:
    from dimorder.targets.base import Target

GROUP = "dimorder.targets"

# Not entry points of our own, which only an installed package has: dimorder also runs from its sources.
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "inductor": "dimorder.targets.inductor:LISTING",  # before torch: it knows its files by what is inside
        "torch": "dimorder.targets.torch:LISTING",
        "tosa": "dimorder.targets.tosa:LISTING",
        "xnnpack": "dimorder.targets.xnnpack:LISTING",
        **{
            name: f"dimorder.targets.ethos_u:{name.upper().replace('-', '_')}"
            for name in ethos_u.ACCELERATORS
        },
    }
)
_READS_THE_REST = "xnnpack"  # files of ExecuTorch are called many things: what nobody knows is taken for one


def names() -> list[str]:
    """The names of all targets, ours first; nothing is imported.

    >>> names()[:4]
    ['inductor', 'torch', 'tosa', 'xnnpack']
    """
    return list(_entries())


def listing(name: str) -> Listing:
    """What is known of a target without importing it.

    Raises `UsageError` where there is none of that name, where two packages declare it, and where the one
    that does is broken.

    >>> listing("tosa").suffix
    '.tosa'
    """
    declared = _entries().get(name)
    if declared is None:
        raise UsageError("target", f"no target {name!r}", f"choose one of {', '.join(names())}")
    owners = [_owner(entry) for entry in declared]
    if len(declared) > 1:
        found, fix = f"declared by {' and by '.join(owners)}", f"uninstall or rename that of {owners[-1]}"
        raise UsageError(f"target {name}", found, fix)
    entry, owner = declared[0], owners[0]
    try:
        found = entry.load()
    except Exception as error:  # of another package's module anything may come
        text = f"{owner} declares {entry.value}, which raises {type(error).__name__}: {error}"
        raise UsageError(f"target {name}", text, f"mend or uninstall {owner}") from error
    if not isinstance(found, Listing):
        text = f"{owner} declares {entry.value}, a {type(found).__name__}"
        raise UsageError(f"target {name}", text, "name a dimorder.targets.target_info.Listing there")
    return found


def find(target: str | Target) -> Target:
    """The target of that name; a `Target` is returned as it is.

    Raises `UsageError` as `listing` does, `UnsupportedError` where what it needs is not installed.

    >>> find("torch").name, find(find("torch")).suffix
    ('torch', '.pt2')
    """
    from dimorder.targets.base import Target

    if isinstance(target, Target):
        return target
    told = listing(target)
    found = told.open(target)
    if not isinstance(found, Target):
        raise UsageError(
            f"target {target}", f"{told.target} is a {type(found).__name__}", "name a Target there"
        )
    for what, its, listed in (
        ("name", found.name, target),
        ("suffix", found.suffix, told.suffix),
        ("check", found.check is not None, told.kind is not None),
    ):
        if its != listed:
            text = f"{told.target} has {what} {its!r}, where its listing promises {listed!r}"
            raise UsageError(f"target {target}", text, "mend one of the two")
    return found


def target_for_file(path: Path) -> Target:
    """The target that reads this file back, by the file's suffix: of several that share one, the first, ours
    before others, but none whose own the file is not by what lies inside.

    >>> target_for_file(Path("net.pt2")).name, target_for_file(Path("net.bin")).name
    ('torch', 'xnnpack')
    """
    return find(next((name for name, told in listings() if told.reads(path)), _READS_THE_REST))


def listings() -> Iterator[tuple[str, Listing]]:
    """Each target's name and listing, ours first. Errors as in `listing`, when a broken one is reached."""
    return ((name, listing(name)) for name in names())


def _entries() -> dict[str, list[EntryPoint]]:
    """Who declares each name. Read anew each time (5 ms): a package may have been installed since."""
    declared = {name: [EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        declared.setdefault(entry.name, []).append(entry)
    return declared


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "dimorder"
