"""Run a network as kernels do that add up float16 in float16, one term after another.

Kernels for CPUs with float16 arithmetic (Arm's, x86 with AVX512-FP16) keep a sum in float16. PyTorch's keep
it in float32 and round once. A program may be as far off as the first, on any CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dimorder.ops.dialect import decomposition_table

aten = torch.ops.aten


class HalfSums(TorchDispatchMode):
    """A mode in which float16 matmuls and convolutions round their sums after every term.

    >>> ones = torch.ones(1, 4096, dtype=torch.float16)
    >>> with HalfSums():
    ...     (ones @ ones.mT).item()  # of 2048 and 1, float16 has no sum
    2048.0
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bodies = decomposition_table()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if any(isinstance(x, Tensor) and x.dtype == torch.float16 for x in args):
            if func in _PRODUCTS:
                return _PRODUCTS[func](*args, **keywords)
            # Other operators have no known decomposition.
            if func in self.bodies or func.namespace == "aten":
                with self:
                    made = self.bodies.get(func, func.decompose)(*args, **keywords)
                if made is not NotImplemented:
                    return made
        return func(*args, **keywords)


def _sum_of_products(start: Tensor, terms: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return `start` plus the product of each term, rounded to float16 after each term."""
    total = start.float()
    for left, right in terms:
        total = torch.addcmul(total, left.float(), right.float()).half().float()
    return total.half()


def _matmul(left: Tensor, right: Tensor, start: Tensor | None = None) -> Tensor:
    shape = (*left.shape[:-1], right.shape[-1])
    if start is None:
        start = left.new_zeros(())
    terms = ((left[..., k, None], right[..., None, k, :]) for k in range(left.shape[-1]))
    return _sum_of_products(start.expand(shape), terms)


def _addmm(start: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _matmul(left * alpha, right, start * beta)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Add up by taps and then by channels, as kernels do that read channels last."""
    kernel, sides = weight.shape[2:], [(p, p) for p in padding]
    if transposed:  # convolve the input with zeros between, which add nothing
        reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        sides = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
        x, weight, stride = _spread(x, stride), _mirrored(weight, groups), [1] * len(kernel)
    x = F.pad(x, [side for pair in reversed(sides) for side in pair])
    outputs, inputs = weight.shape[:2]
    sizes = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], kernel, dilation, stride, strict=True)
    ]

    def terms() -> Iterator[tuple[Tensor, Tensor]]:
        for tap in product(*map(range, kernel)):
            places = [
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilation, sizes, stride, strict=True)
            ]
            read = x[_last(places)].reshape(x.shape[0], groups, 1, inputs, -1)
            factors = weight[_last(tap)].reshape(1, groups, outputs // groups, inputs, 1)
            for channel in range(inputs):
                yield read[:, :, :, channel], factors[:, :, :, channel]

    start = x.new_zeros(outputs) if bias is None else bias
    total = _sum_of_products(start.reshape(1, groups, outputs // groups, 1), terms())
    return total.reshape(x.shape[0], outputs, *sizes)


def _last(places: Sequence[Any]) -> Any:
    """Return an index of the last dimensions."""
    return (..., *places)


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Return a tensor with zeros between its elements."""
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    spread, steps = x.new_zeros((*x.shape[:2], *sizes)), [slice(None, None, s) for s in stride]
    spread[_last(steps)] = x
    return spread


def _mirrored(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution as that of a convolution."""
    kernel, each = weight.shape[2:], weight.shape[1]
    by_group = weight.flip(tuple(range(2, weight.dim()))).reshape(groups, -1, each, *kernel)
    return by_group.transpose(1, 2).reshape(groups * each, -1, *kernel)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = _matmul(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.mT)
    if is_causal:
        scores = scores.masked_fill(~scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    by_head = _matmul(torch.softmax(scores, -1), value)
    # in the strides of torch's kernel, which a view after it needs
    return by_head.transpose(1, 2).contiguous().transpose(1, 2), scores.float().logsumexp(-1)


_PRODUCTS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.mm.default: _matmul,
        aten.bmm.default: _matmul,
        aten.addmm.default: _addmm,
        aten.baddbmm.default: _addmm,
        aten.convolution.default: _convolution,
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    }
)
