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
UNKNOWN = "no case"

TABLES: Mapping[str, Table] = {"xnnpack": XNNPACK, "litert": LITERT, "tosa": TOSA}

_HEAD = """# Operators

Does a target compute an operator, and in which orders may the operator run? The column *axes* answers the
second question:

| axes | meaning |
| --- | --- |
| yes | its operands and results share axes, so the plan chooses its order |
| of its parts | it is written as simpler operators before it is planned, and the plan chooses their orders |
| none | it runs row-major |

The columns of the targets have the outcome of the operator's cases in a [suite](coverage.md). A case counts
if it calls the operator alone, or if the target computes all of it.

| outcome | meaning |
| --- | --- |
| yes | the target computes it by one of its own operators, or it moves no memory |
| parts | the target computes it by several of its own operators |
| outside | a kernel of the runtime computes it, outside of the target's delegates |
| refused | lowering ends with an error; its reason may follow |
| yes, some outside | the best and the worst outcome of its cases; [coverage](coverage.md) has the reasons |
| no case | no case counts for it on this target |

This page is written by

    python -m tests.suite --operators docs/operators.md --out benchmarks/results/suite.json
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
        f"\n## Composite operators that export keeps whole\n\n{len(kept)} operators of the suite's cases that"
        " PyTorch could write as other operators.\n",
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
    overloads, unknown = {str(name): name for name in _overloads()}, []
    for name in names:
        cases = [by for by in results.values() if name in by.get(EXPORTED, ())]
        told = [_told(name, target, cases, TABLES.get(target), overloads[name]) for target in TARGETS]
        if set(told) == {UNKNOWN}:
            unknown.append(name)
        else:
            yield f"| {name} | {_axes(overloads[name])} | {' | '.join(told)} |"
    if unknown:
        yield f"\nNo case counts for {len(unknown)} more on any target: {', '.join(unknown)}."


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
