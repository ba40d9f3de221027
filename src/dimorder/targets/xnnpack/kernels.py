"""Describe an XNNPACK node by the facts that determine its time.

These are its kernel, the sizes, and the amount of work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from dimorder.ops.problem_map import common_runs
from dimorder.targets.xnnpack.integers import OPERANDS

_Shape: TypeAlias = "tuple[int, ...]"

FLOAT_BYTES = 4
# The window sizes of XNNPACK's depthwise kernels. For other sizes the next larger kernel runs and reads other
# pixels, times 0. That makes NaN of an infinity.
TAPS = (3, 4, 9, 25)


@dataclass(frozen=True)
class KernelRun:
    """One node of an XNNPACK graph, reduced to the facts that determine its time.

    `sizes` distinguish nodes of one `name`, and each is at least 1. `flops` are the floating-point operations
    of a linear, matmul or convolution, else 0. `moved` are the bytes that it reads and writes.
    """

    name: str
    sizes: tuple[int, ...]
    flops: int
    moved: int


def transpose(sizes: Sequence[int], order: Sequence[int]) -> KernelRun | None:
    """Return the transpose whose result has dimension `order[i]` of its operand in place `i`.

    Returns None if nothing moves.

    >>> transpose((1, 3, 5, 7), (0, 2, 3, 1))
    KernelRun(name='transpose', sizes=(105, 35, 3, 2), flops=0, moved=840)
    >>> transpose((2, 3, 5), (1, 0, 2))  # rows of 5 lie together before and after
    KernelRun(name='transpose of rows', sizes=(30, 5, 3), flops=0, moved=240)
    """
    held = [d for d in range(len(sizes)) if sizes[d] != 1]
    runs = common_runs([d for d in order if sizes[d] != 1], held)
    if len(runs) < 2:
        return None
    elements = math.prod(sizes)
    innermost = math.prod(sizes[d] for d in runs[-1])
    if runs[-1][-1] == held[-1]:
        return _moving("transpose of rows", (elements, innermost, len(runs)), elements)
    before = next(run for run in runs if run[-1] == held[-1])
    told = (elements, math.prod(sizes[d] for d in before), innermost, len(runs))
    return _moving("transpose", told, elements)


def kernels_of(kind: str, node: Any, shapes: Mapping[int, _Shape]) -> Iterator[KernelRun]:
    """Return what runs for a node of the schema's class `XNN{kind}`.

    Nothing runs for a node that only renames.
    """
    if kind == "StaticReshape":
        return  # in place, unless it is an input or output of the graph
    result, reads = shapes[node.output_id], _reads(node, shapes)
    made = _BY_KIND.get(kind, _pointwise)(kind, node, result, reads)
    if made is not None:
        yield made


def _reads(node: Any, shapes: Mapping[int, _Shape]) -> list[_Shape]:
    """Return the operands without weights, in order."""
    ids = (getattr(node, name) for name in OPERANDS if hasattr(node, name))
    return [shapes[index] for index in ids if index in shapes]


def _moving(name: str, sizes: tuple[int, ...], elements: int) -> KernelRun:
    return KernelRun(name, sizes, 0, 2 * FLOAT_BYTES * elements)


def _computing(name: str, sizes: tuple[int, ...], products: int, *tensors: Sequence[int]) -> KernelRun:
    return KernelRun(name, sizes, 2 * products, FLOAT_BYTES * sum(math.prod(shape) for shape in tensors))


def _pointwise(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    """Return the run of a pointwise function of one operand or two.

    The second operand may have the same shape, be one number, or be repeated along the other.
    """
    elements = math.prod(result)
    smaller = min(reads, key=math.prod, default=result)
    if len(reads) < 2 or math.prod(smaller) == elements:
        return KernelRun(kind, (elements,), 0, FLOAT_BYTES * elements * (1 + len(reads)))
    if math.prod(smaller) == 1:
        return KernelRun(f"{kind} with a number", (elements,), 0, 2 * FLOAT_BYTES * elements)
    padded = (1,) * (len(result) - len(smaller)) + smaller
    inner = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(padded[::-1], result[::-1], strict=True))
    run = math.prod(size for size, _ in inner)
    repeated = "by rows" if run > 1 else "by columns"
    return KernelRun(f"{kind} {repeated}", (elements, max(run, 1)), 0, 2 * FLOAT_BYTES * elements)


def _transpose(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun | None:
    return transpose(reads[0], node.perm)


def _cut(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    """Return the run of a slice or pad, with the run of elements that stay adjacent on both sides."""
    smaller, larger = sorted((result, reads[0]), key=math.prod)
    run = 1
    for small, large in zip(smaller[::-1], larger[::-1], strict=True):
        run *= small
        if small != large:
            break
    return _moving(kind, (math.prod(result), run), math.prod(result))


def _concatenate(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    runs = [math.prod(shape[node.axis :]) for shape in reads]
    return _moving("Concatenate", (math.prod(result), min(runs)), math.prod(result))


def _full(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    rows, inputs, outputs = math.prod(result[:-1]), reads[0][-1], result[-1]
    weight = (outputs, inputs)
    return _computing("product", (rows, outputs, inputs), rows * outputs * inputs, reads[0], result, weight)


def _batched(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    batch, (rows, columns), summed = math.prod(result[:-2]), result[-2:], reads[0][-1]
    sizes = (batch, rows, columns, summed)
    return _computing("products of a batch", sizes, math.prod(sizes), *reads, result)


def _convolution(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    """Return the run of a convolution.

    Its pixels are those of the result. One with a single tap is a matmul.
    """
    taps, pixels = node.kernel_height * node.kernel_width, math.prod(result[:3])
    inputs, outputs = node.group_input_channels * taps, node.group_output_channels
    weight = (node.groups, outputs, inputs)
    products = pixels * node.groups * outputs * inputs
    moved = reads[0], result, weight
    strides = node.subsampling_height * node.subsampling_width
    if taps == strides == 1 and node.groups == 1:
        return _computing("product", (pixels, outputs, inputs), products, *moved)
    name = "convolution" if node.groups == 1 else "convolution of groups"
    return _computing(name, (pixels, node.groups * outputs, inputs), products, *moved)


def _transposed_convolution(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    taps, pixels = node.kernel_height * node.kernel_width, math.prod(reads[0][:3])
    inputs, outputs = node.group_input_channels, node.group_output_channels * taps
    weight = (node.groups, outputs, inputs)
    products = pixels * node.groups * outputs * inputs
    sizes = (pixels, node.groups * outputs, inputs)
    return _computing("transposed convolution", sizes, products, reads[0], result, weight)


def _depthwise(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    taps, channels = node.kernel_height * node.kernel_width, result[-1]
    kernel = next((each for each in TAPS if each >= taps), taps)
    pixels = math.prod(result[:3])
    moved = FLOAT_BYTES * (math.prod(reads[0]) + math.prod(result) + taps * channels)
    return KernelRun(f"depthwise {kernel}", (pixels, channels), 2 * pixels * channels * taps, moved)


def _pool(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    taps = node.pooling_height * node.pooling_width
    moved = FLOAT_BYTES * (math.prod(reads[0]) + math.prod(result))
    return KernelRun(kind, (math.prod(result[:3]), result[-1], taps), 0, moved)


def _mean(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    batch, height, width, channels = reads[0]
    return KernelRun(kind, (batch, height * width, channels), 0, FLOAT_BYTES * math.prod(reads[0]))


def _rows(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    return _moving(kind, (math.prod(result[:-1]), result[-1]), math.prod(result))


def _resize(kind: str, node: Any, result: _Shape, reads: Sequence[_Shape]) -> KernelRun:
    return _moving(kind, (math.prod(result[:3]), result[-1]), math.prod(result))


_BY_KIND: Mapping[str, Callable[[str, Any, _Shape, Sequence[_Shape]], KernelRun | None]] = MappingProxyType(
    {
        "StaticTranspose": _transpose,
        "StaticSlice": _cut,
        "StaticConstantPad": _cut,
        **{f"Concatenate{count}": _concatenate for count in range(2, 6)},
        "FullyConnected": _full,
        "BatchMatrixMultiply": _batched,
        "Conv2d": _convolution,
        "ConvTranspose2d": _transposed_convolution,
        "DepthwiseConv2d": _depthwise,
        "MaxPooling2d": _pool,
        "AvgPooling2d": _pool,
        "GlobalAvgPooling2d": _mean,
        "Softmax": _rows,
        "StaticResizeBilinear2D": _resize,
    }
)
