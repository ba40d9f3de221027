"""Put tensors and modules into channels-last order, in 1, 2 and 3 dimensions, and keep them in it.

A result always has the requested order: dense, with canonical strides, also where a size is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import order_with_gaps, read
from dimorder.eager.conversion import convert, require_shape, require_strides
from dimorder.eager.lifting import lift, set_class, unlift
from dimorder.errors import UsageError, require_type

M = TypeVar("M", bound=nn.Module)

RANKS = (3, 4, 5)  # (N, C, L), (N, C, H, W), (N, C, D, H, W)


# Tensors


@overload
def to_channels_last(value: Tensor) -> Tensor: ...
@overload
def to_channels_last(value: M) -> M: ...
def to_channels_last(value: Tensor | nn.Module) -> Tensor | nn.Module:
    """Return a tensor with dimension 1 fastest, or let a module compute in that order, in place.

    A tensor gets dense memory with canonical strides. The result is the tensor itself if it has them already.
    It is a view if only sizes of 1 have other strides, else a copy. Gradients pass.

    In a module, the weights of all convolutions are converted. Names, shapes, ties and parameter objects stay
    the same, so an optimizer keeps its parameters. If it is a fused one, convert the module before its first
    step: torch would pair its state with other weights.

    A module with 1-D convolutions computes them, and the operators between them, as (N, C, 1, L). There are
    no channels-last kernels for (N, C, L) in torch. This lifting applies to calls of the module itself, not
    to calls of its parts alone.

    Args:
        value: a tensor of 3 to 5 dims, or a module.

    Returns:
        The tensor in channels-last order, or the same module.

    Raises:
        UsageError: for tensors of other ranks or without strides, and for scripted and lazy modules.

    >>> to_channels_last(torch.zeros(2, 3, 5, 7)).stride()
    (105, 1, 21, 3)
    >>> to_channels_last(torch.zeros(8, 1, 3, 3)).stride()
    (9, 1, 3, 1)
    >>> conv = to_channels_last(nn.Conv1d(6, 4, 3))
    >>> conv(torch.zeros(2, 6, 11)).stride(), tuple(conv.weight.shape)
    ((36, 1, 4), (4, 6, 3))
    """
    if isinstance(value, nn.Module):
        _lay_module(value, DimOrder.channels_last)
        return value
    require_strides(value, "a tensor to convert")
    _check_rank(value.dim())
    return convert(value, "channels_last")


@overload
def to_contiguous(value: Tensor) -> Tensor: ...
@overload
def to_contiguous(value: M) -> M: ...
def to_contiguous(value: Tensor | nn.Module) -> Tensor | nn.Module:
    """Return a tensor dense and row-major, with canonical strides; or undo `to_channels_last` in a module.

    Args:
        value: a tensor or a module.

    Returns:
        The tensor in row-major order, or the same module.

    Raises:
        UsageError: for a tensor without strides, and for a class derived from a converted module's.

    >>> to_contiguous(to_channels_last(torch.zeros(2, 1, 5))).stride()
    (5, 5, 1)
    """
    if isinstance(value, nn.Module):
        _lay_module(value, DimOrder.contiguous)
        return value
    return convert(value, "contiguous")


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether a tensor is dense with dimension 1 fastest; sizes of 1 may be anywhere.

    A slice of the channels is not: `torch.Tensor.to` calls it channels-last and leaves it with gaps.

    Args:
        tensor: any tensor. One with other than 3 to 5 dims is never channels-last.

    Returns:
        True if it is channels-last.

    Raises:
        UsageError: for what is no tensor.

    >>> x = to_channels_last(torch.zeros(2, 6, 5, 7))
    >>> is_channels_last(x), is_channels_last(x[:, :3]), is_channels_last(torch.zeros(2, 1, 5, 7))
    (True, False, True)
    """
    require_type(tensor, Tensor, "is_channels_last", "pass a tensor")
    if tensor.dim() not in RANKS or tensor.layout != torch.strided or tensor.is_nested:
        return False
    order = read(tuple(tensor.shape), tensor.stride())
    last = DimOrder.channels_last(tensor.dim())
    return isinstance(order, DimOrder) and order.equivalent(last, tensor.shape)


def empty(shape: Sequence[int], *, order: object = "channels_last", **options: Any) -> Tensor:
    """Return an uninitialised dense tensor in an order, with canonical strides.

    Args:
        shape: the logical shape.
        order: an order that `DimOrder.parse` takes.
        options: those of `torch.empty_strided`: dtype, device, requires_grad, pin_memory.

    Returns:
        The tensor.

    Raises:
        UsageError: if the shape is none, or if the order has another rank.

    >>> empty((2, 3, 5), order="NLC", dtype=torch.int8).stride()
    (15, 1, 3)
    """
    require_shape(shape, "empty")
    shape = tuple(shape)
    return torch.empty_strided(shape, DimOrder.parse(order, len(shape)).strides(shape), **options)


def collate(batch: Sequence[Any]) -> Any:
    """Collate as `torch.utils.data.default_collate` does, but keep the common order of the samples.

    So images of shape (C, H, W) that were read as rows of pixels make an NHWC batch, without a conversion.

    Args:
        batch: the samples.

    Returns:
        The batch.

    Raises:
        UsageError: for what is no list of samples. What samples cannot be is an error of `default_collate`.

    >>> pixels = torch.zeros(5, 7, 3).permute(2, 0, 1)
    >>> collate([pixels, pixels]).stride()
    (105, 1, 21, 3)
    """
    try:
        batch[0]
    except (TypeError, KeyError, IndexError):
        found = "no samples" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
        raise UsageError("a batch to collate", found, "give a list of samples") from None
    return _collate(batch, collate_fn_map={**default_collate_fn_map, Tensor: _stack})


def _stack(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Tensor:
    stack: Callable[..., Tensor] = partial(default_collate_fn_map[Tensor], collate_fn_map=collate_fn_map)
    order = _common_order(batch)
    if order is None:
        return stack(batch)
    return stack([x.permute(order.dims) for x in batch]).permute(0, *(dim + 1 for dim in order.inverse))


def _common_order(batch: Sequence[Any]) -> DimOrder | None:
    """Return the order of all samples, without regard to gaps; None if there is none, or a sample differs."""
    if not all(isinstance(x, Tensor) and x.layout == torch.strided and not x.is_nested for x in batch):
        return None
    if len({x.shape for x in batch}) > 1:
        return None
    orders = {order_with_gaps(x.shape, x.stride()) for x in batch}
    return orders.pop() if len(orders) == 1 else None


def _check_rank(rank: int) -> None:
    if rank not in RANKS:
        raise UsageError(
            "a tensor to put channels-last",
            f"{rank} dims",
            "pass (N, C, L), (N, C, H, W) or (N, C, D, H, W); a sample needs x.unsqueeze(0)",
        )


# Modules


@contextmanager
def weights_in_order(module: nn.Module, order_of_rank: Callable[[int], DimOrder]) -> Iterator[nn.Module]:
    """Convert a module's convolutions while the block runs, then restore them.

    >>> conv = nn.Conv2d(3, 4, 2)
    >>> with weights_in_order(conv, DimOrder.channels_last):
    ...     conv.weight.stride()
    (12, 1, 6, 3)
    >>> conv.weight.stride()
    (12, 4, 2, 1)
    """
    restore = snapshot(module)
    try:
        _lay_module(module, order_of_rank)
        yield module
    finally:
        restore()


def snapshot(module: nn.Module) -> Callable[[], None]:
    """Return a function that gives a module its present weights, gradients and classes again."""
    tensors = [(tensor, tensor.data, tensor.grad) for tensor in _strided_tensors(module)]
    # A lazy part becomes another class in its first call, for good.
    lazy = nn.modules.lazy.LazyModuleMixin
    classes = [(part, type(part)) for part in module.modules() if not isinstance(part, lazy)]

    def restore() -> None:
        for tensor, data, grad in tensors:
            tensor.data = data
            tensor.grad = grad
        for part, cls in classes:
            if type(part) is not cls:
                set_class(part, cls)

    return restore


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of all convolutions that are parameters, not those computed at each call."""
    found: dict[int, Tensor] = {}
    for conv in module.modules():
        if isinstance(conv, torch.jit.ScriptModule):
            fix = "convert the module before scripting it; inspect takes order=None"
            raise UsageError("a module to re-lay", "a scripted part", fix)
        weight = conv._parameters.get("weight") if isinstance(conv, nn.modules.conv._ConvNd) else None
        if isinstance(weight, nn.UninitializedParameter):
            raise UsageError(type(conv).__name__, "a lazy module without weights", "call it once before")
        if weight is not None and weight.layout == torch.strided:
            found[id(weight)] = weight
    return list(found.values())


def _strided_tensors(module: nn.Module) -> list[Tensor]:
    """Return each parameter and buffer that has memory and strides, once."""
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}.values()
    lazy = (nn.UninitializedParameter, nn.UninitializedBuffer)
    return [t for t in tensors if t.layout == torch.strided and not isinstance(t, lazy)]


def _lay_module(module: nn.Module, order_of_rank: Callable[[int], DimOrder]) -> None:
    """Convert a module in place, weight by weight. It refuses what it must before that."""
    for tensor in _strided_tensors(module):
        if tensor.grad is not None:
            require_strides(tensor.grad, "a gradient to convert")
    if order_of_rank(3) == DimOrder.channels_last(3):
        lift(module)
    else:
        unlift(module)
    for tensor, data, grad in _laid_out(module, order_of_rank):
        tensor.data = data
        if grad is not None:
            tensor.grad = grad


def _laid_out(
    module: nn.Module, order_of_rank: Callable[[int], DimOrder]
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield weights with converted data and gradients, once for tensors with one memory: they stay tied."""
    sharing: dict[int, list[Tensor]] = {}
    for tensor in _strided_tensors(module):
        sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    for weight in _weights(module):
        tied = sharing.pop(weight.untyped_storage()._cdata, [])
        if len({(t.storage_offset(), t.shape, t.stride()) for t in tied}) != 1:
            continue  # converted already, or parts of one memory, which no single order fits
        order = order_of_rank(weight.dim())
        data = _convert_shared(weight, order)
        for tensor in tied:
            yield tensor, data, None if tensor.grad is None else _convert_shared(tensor.grad, order)


def _convert_shared(tensor: Tensor, order: DimOrder) -> Tensor:
    """Convert a tensor; if its memory can be shared with other processes, that of the result can, too.

    Memory from inference mode could never be trained again, and no other memory fits a weight from there.
    """
    with torch.inference_mode(tensor.is_inference()):
        result = convert(tensor.detach(), order)
        return result.share_memory_() if tensor.is_shared() else result
