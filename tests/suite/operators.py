"""Write the document of the operators: for each the rule of its axes, and what each target makes of it. The
rows come from the results of the suite and from the targets' tables."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dimorder.ops.row_major import ROW_MAJOR
from dimorder.ops.table import find
from dimorder.targets.litert.ops import OPERATORS as LITERT
from dimorder.targets.table import Table
from dimorder.targets.tosa.ops import OPERATORS as TOSA
from dimorder.targets.xnnpack.ops import OPERATORS as XNNPACK
from tests.suite.outcomes import CRASHED, OUTSIDE, REFUSED, RIGHT, TARGETS, WRONG
from tests.suite.page import EXPORTED, Results, reason

YES, PARTS = "yes", "parts"
UNKNOWN = "no result"

TABLES: Mapping[str, Table] = {"xnnpack": XNNPACK, "litert": LITERT, "tosa": TOSA}

_HEAD = """# Operators

What is known of each operator, and what each target makes of it. This page is written by

    python -m tests.suite --operators docs/operators.md --out benchmarks/results/suite.json

from the table of operators (`dimorder.ops`), the targets' tables, and the results that the
suite left in that file ([coverage](coverage.md) says what the suite is). A case tells of an operator where
export makes that operator of it alone, or where all of its program is computed.

*Axes* is the rule by which an operator's operands and results share axes: *yes*, so that it runs in other
orders than row-major; *of its parts*, for it is written in other operators before it is planned; *none*, so
that it runs row-major.

| target's word | meaning |
| --- | --- |
| yes | the target computes it, by one operator of the physical program; or it moves no memory |
| parts | the target computes it, built from other operators |
| outside | a kernel of the runtime computes it, beside the target |
| refused | no program: no kernel has it, or the reason that is told |
| some … | so became some of its samples; [coverage](coverage.md) has the reasons |
| no result | the file has no result that tells of it, and the target no row for it |
"""


def page(results: Results) -> str:
    """The document, of what the suite has found."""
    core = sorted(str(name) for name in _overloads() if torch.Tag.core in name.tags)
    met = {name for by in results.values() for name in by.get(EXPORTED, ())} - set(core)
    written = torch.export.default_decompositions()
    kept = sorted(str(name) for name in _overloads() if str(name) in met and _is_composite(name, written))
    lines = [
        _HEAD,
        f"\n## The core ATen set\n\n{len(core)} overloads, those that torch {torch.__version__.split('+')[0]}"
        " tags as core.\n",
        *_table(core, results),
        f"\n## Composite operators that export keeps whole\n\n{len(kept)} overloads, which PyTorch could"
        " write in others, met in the programs of the suite's cases.\n",
        *_table(kept, results),
    ]
    return "\n".join(lines) + "\n"


def _overloads() -> Iterator[torch._ops.OpOverload]:
    """Every overload of ATen that gives a result and writes to none of its operands."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace == "aten":
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if isinstance(found, torch._ops.OpOverload) and not found._schema.is_mutable:
                yield found


def _is_composite(name: torch._ops.OpOverload, written: Container[Any]) -> bool:
    """Whether PyTorch itself can write it in other operators, by its kernel or by a table of such."""
    return name in written or name.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _table(names: Sequence[str], results: Results) -> Iterable[str]:
    yield f"| operator | axes | {' | '.join(TARGETS)} |"
    yield f"| --- | --- | {' | '.join(['---'] * len(TARGETS))} |"
    overloads = {str(name): name for name in _overloads()}
    for name in names:
        cases = [by for by in results.values() if name in by.get(EXPORTED, ())]
        told = [_told(name, target, cases, TABLES.get(target), overloads[name]) for target in TARGETS]
        yield f"| {name} | {_axes(overloads[name])} | {' | '.join(told)} |"


def _axes(name: torch._ops.OpOverload) -> str:
    known = find(name)
    if known is None:
        return "none"
    if known.relate is None:
        return "of its parts"
    return "none" if all(i.lower is ROW_MAJOR.lower for i in known.implementations) else YES


def _told(name: str, target: str, cases: Sequence[Any], table: Table | None, overload: Any) -> str:
    """Return the outcome of an operator on a target: that of all samples, or the best and the worst."""
    found = {word: why for by in cases if target in by for word, why in _of(name, by[target], by[EXPORTED])}
    words = [word for word in (YES, PARTS, OUTSIDE, REFUSED, CRASHED, WRONG) if word in found]
    if not words:
        return YES if table is not None and overload in table.rows else UNKNOWN
    best, worst = words[0], words[-1]
    if best != worst:
        return f"{best}, some {worst}"
    return f"{best}: {found[best]}".replace("|", "—") if found[best] else best


def _of(name: str, became: Mapping[str, Any], exported: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what a case tells of one of its operators, and why; nothing if it may be due to another one."""
    kind, short = became["kind"], name.removesuffix(".default")
    if kind == RIGHT:
        yield (YES if became.get("operators", 0) <= len(exported) else PARTS), ""
    elif kind == OUTSIDE:
        reasons = dict(became["outside"])
        if exported == [name] or short in reasons:
            why = reasons.get(short, "") or next(iter(reasons.values()))
            yield OUTSIDE, "" if why.endswith(f"has no {name}") else why
    elif kind == REFUSED and (exported == [name] or str(became["why"]).startswith(f"{name} ")):
        yield REFUSED, reason(became).partition(": ")[2]
    elif kind in (CRASHED, WRONG) and exported == [name]:
        yield kind, ""
