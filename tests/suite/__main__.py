"""Lower each case, and count the outcomes: `python -m tests.suite --target xnnpack --out FILE.json`.

Results that are in the file already are kept, except of cases that are run again. `--page` and `--operators`
write the documents.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.suite import operators
from tests.suite.cases import Case, collect
from tests.suite.outcomes import CRASHED, LIMIT_S, RIGHT, STOCK, TARGETS, WRONG, examine_all
from tests.suite.page import EXPORTED, page

SOURCES = ("executorch", "torch")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("--target", action="append", choices=[*TARGETS, STOCK], help="default: all of them")
    parser.add_argument("--source", action="append", choices=SOURCES, help="default: both")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name has this")
    parser.add_argument("--limit", type=int, default=LIMIT_S, metavar="S", help="seconds a case may take")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where the results go")
    parser.add_argument("--again", metavar="KIND", help="only what had this outcome in the file")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="where the document goes, from --out")
    parser.add_argument("--operators", type=Path, metavar="FILE.md", help="where that of the operators goes")
    options = parser.parse_args()
    os.environ.setdefault("DIMORDER_CHECK", "1")
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    if (options.page or options.operators) and not (options.target or options.source):
        if options.page:
            options.page.write_text(page(results))
        if options.operators:
            options.operators.write_text(operators.page(results))
        return 0
    targets = options.target or [*TARGETS, STOCK]
    counts: Counter[tuple[str, str]] = Counter()
    for source in options.source or SOURCES:
        cases = list(collect(source, options.only))
        if not options.only:  # of the whole source: what is a case no more is left out
            known = set(map(str, cases))
            gone = [case for case in results if case.startswith(f"{source}:") and case not in known]
            for case in gone:
                del results[case]
        for target in targets:
            chosen = [case for case in cases if _is_wanted(case, target, options.again, results)]
            print(f"{source} on {target}: {len(chosen)} cases", flush=True)
            start = time.perf_counter()
            for i, (case, _, became, seconds) in enumerate(examine_all(chosen, [target], options.limit), 1):
                counts[target, became.kind] += 1
                results.setdefault(str(case), {})[target] = became.to_dict()
                if became.kind != RIGHT:
                    why = became.why or ", ".join(
                        f"{name} ({why})" if why else name for name, why in became.outside
                    )
                    print(f"{became.kind:8} {case} [{seconds:.1f} s]: {why}", flush=True)
                if i % 50 == 0:
                    print(f"  {i} of {len(chosen)}, {time.perf_counter() - start:.0f} s", flush=True)
                    _save(options.out, results)
            _save(options.out, results)
        for case in cases:
            if EXPORTED not in results.get(str(case), {EXPORTED: []}):
                results[str(case)][EXPORTED] = case.exported()
        _save(options.out, results)
    for (target, kind), count in sorted(counts.items()):
        print(f"{target:8} {kind:8} {count}")
    return int(any(kind in (CRASHED, WRONG) for target, kind in counts if target != STOCK))


def _is_wanted(
    case: Case, target: str, kind: str | None, results: dict[str, dict[str, dict[str, str]]]
) -> bool:
    return kind is None or results.get(str(case), {}).get(target, {}).get("kind") == kind


def _save(out: Path | None, results: object) -> None:
    if out is not None:
        out.write_text(json.dumps(results, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
