"""Bound a network's speed: arithmetic at the machine's rate, memory at its bandwidth.

Operators count the larger of both. Pointwise ones and moves are free: a perfect runtime fuses them.
"""

from __future__ import annotations

import bisect
import functools
import math
import operator
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils.flop_counter import flop_registry

from dimorder.capture.captured import capture
from dimorder.capture.rewrite_linears import rewrite_linears
from dimorder.errors import DimorderError
from dimorder.graph.elements import Elements
from dimorder.latency.runtimes import PEERS, Given, Runtime, ours
from dimorder.latency.timing import Invocation
from dimorder.ops.convolution_taps import read_taps
from dimorder.ops.table import elements_of

_LINEAR = ((512, 1024), (196, 768), (3136, 256))  # rows, and inputs and outputs, of linears
_CONV = ((64, 56), (256, 14), (512, 7))  # inputs and outputs, pixels along a side, of 3×3 convolutions
_NUMBERS = tuple(4**power for power in range(7, 13))  # 64 kB to 67 MB
_CHAIN = 8  # equal operators, one after the other
_WARM_S = 0.1  # of calls before the timed ones: an idle processor is slow at first
_TIMED_S, _ROUNDS = 0.5, 30  # at least, of timed calls


@dataclass(frozen=True)
class Limit:
    """A machine's operations a second, and bytes a second by the bytes that an operator moves, ascending."""

    threads: int
    flops: float
    bandwidth: tuple[tuple[int, float], ...]

    def bytes_a_second(self, count: int) -> float:
        """Return the bandwidth for an operator that moves `count` bytes, interpolated by the logarithm.

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
        """Return the least seconds of any run of a program."""
        return sum(
            max(flops / self.flops, moved / self.bytes_a_second(moved)) for _, flops, moved in work(program)
        )


def work(program: ExportedProgram) -> Iterator[tuple[str, int, int]]:
    """Return the name, the floating-point operations and the bytes of each operator that counts.

    >>> program = torch.export.export(nn.Linear(5, 7, bias=False), (torch.randn(3, 5),))
    >>> [(flops, moved) for _, flops, moved in work(program)]
    [(210, 284)]
    """
    for node in program.run_decompositions().graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        packet = getattr(node.target, "overloadpacket", None)
        result = node.meta.get("val")  # an assertion has none
        first = result[0] if isinstance(result, (tuple, list)) else result
        if not isinstance(first, Tensor) or packet is None:
            continue
        elements = elements_of(node.target)
        if elements.moves or elements.is_pointwise or elements is Elements.PADS:
            continue
        read = [each.meta["val"] for each in node.all_input_nodes]
        moved = sum(x.numel() * x.element_size() for x in (*read, first) if isinstance(x, Tensor))
        formula: Any = flop_registry.get(packet)
        values = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        flops = formula(*values[0], **values[1], out_val=result) if formula else 0
        if packet is torch.ops.aten.convolution:
            unread = _unread(result, *values[0])
            flops, moved = flops * (1 - unread), moved - unread * values[0][1].nbytes
        yield str(node.target), int(flops), int(moved)


def _unread(result: Tensor, x: Tensor, weight: Tensor, *options: Any) -> float:
    """Return the share of a convolution's taps that read only padding."""
    _, stride, padding, dilation, transposed, *_ = options
    if transposed:
        return 0.0
    read = read_taps(x.shape[2:], result.shape[2:], weight.shape[2:], stride, padding, dilation)
    return 1.0 - math.prod(map(len, read)) / math.prod(int(count) for count in weight.shape[2:])


def least_seconds(limit: Limit, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the least seconds of any program of a network, as exported or with operators folded."""
    exported = torch.export.export(model, tuple(args), dict(kwargs))
    found = [limit.seconds(exported)]
    with suppress(DimorderError):
        (program,) = rewrite_linears([capture(exported)])
        if not program.state:
            found.append(limit.seconds(torch.export.export(program.module, program.example_inputs)))
    return min(found)


@functools.cache
def measure_limit(threads: int) -> Limit:
    """Return the limit of this machine, by programs in XNNPACK and in PyTorch; measured once in a process."""
    xnnpack, pytorch = ours("xnnpack"), PEERS["eager-channels-last"]
    with tempfile.TemporaryDirectory() as folder:
        products = [
            each
            for runtime in (xnnpack, pytorch)
            for each in _run(runtime, _products(), threads, Path(folder))
        ]
        chains = _run(xnnpack, _chains(), threads, Path(folder))
    bandwidth = [(moved, _CHAIN * moved / seconds) for moved, seconds in chains]
    return Limit(threads, max(flops / seconds for flops, seconds in products), tuple(sorted(bandwidth)))


_Measured: TypeAlias = Iterator[tuple[int, nn.Module, Tensor]]


def _products() -> _Measured:
    """Return linears and convolutions, with the floating-point operations of each."""
    for rows, k in _LINEAR:
        module = nn.Sequential(*(nn.Linear(k, k) for _ in range(_CHAIN)))
        yield _CHAIN * 2 * rows * k * k, module, torch.randn(rows, k)
    for c, side in _CONV:
        x = torch.randn(1, c, side, side).to(memory_format=torch.channels_last)
        module = nn.Sequential(*(nn.Conv2d(c, c, 3, padding=1) for _ in range(_CHAIN)))
        yield _CHAIN * 2 * 9 * c * c * side * side, module, x


def _chains() -> _Measured:
    """Return chains of pointwise operators, with the bytes that each operator reads and writes."""
    for count in _NUMBERS:
        yield 2 * 4 * count, _Chain(), torch.rand(count // 256, 256)


class _Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(_CHAIN // 2):
            x = torch.abs(torch.neg(x))
        return x


def _run(runtime: Runtime, programs: _Measured, threads: int, folder: Path) -> list[tuple[int, float]]:
    """Return the least seconds of each program, with its count of work."""
    found = []
    for number, (count, module, x) in enumerate(programs):
        given, path = Given(module.eval(), (x,), {}, threads), folder / f"{number}.pte"
        if runtime.write is not None:
            runtime.write(given, path)
        found.append((count, _least(runtime.open(given, path))))
        path.unlink(missing_ok=True)
    return found


def _least(call: Invocation) -> float:
    begun = start = time.perf_counter()
    times: list[float] = []
    while len(times) < _ROUNDS or start - begun < _WARM_S + _TIMED_S:
        start = time.perf_counter()
        call()
        if start - begun > _WARM_S:
            times.append(time.perf_counter() - start)
    return min(times)
