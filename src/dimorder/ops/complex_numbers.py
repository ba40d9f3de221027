"""Write each operator on complex numbers in operators on their real and imaginary parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dimorder.errors import UnsupportedError
from dimorder.graph.elements import MOVERS
from dimorder.graph.nodes import operator_at
from dimorder.graph.pairs import PART, Pair, has_complex, is_pair
from dimorder.graph.tracing import Tracer, Value, decomposition_of, dtype_of, shape_of
from dimorder.ops.fourier import FOURIER
from dimorder.ops.operator import Spell

aten = torch.ops.aten

_PairOperand = Any  # a pair, a real tensor or a Python number


def write_pairs(n: Tracer, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """Write a call of complex numbers in real ones; NotImplemented if it has none.

    Raises:
        UnsupportedError: if nothing is known of the operator on complex numbers.
    """
    if target not in _CREATORS and not has_complex((args, kwargs)):
        return NotImplemented
    spell = _CREATORS.get(target) or _ROWS.get(target)
    if spell is not None:
        args, kwargs = pytree.tree_map_only(Tensor, partial(_constant_pair, n), (args, kwargs))
        return pytree.tree_map_only(Pair, _as_constant, spell(n, *args, **kwargs), is_leaf=is_pair)
    function = decomposition_of(target)
    if function is None:
        found = "complex numbers, for which no rule knows this operator"
        raise UnsupportedError(operator_at(n.node), found, "compute it on the real and imaginary parts")
    return n.written_by(function, args, kwargs)


def as_real(n: Tracer, z: Pair) -> Value:
    """Return a pair as torch.view_as_real has it: one tensor whose last dimension has both parts."""
    return n.write(aten.stack.default, list(_both(z)), -1)


def _constant_pair(n: Tracer, constant: Tensor) -> Any:
    """Return a complex constant as a pair; constants are split once."""
    if not constant.is_complex():
        return constant
    key = (_constant_pair, id(constant))
    if key not in n.remembered:
        n.kept.append(constant)
        whole = constant.resolve_conj().resolve_neg()
        n.remembered[key] = Pair(whole.real.contiguous(), whole.imag.contiguous())
    return n.remembered[key]


def _as_constant(z: Pair) -> Value:
    """Return a pair of constants as a constant, of which later calls are evaluated."""
    if any(isinstance(part, torch.fx.Node) for part in z):
        return z
    return torch.complex(z.re, torch.zeros_like(z.re) if z.im is None else z.im)


def _both(z: Pair) -> Pair:
    """Return a pair with its imaginary part, or with zeros for it."""
    if z.im is not None:
        return z
    return Pair(z.re, torch.zeros(shape_of(z), dtype=dtype_of(z.re)))


# -- operators that do the same to both parts


def _of_parts(target: Any, mixes: bool = False) -> Spell:
    """Apply an operator to each part. If it `mixes` operands, real ones have imaginary parts of 0."""

    def spell(n: Tracer, *args: Value, **kwargs: Value) -> Value:
        def part(i: int, leaf: Value) -> Value:
            if isinstance(leaf, Pair):
                return _both(leaf)[i]
            if isinstance(leaf, torch.dtype):
                return PART.get(leaf, leaf)
            if mixes and isinstance(leaf, (torch.fx.Node, Tensor)) and dtype_of(leaf) != torch.bool:
                return leaf if i == 0 else torch.zeros(shape_of(leaf), dtype=dtype_of(leaf))
            return leaf

        re, im = (
            n.call(target, *pytree.tree_map(partial(part, i), (args, kwargs), is_leaf=is_pair))
            for i in (0, 1)
        )
        return [Pair(*both) for both in zip(re, im, strict=True)] if isinstance(re, list) else Pair(re, im)

    return spell


_EACH = (
    *(each for each in MOVERS if each not in (aten.cat.default, aten.stack.default)),
    *(aten.neg.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
    *(aten.cumsum.default, aten.index.Tensor, aten.gather.default, aten.diagonal.default),
    *(aten.tril.default, aten.triu.default, aten.constant_pad_nd.default, aten.trace.default),
    *(aten.zeros_like.default, aten._neg_view.default, aten.rot90.default, aten.fliplr.default),
)
_MIXING = (
    *(aten.cat.default, aten.stack.default, aten.where.self, aten.slice_scatter.default),
    *(aten.select_scatter.default, aten.index_put.default, aten.scatter.src, aten.copy.default),
    *(aten.diagonal_scatter.default, aten.index_add.default, aten.scatter_add.default),
)


# -- arithmetic, in plain torch


def _split(x: _PairOperand) -> tuple[Any, Any]:
    """Return the real part, and the imaginary part or None."""
    if isinstance(x, Pair):
        return x
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _added(x: Any, y: Any, sign: int) -> Any:
    """Return a sum or difference in which None is 0."""
    if y is None:
        return x
    if x is None:
        return y if sign > 0 else -y
    return x + y if sign > 0 else x - y


def _pair(re: Tensor, im: Any) -> Pair:
    """Return a pair of parts that may have different shapes, or of which the second may be a number."""
    if im is None:
        return Pair(re, None)
    im = im if isinstance(im, Tensor) else torch.full_like(re, im)
    return Pair(*torch.broadcast_tensors(re, im))


def _add(x: _PairOperand, y: _PairOperand, alpha: float = 1, sign: int = 1) -> Pair:
    (a, b), (c, d) = _split(x), _split(y if alpha == 1 else _mul(y, alpha))
    return _pair(_added(a, c, sign), _added(b, d, sign))


def _rsub(x: _PairOperand, y: _PairOperand, alpha: float = 1) -> Pair:
    return _add(y, x if alpha == 1 else _mul(x, alpha), sign=-1)


def _bilinear(of: Callable[..., Any]) -> Callable[[_PairOperand, _PairOperand], Pair]:
    """Return a product of complex numbers, from `of`, the same product of real ones."""

    def compute(x: _PairOperand, y: _PairOperand) -> Pair:
        def product(left: Any, right: Any) -> Any:
            return None if left is None or right is None else of(left, right)

        (a, b), (c, d) = _split(x), _split(y)
        return _pair(_added(of(a, c), product(b, d), -1), _added(product(a, d), product(b, c), 1))

    return compute


_mul = _bilinear(operator.mul)


def _linear(x: _PairOperand, weight: _PairOperand, bias: _PairOperand = None) -> Pair:
    y = _bilinear(torch.nn.functional.linear)(x, weight)
    return y if bias is None else _add(y, bias)


def _convolution(
    x: _PairOperand, weight: _PairOperand, bias: _PairOperand, stride: Sequence[int], *args: Any
) -> Pair:
    y = _bilinear(lambda a, b: torch.convolution(a, b, None, stride, *args))(x, weight)
    if bias is None:
        return y
    columns = [part if part is None else part.reshape(-1, *([1] * len(stride))) for part in _split(bias)]
    return _add(y, Pair(*columns))


def _sized(z: Pair) -> Pair:
    return z if z.im is not None else Pair(z.re, torch.zeros_like(z.re))


def _conj(z: Pair) -> Pair:
    return Pair(z.re, None if z.im is None else -z.im)


def _abs(z: Pair) -> Tensor:
    return z.re.abs() if z.im is None else torch.sqrt(z.re * z.re + z.im * z.im)


def _angle(z: Pair) -> Tensor:
    re, im = _sized(z)
    return torch.atan2(im, re)


def _reciprocal(z: Pair) -> Pair:
    re, im = _sized(z)
    square = re * re + im * im
    return Pair(re / square, -im / square)


def _div(x: _PairOperand, y: _PairOperand) -> Pair:
    if isinstance(y, Pair):
        return _mul(x, _reciprocal(y))
    if isinstance(y, complex):
        return _mul(x, 1 / y)
    re, im = _split(x)
    return _pair(re / y, None if im is None else im / y)


def _exp(z: Pair) -> Pair:
    re, im = _sized(z)
    size = torch.exp(re)
    return Pair(size * torch.cos(im), size * torch.sin(im))


def _log(z: Pair) -> Pair:
    return Pair(torch.log(_abs(z)), _angle(z))


def _sqrt(z: Pair) -> Pair:
    re, im = _sized(z)
    size = _abs(z)
    half = torch.sqrt((size - re).clamp(min=0.0) * 0.5)
    return Pair(torch.sqrt((size + re).clamp(min=0.0) * 0.5), torch.where(im < 0, -half, half))


def _pow(z: _PairOperand, power: _PairOperand) -> Any:
    if isinstance(power, (int, float)) and power in (1, 2, 3, 4):
        result = z
        for _ in range(int(power) - 1):
            result = _mul(result, z)
        return result
    return _exp(_mul(_log(z), power))


def _sgn(z: Pair) -> Pair:
    re, im = _sized(z)
    size = _abs(z)
    size = torch.where(size == 0, 1.0, size)
    return Pair(re / size, im / size)


def _polar(size: Tensor, angle: Tensor) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


def _addmm(x: _PairOperand, a: _PairOperand, b: _PairOperand, beta: float = 1, alpha: float = 1) -> Pair:
    product = _bilinear(torch.matmul)(a, b)
    return _add(_mul(x, beta), _mul(product, alpha))


def _to_copy(n: Tracer, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Convert between complex and real types."""
    to = dtype_of(x) if dtype is None else dtype
    part, (re, im) = PART.get(to, to), _split(x)
    re = re if dtype_of(re) == part else n.write(aten._to_copy.default, re, dtype=part)
    if not to.is_complex:
        return re
    if im is not None and dtype_of(im) != part:
        im = n.write(aten._to_copy.default, im, dtype=part)
    return Pair(re, im)


def _view_as_complex(n: Tracer, x: Value) -> Pair:
    return Pair(*(n.write(aten.select.int, x, -1, i) for i in (0, 1)))


def _plain(function: Callable[..., Any]) -> Spell:
    """Return the spelling that a function of plain torch defines; it takes and returns pairs."""

    def spell(n: Tracer, *args: Value, **kwargs: Value) -> Value:
        return n.written_by(function, args, kwargs, in_pairs=True)

    return spell


# Operators that make complex numbers of real ones.
_CREATORS: Mapping[Any, Spell] = MappingProxyType(
    {
        aten.view_as_complex.default: _view_as_complex,
        aten.complex.default: lambda n, re, im: Pair(*n.write(aten.broadcast_tensors.default, [re, im])),
        aten.polar.default: _plain(_polar),
        **FOURIER,
    }
)

_MATMULS = (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)

_IN_PLAIN_TORCH: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: partial(_add, sign=-1),
    aten.sub.Scalar: partial(_add, sign=-1),
    aten.rsub.Scalar: _rsub,
    aten.rsub.Tensor: _rsub,
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.div.Tensor: _div,
    aten.div.Scalar: _div,
    **dict.fromkeys(_MATMULS, _bilinear(torch.matmul)),
    aten.linear.default: _linear,
    aten.convolution.default: _convolution,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten._conj.default: _conj,
    aten._conj_physical.default: _conj,
    aten.conj_physical.default: _conj,
    aten.abs.default: _abs,
    aten.angle.default: _angle,
    aten.reciprocal.default: _reciprocal,
    aten.exp.default: _exp,
    aten.log.default: _log,
    aten.sqrt.default: _sqrt,
    aten.pow.Tensor_Scalar: _pow,
    aten.pow.Tensor_Tensor: _pow,
    aten.sgn.default: _sgn,
}

_ROWS: Mapping[Any, Spell] = MappingProxyType(
    {
        **{target: _of_parts(target) for target in _EACH},
        **{target: _of_parts(target, mixes=True) for target in _MIXING},
        **{target: _plain(function) for target, function in _IN_PLAIN_TORCH.items()},
        operator.getitem: lambda n, values, index: values[index],
        aten._to_copy.default: _to_copy,
        aten.view_as_real.default: as_real,
        aten.real.default: lambda n, z: z.re,
        aten.imag.default: lambda n, z: _both(z).im,
        **dict.fromkeys((aten.resolve_conj.default, aten.resolve_neg.default), lambda n, z: z),
    }
)
