"""Time two programs that dimorder makes of one network beside each other, on XNNPACK.

They are loaded several times, since where a load happens to lie in memory counts too. They run in turn, as
`dimorder bench` times programs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

import dimorder
from benchmarks.command import Row, command_line, measured
from benchmarks.record import failed, record_lines
from dimorder import Lowered
from dimorder.latency.timing import interleaved, ratio

PACKAGES = ("torch", "executorch", "torchvision", "timm", "transformers")
LOADS = 15


@dataclass(frozen=True)
class Way:
    """How one of the two is made, and what it is called with."""

    lower: Callable[[], Lowered]
    inputs: Sequence[Tensor]


def timed(network: str, ways: Mapping[str, Way], rounds: int) -> Row:
    """Return one row: for each way the milliseconds of every round, its delegates and the bytes of its file.
    The row also has the ratio of the first way's time to the second's."""
    row: Row = {"network": network, "inputs": [list(x.shape) for x in next(iter(ways.values())).inputs]}
    times: dict[str, list[float]] = {name: [] for name in ways}
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder, f"{name}.pte") for name in ways}
            for name, way in ways.items():
                lowered = way.lower()  # verified
                lowered.save(paths[name])
                row[f"{name}_delegates"] = lowered.artifact.delegates
                row[f"{name}_bytes"] = paths[name].stat().st_size
            for _ in range(LOADS):
                programs = {name: dimorder.load(path) for name, path in paths.items()}
                calls = {name: partial(program.run, *ways[name].inputs) for name, program in programs.items()}
                for name, ms in interleaved(calls, -(-rounds // LOADS)).items():
                    times[name] += ms
    except Exception as error:  # whatever is raised is what is recorded of it
        return {**row, **failed(error)}
    row |= {f"{name}_ms": [round(each, 4) for each in ms] for name, ms in times.items()}
    return {**row, "ratio": ratio(*times.values())}


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def table(record: Mapping[str, Any], title: str, text: str, ways: Sequence[str], more: Sequence[str]) -> str:
    """Rows of networks; `more` are keys of a row that stand beside."""
    head = ("network", "input", *more, *(f"{way}, ms" for way in ways), " / ".join(ways), "delegates", "MB")
    lines = [f"# {title}", "", text, "", *record_lines(record), f"| {' | '.join(head)} |"]
    lines.append("|" + " --- |" * (2 + len(more)) + " ---: |" * (len(head) - 2 - len(more)))
    for row in record["rows"]:
        cells = [
            row["network"],
            ", ".join("x".join(map(str, shape)) for shape in row["inputs"]),
            *(str(row[key]) for key in more),
            *(
                "" if "error" in row else f"{sorted(row[f'{w}_ms'])[len(row[f'{w}_ms']) // 2]:.2f}"
                for w in ways
            ),
            _outcome(row),
            " and ".join(str(row.get(f"{way}_delegates", "")) for way in ways),
            " and ".join(f"{row.get(f'{way}_bytes', 0) / 1e6:.1f}" for way in ways),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def run(
    name: str,
    text: str | None,
    networks: Sequence[str],
    timed: Callable[[str, int], Row],
    table: Callable[[Mapping[str, Any]], str],
    most: float | None,
) -> int:
    """Run the command `python -m benchmarks.NAME`. Return 1 if a pair fails, or if the first way takes more
    than `most` times the second way's time, by more than the interval."""
    options = command_line(name, text, networks).parse_args()

    def measure(network: str) -> Row:
        return timed(network, options.rounds)

    faults = 0
    for row in measured(name, options, networks, PACKAGES, measure, table, _told):
        slow = "error" not in row and most is not None and row["ratio"][1] > most
        if slow or "error" in row:
            print(f"{row['network']}: {row.get('error') or f'more than {most}'}", file=sys.stderr)
            faults += 1
    return int(bool(faults))


def _told(row: Row) -> str:
    return f"{row['network']}: {_outcome(row)}"


def _outcome(row: Row) -> str:
    return row.get("error") or "{:.3f} ({:.3f} to {:.3f})".format(*row["ratio"])
