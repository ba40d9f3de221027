"""Compute a module's 1-D operators channels-last: as 2-D ones on (N, C, 1, L).

torch has channels-last kernels for (N, C, H, W), and none for (N, C, L).
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dimorder.eager.conversion import convert
from dimorder.errors import UsageError

# oneDNN's kernels for dilated depthwise convolutions take no more padding. Above it oneDNN runs a kernel that
# costs 50 times as much (512 channels of 3,000, AVX2).
_MOST_DEPTHWISE_PADDING = 4


class Lifted:
    """A mixin for the class of a module with 1-D convolutions; the module's state is not touched.

    `module.__class__` stays the original class, which `super(self.__class__, self)` needs. Another class that
    is assigned to it, for instance by a parametrization, is lifted.
    """

    _plain: type

    @property
    def __class__(self) -> Any:
        return self._plain

    @__class__.setter
    def __class__(self, cls: Any) -> None:
        set_class(self, cls if issubclass(cls, Lifted) else _lifted_class(cls))

    def __init_subclass__(cls, **options: Any) -> None:
        """Do nothing for a lifted class: a base that keeps a table of its subclasses must not see it."""
        if "_plain" not in vars(cls):
            super().__init_subclass__(**options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time, so the pickle names the original class.
        reduced: Any = super().__reduce_ex__(max(int(protocol), 2))
        make, args, *rest = reduced
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced  # the module has its own way
        return _new_lifted, (self._plain, *args[1:]), *rest


def set_class(module: Any, cls: Any) -> None:
    """Set the class that `type` returns, lifted or not."""
    object.__dict__["__class__"].__set__(module, cls)


def lift(module: nn.Module) -> None:
    """Let a module compute 1-D convolutions channels-last, unless it is a `torch.fx.GraphModule`."""
    convolves = any(
        isinstance(part, nn.modules.conv._ConvNd) and len(part.kernel_size) == 1 for part in module.modules()
    )
    if convolves and not isinstance(module, (Lifted, torch.fx.GraphModule)):
        plain: Any = type(module)
        set_class(module, _lifted_class(plain))


def unlift(module: nn.Module) -> None:
    """Undo `lift` in a module and in its parts. Raises `UsageError` if a class was derived from a lifted one.

    >>> module = nn.Conv1d(6, 4, 3)
    >>> lift(module)
    >>> isinstance(module, Lifted)
    True
    >>> unlift(module)
    >>> isinstance(module, Lifted)
    False
    """
    parts = [part for part in module.modules() if isinstance(part, Lifted)]
    for part in parts:
        if "_plain" not in vars(type(part)):
            raise UsageError(
                f"{type(part).__name__}, a module that was put channels-last",
                "its class was derived from type(module)",
                "derive it from module.__class__, or call to_contiguous before",
            )
    for part in parts:
        set_class(part, part._plain)


@functools.cache
def _lifted_class(plain: Any) -> Any:
    @functools.wraps(plain.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Lifting():
            return plain.forward(self, *args, **kwargs)

    members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "_plain": plain, "forward": forward}
    return type(plain.__name__, (Lifted, plain), members)


def _new_lifted(plain: Any, *args: Any) -> nn.Module:
    cls = _lifted_class(plain)
    module: nn.Module = cls.__new__(cls, *args)
    return module


class Lifting(TorchFunctionMode):
    """A mode in which 1-D operators are computed channels-last: those of `_LIFTS`.

    A lifted module enters it by itself. It is for checkpoints of functions, which torch runs again outside:

    >>> from contextlib import nullcontext
    >>> from torch.utils.checkpoint import checkpoint
    >>> conv = nn.Conv1d(6, 4, 3)
    >>> with Lifting():
    ...     y = checkpoint(
    ...         lambda x: torch.relu(conv(x)),
    ...         torch.ones(2, 6, 9),
    ...         use_reentrant=False,
    ...         context_fn=lambda: (nullcontext(), Lifting()),
    ...     )
    >>> y.sum().backward()
    >>> y.stride()
    (28, 1, 4)
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs and not _ALIASES.isdisjoint(kwargs):
            return func(*args, **kwargs)
        return _LIFTS.get(func, func)(*args, **kwargs)


# NumPy's names for `input` and `dim`, which torch knows, and the memory for the result.
_ALIASES = frozenset({"a", "x", "x1", "axis", "out"})


def _is_nlc(x: Tensor) -> bool:
    if x.dim() != 3 or x.layout != torch.strided:
        return False
    channels, strides = x.shape[1], x.stride()
    return channels > 1 and strides[1] == 1 and strides[2] == channels


def _nlc(x: Tensor) -> Tensor:
    return x if _is_nlc(x) else convert(x, "NLC")


def _one(value: Any) -> Any:
    """Return the single value of a sequence, or a bare value: 1-D operators take both."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def _ones(*values: Any) -> list[Any] | None:
    """Return the one int of each value; None if one has none or more, so that torch raises the error."""
    found = [_one(value) for value in values]
    return found if all(isinstance(v, (int, torch.SymInt)) for v in found) else None


def _conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    row = _row(stride, padding, dilation, weight.shape[-1]) if input.dim() == weight.dim() == 3 else None
    if row is None:
        return torch.conv1d(input, weight, bias, stride, padding, dilation, groups)
    (step, left, right, spread), channels = row, input.shape[1]
    if weight.shape[2] == 1 and channels * step > weight.shape[0] and not _is_nlc(input):
        # The output is smaller, so it is converted. The weight must not look channels-last, or torch would
        # convert the input nevertheless.
        weight = convert(weight, "contiguous")
        return _nlc(torch.conv1d(input, weight, bias, stride, padding, dilation, groups))
    x = _nlc(input).unsqueeze(2)
    is_depthwise = 1 < groups == channels
    is_slow = is_depthwise and spread > 1 and left > _MOST_DEPTHWISE_PADDING and input.shape[2] > 0
    if left != right or is_slow:
        x, left = F.pad(x, (left, right)), 0
    result = torch.conv2d(x, weight.unsqueeze(2), bias, (1, step), (0, left), (1, spread), groups)
    return result.squeeze(2)


def _row(stride: Any, padding: Any, dilation: Any, size: int) -> tuple[int, int, int, int] | None:
    """Return stride, padding before and after, and dilation; None for arguments about which torch raises."""
    ones = _ones(stride, 0 if padding in ("same", "valid") else padding, dilation)
    if ones is None or (padding == "same" and ones[0] != 1):
        return None
    step, both, spread = ones
    pads = spread * (size - 1) if padding == "same" else 2 * both
    return step, pads // 2, pads - pads // 2, spread


def _conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    ones = _ones(stride, padding, output_padding, dilation)
    if ones is None or not input.dim() == weight.dim() == 3:
        return torch.conv_transpose1d(input, weight, bias, stride, padding, output_padding, groups, dilation)
    step, pad, more, spread = ones
    x, row = _nlc(input).unsqueeze(2), weight.unsqueeze(2)
    result = torch.conv_transpose2d(x, row, bias, (1, step), (0, pad), (0, more), groups, (1, spread))
    return result.squeeze(2)


def _of_input(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes (N, C, L) as (N, C, 1, L), with its other arguments unchanged."""

    def lifted(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not _is_nlc(input):
            return function(input, *args, **kwargs)
        return function(input.unsqueeze(2), *args, **kwargs).squeeze(2)

    return lifted


def _group_norm(input: Tensor, num_groups: int, *args: Any, **kwargs: Any) -> Tensor:
    """Subtract the mean of each group before torch does: the result is the same up to rounding.

    torch's channels-last kernel has the variance as E[x²] - E[x]². It is wrong for a mean of 100 deviations.
    """
    is_liftable = input.is_floating_point() and _is_nlc(input)
    if not is_liftable or num_groups < 1 or input.shape[1] % num_groups:
        return F.group_norm(input, num_groups, *args, **kwargs)
    if forward_ad._current_level >= 0:  # torch has no tangents of channels-last group norms
        return _nlc(F.group_norm(input.contiguous(), num_groups, *args, **kwargs))
    means = input.detach().mean(2, keepdim=True).unflatten(1, (num_groups, -1))
    shift = means.mean(2, keepdim=True).expand_as(means).flatten(1, 2)
    return F.group_norm((input - shift).unsqueeze(2), num_groups, *args, **kwargs).squeeze(2)


def _max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    has_step = stride is not None and stride not in ((), [])
    ones = _ones(kernel_size, stride if has_step else kernel_size, padding, dilation)
    is_liftable = input.is_floating_point() and _is_nlc(input)
    if return_indices or ones is None or 0 in ones[:2] or not is_liftable:
        plain: Any = F.max_pool1d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    size, step, pad, spread = ones
    rows = ((1, size), (1, step), (0, pad), (1, spread))
    return torch.max_pool2d(input.unsqueeze(2), *rows, ceil_mode).squeeze(2)


def _interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    if not _is_nlc(input):
        return F.interpolate(input, size, scale_factor, mode, *args, **kwargs)
    length, scale = _one(size), _one(scale_factor)
    # For other arguments the 2-D kernels differ: in rounding, in copies, and in NaN from 0 × inf.
    is_alike = type(length) is int or (isinstance(scale, (int, float)) and float(scale).is_integer())
    if mode in ("nearest", "nearest-exact") and is_alike and input.dtype != torch.float64:
        size = None if size is None else (1, length)
        scale_factor = None if scale_factor is None else (1, scale)
        return F.interpolate(input.unsqueeze(2), size, scale_factor, mode, *args, **kwargs).squeeze(2)
    return _nlc(F.interpolate(input, size, scale_factor, mode, *args, **kwargs))


def _pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode != "constant" or not _is_nlc(input):
        return F.pad(input, pad, mode, value)
    return F.pad(input.unsqueeze(2), (*pad[:2], 0, 0, *pad[2:]), mode, value).squeeze(2)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if not all(map(_is_nlc, tensors)):
        return torch.cat(tensors, dim)  # type: ignore[arg-type]
    return torch.cat([x.unsqueeze(2) for x in tensors], (0, 1, 3)[dim]).squeeze(2)


def _of_pair(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of two operands that makes both channels-last if one of them is."""

    def lifted(*args: Any, **kwargs: Any) -> Tensor:
        pair = args[:2]
        if (
            len(pair) == 2
            and all(isinstance(x, Tensor) for x in pair)
            and pair[0].shape == pair[1].shape
            and pair[0].layout == pair[1].layout
            and _is_nlc(pair[0]) != _is_nlc(pair[1])
        ):
            return function(*map(_nlc, pair), *args[2:], **kwargs)
        return function(*args, **kwargs)

    return lifted


# A plain dict: torch.compile takes no other mapping with functions for keys.
_LIFTS: Mapping[Any, Callable[..., Any]] = {
    torch.conv1d: _conv1d,
    torch.conv_transpose1d: _conv_transpose1d,
    F.batch_norm: _of_input(F.batch_norm),
    F.group_norm: _group_norm,
    F.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    F.interpolate: _interpolate,
    F.pad: _pad,
    torch.cat: _cat,
    torch.concat: _cat,
    torch.concatenate: _cat,
    **{
        function: _of_pair(function)
        for owner in (torch, Tensor)
        for function in (owner.add, owner.sub, owner.mul, owner.div)
    },
}
