"""Compare the CPU seconds in which a network becomes a `.tflite`: ours, litert-torch's and onnx2tf's.

    python -m benchmarks.litert_seconds --tool litert-torch=PYTHON --tool onnx2tf=PYTHON [--networks NAME ...]

Each tool converts in its own environment, on one thread, once its framework is imported. Ours compares its
file with eager in these seconds, the others do not. Results are kept in
benchmarks/results/litert_seconds.json after every network; the .md beside it is the table. Ends with 1 if a
bound does not hold.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Row, command_line, measured, verdict
from benchmarks.litert import OURS, SECONDS, convert, cpu_share, error_lines, missed_seconds
from benchmarks.record import record_lines
from benchmarks.tflite_tools import TOOLS

PACKAGES = ("torch", "ai-edge-litert", "torchvision", "timm")
NETWORKS = (
    *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x1_0"),
    *("efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "vit_tiny", "mobilevit_xxs"),
)


def converted(name: str, pythons: Mapping[str, str], folder: Path) -> Row:
    """Return one row: what each tool took, or its error."""
    tools = {OURS: sys.executable, **pythons}
    return {
        "network": name,
        "tools": {tool: convert(tool, at, name, folder / tool / "net.tflite") for tool, at in tools.items()},
    }


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the bounds that do not hold, and the networks that we do not convert."""
    errors = {row["network"]: row["tools"][OURS].get("error") for row in rows}
    fails = [f"{name}: ours fails: {error}" for name, error in errors.items() if error]
    return [*fails, *missed_seconds(rows)]


def table(record: Mapping[str, Any]) -> str:
    """Return the text of the record: a table, the means, and the errors."""
    rows: list[Row] = record["rows"]
    lines = [
        "# CPU seconds of a conversion to `.tflite`",
        "",
        *record_lines(record),
        f"| network | {' | '.join(TOOLS)} |",
        f"| --- |{' ---: |' * len(TOOLS)}",
        *(f"| {row['network']} | {' | '.join(_cell(row, tool) for tool in TOOLS)} |" for row in rows),
        "",
        *(
            f"Geometric mean, ours over {tool}: {cpu_share(rows, tool):.3f} of the CPU seconds.\n"
            for tool in SECONDS
        ),
    ]
    return "\n".join([*lines, *error_lines(rows)]).rstrip() + "\n"


def _cell(row: Row, tool: str) -> str:
    seconds = row["tools"].get(tool, {}).get("cpu_s")
    return "–" if seconds is None else f"{seconds:.1f}"


def _told(row: Row) -> str:
    return f"{row['network']}: {', '.join(f'{tool} {_cell(row, tool)}' for tool in row['tools'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("litert_seconds", __doc__, NETWORKS)
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=PYTHON")
    options = parser.parse_args(arguments)
    pythons = dict(each.split("=", 1) for each in options.tool)

    def row(name: str) -> Row:
        with tempfile.TemporaryDirectory() as folder:  # each row anew: a file there would be used again
            return converted(name, pythons, Path(folder))

    rows = measured("litert_seconds", options, NETWORKS, PACKAGES, row, table, _told)
    return verdict(missed(rows))


if __name__ == "__main__":
    sys.exit(main())
