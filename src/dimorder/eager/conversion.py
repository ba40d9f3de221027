"""Convert tensors between orders: by a view if the memory fits, else by a fast copy."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.layout import Layout
from dimorder.algebra.strides import read
from dimorder.eager.transposition import ChosenWay, choose, fast_copy
from dimorder.errors import UsageError, require_type
from dimorder.text import shape_text


def convert(tensor: Tensor, order: object) -> Tensor:
    """Return the same values and shape, dense in another order, with canonical strides.

    Args:
        tensor: a tensor with strides.
        order: an order that `DimOrder.parse` takes, or a `Layout`.

    Returns:
        The tensor itself if it has these strides already, a view if the memory fits, else a copy. For a
            `Layout`, the dense physical tensor, which `unblock` converts back.

    Raises:
        UsageError: for an order of another rank, for what is no tensor, and for a tensor without strides
            (sparse, nested, MKL-DNN). Also for integers that are quantised per channel, if torch cannot write
            their strides.

    >>> convert(torch.zeros(2, 3, 5, 7), "CHWN").stride()
    (1, 70, 14, 2)
    >>> convert(torch.zeros(2, 35, 5, 7), Layout.parse("nChw16c", 4)).shape
    torch.Size([2, 3, 5, 7, 16])
    """
    require_strides(tensor, "a tensor to convert")
    if isinstance(order, Layout):
        return _block(tensor, order)
    try:
        hash(order)
    except TypeError:  # a list, for example: the cache takes what has a hash
        order = DimOrder.parse(tuple(order), tensor.dim())  # type: ignore[arg-type]
    if (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or tensor._has_symbolic_sizes_strides
    ):
        return _convert_traced(tensor, DimOrder.parse(order, tensor.dim()))
    # This path leads to a copy of 80 µs, so everything that can be cached is cached.
    plan = _conversion(tensor.shape, tensor.stride(), tensor.element_size(), order, torch.get_num_threads())
    if plan is None:
        return tensor
    if tensor.is_quantized:
        _require_one_scale(tensor, plan)
    if plan.lies_right:
        return tensor.as_strided(tensor.shape, plan.strides)
    if plan.choice is not None and _is_plain(tensor):
        return fast_copy(tensor, plan.choice, plan.strides)
    if plan.format is not None and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return tensor.contiguous(memory_format=plan.format)
    return tensor.permute(plan.wanted.dims).contiguous().permute(plan.back)


def unblock(physical: Tensor, layout: Layout, shape: Sequence[int], order: object = "contiguous") -> Tensor:
    """Convert a physical tensor from `convert(tensor, layout)` back to its logical `shape`, dense in `order`.

    Args:
        physical: the physical tensor.
        layout: its layout.
        shape: the logical shape.
        order: the order of the result, as for `convert`.

    Returns:
        The logical tensor.

    Raises:
        UsageError: if the physical shape does not fit the layout and the logical shape, for a tensor without
            strides, and for what is no layout or no shape.

    >>> x, layout = torch.randn(2, 35, 5, 7), Layout.parse("nChw16c", 4)
    >>> torch.equal(unblock(convert(x, layout), layout, x.shape), x)
    True
    """
    require_strides(physical, f"a physical tensor of {layout}")
    require_type(layout, Layout, "unblock", "give the layout, such as Layout.parse('nChw16c', 4)")
    require_shape(shape, "unblock")
    expected = layout.physical_shape(shape)
    if physical.shape != expected:
        raise UsageError(
            f"a physical tensor of {layout}",
            f"shape {shape_text(physical.shape)}",
            f"{shape_text(shape)} has the physical shape {shape_text(expected)}",
        )
    padded = physical.permute(layout.pieces.inverse.dims).reshape(layout.padded_shape(shape))
    return convert(padded[tuple(map(slice, shape))], order)


def require_shape(shape: Sequence[int], where: str) -> None:
    """Raise `UsageError` for what is no sequence of sizes."""
    sizes = shape if isinstance(shape, (tuple, list)) else (None,)
    if not all(isinstance(size, (int, torch.SymInt)) and size >= 0 for size in sizes):
        raise UsageError(where, f"{shape!r:.60}, which is no shape", "give a tuple of sizes, as (2, 3, 5, 7)")


def require_strides(tensor: Tensor, where: str) -> None:
    """Raise `UsageError` for a tensor that has no strides, or for no tensor: `where` says what it is."""
    require_type(tensor, Tensor, where, "pass a tensor, as torch.as_tensor(x)")
    if tensor.is_nested:
        raise UsageError(where, "a nested tensor, whose parts have sizes of their own", "convert each part")
    if tensor.layout != torch.strided:
        raise UsageError(where, f"layout {tensor.layout}", "pass x.to_dense()")


def _require_one_scale(tensor: Tensor, plan: _Planned | None) -> None:
    """Refuse integers with a scale per channel, unless torch itself writes their order."""
    if tensor.qscheme() not in _PER_TENSOR and (plan is None or plan.lies_right or plan.format is None):
        fix = "convert it before it is quantised, or pass x.int_repr()"
        raise UsageError("a tensor to convert", f"integers of scheme {tensor.qscheme()}", fix)


_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)


def _block(tensor: Tensor, layout: Layout) -> Tensor:
    if tensor.is_quantized:
        _require_one_scale(tensor, None)
    shape = tuple(tensor.shape)
    pads = [end - size for size, end in zip(shape, layout.padded_shape(shape), strict=True)]
    if any(pads):
        tensor = F.pad(tensor, [pad for behind in reversed(pads) for pad in (0, behind)])
    return tensor.reshape(layout.split_shape(shape)).permute(layout.pieces.dims).contiguous()


@dataclass(frozen=True)
class _Planned:
    """The steps of a conversion into an order: `wanted`, with its `strides`.

    `back` is the permute out of its physical shape. `lies_right` says that the memory stays the same.
    `choice` is a faster copy, if there is one. `format` is the format by which torch makes exactly these
    strides in one call.
    """

    wanted: DimOrder
    strides: tuple[int, ...]
    back: tuple[int, ...]
    lies_right: bool
    choice: ChosenWay | None
    format: torch.memory_format | None


@functools.lru_cache(maxsize=4096)
def _conversion(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, spec: Any, threads: int
) -> _Planned | None:
    """Return the steps of a conversion, or None if the strides fit already."""
    wanted = DimOrder.parse(spec, len(shape))
    if strides == wanted.strides(shape):
        return None
    found = read(shape, strides)
    order = found if isinstance(found, DimOrder) else None
    return _Planned(
        wanted,
        wanted.strides(shape),
        wanted.inverse.dims,
        order is not None and order.equivalent(wanted, shape),
        None if order is None else choose(shape, itemsize, order, wanted, threads),
        _FORMATS.get(wanted),
    )


_FORMATS: Mapping[DimOrder, torch.memory_format] = MappingProxyType(
    {
        **{DimOrder.contiguous(rank): torch.contiguous_format for rank in (3, 4, 5)},
        DimOrder.channels_last(4): torch.channels_last,
        DimOrder.channels_last(5): torch.channels_last_3d,
    }
)


def _convert_traced(tensor: Tensor, wanted: DimOrder) -> Tensor:
    """Convert with plain operators, which a tracer can record."""
    if tensor.stride() == wanted.strides(tensor.shape):
        return tensor
    physical = tensor.permute(wanted.dims).clone(memory_format=torch.contiguous_format)
    return physical.permute(wanted.inverse.dims)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is plain memory on the CPU, without gradient, and nobody watches operators."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and torch._C._dispatch_keys(tensor) in _PLAIN_KEYS
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def _keys_of_plain_tensors() -> tuple[Any, ...]:
    """Return the dispatch keys of a tensor that is plain memory on the CPU, and of one of inference mode."""
    with torch.inference_mode(), torch.device("cpu"):
        inferred = torch._C._dispatch_keys(torch.empty(0))
    with torch.inference_mode(False), torch.device("cpu"):
        return torch._C._dispatch_keys(torch.empty(0)), inferred


_PLAIN_KEYS = _keys_of_plain_tensors()
