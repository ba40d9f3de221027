"""Say in the user's words which dynamic sizes a network does not take; torch.export speaks of its guards."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch.fx.experimental.symbolic_shapes import DimConstraints

_FIXED = re.compile(r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)")
_GUARD = re.compile(
    r"Not all values of (\S+) = (L\[.+?\]\.size\(\)\[\d+\]) in the specified range (.+?) "
    r"satisfy the generated guard (.+?)\.?$"
)
_EQUAL = re.compile(
    r"The values of (\S+) = (L\[.+?\]\.size\(\)\[\d+\]) and (\S+) = (L\[.+?\]) must always be equal"
)
_SIZE = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\]")
_OUTSIDE = re.compile(r"^(\d+) not in range \[(\d+), (\w+)\]")
_NO_MULTIPLE = re.compile(r"^Expected (\S+) = (\d+) of input Tensor to be of the form (\d+)\*")
_UNDECIDED = "Expected an equality constraint"  # an error of torch's solver


@contextmanager
def unsolved_sizes() -> Iterator[None]:
    """Let torch.export go on where it has no words for what a network asks of its sizes.

    torch 2.13 looks for sizes to suggest after each export, and fails on quotients of quotients. Whether the
    network takes all sizes is decided before.
    """
    original = DimConstraints.prettify_results

    def suggest(self: DimConstraints, *args: Any) -> str:
        try:
            return original(self, *args)
        except AssertionError:
            return ""

    with patch.object(DimConstraints, "prettify_results", suggest):
        yield


_NO_PLACES: Mapping[str, str] = MappingProxyType({})


def refuses_some_sizes(error: Exception) -> bool:
    """Return whether torch.export refuses some sizes of a range by this error, and fixes none."""
    return "Constraints violated" in str(error) and _FIXED.search(str(error)) is None


def refused_sizes(text: str, places: Mapping[str, str] = _NO_PLACES) -> tuple[str, str] | None:
    """Return what was found, and what to do, if torch's text refuses dynamic sizes; else None.

    `places` says where each dynamic size is, by its name.

    >>> text = "Constraints violated (H)!\\n  - You marked H as dynamic but your code specialized it to be a "
    >>> print(*refused_sizes(text + "constant (8).", {"H": "dim 2 of x"}), sep="\\n")
    the network takes one size alone: H = 8 (dim 2 of x)
    give a fixed size there (None in dynamic_shapes), or let the network compute with x.shape
    """
    if outside := _OUTSIDE.search(text):
        size, least, most = outside.groups()
        sizes = f"from {least}" if most == "int_oo" else f"{least} to {most}"
        found = f"a size of {size} in the example inputs, whose range is {sizes}"
        return found, "give example inputs within the ranges, or wider ranges"
    if uneven := _NO_MULTIPLE.search(text):
        place, size, step = uneven.groups()
        found = f"{place} = {size} in the example inputs, which is no multiple of {step}"
        return found, "give example inputs of sizes that dynamic_shapes allow, or other dynamic_shapes"
    if _UNDECIDED in text:
        return (
            "operators that ask something of a dynamic size which holds for some of its sizes alone",
            "narrow the range, or fix the size",
        )
    lines = [line.strip() for line in text.splitlines()]
    reasons = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    if "Constraints violated" not in text or not reasons:
        return None
    fixed = list(dict.fromkeys(match.groups() for each in reasons if (match := _FIXED.search(each))))
    if fixed:
        named = ", ".join(f"{name} = {size}{_at(name, places)}" for name, size in fixed)
        sizes = "one size" if len(fixed) == 1 else "these sizes"
        fix = "give a fixed size there (None in dynamic_shapes), or let the network compute with x.shape"
        return f"the network takes {sizes} alone: {named}", fix
    after = lines[lines.index("Suggested fixes:") + 1 :] if "Suggested fixes:" in lines else []
    other = "give both the same Dim" if _EQUAL.search(reasons[0]) else "narrow the range, or fix the size"
    suggested = ", ".join(itertools.takewhile(bool, after)).replace(", max=oo", "")  # as sympy has it
    fixes = f"give sizes that the network takes: {suggested}" if suggested else other
    joined = _joined(reasons)
    more = f" (and {len(reasons) - 1} more)" if joined is None and len(reasons) > 1 else ""
    return f"{_reason(joined or reasons[0], places)}{more}", fixes


def _joined(reasons: Sequence[str]) -> str | None:
    """Return reasons that are guards on one size as one reason: torch names guards too that always hold."""
    guards = [guard for each in reasons if (guard := _GUARD.search(each)) is not None]
    if len(guards) < len(reasons) or len({guard.groups()[:3] for guard in guards}) > 1:
        return None
    return reasons[0].replace(guards[0][4], " and ".join(guard[4] for guard in guards))


def _reason(text: str, places: Mapping[str, str]) -> str:
    """Return one of torch's reasons with the names of sizes, and with their places."""
    guard, equal = _GUARD.search(text), _EQUAL.search(text)
    if guard is not None:
        name, size, sizes, claim = guard.groups()
        claim = _SIZE.sub(_place, claim.replace(size, name))
        return f"the network needs {claim}, which not all {sizes} satisfy{_at(name, places, size)}"
    if equal is not None:
        one, first, other, second = equal.groups()
        return (
            f"the network needs {one}{_at(one, places, first)} equal to {other}{_at(other, places, second)}"
        )
    return _SIZE.sub(_place, text)


def _place(size: re.Match[str]) -> str:
    return f"dim {size[3]} of {size[1]}{size[2]}"


def _at(name: str, places: Mapping[str, str], size: str = "") -> str:
    """Return where a dynamic size is, as torch or as the caller's dynamic shapes say it."""
    place = _SIZE.sub(_place, size) or places.get(name.rpartition("*")[2], "")
    return f" ({place})" if place else ""


def places_of(model: torch.nn.Module, dynamic_shapes: Any) -> dict[str, str]:
    """Return where each dynamic size is among the inputs, by its name: `dim 2 of x`.

    >>> places_of(torch.nn.ReLU(), ({2: 4 * torch.export.Dim("H")},))
    {'H': 'dim 2 of input'}
    """
    names = inspect.signature(model.forward).parameters
    listed = dynamic_shapes if isinstance(dynamic_shapes, (list, tuple)) else ()
    is_named = isinstance(dynamic_shapes, Mapping)
    pairs = dynamic_shapes.items() if is_named else zip(names, listed, strict=False)
    found: dict[str, list[str]] = {}
    for name, shapes in pairs:
        for place, dim in _dims(shapes, str(name)):
            found.setdefault(getattr(dim, "root", dim).__name__, []).append(place)
    return {name: ", ".join(dict.fromkeys(places)) for name, places in found.items()}


def _dims(shapes: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(shapes, Mapping):
        pairs = list(shapes.items())
    elif isinstance(shapes, (list, tuple)):
        pairs = list(enumerate(shapes))
    else:
        return
    for key, each in pairs:
        if isinstance(each, torch.export.Dim):
            yield f"dim {key} of {place}", each
        else:
            yield from _dims(each, f"{place}[{key!r}]")
