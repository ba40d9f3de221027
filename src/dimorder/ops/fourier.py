"""Write discrete Fourier transforms as linears with constant matrices, and spectrograms as convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import operator_at
from dimorder.graph.pairs import Pair
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.operator import Spell, in_torchs_parts

aten = torch.ops.aten

_BY_ROOT, _BY_SIZE = 1, 2  # torch's numbers for a transform that is divided by √n or by n


_NOTHING = 1e-12  # a cosine or sine that is less is a rounded 0


def _circle(rows: int, columns: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of 2π·r·c / size for each row r and column c, in float64.

    Those of quarters are exact: a sum that is 0 stays 0.
    """
    products = torch.arange(rows).unsqueeze(1) * torch.arange(columns)
    angles = (products % size).to(torch.float64) * (2 * math.pi / size)
    cos, sin = (part.masked_fill(part.abs() < _NOTHING, 0.0) for part in (angles.cos(), angles.sin()))
    return cos, sin


def _scale(normalization: int, size: int) -> float:
    return {0: 1.0, _BY_ROOT: 1 / math.sqrt(size), _BY_SIZE: 1 / size}[normalization]


def _constants(
    n: Tracer, key: tuple[Any, ...], dtype: torch.dtype, make: Callable[[], Sequence[Tensor]]
) -> Any:
    """Return the constants of a key, computed once in float64, and rounded once."""
    key = (*key, dtype)
    if key not in n.remembered:
        name = "_".join(map(str, key[:2]))
        n.remembered[key] = [
            n.named(f"{name}_{part}", each.to(dtype)) for each, part in zip(make(), ("re", "im"), strict=True)
        ]
    return n.remembered[key]


def _along(n: Tracer, x: Value, dim: int, matrix: Tensor) -> Value:
    """Multiply a dimension by a matrix of (results, elements)."""
    last = len(shape_of(x)) - 1
    if dim % (last + 1) == last:
        return n.write(aten.linear.default, x, matrix)
    moved = n.write(aten.linear.default, n.write(aten.transpose.int, x, dim, last), matrix)
    return n.write(aten.transpose.int, moved, dim, last)


def _added(n: Tracer, x: Value | None, y: Value | None) -> Value:
    if x is None or y is None:
        return y if x is None else x
    return n.write(aten.add.Tensor, x, y)


def _c2c(n: Tracer, x: Value, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    """Write transforms of complex numbers, along one dimension after another."""
    for dim in dims:
        x = _transform(n, x, dim, shape_of(x)[dim], normalization, forward)
    return x if isinstance(x, Pair) else Pair(x, None)


def _r2c(n: Tracer, x: Value, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    *others, last = dims
    size = shape_of(x)[last]
    halved = _transform(n, x, last, size // 2 + 1 if onesided else size, normalization, True)
    return _c2c(n, halved, others, normalization, True)


def _transform(n: Tracer, x: Value, dim: int, count: int, normalization: int, forward: bool) -> Pair:
    """Write the first `count` results of a transform along one dimension."""
    size = shape_of(x)[dim]

    def make() -> tuple[Tensor, Tensor]:
        (cos, sin), scale = _circle(count, size, size), _scale(normalization, size)
        return cos * scale, sin * (-scale if forward else scale)

    re, im = x if isinstance(x, Pair) else (x, None)
    key = ("fft" if forward else "ifft", size, count, normalization)
    cos, sin = _constants(n, key, dtype_of(re), make)
    if im is None:
        return Pair(_along(n, re, dim, cos), _along(n, re, dim, sin))
    rest = n.write(aten.sub.Tensor, _along(n, re, dim, cos), _along(n, im, dim, sin))
    return Pair(rest, _added(n, _along(n, re, dim, sin), _along(n, im, dim, cos)))


def _c2r(n: Tracer, x: Pair, dims: Sequence[int], normalization: int, size: int) -> Value:
    """Write the inverse transform of the first half of a spectrum whose other half is its conjugate."""
    *others, last = dims
    re, im = _c2c(n, x, others, normalization, False)
    cos, sin = _constants(
        n, ("irfft", size, normalization), dtype_of(re), lambda: _inverse(size, normalization)
    )
    return _added(n, _along(n, re, last, cos), None if im is None else _along(n, im, last, sin))


def _inverse(size: int, normalization: int) -> tuple[Tensor, Tensor]:
    count = size // 2 + 1
    weights = torch.full((count,), 2 * _scale(normalization, size), dtype=torch.float64)
    weights[0] /= 2
    if size % 2 == 0:
        weights[-1] /= 2
    cos, sin = _circle(size, count, size)
    return cos * weights, sin * -weights


# -- spectrograms


def _kernels(size: int, normalized: bool) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary parts of a transform as kernels of a convolution: (results, 1, size)."""
    (cos, sin), scale = _circle(size, size, size), _scale(_BY_ROOT if normalized else 0, size)
    return (cos * scale).unsqueeze(1), (-sin * scale).unsqueeze(1)


def _padded(n: Tracer, window: Value | None, length: int, size: int) -> Value:
    """Return a window with zeros on both sides up to `size`."""
    left = (size - length) // 2
    window = torch.ones(length) if window is None else window
    return n.write(aten.constant_pad_nd.default, window, [left, size - length - left], 0.0)


def _windowed(n: Tracer, kernels: Sequence[Tensor], window: Value, dtype: torch.dtype) -> list[Value]:
    """Multiply kernels by a window: in float64 if the window is constant."""
    if isinstance(window, Tensor):
        return [(each * window.to(torch.float64)).to(dtype) for each in kernels]
    return [n.write(aten.mul.Tensor, each.to(dtype), window) for each in kernels]


def _stft(
    n: Tracer,
    x: Value,
    size: int,
    hop: int | None = None,
    length: int | None = None,
    window: Value | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Value:
    """Write a short-time transform of real numbers as convolutions, whose channels are the frequencies."""
    hop = size // 4 if hop is None else hop
    window = _padded(n, window, size if length is None else length, size)
    count = size // 2 + 1 if onesided is not False else size
    kernels = [each[:count] for each in _kernels(size, normalized)]
    signal = n.write(aten.reshape.default, x, [-1, 1, shape_of(x)[-1]])
    parts = [
        n.write(aten.convolution.default, signal, each, None, [hop], [0], [1], False, [0], 1)
        for each in _windowed(n, kernels, window, dtype_of(x))
    ]
    frames = shape_of(parts[0])[1:]
    re, im = (n.write(aten.reshape.default, each, [*shape_of(x)[:-1], *frames]) for each in parts)
    return Pair(re, im) if return_complex else n.write(aten.stack.default, [re, im], -1)


def _istft(
    n: Tracer,
    z: Pair,
    size: int,
    hop: int | None = None,
    length: int | None = None,
    window: Value | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    samples: int | None = None,
    return_complex: bool = False,
) -> Value:
    """Write the inverse of a short-time transform as transposed convolutions of its parts.

    The sum of the squared windows, which torch divides by, is constant.
    """
    window = _padded(n, window, size if length is None else length, size)
    count, frames = shape_of(z)[-2:]
    if return_complex or count != size // 2 + 1 or onesided is False or not isinstance(window, Tensor):
        raise UnsupportedError(
            operator_at(n.node),
            "the inverse of a two-sided transform, or one with a computed window",
            "give a onesided transform and a constant window",
        )
    hop, wide = size // 4 if hop is None else hop, window.to(torch.float64)
    weights = _inverse(size, _BY_ROOT if normalized else _BY_SIZE)
    kernels = [(each.t() * wide).unsqueeze(1).to(dtype_of(z.re)) for each in weights]
    spectra = [n.write(aten.reshape.default, each, [-1, count, frames]) for each in z if each is not None]
    added = None
    for each, kernel in zip(spectra, kernels, strict=False):
        part = n.write(aten.convolution.default, each, kernel, None, [hop], [0], [1], True, [0], 1)
        added = _added(n, added, part)
    squares = torch.nn.functional.conv_transpose1d(
        torch.ones(1, 1, frames, dtype=torch.float64), wide.square().reshape(1, 1, -1), stride=hop
    )
    whole = shape_of(added)[-1]
    start = size // 2 if center else 0
    end = (whole - size // 2 if center else whole) if samples is None else min(start + samples, whole)
    kept = n.write(aten.slice.Tensor, added, 2, start, end)
    y = n.write(aten.mul.Tensor, kept, (1 / squares[..., start:end]).to(dtype_of(z.re)))
    missing = 0 if samples is None else samples - (end - start)
    y = n.write(aten.constant_pad_nd.default, y, [0, missing], 0.0) if missing else y
    return n.write(aten.reshape.default, y, [*shape_of(z)[:-2], end - start + missing])


FOURIER: Mapping[Any, Spell] = MappingProxyType(
    {
        aten._fft_c2c.default: _c2c,
        aten._fft_r2c.default: _r2c,
        aten._fft_c2r.default: _c2r,
        aten.stft.default: _stft,
        aten.istft.default: _istft,
    }
)


_TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_NAMES = (
    *(f"fft_{name}{dims}" for name in _TRANSFORMS for dims in ("", "2", "n")),
    "fft_fftshift",
    "fft_ifftshift",
)
OPERATORS = tuple(
    in_torchs_parts(target)
    for target in (
        *(getattr(aten, name).default for name in (*_NAMES, "stft", "istft", "real", "imag")),
        aten.stft.center,
    )
)
