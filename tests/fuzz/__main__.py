"""Run the fuzzer: draw networks from seeds, lower them and examine them.

Run `python -m tests.fuzz --count 100 --seed 0 --target xnnpack`; a failure is printed as a script.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import record
from tests.fuzz.description import STANDS_FOR, Case
from tests.fuzz.drawing import generate
from tests.fuzz.examining import examine, is_named
from tests.fuzz.outcome import Outcome
from tests.fuzz.scripts import script
from tests.fuzz.shrinking import shrink

# physical: target torch, where nothing is emitted; int8: quantised networks on xnnpack; int8-litert: these on
# litert; constants: float networks on xnnpack whose constants are zeros, ones, or equal to one another, in
# C++ too; TARGET-FEATURE: networks with that feature on that target.
TARGETS = ("torch", "xnnpack", "tosa", "litert", *STANDS_FOR)
RECORD_EVERY = 20  # networks


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="networks per target")
    parser.add_argument("--seed", type=int, default=0, help="of the first network; the next have the next")
    parser.add_argument("--target", choices=TARGETS, action="append", help="repeatable; all by default")
    parser.add_argument(
        "--out", type=Path, help="the folder for scripts of what fails; else they are printed"
    )
    parser.add_argument("--keep-going", action="store_true", help="after the first fault of a kind, too")
    parser.add_argument(
        "--record", type=Path, help="the file (JSON) that keeps what became of each seed; it is added to"
    )
    parser.add_argument("--again", action="store_true", help="those seeds that the record has as faults")
    parser.add_argument("--tries", type=int, default=200, help="lowerings that making one small may take")
    given_options = parser.parse_args(argv)
    if given_options.again and given_options.record is None:
        parser.error("--again needs --record")
    faults = 0
    for target in given_options.target or TARGETS:
        faults += _campaign(target, given_options)
    return min(faults, 1)


def _campaign(target: str, options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    unrecorded: dict[int, tuple[str, str]] = {}
    drawing = lowering = 0.0
    seeds = _seeds(target, options)
    for number, seed in enumerate(seeds, 1):
        start = time.perf_counter()
        case = generate(seed, target)
        drawing += time.perf_counter() - start
        outcome = examine(case, target)
        lowering += outcome.seconds
        counts[outcome.kind] += 1
        if outcome.kind == "refused":
            refusals[_reason(case, outcome)] += 1
        unrecorded[seed] = _recorded(case, outcome)
        if options.record is not None and (number % RECORD_EVERY == 0 or number == len(seeds)):
            record.add(options.record, target, unrecorded)
            unrecorded = {}
        if outcome.is_fault:
            print(f"{target} seed {seed}: {outcome.kind}", flush=True)
            if options.keep_going or counts[outcome.kind] == 1:
                _tell(case, target, outcome, seed, options)
    each = max(len(seeds), 1)
    print(f"\n{target}: {len(seeds)} networks, {drawing / each:.2f} s to draw one, ", end="")
    print(f"{lowering / each:.2f} s to lower and examine it")
    for counted in (counts, refusals):
        for kind, count in counted.most_common():
            print(f"  {count:5} {kind}")
    return sum(count for kind, count in counts.items() if Outcome(kind).is_fault)


def _seeds(target: str, options: argparse.Namespace) -> Sequence[int]:
    if not options.again:
        return range(options.seed, options.seed + options.count)
    recorded = record.read(options.record).get(target, {})
    return [seed for seed, (kind, _) in recorded.items() if kind == "fault"]


def _recorded(case: Case, outcome: Outcome) -> tuple[str, str]:
    """Return the two words that the record keeps of an outcome: its kind, and the fault or the reason."""
    if outcome.is_fault:
        return "fault", outcome.kind
    return outcome.kind, _reason(case, outcome) if outcome.kind == "refused" else ""


def _reason(case: Case, refusal: Outcome) -> str:
    """Why a case is refused, without figures."""
    found = refusal.detail.split("\n  ")[1].removeprefix("found: ")
    lacks = re.search(r"has no (?:aten|dimorder)\.(\w+)", found)
    if lacks and is_named(lacks[1], case.refused):
        return "an operator that the fuzzer withholds from the target"
    return re.sub(r"\d+", "n", found) + " (the fuzzer withholds some operators)" * bool(case.refused)


def _tell(case: Case, target: str, outcome: Outcome, seed: int, options: argparse.Namespace) -> None:
    small = shrink(case, lambda c: examine(c, target).kind == outcome.kind, options.tries)
    text = script(small, target, examine(small, target), seed)
    if options.out is None:
        print(text)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "_", outcome.kind.lower()).strip("_")[:60]
    path = options.out / f"{target}_{seed}_{slug}.py"
    path.write_text(text)
    print(f"  → {path}, {len(small.steps)} operators", flush=True)


if __name__ == "__main__":
    sys.exit(main())
