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
from dimorder.ops.complex_arithmetic import IN_PLAIN_TORCH, polar, split
from dimorder.ops.fourier import FOURIER
from dimorder.ops.operator import Spell

aten = torch.ops.aten


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


def _to_copy(n: Tracer, x: Value, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Convert between complex and real types."""
    to = dtype_of(x) if dtype is None else dtype
    part, (re, im) = PART.get(to, to), split(x)
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
        aten.polar.default: _plain(polar),
        **FOURIER,
    }
)

_ROWS: Mapping[Any, Spell] = MappingProxyType(
    {
        **{target: _of_parts(target) for target in _EACH},
        **{target: _of_parts(target, mixes=True) for target in _MIXING},
        **{target: _plain(function) for target, function in IN_PLAIN_TORCH.items()},
        operator.getitem: lambda n, values, index: values[index],
        aten._to_copy.default: _to_copy,
        aten.view_as_real.default: as_real,
        aten.real.default: lambda n, z: z.re,
        aten.imag.default: lambda n, z: _both(z).im,
        **dict.fromkeys((aten.resolve_conj.default, aten.resolve_neg.default), lambda n, z: z),
    }
)
