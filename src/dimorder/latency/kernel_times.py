"""Measure XNNPACK's kernels for the table of times that prices plans (`targets.xnnpack.times`).

A program runs a kernel several times, and returns one element of each result. All other time is subtracted.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.clock import Progress, StepPart
from dimorder.cpu import require_threads
from dimorder.latency.timing import AT_ONCE, interleaved
from dimorder.ops.dialect import OPS
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.times import Times

_TIMES = 8  # computations of the kernel in a program
_LEAST_NS = 50.0  # of a kernel
_FASTEST = 1000.0  # bytes in a ns: faster than caches, so that less time is noise
_MOST_BYTES = 1 << 25  # of a kernel
_MOST_PRODUCTS = 1 << 29

# A function, the shapes of its inputs, and those of its constants.
_Sample: TypeAlias = "tuple[Callable[..., Tensor], Sequence[Sequence[int]], Sequence[Sequence[int]]]"

_PIXELS = (49, 196, 784, 3136, 12544, 50176)
_ELEMENTS = (256, 4096, 1 << 15, 1 << 18, 1 << 21)
_RUNS = (2, 8, 29, 64, 256, 2048)


def samples() -> Iterator[_Sample]:
    """Return the grid."""
    yield from _products()
    yield from _convolutions()
    yield from _windows()
    yield from _moves()
    yield from _pointwise()


def _products() -> Iterator[_Sample]:
    matrices = (
        *((1, 192), (1, 768), (16, 64), (64, 16), (64, 64), (256, 64), (64, 256), (192, 192), (768, 192)),
        *((192, 768), (384, 384), (768, 768), (2048, 512), (512, 2048), (1000, 1280)),
    )
    for rows, (outputs, inputs) in itertools.product((1, *_PIXELS), matrices):
        if rows * outputs * inputs <= _MOST_PRODUCTS:
            yield F.linear, [(rows, inputs)], [(outputs, inputs)]
    of_a_batch = ((197, 64, 197), (197, 197, 64), (49, 32, 49), (49, 49, 32), (16, 16, 64), (512, 64, 512))
    for batch, (rows, summed, columns) in itertools.product((1, 4, 12, 64), of_a_batch):
        if batch * rows * summed * columns <= _MOST_PRODUCTS:
            yield torch.matmul, [(batch, rows, summed), (batch, summed, columns)], []


def _convolutions() -> Iterator[_Sample]:
    channels = ((3, 16), (3, 64), (16, 16), (32, 64), (64, 64), (128, 128), (256, 256), (512, 512))
    for pixels, (inputs, outputs) in itertools.product(_PIXELS, channels):
        if 9 * pixels * inputs * outputs <= _MOST_PRODUCTS:
            side = math.isqrt(pixels)
            yield _conv(3, 1), [(1, side, side, inputs)], [(outputs, 3, 3, inputs)]
    for inputs, outputs, side, kernel, stride in (
        *((3, 32, 224, 3, 2), (3, 64, 224, 7, 2), (3, 96, 224, 4, 4), (3, 192, 224, 16, 16)),
        *((64, 128, 56, 1, 2), (64, 128, 56, 3, 2), (96, 192, 56, 2, 2)),
    ):
        yield _conv(kernel, stride), [(1, side, side, inputs)], [(outputs, kernel, kernel, inputs)]
    for groups, within, side in ((4, 16, 28), (32, 4, 56), (8, 32, 14)):
        weight = (groups * within, 3, 3, within)
        yield _conv(3, 1, groups), [(1, side, side, groups * within)], [weight]
    for inputs, outputs, side in ((64, 32, 16), (128, 64, 32), (32, 16, 64)):
        yield _conv_transposed, [(1, side, side, inputs)], [(outputs, 2, 2, inputs)]
    for kernel, pixels, count in itertools.product((3, 5), _PIXELS, (16, 64, 192, 768)):
        side = math.isqrt(pixels)
        yield _conv(kernel, 1, count), [(1, side, side, count)], [(count, kernel, kernel, 1)]
        yield _conv(kernel, 2, count), [(1, 2 * side, 2 * side, count)], [(count, kernel, kernel, 1)]
    for taps, length, count in itertools.product((3, 4), (128, 2048), (32, 256)):
        yield _conv_padded(1, [0, 0, 1, 1], count), [(1, 1, length, count)], [(count, 1, taps, 1)]


def _conv(kernel: int, stride: int, groups: int = 1) -> Callable[..., Any]:
    return _conv_padded(stride, [kernel // 2 if stride < kernel else 0] * 4, groups)


def _conv_padded(stride: int, padding: Sequence[int], groups: int) -> Callable[..., Any]:
    return lambda x, weight: OPS.conv2d_nhwc(x, weight, None, [stride] * 2, padding, [1, 1], groups)


def _conv_transposed(x: Tensor, weight: Tensor) -> Any:
    return OPS.conv_transpose2d_nhwc(x, weight, None, [2, 2], [0, 0], [0, 0], [1, 1], 1)


def _windows() -> Iterator[_Sample]:
    def pool(kernel: int, stride: int) -> Callable[..., Tensor]:
        rest = [kernel] * 2, [stride] * 2, [kernel // 2 if kernel > stride else 0] * 2
        return lambda x: OPS.max_pool2d_nhwc(x, *rest, [1, 1], False)

    def mean(x: Tensor) -> Tensor:
        return x.mean((1, 2), keepdim=True)

    def average(x: Tensor) -> Any:
        return OPS.avg_pool2d_nhwc(x, [4, 4], [4, 4], [0, 0], False, True, None)

    def resize(x: Tensor) -> Any:
        return OPS.upsample_bilinear2d_nhwc(x, [2 * x.shape[1], 2 * x.shape[2]], False, None, None)

    for side, count in itertools.product((8, 28, 56, 112), (16, 64, 256)):
        shape = [(1, side, side, count)]
        for function in (pool(2, 2), pool(3, 2), pool(3, 1), average):
            yield function, shape, []
        if side < 112:
            yield mean, shape, []
            yield resize, shape, []
        else:  # of so many pixels a mean takes two kernels, the first of them by rows
            yield mean, [(side, 1, side, count)], []
    for rows, columns in itertools.product((1, 64, 600, 4096), (49, 197, 1000)):
        yield lambda x: torch.softmax(x, -1), [(rows, columns)], []


def _moves() -> Iterator[_Sample]:
    for rows, columns in itertools.product((2, 3, 16, 29, 64, 256, 768), (49, 196, 784, 3136, 50176)):
        for batch in (1, 8):
            yield _transpose(0, 2, 1), [(batch, rows, columns)], []
            yield _transpose(0, 2, 1), [(batch, columns, rows)], []
    for shape, order in (
        *(((49, 29, 2, 2), (0, 2, 3, 1)), ((784, 2, 2, 29), (0, 3, 1, 2)), ((196, 4, 2, 29), (0, 3, 2, 1))),
        *(((8, 128, 8, 64), (0, 2, 3, 1)), ((4, 197, 3, 64), (0, 2, 3, 1)), ((16, 49, 4, 32), (2, 0, 3, 1))),
    ):
        yield _transpose(*order), [shape], []
    for run, elements in itertools.product(_RUNS, (1 << 12, 1 << 15, 1 << 18, 1 << 20)):
        rows = elements // run
        for split in (2, 8, 64):
            if rows >= 2 * split:
                yield _transpose(1, 0, 2), [(split, rows // split, run)], []
        if rows >= 64:
            yield _transpose(0, 2, 1, 3), [(rows // 64, 8, 8, run)], []
        if rows >= 2:
            yield lambda x: x[:, : x.shape[1] // 2], [(rows, 2 * run)], []
            yield lambda x, y: torch.cat([x, y], 1), [(rows, run), (rows, run)], []
            yield _pad(1, 0), [(rows, run)], []
            yield _pad(0, 0, 1, 1), [(2, rows // 2, run)], []


def _transpose(*order: int) -> Callable[..., Tensor]:
    return lambda x: x.permute(order).clone(memory_format=torch.contiguous_format)


def _pad(*amounts: int) -> Callable[..., Tensor]:
    return lambda x: torch.constant_pad_nd(x, amounts)


def _pointwise() -> Iterator[_Sample]:
    functions: tuple[Callable[..., Tensor], ...] = (
        *(F.relu, F.hardswish, F.gelu, F.elu, F.leaky_relu, torch.sigmoid, torch.tanh, torch.exp, torch.log),
        *(torch.sin, torch.cos, torch.abs, torch.neg, torch.floor, torch.ceil, torch.square),
    )
    for function, elements in itertools.product(functions, _ELEMENTS):
        yield function, [(elements,)], []
    pairs: tuple[Callable[..., Tensor], ...] = (
        *(torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum),
    )
    for pair, elements in itertools.product(pairs, _ELEMENTS[1:]):
        yield pair, [(elements,), (elements,)], []
        yield pair, [(elements,)], [(1,)]
        for run in (16, 256):
            yield pair, [(elements // run, run)], [(run,)]
            yield pair, [(elements // run, run), (elements // run, 1)], []


# -- measuring


class _Repeated(nn.Module):
    """A function computed `times` times on values just computed, with one element of each result."""

    def __init__(self, function: Callable[..., Tensor], times: int, constants: Sequence[Tensor]) -> None:
        super().__init__()
        self.function, self.times, self.constants = function, times, len(constants)
        for i, constant in enumerate(constants):
            self.register_buffer(f"constant_{i}", constant)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        constants = [getattr(self, f"constant_{i}") for i in range(self.constants)]
        calls = ([torch.abs(x) for x in inputs] for _ in range(self.times))
        return tuple(_first(self.function(*call, *constants)) for call in calls)


def _first(x: Tensor) -> Tensor:
    """Return the first element by one slice, since the copy of a program's outputs is timed with it."""
    return torch.constant_pad_nd(x, [amount for size in x.shape[::-1] for amount in (0, 1 - size)])


def program(sample: _Sample, times: int) -> tuple[tuple[KernelRun, ...], Callable[[], Any]]:
    """Return the kernels of a sample that is computed `times` times, without those around it, and a call."""
    from dimorder.executorch import pte
    from dimorder.targets.xnnpack.emit import emit

    function, shapes, constants = sample
    fed = tuple(torch.rand(*shape) + 0.1 for shape in shapes)
    module = _Repeated(function, times, [torch.rand(*shape) + 0.1 for shape in constants])
    emitted = emit(torch.export.export(module, fed))
    method = pte.method_of(emitted.data)
    runs = len(emitted.kernels) // times
    found = (emitted.kernels[i : i + runs] for i in range(0, len(emitted.kernels), runs))
    computed = (run for each in found for run in each[len(shapes) :] if run.sizes != (1, 1))
    return tuple(computed), lambda: method(fed)


def measure(
    family: str,
    threads: int,
    rounds: int = 9,
    grid: Sequence[_Sample] | None = None,
    progress: Progress = lambda step: None,
) -> Times:
    """Return the table of this machine for the kernels of `grid`, by default all that are known here."""
    from dimorder.executorch import pte

    require_threads(threads)
    pte.set_threads(threads)
    progress("timing programs that compute nothing")
    idle = _idle(rounds)
    wanted, found = list(samples() if grid is None else grid), dict[KernelRun, float]()
    for first in range(0, len(wanted), AT_ONCE):
        progress(StepPart("timing kernels", first, len(wanted)))
        calls: dict[str, Callable[[], Any]] = {}
        timed: dict[str, tuple[KernelRun, list[int]]] = {}
        for place, sample in enumerate(wanted[first : first + AT_ONCE]):
            (run, *_), call = program(sample, _TIMES)
            if run not in found and run.moved <= _MOST_BYTES:
                timed[str(place)], calls[str(place)] = (run, [math.prod(shape) for shape in sample[1]]), call
        # The least time counts: other work of the machine only adds to it.
        for name, ms in interleaved(calls, rounds).items():
            run, read = timed[name]
            ns, least = 1e6 * min(ms) / _TIMES - idle(read), run.moved / _FASTEST
            if ns > least or least < _LEAST_NS:
                found[run] = max(_LEAST_NS, ns)
    flops = max((kernel.flops / ns for kernel, ns in found.items()), default=1.0)
    bandwidth = max((kernel.moved / ns for kernel, ns in found.items()), default=1.0)
    least = min(found.values(), default=_LEAST_NS)
    return Times(family, threads, flops or 1.0, bandwidth or 1.0, least, tuple(found.items()))


def _idle(rounds: int) -> Callable[[Sequence[int]], float]:
    """Return a function for the nanoseconds around a kernel, by the sizes of the tensors it reads."""
    counts = [1 << power for power in range(0, 23, 2)]
    calls = {str(count): program((lambda x: x, [(count,)], []), _TIMES)[1] for count in counts}
    ns = [1e6 * min(ms) / _TIMES for ms in interleaved(calls, rounds).values()]

    def one(count: int) -> float:
        place = min(max(bisect.bisect_left(counts, count), 1), len(counts) - 1)
        share = (count - counts[place - 1]) / (counts[place] - counts[place - 1])
        return ns[place - 1] + share * (ns[place] - ns[place - 1])

    def idle(read: Sequence[int]) -> float:
        return sum(map(one, read)) - (len(read) - 1) * one(1)

    return idle
