"""Export what a module and its parts assign to buffers, as `self.last = x`, as writes to these buffers.

torch 2.13 forgets what parts of a module assign: the program would keep the first value forever. It refuses
an input or a buffer that the module itself assigns. It also returns the new value where the old one is
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules.module import register_module_buffer_registration_hook

from dimorder.errors import UnsupportedError

_PartBuffer = tuple[nn.Module, str]


def with_assigned_buffers(model: nn.Module, export: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Return what `export` does of a module, which it leaves as it was.

    It is called again if the module assigns buffers.
    Raises `UnsupportedError` for a buffer that is None before, or that changes its shape.

    >>> import torch
    >>> from dimorder.modules import unchanged
    >>> class Last(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.register_buffer("last", torch.zeros(3))
    ...     def forward(self, x):
    ...         last, self.last = self.last, x
    ...         return x - last
    >>> model = nn.Sequential(Last())
    >>> def export():
    ...     with unchanged(model):
    ...         return torch.export.export(model, (torch.ones(3),))
    >>> program = with_assigned_buffers(model, export)
    >>> torch.ops.aten.copy_.default in [node.target for node in program.graph.nodes]
    True
    """
    with _assignments(model) as assigned:
        try:
            program = export()
        except Exception:
            if not assigned:
                raise
        if not assigned:
            return program
        for part, name in assigned:
            if part._buffers[name] is None:
                fix = f"give it one of zeros: self.register_buffer({name!r}, torch.zeros(shape))"
                raise UnsupportedError(
                    f"buffer {name} of the network", "no tensor before the first call", fix
                )
        with _written(model, list(assigned)):
            return export()


@contextmanager
def _assignments(model: nn.Module) -> Iterator[dict[_PartBuffer, None]]:
    """Copy each value that a module assigns to a buffer, and yield the buffers that are assigned so far."""
    parts, assigned = set(model.modules()), dict[_PartBuffer, None]()

    def assign(module: nn.Module, name: str, value: Tensor | None) -> Any:
        if module not in parts:  # torch makes modules as it traces
            return None
        if value is module._buffers.get(name):  # `self.table = self.table.to(x.device)` assigns nothing new
            # torch takes what the module itself assigns for an operator's result
            is_own = module is model and get_proxy_mode() is not None
            return value.clone() if is_own and value is not None else None
        assigned[module, name] = None
        return None if value is None else value.clone()

    hook: Any = register_module_buffer_registration_hook(assign)
    try:
        yield assigned
    finally:
        hook.remove()


@contextmanager
def _written(model: nn.Module, buffers: list[_PartBuffer]) -> Iterator[None]:
    """Let a call of a module read copies of some buffers, and write what is left in their place to them."""
    before = list[Tensor]()

    def read_copies(*call: Any) -> None:
        before[:] = [part.get_buffer(name) for part, name in buffers]
        for (part, name), value in zip(buffers, before, strict=True):
            part._buffers[name] = value.clone()

    def write(*call: Any) -> None:
        for (part, name), value in zip(buffers, before, strict=True):
            _copy(value, part.get_buffer(name), name)
            part._buffers[name] = value

    hooks = model.register_forward_pre_hook(read_copies), model.register_forward_hook(write)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _copy(buffer: Tensor, value: Tensor, name: str) -> None:
    try:
        buffer.copy_(value)
    except RuntimeError as error:
        old, new = tuple(buffer.shape), tuple(value.shape)
        found = f"shape {old}, and a tensor of shape {new} in its place after a call"
        fix = "keep its shape: cut what it no longer needs, or write into a part of it"
        raise UnsupportedError(f"buffer {name} of the network", found, fix) from error
