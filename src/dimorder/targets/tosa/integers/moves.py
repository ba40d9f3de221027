"""Write the operators that move elements: a move of numbers becomes a move of their integers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.elements import Elements
from dimorder.graph.quantized import level_of
from dimorder.graph.tracing import FLOATS
from dimorder.ops.table import elements_of
from dimorder.physical.annotations import How
from dimorder.physical.fuse_quantized import MOVE, FoundKernel, WideKernel
from dimorder.targets.rows import paddings
from dimorder.targets.table import Arguments, Row, View
from dimorder.targets.tosa import moves
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.integers.kernels import padded
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import BITS, Accumulator, IntegerWriter, Lookup, Operand
from dimorder.targets.tosa.integers.pointwise import operand
from dimorder.targets.tosa.integers.sums import as_sum, error_of, exact_or_sum, on_grid
from dimorder.targets.tosa.integers.unsigned import bits
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter


def moved(row: Row) -> Row:
    """Return the row of a move of one value: of integers directly, of numbers by their integers."""

    def build(w: W, a: Arguments) -> Any:
        if not isinstance(a.self, View) or isinstance(a.self.value, TosaValue):
            return row.build(w, a)
        held = a.self.value
        if isinstance(held, Accumulator):
            held = as_sum(w, held)
        inner = View(held.integers, a.self.order)
        result = row.build(w, changed(a, self=inner))
        if isinstance(result, View):
            return View(held.with_integers(result.value), result.order)
        return held.with_integers(result)

    return Row(build, row.check)


def _cat(w: W, a: Arguments) -> Any:
    dim = a.dim % len(a.shape)
    if not a.dtype.is_floating_point:
        return w.concat([w.dense(x) for x in a.tensors], dim)
    operands: list[Operand] = [operand(w, x) for x in a.tensors]
    if w.annotation is not None and w.annotation.how is How.DEQUANTIZED:
        integers, (of, *_) = zip(*(as_integers(w, x) for x in operands), strict=True)
        return Lookup.dequantize(w.concat(integers, dim), of)
    step = max(float(x.abs().max()) if isinstance(x, Tensor) else x.most for x in operands) / 2**BITS
    held = [exact_or_sum(w, x) for x in operands]
    joined = w.concat([on_grid(w, x, step) for x in held], dim)
    error = max(map(error_of, held))
    return Accumulator(joined, torch.tensor(step, dtype=torch.float64), 2**BITS + 1, error=error)


_TRUTH = WideKernel(lambda operands: None, follows=True, positions=("self",))


def _cast(w: W, a: Arguments) -> Any:
    """Cast floats to floats, which keeps their integers, or truth values to the numbers 0 and 1."""
    held = a.self.value
    if not isinstance(held, TosaValue):
        return a.self
    function = w.follow()
    if function is not None:
        return function
    truth = w.elementwise("CAST", w.dense(a.self), dtype="INT32")
    return Accumulator(truth, torch.tensor(1.0, dtype=torch.float64), 1)


def _check_cast(a: Arguments) -> str | None:
    """Return why a cast gives no numbers that integers stand for, or None."""
    given = a.self.meta["val"].dtype
    if a.dtype in FLOATS and (given in FLOATS or given == torch.bool):
        return None
    return (
        f"a cast from {given} to {a.dtype}, of integers without bounds; a mask may be an input of torch.bool"
    )


def _cast_kernel(a: Arguments) -> FoundKernel:
    return MOVE if a.self.meta["val"].is_floating_point() else _TRUTH


def _pad(w: W, a: Arguments) -> Any:
    value = getattr(a, "value", None) or 0
    held = w.dense(a.self)
    if isinstance(held, TosaValue):
        return _constant_pad(w, held, a, bits(value) if a.dtype == torch.uint8 else value)
    if value == 0 and not isinstance(held, Lookup):
        held = as_sum(w, held)
        return held.with_integers(_constant_pad(w, held.integers, a, 0))
    x, of = as_integers(w, held)
    fill = level_of(value, of)
    assert fill is not None, "the plan has no such padding"
    return Lookup.dequantize(_constant_pad(w, x, a, fill), of)


def _constant_pad(w: W, x: TosaValue, a: Arguments, fill: float) -> TosaValue:
    return moves.pad(w, x, *paddings(a.pad, len(x.shape)), fill)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        # The relabels are the writer's own, for any numbers.
        **{
            target: row if elements_of(target) is Elements.RELABELS else moved(row)
            for target, row in moves.ROWS.items()
            if elements_of(target).moves
        },
        aten._to_copy.default: Row(_cast, _check_cast, kernel=_cast_kernel),
        aten.cat.default: Row(_cat, kernel=WideKernel(lambda operands: None, keeps=True)),
        aten.constant_pad_nd.default: Row(_pad, kernel=lambda a: padded(getattr(a, "value", None) or 0)),
    }
)
