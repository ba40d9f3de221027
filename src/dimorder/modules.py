"""Run a module and leave it as it was: the mode of each part, its buffers, and the tensors of the call.

One thread at a time traces networks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

Given = ParamSpec("Given")
Result = TypeVar("Result")
_TRACING = RLock()


def one_at_a_time(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that waits until no other thread is in a function of this kind.

    torch keeps the state of torch.export and of its tracers in globals.
    """

    @functools.wraps(function)
    def locked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with _TRACING:
            return function(*args, **kwargs)

    return locked


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Put a module into eval mode, and restore each part's own mode afterwards; a program has only one."""
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


@contextmanager
def unchanged(network: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """Restore a network's buffers afterwards, all or those of these names.

    A call writes some, or puts others in their place. torch.export may write small ones.
    """
    buffers = [
        (part, key, buffer)
        for path, part in network.named_modules()
        for key, buffer in part._buffers.items()
        if names is None or f"{path}.{key}".lstrip(".") in names
    ]
    try:
        with unwritten(buffer for _, _, buffer in buffers):
            yield
    finally:
        for part, key, buffer in buffers:
            if getattr(part, key, None) is not buffer:
                setattr(part, key, buffer)


def take_own_tensors(network: nn.Module, with_parameters: bool) -> None:
    """Give a network buffers, and parameters if asked for, that it shares with no other, in place."""
    own: dict[int, Tensor] = {}
    for part in network.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = own.setdefault(id(buffer), buffer.detach().clone())
        for name, parameter in part._parameters.items() if with_parameters else ():
            if parameter is not None:
                copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                part._parameters[name] = own.setdefault(id(parameter), copy)  # type: ignore[assignment]


@contextmanager
def without_fake_tensors(model: nn.Module) -> Iterator[None]:
    """Undo what torch.export leaves in attributes of a module's parts: tensors without data.

    The part's other new attributes are undone too: they may say for which shape a tensor was computed. In
    other parts attributes stay. A part may note there what it did once, such as the hooks that it installed.
    """
    before = [(part, dict(vars(part))) for part in model.modules()]
    try:
        yield
    finally:
        for part, attributes in before:
            own = vars(part)
            changed = {name: own[name] for name in own if own[name] is not attributes.get(name, _MISSING)}
            if not any(map(_has_fake_tensor, changed.values())):
                continue
            for name in changed:
                if name in attributes:
                    vars(part)[name] = attributes[name]
                else:
                    del vars(part)[name]


_MISSING = object()


def _has_fake_tensor(value: Any, seen: set[int] | None = None) -> bool:
    """Return whether a value holds a tensor without data or a symbolic size, be it within objects."""
    seen = set() if seen is None else seen
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if id(leaf) in seen or isinstance(leaf, (Tensor, nn.Module, type)) or not hasattr(leaf, "__dict__"):
            continue
        seen.add(id(leaf))
        if any(_has_fake_tensor(each, seen) for each in vars(leaf).values()):
            return True
    return False


@contextmanager
def left_as_it_was(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Restore a network's parameters, its buffers and the tensors of its inputs afterwards.

    An embedding with `max_norm` writes its weight at each call, for example.
    """
    with unchanged(model), unwritten((*model.parameters(), *pytree.tree_leaves(inputs))):
        yield


@contextmanager
def unwritten(tensors: Iterable[Any]) -> Iterator[None]:
    """Restore the values of tensors afterwards; what is not a plain tensor with memory is left alone."""
    plain = {id(tensor): tensor for tensor in tensors if _is_writable(tensor)}.values()
    before = [(tensor, tensor.detach().clone()) for tensor in plain]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _is_writable(tensor: Any) -> bool:
    """Return whether a tensor has memory of its own that can be compared and written.

    Sparse and nested tensors cannot be compared, and expanded ones cannot be written.
    """
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return False
    if tensor.is_nested or tensor.is_meta:
        return False
    return all(size < 2 or stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
