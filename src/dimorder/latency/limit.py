"""Decides how fast a network could be at most: products at the machine's rate, memory at its bandwidth.

Both are measured in XNNPACK, in programs that do nothing else. Counted are products, reductions, windows and
norms, each by the larger of its arithmetic and the memory that it cannot but move. Pointwise operators and
moves count nothing: a perfect runtime would do them in passing.
"""

from __future__ import annotations

import bisect
import functools
import math
import operator
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils.flop_counter import flop_registry

from dimorder.latency.runtimes import Given, ours
from dimorder.latency.timing import interleaved

_LINEAR = ((512, 1024, 1024), (3136, 384, 96), (196, 2048, 512))  # rows, inputs, outputs of a product
_CONV = ((64, 64, 56), (256, 256, 14))  # inputs, outputs, pixels along a side of a 3×3 convolution
_NUMBERS = tuple(4**power for power in range(7, 13))  # 64 kB to 67 MB
_CHAIN = 8  # operators on as many numbers, one after the other
_MOVES = ("cat", "slice", "permute", "clone", "expand", "view", "_to_copy", "select", "constant_pad_nd")


@dataclass(frozen=True)
class Limit:
    """What a machine does at most with so many threads: `flops` a second, and the `bandwidth`, by how many
    bytes an operator moves, in ascending order."""

    threads: int
    flops: float
    bandwidth: tuple[tuple[int, float], ...]

    def bytes_a_second(self, count: int) -> float:
        """Of an operator that moves `count` bytes; between two that were measured by the logarithm.

        >>> limit = Limit(1, 1e9, ((100, 4e9), (10_000, 1e9)))
        >>> [limit.bytes_a_second(count) for count in (10, 1000, 10**6)]
        [4000000000.0, 2000000000.0, 1000000000.0]
        """
        sizes = [size for size, _ in self.bandwidth]
        rates = [rate for _, rate in self.bandwidth]
        i = bisect.bisect_left(sizes, count)
        if i in (0, len(sizes)):
            return rates[min(i, len(sizes) - 1)]
        share = math.log(count / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
        return float(rates[i - 1] * (rates[i] / rates[i - 1]) ** share)

    def seconds(self, program: ExportedProgram) -> float:
        """What no run of a program is below."""
        return sum(
            max(flops / self.flops, moved / self.bytes_a_second(moved)) for _, flops, moved in work(program)
        )


def work(program: ExportedProgram) -> Iterator[tuple[str, int, int]]:
    """Of each operator that counts its name, the floating-point operations and the bytes that it moves.

    >>> program = torch.export.export(nn.Linear(5, 7, bias=False), (torch.randn(3, 5),))
    >>> [(flops, moved) for _, flops, moved in work(program)]
    [(210, 284)]
    """
    for node in program.run_decompositions().graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        packet = getattr(node.target, "overloadpacket", None)
        made = node.meta.get("val")  # an assertion has none
        first = made[0] if isinstance(made, (tuple, list)) else made
        if not isinstance(first, Tensor) or packet is None:
            continue
        tags = getattr(node.target, "tags", ())
        if torch.Tag.pointwise in tags or getattr(packet, "__name__", "") in _MOVES:
            continue
        read = [each.meta["val"] for each in node.all_input_nodes]
        moved = sum(x.numel() * x.element_size() for x in (*read, first) if isinstance(x, Tensor))
        formula: Any = flop_registry.get(packet)
        values = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        flops = formula(*values[0], **values[1], out_val=made) if formula else 0
        yield str(node.target), int(flops), moved


@functools.cache
def measure_limit(threads: int, rounds: int = 11) -> Limit:
    """The limit of this machine, by programs of ours for XNNPACK; measured once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        products = _run(dict(_products()), threads, rounds, Path(folder))
        chains = _run(dict(_chains()), threads, rounds, Path(folder))
    bandwidth = [(moved, _CHAIN * moved / seconds) for moved, seconds in chains]
    return Limit(threads, max(flops / seconds for flops, seconds in products), tuple(sorted(bandwidth)))


def _products() -> Iterator[tuple[int, tuple[nn.Module, Tensor]]]:
    """By the floating-point operations of each."""
    for rows, k, n in _LINEAR:
        yield 2 * rows * k * n, (nn.Linear(k, n), torch.randn(rows, k))
    for c, k, side in _CONV:
        x = torch.randn(1, c, side, side).to(memory_format=torch.channels_last)
        yield 2 * 9 * c * k * side * side, (nn.Conv2d(c, k, 3, padding=1), x)


def _chains() -> Iterator[tuple[int, tuple[nn.Module, Tensor]]]:
    """By the bytes that each operator reads and writes."""
    for count in _NUMBERS:
        yield 2 * 4 * count, (_Chain(), torch.rand(count // 256, 256))


class _Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(_CHAIN // 2):
            x = torch.abs(torch.neg(x))
        return x


def _run(
    programs: dict[int, tuple[nn.Module, Tensor]], threads: int, rounds: int, folder: Path
) -> Sequence[tuple[int, float]]:
    """The least seconds of each, by what it does."""
    runtime, calls = ours("xnnpack"), {}
    assert runtime.write is not None
    for count, (module, x) in programs.items():
        given, path = Given(module.eval(), (x,), {}, threads), folder / f"{count}.pte"
        runtime.write(given, path)
        calls[str(count)] = runtime.open(given, path)
    times = interleaved(calls, rounds)
    return [(int(count), statistics.quantiles(found, n=10)[0] / 1e3) for count, found in times.items()]
