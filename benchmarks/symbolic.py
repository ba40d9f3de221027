"""What a program for ranges of sizes takes beside one whose sizes are fixed, on XNNPACK.

    python -m benchmarks.symbolic [--networks NAME ...] [--rounds 30]

Both run in turn, at a size of the ranges, as `dimorder bench` times programs. They are loaded several
times, since where a load happens to lie in memory counts too. What was measured is kept in
benchmarks/results/symbolic.json after every network; the .md beside it is the table. Ends with 1 where the
program for ranges is more than 3 % slower by more than its interval.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

import dimorder
from benchmarks.latency import NETWORKS
from benchmarks.record import failed, keep, record_lines, rows_kept
from dimorder.latency.bench import ROUNDS
from dimorder.latency.machine import machine
from dimorder.latency.timing import interleaved, ratio
from dimorder.lowering.verify import relative_errors

PACKAGES = ("torch", "executorch", "torchvision", "timm", "transformers")
MOST = 1.03
LOADS = 5
_BATCH = {0: Dim("N", min=1, max=16)}
_PICTURE = {2: 16 * Dim("H", min=10, max=30), 3: 16 * Dim("W", min=10, max=30)}
# Of the first input, or of all of them.
RANGES: Mapping[str, Mapping[int, Any]] = {
    **dict.fromkeys(
        ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_tiny"), _BATCH
    ),
    **dict.fromkeys(("unet", "deeplabv3_mobilenet_v3_large", "yolo"), _PICTURE),
    "wav2vec2": {1: Dim("T", min=8000, max=32000)},
    "tcn": {2: Dim("T", min=500, max=4000)},
    "bert": {0: Dim("N", min=1, max=8), 1: Dim("L", min=4, max=256)},
}

Row = dict[str, Any]


def timed(name: str, rounds: int) -> Row:
    """One row: milliseconds of each round, and how many delegates the two programs have."""
    network = NETWORKS[name]
    module, (args, kwargs) = network.build(), network.call()
    given: list[Tensor] = [*args, *kwargs.values()]
    row: Row = {"network": name, "inputs": [list(x.shape) for x in given], "ranges": _told(name)}
    try:
        times: dict[str, list[float]] = {"ranges": [], "fixed": []}
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            wanted = _leaves(module(*args, **kwargs))
            for way, dims in (("ranges", _dims(name, args, kwargs)), ("fixed", None)):
                lowered = dimorder.lower(module, args, kwargs, target="xnnpack", dynamic_shapes=dims)
                lowered.save(Path(folder, f"{way}.pte"))
                row[f"{way}_delegates"] = lowered.artifact.delegates
            for _ in range(LOADS):
                loaded = {way: dimorder.load(Path(folder, f"{way}.pte")).run for way in times}
                for way, run in loaded.items():
                    error = max(relative_errors(run(*given), wanted))
                    assert error < 1e-3, f"{way}: wrong by {error}"
                calls = {way: partial(run, *given) for way, run in loaded.items()}
                for way, ms in interleaved(calls, -(-rounds // LOADS)).items():
                    times[way] += ms
    except Exception as error:  # whatever is raised is what is recorded of it
        return {**row, **failed(error)}
    row |= {f"{way}_ms": [round(each, 4) for each in ms] for way, ms in times.items()}
    return {**row, "ratio": ratio(times["ranges"], times["fixed"])}


def _dims(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return {key: dict(RANGES[name]) for key in kwargs} if kwargs else (dict(RANGES[name]),) * len(args)


def _told(name: str) -> str:
    return ", ".join(f"{dim}: {symbol.__name__}" for dim, symbol in RANGES[name].items())


def _leaves(made: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(made)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def table(record: Mapping[str, Any]) -> str:
    lines = [
        "# Programs for ranges of sizes",
        "",
        "Milliseconds of a program for ranges over those of the one for fixed sizes (95 % interval), at the "
        "sizes of the inputs; dimensions with symbols; delegates of either.",
        "",
        *record_lines(record),
        "| network | input | symbols | ranges / fixed | delegates |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for row in record["rows"]:
        shapes = ", ".join("x".join(map(str, shape)) for shape in row["inputs"])
        told = row.get("error") or "{:.3f} ({:.3f} to {:.3f})".format(*row["ratio"])
        counts = f"{row.get('ranges_delegates', '')} and {row.get('fixed_delegates', '')}"
        lines.append(f"| {row['network']} | {shapes} | {row['ranges']} | {told} | {counts} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.symbolic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", nargs="+", metavar="NAME", choices=RANGES, help="measure these anew")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kept, here = options.results / "symbolic.json", machine(PACKAGES)
    done = {row["network"]: row for row in rows_kept(kept, here)}
    for name in options.networks or [name for name in RANGES if name not in done]:
        done[name] = timed(name, options.rounds)
        rows = [done[name] for name in RANGES if name in done]
        keep(kept, "symbolic", here, rows, table)
        print(name, done[name].get("error") or done[name]["ratio"], flush=True)
    slow = [row["network"] for row in done.values() if "error" in row or row["ratio"][1] > MOST]
    for name in slow:
        told = done[name].get("error") or f"more than {MOST} of the time of fixed sizes"
        print(f"{name}: {told}", file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
