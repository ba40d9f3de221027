"""Write pointwise operators in integers: functions of one quantised value, or arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import Scaled
from dimorder.ops.dialect import OPS as dimorder
from dimorder.ops.pointwise import CLAMP_BOUNDS
from dimorder.physical.annotations import How
from dimorder.physical.fuse_quantized import KernelRule, WideKernel
from dimorder.targets.rows import ordered_bounds
from dimorder.targets.table import Arguments, Row, View
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.integers.channels import add_channels, are_channels, multiply_channels
from dimorder.targets.tosa.integers.kernels import FUNCTION, FUNCTION_OR_SUM, SLOPES, quotient
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import (
    Accumulator,
    IntegerWriter,
    Lookup,
    Numbers,
    Operand,
    numbers,
)
from dimorder.targets.tosa.integers.sums import add, choose, multiply
from dimorder.targets.tosa.pointwise import value

aten = torch.ops.aten
W = IntegerWriter


def _function(target: Any, arithmetic: Callable[..., Numbers] | None = None) -> Callable[[W, Arguments], Any]:
    """Return the builder of a pointwise operator: a function of one quantised value, or `arithmetic`."""
    names = [argument.name for argument in target._schema.arguments]

    def build(w: W, a: Arguments) -> Numbers:
        function = w.follow()
        if function is not None:
            return function
        assert arithmetic is not None, "the plan has no such operator"
        given = {name: operand(w, getattr(a, name), target in _OF_INTEGERS) for name in names}
        return arithmetic(w, changed(a, **given))

    return build


def operand(w: W, argument: Any, keeps_integers: bool = False) -> Any:
    """Return the numbers of an operand. A constant may keep its int8, if that has one scale."""
    if isinstance(argument, View):
        return numbers(w, argument)
    if not (keeps_integers and w.forms.multiplies_constants and isinstance(argument, Scaled)):
        return argument
    held = argument.integers
    of = held.type
    if of is None or of.dtype not in _OF_CONSTANTS or held.values.numel() == 1:
        return argument
    return Lookup.dequantize(w.constant(held.values), of)


def _constant(argument: Any) -> Operand:
    return argument if isinstance(argument, (Tensor, Numbers)) else torch.tensor([float(argument)])


def _add(w: W, a: Arguments) -> Numbers:
    return _sum(w, _constant(a.self), scale_by(w, _constant(a.other), a.alpha))


def _subtract(w: W, a: Arguments) -> Numbers:
    y = scale_by(w, _constant(a.other), a.alpha)
    return _sum(w, _constant(a.self), -y) if isinstance(y, Tensor) else add(w, _constant(a.self), y, "SUB")


def _subtract_from(w: W, a: Arguments) -> Numbers:
    return _subtract(w, changed(a, self=a.other, other=a.self))


def _sum(w: W, x: Operand, y: Operand) -> Accumulator:
    total = add(w, x, y)
    for held, constant in ((x, y), (y, x)):
        if are_channels(held, constant):
            add_channels(w, total, held, constant)  # type: ignore[arg-type]
    return total


def _multiply(w: W, a: Arguments) -> Numbers:
    return _times(w, _constant(a.self), _constant(a.other))


def _times(w: W, x: Operand, y: Operand) -> Numbers:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Tensor) and one.numel() == 1 and not isinstance(other, Tensor):
            return scale_by(w, other, float(one))  # type: ignore[return-value]
        if are_channels(other, one):
            return multiply_channels(w, other, one)  # type: ignore[arg-type]
    return multiply(w, x, y)


def _divide(w: W, a: Arguments) -> Numbers:
    y = _constant(a.other)
    if isinstance(y, Tensor):
        return _times(w, _constant(a.self), 1 / y.double())
    assert isinstance(y, Lookup), "the plan has no such division"
    return _times(w, _constant(a.self), replace(y, numbers=1 / y.numbers))


def scale_by(w: W, x: Operand, factor: float) -> Operand:
    if factor == 1:
        return x
    if isinstance(x, Tensor):
        return x * factor
    if isinstance(x, Lookup):
        return replace(x, numbers=x.numbers * factor)
    if factor <= 0:
        return multiply(w, x, torch.tensor([factor]))
    low, high, error = (number * factor for number in (x.low, x.high, x.error))
    return replace(x, scales=x.scales * factor, low=low, high=high, error=error)


def _extreme(kind: str) -> Callable[[W, Arguments], Numbers]:
    return lambda w, a: add(w, _constant(a.self), _constant(a.other), kind)


def _choose(w: W, a: Arguments) -> Numbers:
    function = w.follow()
    if function is not None:
        return function
    x, y = (_constant(operand(w, each)) for each in (a.self, a.other))
    condition = value(w, a.condition, "BOOL")
    if w.annotation is not None and w.annotation.how is How.DEQUANTIZED:
        (integers, of), (others, _) = (as_integers(w, each) for each in (x, y))
        return Lookup.dequantize(w.elementwise("SELECT", condition, integers, others), of)
    return choose(w, condition, x, y)


def _fill(w: W, a: Arguments) -> Numbers:
    return _choose(w, changed(a, condition=a.mask, self=a.value, other=a.self))


def _clamp(target: Any) -> Callable[..., Numbers]:
    """Return a builder for a clamp of a sum, which is applied when the sum is quantised."""

    def build(w: W, a: Arguments) -> Numbers:
        low, high = ordered_bounds(target, a)
        x: Accumulator = a.self
        return replace(x, low=min(max(x.low, low), high), high=max(min(x.high, high), low))

    return build


def _prelu(w: W, a: Arguments) -> Numbers:
    """Return max(x, 0) + weight · min(x, 0)."""
    positive, negative = (replace(a.x, numbers=n) for n in (a.x.numbers.clamp(0), a.x.numbers.clamp(max=0)))
    return add(w, positive, _times(w, a.weight, negative))


_OF_CONSTANTS = (torch.int8, torch.int16)
_UNARY = (
    *(aten.abs.default, aten.neg.default, aten.square.default, aten.reciprocal.default, aten.sqrt.default),
    *(aten.rsqrt.default, aten.exp.default, aten.log.default, aten.sin.default, aten.cos.default),
    *(aten.erf.default, aten.floor.default, aten.ceil.default, aten.sigmoid.default, aten.tanh.default),
    *(aten.hardsigmoid.default, aten.hardswish.default, aten.silu.default, aten.mish.default),
    *(aten.softplus.default, aten.gelu.default, aten.elu.default, aten.leaky_relu.default),
    *(aten.log1p.default, aten.log2.default, aten.log10.default, aten.log_sigmoid.default),
    *(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.round.default, aten.trunc.default),
    *(aten.remainder.Scalar, aten.remainder.Tensor, aten.fmod.Scalar, aten.fmod.Tensor),
    *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar),
)
_OF_INTEGERS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor})
_BINARY: Mapping[Any, Callable[[W, Arguments], Numbers]] = MappingProxyType(
    {
        **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _add),
        **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _subtract),
        **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), _subtract_from),
        **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _multiply),
        **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _divide),
        aten.maximum.default: _extreme("MAXIMUM"),
        aten.minimum.default: _extreme("MINIMUM"),
        dimorder.prelu_last.default: _prelu,
    }
)
_CHOICES = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
_FILLS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor)
_CHOICE, _FILL = (
    WideKernel(lambda operands: None, follows=True, positions=(name,)) for name in ("condition", "mask")
)
_CHOICE_OF_TWO = replace(_CHOICE, keeps=True)  # of values, where others have a number
_KERNELS: Mapping[Any, KernelRule] = MappingProxyType(
    {
        **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), lambda a: quotient(a.other)),
        dimorder.prelu_last.default: SLOPES,
    }
)
ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{target: Row(_function(target), kernel=FUNCTION) for target in _UNARY},
        **{target: Row(_function(target, _clamp(target)), kernel=FUNCTION_OR_SUM) for target in CLAMP_BOUNDS},
        **dict.fromkeys(_CHOICES, Row(_choose, kernel=_CHOICE)),
        aten.where.self: Row(_choose, kernel=_CHOICE_OF_TWO),
        **dict.fromkeys(_FILLS, Row(_fill, kernel=_FILL)),
        **{
            target: Row(_function(target, write), kernel=_KERNELS.get(target, FUNCTION_OR_SUM))
            for target, write in _BINARY.items()
        },
    }
)
