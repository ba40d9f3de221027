"""Compare a program for ranges of sizes with one whose sizes are fixed, on XNNPACK.

    python -m benchmarks.symbolic [--networks NAME ...] [--rounds 30]

Both run at a size of the ranges (see benchmarks/pairs.py). Results are kept in
benchmarks/results/symbolic.json after every network; the .md beside it is the table. Ends with 1 if the
program for ranges is more than 3 % slower by more than its interval.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.export import Dim

import dimorder
from benchmarks import pairs
from benchmarks.latency import NETWORKS

MOST = 1.03
_BATCH = {0: Dim("N", min=1, max=16)}
_PICTURE = {2: 16 * Dim("H", min=10, max=30), 3: 16 * Dim("W", min=10, max=30)}
# Of the first input, or of all of them.
RANGES: Mapping[str, Mapping[int, Any]] = {
    **dict.fromkeys(
        ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_tiny"), _BATCH
    ),
    **dict.fromkeys(("unet", "deeplabv3_mobilenet_v3_large"), _PICTURE),
    "yolo": {2: 32 * Dim("H", min=5, max=15), 3: 32 * Dim("W", min=5, max=15)},
    "wav2vec2": {1: Dim("T", min=8000, max=32000)},
    "tcn": {2: Dim("T", min=500, max=4000)},
    "bert": {0: Dim("N", min=1, max=8), 1: Dim("L", min=4, max=256)},
}
_TEXT = (
    "Milliseconds of a program for ranges of sizes, and of the one for fixed sizes, medians, at the sizes of "
    "the inputs; the ratio of the two (95 % interval); dimensions with symbols; delegates, files of either."
)


def timed(name: str, rounds: int) -> pairs.Row:
    network = NETWORKS[name]
    module, (args, kwargs) = network.build(), network.call()
    lower = partial(dimorder.lower, module, args, kwargs, target="xnnpack")
    dims = {key: dict(RANGES[name]) for key in kwargs} if kwargs else (dict(RANGES[name]),) * len(args)
    given = pairs.tensors(args, kwargs)
    ways = {
        "ranges": pairs.Way(partial(lower, dynamic_shapes=dims), given),
        "fixed": pairs.Way(lower, given),
    }
    told = ", ".join(f"{dim}: {symbol.__name__}" for dim, symbol in RANGES[name].items())
    return {**pairs.timed(name, ways, rounds), "symbols": told}


def table(record: Mapping[str, Any]) -> str:
    return pairs.table(record, "Programs for ranges of sizes", _TEXT, ("ranges", "fixed"), ("symbols",))


if __name__ == "__main__":
    sys.exit(pairs.run("symbolic", __doc__, tuple(RANGES), timed, table, MOST))
