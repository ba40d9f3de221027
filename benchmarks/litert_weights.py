"""Compare ViT-Tiny as `.tflite` with weights of float32, 8 and 4 bits, on one thread.

    python -m benchmarks.litert_weights

torchao quantises the network; each file is verified against it. All files are run in turn. The result is kept
in benchmarks/results/litert_weights.json.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig
from torchao.quantization.granularity import PerAxis, PerGroup

import dimorder
from benchmarks.command import command_line
from benchmarks.record import write
from dimorder.latency.timing import interleaved, ratio
from dimorder.targets.litert.runtime import LiteRtProgram, set_threads
from tests.targets.quantised import by_torchao
from tests.zoo import timm

NETWORK = "vit_tiny_patch16_224"
PACKAGES = ("torch", "torchao", "ai-edge-litert", "timm")
FLOAT = "float32"
_dynamic = Int8DynamicActivationIntxWeightConfig
WEIGHTS: dict[str, Any] = {
    FLOAT: None,
    "int8 alone": IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)),
    "int8, rows quantised dynamically": _dynamic(weight_dtype=torch.int8, weight_granularity=PerAxis(0)),
    "int4, a scale per output, rows quantised dynamically": _dynamic(
        weight_dtype=torch.int4, weight_granularity=PerAxis(0)
    ),
    "int4, groups of 32, rows quantised dynamically": _dynamic(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
}


def lowered(config: Any, x: torch.Tensor) -> dimorder.Lowered:
    torch.manual_seed(0)
    model = timm(NETWORK)().eval()
    quantised = model if config is None else by_torchao(model, config)
    return dimorder.lower(quantised, (x,), target="litert", input_orders="NHWC")


def main(arguments: Sequence[str] | None = None) -> int:
    options = command_line("litert_weights", __doc__, ()).parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    set_threads(1)
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    made = {name: lowered(config, x) for name, config in WEIGHTS.items()}
    fed = [x.permute(0, 2, 3, 1).contiguous()]
    runs = {
        name: partial(LiteRtProgram(each.artifact.data, each.contract).run, fed)
        for name, each in made.items()
    }
    times = interleaved(runs, options.rounds)
    rows = [
        {
            "weights": name,
            "file_bytes": len(each.artifact.data),
            "partitions": each.artifact.delegates,
            "ms": round(statistics.median(times[name]), 3),
            "over_float32": ratio(times[name], times[FLOAT]),
        }
        for name, each in made.items()
    ]
    write(options.results / "litert_weights.json", "litert_weights", PACKAGES, network=NETWORK, rows=rows)
    for row in rows:
        print(f"{row['weights']:55}{row['file_bytes'] / 1e6:7.1f} MB{row['ms']:9.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
