"""Compare lowering by a partitioner wrapped in `guarded` and by the bare one, in one process, in turns.

    python -m benchmarks.guarded [--runs 5] [--network mobilenet_v2] [--out guarded.json]

Both lower 1x3x224x224 to XNNPACK: contiguous, as stock lowering takes it, and channels-last. They lower what
`canonicalize` made: stock lowering crashes on other channels-last programs. A ratio is within one turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from benchmarks import record
from dimorder.executorch import XNNPACK, canonicalize, guarded
from tests import zoo

FORMS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def exported(name: str, form: torch.memory_format) -> ExportedProgram:
    row = zoo.network(name)
    network = row.make().eval().to(memory_format=form)
    (x,) = row.inputs()
    return canonicalize(torch.export.export(network, (x.to(memory_format=form),)))


def seconds(program: ExportedProgram, wrapped: bool) -> float:
    partitioner = guarded(XnnpackPartitioner(), XNNPACK) if wrapped else XnnpackPartitioner()
    start = time.perf_counter()
    to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    return time.perf_counter() - start


def measure(name: str, form: str, runs: int) -> dict[str, Any]:
    """The medians of `runs` turns, each stock and then guarded; one more goes before, for what is cached."""
    turns = []
    for _ in range(runs + 1):
        stock, ours = (seconds(exported(name, FORMS[form]), wrapped) for wrapped in (False, True))
        turns.append((stock, ours, ours / stock))
    stocks, ourss, ratios = zip(*turns[1:], strict=True)
    return {
        "network": name,
        "order": form,
        "stock_s": round(statistics.median(stocks), 2),
        "guarded_s": round(statistics.median(ourss), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    for form in FORMS:
        row = measure(options.network, form, options.runs)
        rows.append(row)
        print(
            f"{form:13}  stock {row['stock_s']:6} s  guarded {row['guarded_s']:6} s  ratio {row['ratio']}",
            flush=True,
        )
    if options.out:
        record.write(options.out, "guarded", ("torch", "executorch"), rows=rows)


if __name__ == "__main__":
    main()
