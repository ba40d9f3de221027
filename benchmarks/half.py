"""Compare a network of float16 with the same network of float32, on XNNPACK.

    python -m benchmarks.half [--networks NAME ...] [--rounds 30]

Each file is verified: the one of float16 is no more than twice as far from float64 as PyTorch's float16 is.
Results are kept in benchmarks/results/half.json after every network (see benchmarks/pairs.py); the .md beside
it is the table. Ends with 1 if a network fails.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

os.environ.setdefault(
    "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
)  # else eager may never return: docs/targets.md

import torch
from torch.utils import _pytree as pytree

import dimorder
from benchmarks import pairs
from benchmarks.latency import NETWORKS

NAMES = (
    *("resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_tiny", "unet"),
    *("deeplabv3_mobilenet_v3_large", "yolo", "wav2vec2", "tcn", "bert"),
)
_TEXT = (
    "Milliseconds of the program of a network of float16, and of float32, medians; the ratio of the two "
    "(95 % interval); delegates and files of either. What XNNPACK has no exact kernel of float16 for is "
    "computed in float32 between casts."
)


def timed(name: str, rounds: int) -> pairs.Row:
    network = NETWORKS[name]
    module, (args, kwargs) = network.build(), network.call()
    given = {
        "float16": (copy.deepcopy(module).half(), *in_half(args, kwargs)),
        "float32": (module, args, kwargs),
    }
    ways = {
        way: pairs.Way(partial(dimorder.lower, *call, target="xnnpack"), pairs.tensors(*call[1:]))
        for way, call in given.items()
    }
    return pairs.timed(name, ways, rounds)


def in_half(args: Any, kwargs: Any) -> Any:
    """Return the inputs of a network with floats in half precision."""

    def half(x: torch.Tensor) -> torch.Tensor:
        return x.half() if x.dtype == torch.float32 else x

    return pytree.tree_map_only(torch.Tensor, half, (args, kwargs))


def table(record: Mapping[str, Any]) -> str:
    return pairs.table(record, "Networks of float16", _TEXT, ("float16", "float32"), ())


if __name__ == "__main__":
    sys.exit(pairs.run("half", __doc__, NAMES, timed, table, None))
