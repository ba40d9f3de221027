"""Price a plan in nanoseconds for objective `time`, by the kernels that XNNPACK runs for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch.fx import Node

from dimorder.cpu import family as this_family
from dimorder.errors import UsageError, installed
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import results
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.layout.costs import Costs
from dimorder.ops.problem_map import BufferInfo
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.ops.relation import AxisOrder
from dimorder.planning.problem import Cost
from dimorder.targets.table import Table
from dimorder.targets.xnnpack import INFO
from dimorder.targets.xnnpack.kernels import FLOAT_BYTES, transpose
from dimorder.targets.xnnpack.times import TABLE, Times, measured_times, total

# The factor on the time of a conversion, which evicts from caches what other kernels read next. At a factor
# of 1, plans with more conversions took 2 to 6 % longer than others of as many nanoseconds (Swin, U-Net).
_CONVERTING = 1.5
_NS = 500  # costs are multiples of this: finer differences are noise, and make proofs long


def by_time(operators: Table, family: str | None = None) -> Costs:
    """Return costs in nanoseconds on a family of CPUs, by default this machine's; bytes moved break ties.

    Raises `UsageError` when a plan is priced for a family that the table of times lacks, or for a network
    that is not float32.
    """

    @functools.cache
    def times() -> Times:
        return times_of(family)

    def conversion(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> Cost:
        kernel = transpose(
            [buffer.tensor.sizes[axis] for axis in source], [source.index(axis) for axis in target]
        )
        assert kernel is not None, "a conversion moves something"
        share = buffer.value.element_size() / FLOAT_BYTES
        return max(_NS, _rounded(_CONVERTING * times().of(kernel) * share)), buffer.nbytes

    def calls(made: Sequence[Node]) -> Cost:
        for call in made:
            _require_float32(call)
        with installed("target xnnpack", INFO.install):
            from dimorder.targets.xnnpack.sketch import kernels
        return _rounded(total(times(), kernels(made, operators))), 0

    return Costs(("ns", "bytes"), conversion, calls=calls)


def _rounded(ns: float) -> int:
    return round(ns / _NS) * _NS


def times_of(family: str | None) -> Times:
    """Return the measured times of a family.

    None means this machine's. Raises `UsageError` for an unknown family.
    """
    table, wanted = measured_times(), this_family() if family is None else family
    if wanted not in table:
        raise UsageError(
            "objective 'time'",
            f"no times of XNNPACK on {wanted}, but on {', '.join(table) or 'no CPU'}",
            f"measure them by `dimorder bench ops -o {TABLE}`, choose --option cpu=FAMILY, or plan by bytes",
        )
    return table[wanted]


def _require_float32(call: Node) -> None:
    """Refuse a call in half precision or of quantised integers. A float64 call runs outside XNNPACK."""
    other = [x.dtype for x in results(call) if x.dtype in HALVES]
    if call.target in (QUANTIZE, DEQUANTIZE, FAKE_QUANTIZE_DYNAMIC):
        other = [torch.int8]
    if other:
        found = f"a network of {other[0]}, where kernels of torch.float32 were measured"
        raise UsageError("objective 'time'", found, "plan by bytes or count")
