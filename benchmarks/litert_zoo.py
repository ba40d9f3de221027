"""Lower every network of the zoo to `.tflite`, and count TRANSPOSEs beside litert-torch's.

    python -m benchmarks.litert_zoo [--tool PYTHON] [--networks NAME ...]

PYTHON is the one of `build/litert-torch`. A picture goes in channels-last. Our lowering compares each file
with eager, by XNNPACK and by LiteRT's reference kernels, so a file that is wrong is recorded as a failure.
Nothing is timed. Results are kept in benchmarks/results/litert_zoo.json after every network; the .md beside
it is the table. Ends with 1 if a bound does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dimorder
from benchmarks.command import Row, command_line, measured, verdict
from benchmarks.litert import MAX_ERROR, PACKAGES, content, convert
from benchmarks.record import failed, record_lines
from benchmarks.tflite_tools import NETWORKS, takes_pictures

TOOL = "litert-torch"
MOST_REFUSED = 5


def lowered(name: str, python: str | None, folder: Path) -> Row:
    """Return one row: what our file has, and litert-torch's. One that fails has its error instead."""
    network = NETWORKS[name]
    model, (args, kwargs) = network.build(), network.call()
    asked: Row = {"target": "litert", "input_orders": "NHWC" if takes_pictures(args, kwargs) else None}
    row: Row = {"network": name}
    try:
        ours = dimorder.lower(model, args, kwargs, **asked)
        ours.save(folder / "ours.tflite")
    except dimorder.DimorderError as error:
        row["ours"] = failed(error)
    else:
        planned = {
            "planned": len(ours.plan.conversions),
            "proven": ours.plan.certificate.optimal,
            "max_rel_error": ours.max_rel_error,
            "kernels": ["XNNPACK", *ours.artifact.other_runs],
        }
        row["ours"] = {**content(folder / "ours.tflite"), **planned}
    if python:
        path = folder / TOOL / f"{name}.tflite"
        row[TOOL] = convert(TOOL, python, name, path)
        if "error" not in row[TOOL]:
            try:
                row[TOOL] = content(path)
            except RuntimeError as error:  # an operator that LiteRT lacks
                row[TOOL] = failed(error)
    theirs = row.get(TOOL, {}).get("transposes")
    if theirs is not None and row["ours"].get("transposes", 0) > theirs:  # with fewer bytes, maybe
        by_count = dimorder.plan(model, args, kwargs, objective="count", **asked)
        row["ours"]["fewest"] = len(by_count.conversions)
    return row


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the bounds that do not hold."""
    refused = [row["network"] for row in rows if "error" in row["ours"]]
    found = [f"refused: {', '.join(refused)}"] if len(refused) > MOST_REFUSED else []
    for row in rows:
        ours, theirs = row["ours"], row.get(TOOL, {})
        if "error" in ours:
            continue
        if ours["max_rel_error"] > MAX_ERROR:
            found.append(f"{row['network']}: {ours['max_rel_error']:.1e} off")
        if not ours["proven"]:
            found.append(f"{row['network']}: the plan is not proven")
        if ours["transposes"] > ours["planned"]:
            found.append(f"{row['network']}: {ours['transposes']} TRANSPOSEs, planned {ours['planned']}")
        fewest = {"transposes": ours.get("fewest", ours["transposes"])}
        for key in ("transposes", "transposed_bytes"):
            least = fewest.get(key, ours[key])
            if key in theirs and least > theirs[key]:
                found.append(f"{row['network']}: {least:,} {key}, {TOOL}'s {theirs[key]:,}")
    return found


def table(record: Mapping[str, Any]) -> str:
    """Return the text of the record: a table, then the errors."""
    head = ("network", "TRANSPOSEs", "KB", "RESHAPEs", "partitions", "beside XNNPACK", "error", "checked by")
    rows: list[Row] = record["rows"]
    lines = [
        "# The zoo as `.tflite`",
        "",
        f"Ours / {TOOL}'s: TRANSPOSEs that move bytes, these bytes, RESHAPEs, parts that XNNPACK computes, "
        "operators beside them. Then our error over the largest value, and the kernels that were compared "
        "with eager. Plans are by bytes; in brackets stands the plan by count, if the other tool has fewer.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- |{' ---: |' * (len(head) - 2)} --- |",
        *map(_line, rows),
    ]
    for row in rows:
        for way in ("ours", TOOL):
            if "error" in row.get(way, {}):
                lines += ["", f"{row['network']}, {way}: `{row[way]['error']}`"]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    cells = [row["ours"], row.get(TOOL, {"error": ""})]

    def each(key: str) -> str:
        return " / ".join("–" if "error" in cell else str(cell[key]) for cell in cells)

    transposes = each("transposes")
    if "fewest" in cells[0]:
        transposes = transposes.replace(" / ", f" ({cells[0]['fewest']}) / ", 1)
    kilobytes = " / ".join(
        "–" if "error" in cell else f"{cell['transposed_bytes'] / 1e3:,.0f}" for cell in cells
    )
    beside = " / ".join("–" if "error" in cell else str(sum(cell["beside"].values())) for cell in cells)
    ours = cells[0]
    is_lowered = "error" not in ours
    parts = [
        row["network"],
        *(transposes, kilobytes, each("reshapes"), each("partitions")),
        beside,
        *([f"{ours['max_rel_error']:.0e}", ", ".join(ours["kernels"])] if is_lowered else ["fails", ""]),
    ]
    return f"| {' | '.join(parts)} |"


def _told(row: Row) -> str:
    counts = [row.get(way, {}).get("transposes", row.get(way, {}).get("error")) for way in ("ours", TOOL)]
    return f"{row['network']}: {counts[0]} TRANSPOSEs, {TOOL} {counts[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("litert_zoo", __doc__, NETWORKS)
    parser.add_argument("--tool", metavar="PYTHON", help=f"the Python that has {TOOL}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        lower = partial(lowered, python=options.tool, folder=Path(folder))
        rows = measured("litert_zoo", options, NETWORKS, PACKAGES, lower, table, _told, True)
    return verdict(missed(rows))


if __name__ == "__main__":
    sys.exit(main())
