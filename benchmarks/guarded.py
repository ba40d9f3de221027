"""Measures what `guarded` adds to lowering: wrapped against bare partitioner, in one process, in turns.

    python -m benchmarks.guarded [--runs 5]

mobilenet_v2 to XNNPACK, 1x3x224x224. Contiguous, as stock lowering takes it; and channels-last after
`canonicalise`, without which stock lowering crashes. Prints the median of the ratios, turn by turn.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from dimorder.executorch import XNNPACK, canonicalise, guarded
from tests import zoo


def seconds(network: torch.nn.Module, x: torch.Tensor, wrapped: bool) -> float:
    program = canonicalise(torch.export.export(network, (x,)))
    partitioner = guarded(XnnpackPartitioner(), XNNPACK) if wrapped else XnnpackPartitioner()
    start = time.perf_counter()
    to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    (row,) = (row for row in zoo.networks() if row.name == "mobilenet_v2")
    for form in (torch.contiguous_format, torch.channels_last):
        network = row.build().to(memory_format=form)
        x = row.inputs()[0].to(memory_format=form)
        seconds(network, x, True)  # what is imported and cached by the first
        ratios = [seconds(network, x, True) / seconds(network, x, False) for _ in range(runs)]
        print(f"{form}: {statistics.median(ratios):.2f} x stock ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
