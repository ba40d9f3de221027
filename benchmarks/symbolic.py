"""Compare a program for ranges of sizes with one whose sizes are fixed, on XNNPACK.

    python -m benchmarks.symbolic [--networks NAME[/TYPE] ...] [--rounds 30]

TYPE is float16 or int8. Networks of int8 are quantised by PT2E with XNNPACKQuantizer, and bert's linears
dynamically by torchao. Both programs run at a size of the ranges (see benchmarks/pairs.py). Results are kept
in benchmarks/results/symbolic.json after every network; the .md beside it is the table. Ends with 1 if the
program for ranges is more than 5 % slower by more than its interval.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.export import Dim
from torchao.quantization import Int8DynamicActivationIntxWeightConfig
from torchao.quantization.granularity import PerAxis

import dimorder
from benchmarks import pairs
from benchmarks.half import in_half
from benchmarks.latency import NETWORKS
from tests.targets.quantised import by_torchao, by_xnnpack

MOST = 1.05
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


TYPES = ("float32", "float16", "int8")
NAMES = tuple(name if of == TYPES[0] else f"{name}/{of}" for of in TYPES for name in RANGES)


def timed(name: str, rounds: int) -> pairs.Row:
    name, _, of = name.partition("/")
    module, (args, kwargs) = NETWORKS[name].build(), NETWORKS[name].call()
    dims = {key: dict(RANGES[name]) for key in kwargs} if kwargs else (dict(RANGES[name]),) * len(args)
    if of == "float16":
        module, (args, kwargs) = module.half(), in_half(args, kwargs)
    elif of == "int8" and kwargs:  # PT2E would also quantise the sums of positions
        module = by_torchao(module, Int8DynamicActivationIntxWeightConfig(weight_granularity=PerAxis(0)))
    elif of == "int8":
        examples, _ = NETWORKS[name].call(batch=2 if 0 in RANGES[name] else 1)
        module = by_xnnpack(module, *examples, dims=dims)
    lower = partial(dimorder.lower, module, args, kwargs, target="xnnpack")
    given = pairs.tensors(args, kwargs)
    ways = {
        "ranges": pairs.Way(partial(lower, dynamic_shapes=dims), given),
        "fixed": pairs.Way(lower, given),
    }
    told = ", ".join(f"{dim}: {symbol.__name__}" for dim, symbol in RANGES[name].items())
    row = pairs.timed(f"{name}/{of}" if of else name, ways, rounds)
    return {**row, "symbols": told}


def table(record: Mapping[str, Any]) -> str:
    return pairs.table(record, "Programs for ranges of sizes", _TEXT, ("ranges", "fixed"), ("symbols",))


if __name__ == "__main__":
    sys.exit(pairs.run("symbolic", __doc__, NAMES, timed, table, MOST))
