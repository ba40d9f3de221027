"""Write comparisons of quantised values as comparisons of integers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import Scaled
from dimorder.targets.table import Arguments, Row, View
from dimorder.targets.tosa.integers.kernels import SUM
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Lookup, Operand, numbers, refusal
from dimorder.targets.tosa.integers.sums import compare
from dimorder.targets.tosa.logic import COMPARISONS
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

W = IntegerWriter


def _row(target: Any) -> Row:
    holds = target.overloadpacket.Tensor

    def build(w: W, a: Arguments) -> TosaValue:
        x, y = (_operand(w, each) for each in (a.self, a.other))
        # PyTorch compares float32
        if isinstance(x, Lookup) and isinstance(y, Tensor) and y.numel() == 1:
            truth = _among(w, x, holds(x.numbers.float(), y.float().reshape(())))
        elif isinstance(y, Lookup) and isinstance(x, Tensor) and x.numel() == 1:
            truth = _among(w, y, holds(x.float().reshape(()), y.numbers.float()))
        else:
            truth = compare(w, x, y, COMPARISONS[target].write)
        return w.reshape(truth, a.shape)  # type: ignore[no-any-return]

    return Row(build, kernel=SUM)


def _operand(w: W, argument: Any) -> Operand:
    """Return an operand. Constants of one scale are integers, which may be equal to others."""
    if isinstance(argument, View):
        return numbers(w, argument)
    of = argument.integers.type if isinstance(argument, Scaled) and argument.numel() != 1 else None
    if of is None:
        return argument if isinstance(argument, Tensor) else torch.tensor([float(argument)])
    return Lookup.dequantize(w.constant(argument.integers.values), of)


def _among(w: W, x: Lookup, truths: Tensor) -> TosaValue:
    """Return which integers are among those that `truths` has, a truth value for each integer of the type."""
    low, high = x.of.low, x.of.high
    held = (truths.nonzero().flatten() + low).tolist()
    first, last = (held[0], held[-1]) if held else (high + 1, high)
    others = ((~truths).nonzero().flatten() + low).tolist()
    integers = rescale(w, x.integers, [1.0], "INT32")

    def compared(kind: str, *operands: TosaValue | int) -> TosaValue:
        return w.elementwise(kind, *operands, dtype="BOOL")

    if len(held) == last - first + 1:
        if last == high:
            return compared("GREATER_EQUAL", integers, first)
        if first == low:
            return compared("GREATER", last + 1, integers)
        if first == last:
            return compared("EQUAL", integers, first)
    if len(others) == 1:
        return w.elementwise("LOGICAL_NOT", compared("EQUAL", integers, others[0]))
    if x.of.dtype != torch.int8:
        raise refusal("a comparison of a function of 16 bits that goes up and down")
    table = w.constant(truths.to(torch.int8))
    found = w.op("TABLE", [x.integers, table], x.shape, "INT8")
    return compared("GREATER", rescale(w, found, [1.0], "INT32"), 0)


ROWS: Mapping[Any, Row] = MappingProxyType({target: _row(target) for target in COMPARISONS})
