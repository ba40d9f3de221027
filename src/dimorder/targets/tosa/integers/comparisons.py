"""Write comparisons of quantised values as comparisons of integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import Scaled
from dimorder.targets.table import Arguments, Row, View
from dimorder.targets.tosa import logic
from dimorder.targets.tosa.integers.kernels import FUNCTION, FUNCTION_OR_SUM
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Lookup, Operand, numbers, refusal
from dimorder.targets.tosa.integers.sums import compare
from dimorder.targets.tosa.integers.unsigned import with_unsigned
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter
MOST_RUNS = 8  # of integers of 16 bits for which a function of truth values is true


def _row(target: Any) -> Row:
    def build(w: W, a: Arguments) -> TosaValue:
        of_one = w.follow()
        if of_one is None:
            x, y = (_operand(w, each) for each in (a.self, a.other))
            truth = compare(w, x, y, logic.COMPARISONS[target].write)
        else:
            truth = _among(w, of_one)
        return w.reshape(truth, a.shape)  # type: ignore[no-any-return]

    return Row(build, kernel=FUNCTION_OR_SUM)


def _operand(w: W, argument: Any) -> Operand:
    """Return an operand. Constants of one scale are integers, which may be equal to others."""
    if isinstance(argument, View):
        return numbers(w, argument)
    of = argument.integers.type if isinstance(argument, Scaled) and argument.numel() != 1 else None
    if of is None:
        return argument if isinstance(argument, Tensor) else torch.tensor([float(argument)])
    return Lookup.dequantize(w.constant(argument.integers.values), of)


def _among(w: W, x: Lookup) -> TosaValue:
    """Return for which integers the function, of truth values, is true."""
    low, high, truths = x.of.low, x.of.high, x.numbers
    runs, others = _runs(truths, low), _runs(~truths, low)
    integers = rescale(w, x.integers, [1.0], "INT32")

    def compared(kind: str, *operands: TosaValue | int) -> TosaValue:
        return w.elementwise(kind, *operands, dtype="BOOL")

    def within(first: int, last: int) -> TosaValue:
        if first == last:
            return compared("EQUAL", integers, first)
        sides = [compared("GREATER_EQUAL", integers, first)] if first > low or last == high else []
        sides += [compared("GREATER", last + 1, integers)] if last < high else []
        return reduce(partial(w.elementwise, "LOGICAL_AND"), sides)

    if len(others) == 1 and others[0][0] == others[0][1]:
        return w.elementwise("LOGICAL_NOT", within(*others[0]))
    if x.of.dtype == torch.int8 and len(runs) > 1:
        table = w.constant(truths.to(torch.int8))
        found = w.op("TABLE", [x.integers, table], x.shape, "INT8")
        return compared("GREATER", rescale(w, found, [1.0], "INT32"), 0)
    if len(runs) > MOST_RUNS:
        raise refusal(f"a comparison that a function of 16 bits passes {len(runs)} times")
    return reduce(partial(w.elementwise, "LOGICAL_OR"), [within(*run) for run in runs or [(high + 1, high)]])


def _runs(truths: Tensor, low: int) -> list[tuple[int, int]]:
    """Return the first and the last integer of each run of true ones; the first truth value is that of `low`.

    >>> _runs(torch.tensor([True, True, False, True]), -2)
    [(-2, -1), (1, 1)]
    """
    padded = torch.nn.functional.pad(truths.int(), (1, 1)).diff()
    firsts, ends = ((padded == step).nonzero().flatten() + low for step in (1, -1))
    return list(zip(firsts.tolist(), (ends - 1).tolist(), strict=True))


def _isnan(w: W, a: Arguments) -> TosaValue:
    """Return where a function is NaN; a sum is so nowhere."""
    of_one = w.follow()
    return w.constant(torch.zeros(a.shape, dtype=torch.bool)) if of_one is None else _among(w, of_one)


def _of_truths(plain: Row) -> Row:
    """Return the row of an operator on truth values, which may all be functions of one value."""
    own = with_unsigned(plain)

    def build(w: W, a: Arguments) -> TosaValue:
        of_one = w.follow()
        return own.build(w, a) if of_one is None else _among(w, of_one)

    return replace(own, build=build, kernel=FUNCTION)


OF_TRUTHS = (
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.logical_not.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.bitwise_not.default),
)
ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{target: _row(target) for target in logic.COMPARISONS},
        **{target: _of_truths(logic.ROWS[target]) for target in OF_TRUTHS},
        aten.isnan.default: Row(_isnan, kernel=FUNCTION_OR_SUM),
    }
)
