"""Keep the outcomes of random networks that were examined: per target, the outcome of each seed.

A seed that is examined again counts as its last outcome, so that the record of a fixed fault is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dimorder.cpu import machine
from dimorder.files import write_whole

PACKAGES = ("dimorder", "torch", "executorch", "tosa-tools")

# By seed: "right", "refused" or "fault", and the reason or the fault.
Outcomes = Mapping[int, tuple[str, str]]


def read(path: Path) -> dict[str, Outcomes]:
    """The outcomes of a record by target; none where there is no such file yet."""
    if not path.exists():
        return {}
    targets: Mapping[str, Any] = json.loads(path.read_text())["targets"]
    return {target: dict(_outcomes(entry)) for target, entry in targets.items()}


def add(path: Path, target: str, outcomes: Outcomes) -> None:
    """Write the record anew, with these outcomes in it."""
    recorded = read(path)
    recorded[target] = {**recorded.get(target, {}), **outcomes}
    entries = {target: _entry(recorded[target]) for target in sorted(recorded)}
    record = {
        "command": "python -m tests.fuzz --target TARGET --seed FIRST --count N --keep-going --record FILE",
        "machine": machine(PACKAGES),
        "targets": entries,
    }
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())


def spans(seeds: Iterable[int]) -> str:
    """
    >>> spans([5, 1, 2, 3]), list(seeds_of("1-3, 5"))
    ('1-3, 5', [1, 2, 3, 5])
    """
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and seed == found[-1][-1] + 1:
            found[-1][1:] = [seed]
        else:
            found.append([seed])
    return ", ".join("-".join(map(str, span)) for span in found)


def seeds_of(spans: str) -> Iterator[int]:
    for span in filter(None, spans.split(", ")):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _entry(outcomes: Outcomes) -> dict[str, object]:
    by_kind: dict[str, dict[str, list[int]]] = {"right": {}, "refused": {}, "fault": {}}
    for seed, (kind, detail) in outcomes.items():
        by_kind[kind].setdefault(detail, []).append(seed)
    counts = {kind: sum(map(len, among.values())) for kind, among in by_kind.items()}
    return {
        "seeds": spans(outcomes),
        "networks": len(outcomes),
        "right": counts["right"],
        "refused": counts["refused"],
        "faults": counts["fault"],
        "reasons of refusals": _told(by_kind["refused"]),
        "kinds of faults": _told(by_kind["fault"]),
    }


def _told(among: Mapping[str, list[int]]) -> list[dict[str, object]]:
    """Most frequent first."""
    ordered = sorted(among.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"networks": len(seeds), "told": told, "seeds": spans(seeds)} for told, seeds in ordered]


def _outcomes(entry: Mapping[str, Any]) -> Iterator[tuple[int, tuple[str, str]]]:
    for seed in seeds_of(entry["seeds"]):
        yield seed, ("right", "")
    for kind, field in (("refused", "reasons of refusals"), ("fault", "kinds of faults")):
        for each in entry[field]:
            for seed in seeds_of(each["seeds"]):
                yield seed, (kind, each["told"])
