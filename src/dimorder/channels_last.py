"""Decides how tensors and modules are put into channels-last order, in 1, 2 and 3 dimensions, and kept in it.

What is asked for is what is returned: dense, with canonical strides, also where a size is 1; never a guess.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.layout import Layout
from dimorder.algebra.strides import NotDense, read
from dimorder.conversion import Choice, choose, fast_copy
from dimorder.errors import UsageError

M = TypeVar("M", bound=nn.Module)

RANKS = (3, 4, 5)  # (N, C, L), (N, C, H, W), (N, C, D, H, W)


# Tensors


@overload
def to_channels_last(value: Tensor) -> Tensor: ...
@overload
def to_channels_last(value: M) -> M: ...
def to_channels_last(value: Tensor | nn.Module) -> Tensor | nn.Module:
    """A tensor of 3 to 5 dims with dimension 1 fastest, or a module made to compute in that order, in place.

    A tensor comes back dense with canonical strides: itself if it has them, a view of it if only sizes of 1
    are strided otherwise, else a copy. Gradients pass. Raises `UsageError` at other ranks and for tensors
    without strides.

    Of a module, the weights of all convolutions are re-laid; names, shapes, ties and parameter objects stay,
    and so does an optimizer's hold on them. A module with 1-D convolutions computes these, and what lies
    between them, as (N, C, 1, L): torch has no channels-last kernels for (N, C, L). That holds for calls of
    the module itself, not of its parts alone. Raises `UsageError` for scripted and lazy modules.

    >>> to_channels_last(torch.zeros(2, 3, 5, 7)).stride()
    (105, 1, 21, 3)
    >>> to_channels_last(torch.zeros(8, 1, 3, 3)).stride()
    (9, 1, 3, 1)
    >>> conv = to_channels_last(nn.Conv1d(6, 4, 3))
    >>> conv(torch.zeros(2, 6, 11)).stride(), tuple(conv.weight.shape)
    ((36, 1, 4), (4, 6, 3))
    """
    if isinstance(value, nn.Module):
        _lay_weights(value, DimOrder.channels_last)
        _lift_module(value)
        return value
    _check_rank(value.dim())
    return convert(value, "channels_last")


@overload
def to_contiguous(value: Tensor) -> Tensor: ...
@overload
def to_contiguous(value: M) -> M: ...
def to_contiguous(value: Tensor | nn.Module) -> Tensor | nn.Module:
    """A tensor dense and row-major, with canonical strides; or a module as before `to_channels_last`.

    >>> to_contiguous(to_channels_last(torch.zeros(2, 1, 5))).stride()
    (5, 5, 1)
    """
    if isinstance(value, nn.Module):
        _lay_weights(value, DimOrder.contiguous)
        if isinstance(value, _Lifted):
            value.__class__ = type(value).__mro__[2]
        return value
    return convert(value, "contiguous")


def is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor of 3 to 5 dims is dense with dimension 1 fastest, sizes of 1 standing anywhere.

    A slice of the channels is not: `torch.Tensor.to` calls it channels-last and leaves it with gaps.

    >>> x = to_channels_last(torch.zeros(2, 6, 5, 7))
    >>> is_channels_last(x), is_channels_last(x[:, :3]), is_channels_last(torch.zeros(2, 1, 5, 7))
    (True, False, True)
    """
    if tensor.dim() not in RANKS or tensor.layout != torch.strided:
        return False
    reading = read(tuple(tensor.shape), tensor.stride())
    if isinstance(reading, NotDense):
        return False
    return reading.order.equivalent(DimOrder.channels_last(tensor.dim()), tensor.shape)


def empty(shape: Sequence[int], *, order: object = "channels_last", **options: Any) -> Tensor:
    """An uninitialised dense tensor in an order, with canonical strides.

    `order` is whatever `DimOrder.parse` takes; `options` are those of `torch.empty_strided`: dtype, device,
    requires_grad, pin_memory. Raises `UsageError` for an order of another rank.

    >>> empty((2, 3, 5), order="NLC", dtype=torch.int8).stride()
    (15, 1, 3)
    """
    shape = tuple(shape)
    return torch.empty_strided(shape, DimOrder.parse(order, len(shape)).strides(shape), **options)


def convert(tensor: Tensor, order: object) -> Tensor:
    """The same values and shape, dense in another order, with canonical strides.

    `order` is whatever `DimOrder.parse` takes. The tensor itself where it has these strides already, a view
    where the memory is right, else a copy. Of a `Layout`, the dense physical tensor is made, which `unblock`
    takes back. Raises `UsageError` for an order of another rank, and for a tensor without strides (sparse,
    MKL-DNN).

    >>> convert(torch.zeros(2, 3, 5, 7), "CHWN").stride()
    (1, 70, 14, 2)
    >>> convert(torch.zeros(2, 35, 5, 7), Layout.parse("nChw16c", 4)).shape
    torch.Size([2, 3, 5, 7, 16])
    """
    if tensor.layout != torch.strided:
        raise UsageError("a tensor to convert", f"layout {tensor.layout}", "pass x.to_dense()")
    if isinstance(order, Layout):
        return _block(tensor, order)
    if isinstance(order, list):
        order = tuple(order)
    # On the way to a copy of 80 µs: nothing is computed here that the cache could hold.
    plan = _conversion(tensor.shape, tensor.stride(), tensor.element_size(), order)
    if plan is None:
        return tensor
    if plan.lies_right:
        return tensor.as_strided(tensor.shape, plan.strides)
    if plan.choice is not None and _is_plain(tensor):
        moved = fast_copy(tensor, plan.choice, plan.strides)
        if moved is not None:
            return moved
    if plan.format is not None:
        return tensor.contiguous(memory_format=plan.format)
    return tensor.permute(plan.wanted.dims).contiguous().permute(plan.back)


def unblock(physical: Tensor, layout: Layout, shape: Sequence[int], order: object = "contiguous") -> Tensor:
    """The tensor of logical `shape` that `convert(tensor, layout)` made physical, dense in `order`.

    Raises `UsageError` where the physical shape is another.

    >>> x, layout = torch.randn(2, 35, 5, 7), Layout.parse("nChw16c", 4)
    >>> torch.equal(unblock(convert(x, layout), layout, x.shape), x)
    True
    """
    expected = layout.physical_shape(shape)
    if physical.shape != expected:
        raise UsageError(
            f"a physical tensor of {layout}",
            f"shape {'×'.join(map(str, physical.shape))}",
            f"{'×'.join(map(str, shape))} has the physical shape {'×'.join(map(str, expected))}",
        )
    padded = physical.permute(layout.pieces.inverse.dims).reshape(layout.padded_shape(shape))
    return convert(padded[tuple(map(slice, shape))], order)


def _block(tensor: Tensor, layout: Layout) -> Tensor:
    shape = tuple(tensor.shape)
    pads = [end - size for size, end in zip(shape, layout.padded_shape(shape), strict=True)]
    if any(pads):
        tensor = F.pad(tensor, [pad for behind in reversed(pads) for pad in (0, behind)])
    return tensor.reshape(layout.split_shape(shape)).permute(layout.pieces.dims).contiguous()


@dataclass(frozen=True)
class _Conversion:
    """The order wanted, its strides, the permute out of its physical shape, whether this is the same memory,
    the faster copy that there may be, and the format by which torch makes just these strides in one call."""

    wanted: DimOrder
    strides: tuple[int, ...]
    back: tuple[int, ...]
    lies_right: bool
    choice: Choice | None
    format: torch.memory_format | None


@functools.lru_cache(maxsize=4096)
def _conversion(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, spec: Any
) -> _Conversion | None:
    """What leads to an order; None where the strides are its already."""
    wanted = DimOrder.parse(spec, len(shape))
    if strides == wanted.strides(shape):
        return None
    reading = read(shape, strides)
    held = None if isinstance(reading, NotDense) else reading.order
    return _Conversion(
        wanted,
        wanted.strides(shape),
        wanted.inverse.dims,
        held is not None and held.equivalent(wanted, shape),
        None if held is None else choose(shape, itemsize, held, wanted),
        _FORMATS.get(wanted),
    )


_FORMATS: Mapping[DimOrder, torch.memory_format] = MappingProxyType(
    {
        **{DimOrder.contiguous(rank): torch.contiguous_format for rank in RANKS},
        DimOrder.channels_last(4): torch.channels_last,
        DimOrder.channels_last(5): torch.channels_last_3d,
    }
)


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory may be moved as it is: no gradient, no subclass, no lazy conjugate, no tracing."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not (tensor.is_conj() or tensor.is_neg())
        and not torch.compiler.is_compiling()
    )


def to_channels_last_1d(value: Any) -> Any:
    """`to_channels_last`, under the name that Intel's extension gave it.

    >>> to_channels_last_1d(torch.zeros(2, 3, 5)).stride()
    (15, 1, 3)
    """
    return to_channels_last(value)


def is_contiguous_channels_last_1d(tensor: Tensor) -> bool:
    """`is_channels_last` of an (N, C, L) tensor, under the name that Intel's extension gave it.

    >>> is_contiguous_channels_last_1d(torch.zeros(2, 5, 3).transpose(1, 2))
    True
    """
    return tensor.dim() == 3 and is_channels_last(tensor)


def collate(batch: Sequence[Any]) -> Any:
    """`torch.utils.data.default_collate`, but samples that all lie in one order are batched in that order.

    So images of shape (C, H, W) read as rows of pixels make an NHWC batch, with no conversion.

    >>> pixels = torch.zeros(5, 7, 3).permute(2, 0, 1)
    >>> collate([pixels, pixels]).stride()
    (105, 1, 21, 3)
    """
    return _collate(batch, collate_fn_map=_COLLATE)


def _stack(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    first, *others = (read(tuple(x.shape), x.stride()) if x.layout == torch.strided else None for x in batch)
    if first is None or isinstance(first, NotDense) or any(other != first for other in others):
        return _stacked(batch, collate_fn_map)
    order = first.order
    stacked = _stacked([x.permute(order.dims) for x in batch], collate_fn_map)
    return stacked.permute(0, *(dim + 1 for dim in order.inverse))


def _stacked(batch: Sequence[Tensor], collate_fn_map: Any) -> Tensor:
    stacked: Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return stacked


_COLLATE = {**default_collate_fn_map, Tensor: _stack}


def _check_rank(rank: int) -> None:
    if rank not in RANKS:
        raise UsageError(
            "a tensor to put channels-last",
            f"{rank} dims",
            "pass (N, C, L), (N, C, H, W) or (N, C, D, H, W); a sample needs x.unsqueeze(0)",
        )


# Modules


@contextmanager
def laid(module: nn.Module, order_of_rank: Callable[[int], DimOrder]) -> Iterator[nn.Module]:
    """The module with its convolutions' weights in an order for the duration, and then as it was.

    >>> conv = nn.Conv2d(3, 4, 2)
    >>> with laid(conv, DimOrder.channels_last):
    ...     conv.weight.stride()
    (12, 1, 6, 3)
    >>> conv.weight.stride()
    (12, 4, 2, 1)
    """
    before = [(tensor, tensor.data) for tensor in _weights(module)]
    plain = type(module)
    try:
        _lay_weights(module, order_of_rank)
        if order_of_rank(3) == DimOrder.channels_last(3):
            _lift_module(module)
        yield module
    finally:
        for tensor, data in before:
            tensor.data = data
        module.__class__ = plain


def _weights(module: nn.Module) -> list[Tensor]:
    """The weights of all convolutions, with what they are computed from where they are parametrised."""
    found: dict[int, Tensor] = {}
    for conv in module.modules():
        if isinstance(conv, torch.jit.ScriptModule):
            raise UsageError(
                "a module to re-lay", "a scripted part", "convert the module before scripting it"
            )
        if not isinstance(conv, nn.modules.conv._ConvNd):
            continue
        rank = 2 + len(conv.kernel_size)
        for tensor in conv.parameters():
            if isinstance(tensor, nn.UninitializedParameter):
                raise UsageError(type(conv).__name__, "a lazy module without weights", "call it once before")
            if tensor.dim() == rank and tensor.layout == torch.strided:
                found[id(tensor)] = tensor
    return list(found.values())


def _lay_weights(module: nn.Module, order_of_rank: Callable[[int], DimOrder]) -> None:
    """Re-lays in place, and once for all tensors that are the same memory: they stay tied."""
    sharing: dict[int, list[Tensor]] = {}
    for tensor in {id(t): t for t in (*module.parameters(), *module.buffers())}.values():
        if tensor.layout == torch.strided and not isinstance(
            tensor, nn.UninitializedParameter | nn.UninitializedBuffer
        ):
            sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    for weight in _weights(module):
        tied = sharing[weight.untyped_storage()._cdata]
        if len({(t.storage_offset(), t.shape, t.stride()) for t in tied}) > 1:
            continue  # pieces of one memory, which no single order fits
        laid_out = convert(weight.detach(), order_of_rank(weight.dim()))
        for tensor in tied:
            tensor.data = laid_out
            if tensor.grad is not None:
                tensor.grad = convert(tensor.grad, order_of_rank(weight.dim()))
        sharing[laid_out.untyped_storage()._cdata] = tied


# 1-D: what torch computes channels-last for (N, C, H, W) only is computed as (N, C, 1, L).


class _Lifted:
    """Mixed into the class of a module with 1-D convolutions; the module's state is not touched."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Lifting():
            return super().forward(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time: what is pickled is the class it was made from.
        reduced: tuple[Any, ...] = super().__reduce_ex__(max(int(protocol), 2))  # type: ignore[assignment]
        _, args, *rest = reduced
        return _renew, (type(self).__mro__[2], *args[1:]), *rest


@functools.cache
def _lifted(plain: Any) -> Any:
    return type(plain.__name__, (_Lifted, plain), {"__module__": plain.__module__, "__doc__": plain.__doc__})


def _renew(plain: Any, *args: Any) -> nn.Module:
    cls = _lifted(plain)
    module: nn.Module = cls.__new__(cls, *args)
    return module


def _lift_module(module: nn.Module) -> None:
    convolves = any(
        isinstance(part, nn.modules.conv._ConvNd) and len(part.kernel_size) == 1 for part in module.modules()
    )
    if not convolves or isinstance(module, _Lifted):
        return
    plain: Any = type(module)
    module.__class__ = _lifted(plain)


class _Lifting(TorchFunctionMode):
    """While it is on, the functions of the table compute channels-last (N, C, L) tensors as (N, C, 1, L)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        lift = _LIFTS.get(func)
        if lift is None:
            return func(*args, **(kwargs or {}))
        return lift(func, args, kwargs or {})


@dataclass(frozen=True)
class _Lift:
    """How one 1-D function is computed by a 2-D one: its arguments by name, and what is put before the values
    that are per dimension. A weight is re-laid with its input, which is then in any order; else only an input
    that is channels-last is lifted."""

    run: Callable[..., Any]
    names: tuple[str, ...]
    before: Mapping[str, Any]
    has_weight: bool = False

    def __call__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        x = given["input"]
        if not given.keys() <= set(self.names) or not self._applies(x, given):
            return func(*args, **kwargs)
        given["input"] = to_channels_last(x).unsqueeze(2)
        if self.has_weight:
            given["weight"] = to_channels_last(given["weight"]).unsqueeze(2)
        for name, first in self.before.items():
            value = given.get(name)
            if value is not None and not isinstance(value, str):
                given[name] = (first, *(value if isinstance(value, (tuple, list)) else (value,)))
        if "mode" in given:
            given["mode"] = _MODES[given["mode"]]
        return self.run(**given).squeeze(2)

    def _applies(self, x: Tensor, given: Mapping[str, Any]) -> bool:
        if x.dim() != 3 or given.get("mode", "nearest") not in _MODES:
            return False
        return self.has_weight or _is_nlc(x)


def _lift_pad(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
        if mode != "constant" or not _is_nlc(input):
            return F.pad(input, pad, mode, value)
        return F.pad(input.unsqueeze(2), (*pad[:2], 0, 0, *pad[2:]), mode, value).squeeze(2)

    return pad(*args, **kwargs)


def _lift_cat(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    def cat(tensors: Sequence[Tensor], dim: int = 0, **options: Any) -> Tensor:
        if options or not all(_is_nlc(x) for x in tensors):
            return torch.cat(list(tensors), dim, **options)
        return torch.cat([x.unsqueeze(2) for x in tensors], (0, 1, 3)[dim]).squeeze(2)

    return cat(*args, **kwargs)


def _lift_pair(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Where one of two operands is channels-last, the other is made so: torch takes the first one's order."""
    pair = [x for x in args[:2] if isinstance(x, Tensor)]
    if len(pair) == 2 and pair[0].shape == pair[1].shape and _is_nlc(pair[0]) != _is_nlc(pair[1]):
        args = (*map(to_channels_last, pair), *args[2:])
    return func(*args, **kwargs)


def _is_nlc(x: Tensor) -> bool:
    return x.dim() == 3 and x.shape[1] > 1 and x.stride(1) == 1 and x.stride(2) == x.shape[1]


_MODES = MappingProxyType({"nearest": "nearest", "nearest-exact": "nearest-exact", "linear": "bilinear"})
_POOL = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_POOL_BEFORE = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_LIFTS: Mapping[Any, Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]] = {
    torch.conv1d: _Lift(
        torch.conv2d,
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
        {"stride": 1, "padding": 0, "dilation": 1},
        has_weight=True,
    ),
    torch.conv_transpose1d: _Lift(
        torch.conv_transpose2d,
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
        {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1},
        has_weight=True,
    ),
    F.batch_norm: _Lift(F.batch_norm, _NORM, {}),
    F.group_norm: _Lift(F.group_norm, ("input", "num_groups", "weight", "bias", "eps"), {}),
    F.max_pool1d: _Lift(F.max_pool2d, _POOL, _POOL_BEFORE),
    torch.max_pool1d: _Lift(torch.max_pool2d, _POOL, _POOL_BEFORE),
    F.interpolate: _Lift(
        F.interpolate,
        ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"),
        {"size": 1, "scale_factor": 1.0},
    ),
    F.pad: _lift_pad,
    **{
        getattr(owner, name): _lift_pair for owner in (torch, Tensor) for name in ("add", "sub", "mul", "div")
    },
    torch.cat: _lift_cat,
    torch.concat: _lift_cat,
    torch.concatenate: _lift_cat,
}
