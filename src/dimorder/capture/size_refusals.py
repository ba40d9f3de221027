"""Say in the user's words which dynamic sizes a network does not take; torch.export speaks of its guards."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from traceback import FrameSummary
from types import FrameType, MappingProxyType
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import DimConstraints, ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.capture.claims import holds

_FIXED = re.compile(r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)")
_GUARD = re.compile(
    r"Not all values of (\S+) = (L\[.+?\]\.size\(\)\[\d+\]) in the specified range (.+?) "
    r"satisfy the generated guard (.+?)\.?$",
    re.MULTILINE,
)
_RANGE = re.compile(r"(?:(\d+) <= )?\w+(?: <= (\d+))?")
_EQUAL = re.compile(
    r"The values of (\S+) = (L\[.+?\]\.size\(\)\[\d+\]) and (\S+) = (L\[.+?\]) must always be equal"
)
_SIZE = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\]")
_OUTSIDE = re.compile(r"^(\d+) not in range \[(\d+), (\w+)\]")
_NO_MULTIPLE = re.compile(r"^Expected (\S+) = (\d+) of input Tensor to be of the form (\d+)\*")
# What torch concludes of all guards follows the last one on its line.
_CONCLUDED = re.compile(
    r"(?<=[^\n])\.?Specializations unexpectedly required .*((\n *- solving the guards .*)*)"
)
_UNDECIDED = "Expected an equality constraint"  # an error of torch's solver


@contextmanager
def unsolved_sizes() -> Iterator[None]:
    """Let torch.export go on where it has no words for what a network asks of its sizes.

    torch 2.13 looks for sizes to suggest after each export, and fails on quotients of quotients. Whether the
    network takes all sizes is decided before. An error gets the line of the network that refuses sizes.
    """
    original, produce = DimConstraints.prettify_results, ShapeEnv.produce_guards_verbose
    solve_all = DimConstraints.solve
    checked: list[ShapeEnv] = []

    def suggest(self: DimConstraints, *args: Any) -> str:
        try:
            return original(self, *args)
        except AssertionError:
            return ""

    def solve(self: DimConstraints) -> None:
        with suppress(ValueError):  # quotients that sympy takes for fractions contradict one another
            solve_all(self)

    def check(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        checked.append(self)
        return produce(self, *args, **kwargs)

    patches = (
        patch.object(DimConstraints, "prettify_results", suggest),
        patch.object(DimConstraints, "solve", solve),
        patch.object(ShapeEnv, "produce_guards_verbose", check),
        patch.object(ShapeEnv, "_get_user_frame", lambda self: _network_frame()),
        # A strict export logs the errors that it raises, with their tracebacks.
        patch.object(logging.getLogger("torch._guards"), "disabled", True),
    )
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        try:
            yield
        except Exception as error:
            error.refusing_line = _refusing_line(str(error), checked)  # type: ignore[attr-defined]
            raise


def refusing_line(error: Exception) -> FrameSummary | None:
    """Return the line of a network that refuses sizes by an error, if it is known."""
    return getattr(error, "refusing_line", None)


def is_network_file(path: str) -> bool:
    """Return whether a file is neither torch's, nor ours, nor Python's."""
    is_built_in = path.startswith(_LIBRARY) and "site-packages" not in path
    return not is_built_in and not path.startswith(_NO_NETWORK)


_LIBRARY = sysconfig.get_path("stdlib")
_NO_NETWORK = str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<"


def _network_frame() -> FrameType | None:
    """Return the call of a network that torch.export is in."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != torch.export.__file__:
        if is_network_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def _refusing_line(text: str, checked: Sequence[ShapeEnv]) -> FrameSummary | None:
    """Return the line at which a network first asked what not all sizes of the ranges in torch's text are."""
    if not checked or "Constraints violated" not in text:
        return None
    known = checked[-1]
    wanted = {size: sizes for _, size, sizes, _ in _GUARD.findall(text)}
    ranges = dict(known.var_to_range)
    for symbol, sources in known.var_to_sources.items():
        sizes = next((wanted[each.name] for each in sources if each.name in wanted), "")
        if match := _RANGE.fullmatch(sizes):
            ranges[symbol] = ValueRanges(int(match[1] or 1), int(match[2]) if match[2] else sympy.oo)
    fixed = [
        known.replacements_slocs[symbol] for symbol, size in known.replacements.items() if size.is_Integer
    ]
    refused = (guard.sloc for guard in known.guards if not holds(guard.expr, ranges))
    places = (place.framework_loc for place in itertools.chain(fixed, refused))
    return next((place for place in places if isinstance(place, FrameSummary)), None)


_NO_PLACES: Mapping[str, str] = MappingProxyType({})


def refuses_some_sizes(error: BaseException | None) -> bool:
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
    lines = [line.strip() for line in _CONCLUDED.sub("", text).splitlines()]
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
