"""Write the document of the results: counts, and a table for each target by operator. Below it is each reason
why a case is refused or has an operator outside."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.suite.outcomes import CRASHED, KINDS, OUTSIDE, REFUSED, RIGHT, SKIPPED, STOCK, TARGETS, WRONG

Results = Mapping[str, Mapping[str, Mapping[str, object]]]  # case → target → what became of it
EXPORTED = "exported"  # next to the targets: the operators that export makes of a case

SOURCES = {
    "executorch": "ExecuTorch's backend suite",
    "torch": "PyTorch's operator samples",
}

_HEAD = """# Coverage

What others wrote as tests, run through our lowering: the operators of ExecuTorch's own backend test suite
(`executorch.backends.test.suite.operators`) and PyTorch's samples of its operators (`op_db`, float32).
Each case is lowered, run on its own inputs and compared with eager PyTorch. This page is written by

    python -m tests.suite --out benchmarks/results/suite.json --page docs/coverage.md

| outcome | meaning |
| --- | --- |
| right | eager's numbers, all computed by the target |
| outside | eager's numbers, with operators outside of the target: the plan names them and why |
| refused | no program: the error says what is in the way |
| crashed, wrong | must not be: another exception; numbers off by over 1e-4 of the largest, or other NaN |

*stock* is ExecuTorch's own lowering for XNNPACK of the same case, *outside* if it calls any portable kernel.
A case that eager PyTorch itself refuses is left out.
"""


def page(results: Results) -> str:
    lines = [_HEAD]
    for source, title in SOURCES.items():
        cases = {case: by for case, by in results.items() if case.startswith(f"{source}:")}
        if not cases:
            continue
        lines += [f"\n## {title}\n", *_counts(cases)]
        for target in TARGETS:
            if any(target in by for by in cases.values()):
                lines += [f"\n### {title} on {target}\n", *_table(cases, target), *_reasons(cases, target)]
    return "\n".join(lines) + "\n"


def kinds(results: Results, target: str, source: str = "") -> Counter[str]:
    """How many cases of a source became what on a target."""
    found = (by[target]["kind"] for case, by in results.items() if target in by and case.startswith(source))
    return Counter(str(kind) for kind in found if kind != SKIPPED)


def _counts(cases: Results) -> Iterable[str]:
    yield f"| target | cases | {' | '.join(KINDS)} |"
    yield f"| --- | {' | '.join(['---:'] * (len(KINDS) + 1))} |"
    for target in (*TARGETS, STOCK):
        counts = kinds(cases, target)
        if counts:
            told = " | ".join(str(counts[kind]) for kind in KINDS)
            yield f"| {target} | {sum(counts.values())} | {told} |"


def _table(cases: Results, target: str) -> Iterable[str]:
    """Operators of which not every case is right; the others by name, below."""
    groups: dict[str, list[str]] = defaultdict(list)
    for case, by in cases.items():
        if by.get(target, {}).get("kind", SKIPPED) != SKIPPED:
            groups[case.partition(":")[2].split("/")[0]].append(case)
    told = (RIGHT, OUTSIDE, REFUSED, CRASHED, WRONG)
    clean = [g for g, members in groups.items() if all(cases[c][target]["kind"] == RIGHT for c in members)]
    rest = {g: members for g, members in groups.items() if g not in clean}
    if rest:
        yield f"| operator | {' | '.join(told)} | stock |"
        yield f"| --- | {' | '.join(['---:'] * len(told))} | --- |"
    for group, members in rest.items():
        counts = Counter(str(cases[c][target]["kind"]) for c in members)
        stock = Counter(str(cases[c][STOCK]["kind"]) for c in members if STOCK in cases[c])
        theirs = ", ".join(f"{stock[kind]} {kind}" for kind in told if stock[kind])
        yield f"| {group} | {' | '.join(str(counts[kind] or '') for kind in told)} | {theirs} |"
    if clean:
        yield f"\nAll right: {', '.join(f'{group} ({len(groups[group])})' for group in clean)}."


def _reasons(cases: Results, target: str) -> Iterable[str]:
    """Each reason once, with the operators that it holds for and how many of their cases."""
    for kind in (REFUSED, CRASHED, WRONG, OUTSIDE):
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for case, by in cases.items():
            became = by.get(target, {})
            if became.get("kind") == kind:
                for reason in _of(became):
                    found[reason][case.partition(":")[2].split("/")[0]] += 1
        if found:
            yield f"\n{kind.capitalize()}:\n"
        for reason, groups in sorted(found.items()):
            told = ", ".join(f"{group} ({count})" for group, count in groups.items())
            yield f"- {reason.replace('|', '—')}: {told}"


def _of(became: Mapping[str, object]) -> list[str]:
    outside: list[tuple[str, str]] = became.get("outside", [])  # type: ignore[assignment]
    if became["kind"] == OUTSIDE:
        return list(dict.fromkeys(f"`{operator}`: {why}" for operator, why in outside))
    return [reason(became)]


def reason(became: Mapping[str, object]) -> str:
    """Why there is no program, in one line without the places of the source."""
    why = re.sub(r" \([^()]*\.py:\d+[^()]*\)", "", str(became.get("why", "")))
    told = why.replace(" | found:", ":").split(" | fix:")[0].split(" | While")[0]
    return told.translate({ord("["): "(", ord("]"): ")"})
