"""Decides what is seen of a run: every operator that is called, the orders it reads and writes, and the
copies inside it."""

from __future__ import annotations

import functools
import operator
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import NotDense, read

Kind = Literal["channels-last", "row-major", "ambiguous", "permuted", "overlapping"]

# Whatever these are called by, they move memory and do nothing else.
COPIES = frozenset({"aten.clone", "aten.contiguous", "aten._to_copy", "aten.copy_"})
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True)
class Value:
    """A tensor as it was when an operator met it: sizes, strides in elements, bytes, and where it lies."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: int
    storage: int
    address: int
    known: bool = True  # made by an operator that was seen, or given to the model

    @cached_property
    def order(self) -> DimOrder | None:
        """The order of its dims in memory, gaps left out of account; None where elements overlap.

        >>> Value((2, 3, 5, 7), (210, 1, 42, 6), 840, 0, 0).order
        DimOrder(0, 2, 3, 1)
        """
        if 0 in self.shape:
            return DimOrder.contiguous(len(self.shape))
        step = 1
        inner_first = sorted(
            (d for d, n in enumerate(self.shape) if n != 1), key=lambda d: (self.strides[d], -d)
        )
        for dim in inner_first:
            if self.strides[dim] < step:
                return None
            step = self.strides[dim] * self.shape[dim]
        ones = (dim for dim, size in enumerate(self.shape) if size == 1)
        return DimOrder(*ones, *reversed(inner_first)).canonical(self.shape)

    @cached_property
    def is_dense(self) -> bool:
        return not isinstance(read(self.shape, self.strides), NotDense)

    @cached_property
    def kind(self) -> Kind:
        """What its order is called. One that is both, or too small to have any, is ambiguous."""
        if self.order is None:
            return "overlapping"
        rank = len(self.shape)
        last = self.order.equivalent(DimOrder.channels_last(rank), self.shape)
        first = self.order.equivalent(DimOrder.contiguous(rank), self.shape)
        if last and first:
            return "ambiguous"
        return "channels-last" if last else "row-major" if first else "permuted"

    def lies_like(self, other: Value) -> bool:
        """Whether the dims that are larger than 1 in both lie in the same sequence in both.

        >>> image, pooled = (2, 3, 5, 7), (2, 3, 1, 1)
        >>> a, b = Value(image, (105, 1, 21, 3), 840, 0, 0), Value(pooled, (3, 1, 1, 1), 24, 0, 0)
        >>> c = Value(image, (105, 35, 7, 1), 840, 0, 0)
        >>> a.lies_like(b), a.lies_like(c)
        (True, False)
        """
        if self.order is None or other.order is None or 0 in (*self.shape, *other.shape):
            return True
        own, its = (
            [dim for dim in order if self.shape[dim] != 1 and other.shape[dim] != 1]
            for order in (self.order, other.order)
        )
        return own == its

    @property
    def order_name(self) -> str:
        """Its order by the name that fits its kind: `canonical` may call (2, 3, 1, 7) channels-last NHCW."""
        if self.order is None:
            return self.kind
        rank = len(self.shape)
        last, first = DimOrder.channels_last(rank).name, DimOrder.contiguous(rank).name
        names = {"channels-last": last, "row-major": first, "ambiguous": f"{first} or {last}"}
        return names.get(self.kind, self.order.name) + ("" if self.is_dense else " with gaps")


@dataclass(frozen=True)
class Copy:
    """Memory moved inside an operator, by an operator that this one calls. `operand` is the index of what was
    copied, None for something in between."""

    operator: str
    before: Value
    after: Value
    operand: int | None
    time_us: float


@dataclass(frozen=True)
class Call:
    """One operator as torch dispatched it. `function` is what the program called, `module` the path of the
    innermost module, `source` the line outside of torch. Values are tensors of any rank, in the order of the
    operator's arguments."""

    index: int
    operator: str
    function: str
    module: str
    source: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    is_view: bool
    copies: tuple[Copy, ...]
    time_us: float


@contextmanager
def watching(model: nn.Module, inputs: Any) -> Iterator[list[Call]]:
    """The operators that run in the block, in their order; the list is complete when the block ends."""
    calls: list[Call] = []
    known = WeakIdKeyDictionary()
    for tensor in (*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs)):
        if isinstance(tensor, Tensor):
            known[tensor] = True
    functions, path = _Functions(), [""]
    with ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in _follow(module, name, path):
                stack.callback(handle.remove)
        stack.enter_context(functions)
        stack.enter_context(_Operators(calls, known, functions, path))
        yield calls


def _follow(module: nn.Module, name: str, path: list[str]) -> Iterator[Any]:
    """Hooks that keep the path of the innermost running module, also where one raises."""
    if isinstance(module, torch.jit.ScriptModule):
        return

    def enter(module: nn.Module, args: Any) -> None:
        path.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        path.pop()

    yield module.register_forward_pre_hook(enter, prepend=True)
    yield module.register_forward_hook(leave, always_call=True)


class _Functions(TorchFunctionMode):
    """Knows which function of torch's Python interface is running."""

    current = ""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before, self.current = self.current, self.current or _function_name(func)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.current = before


class _Operators(TorchDispatchMode):
    """Records outermost operators, and steps into each to see the copies that it makes."""

    def __init__(
        self, calls: list[Call], known: WeakIdKeyDictionary, functions: _Functions, path: list[str]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.known, self.functions, self.path = calls, known, functions, path
        self.inside: _Inside | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside is not None:
            return self.inside.step(self, func, args, kwargs)
        tensors = _tensors((args, kwargs))
        operands = tuple(_value(x, x in self.known) for x in tensors)
        name = operator_name(func)
        self.inside = _Inside(operands)
        start = time.perf_counter()
        try:
            result = func(*args, **kwargs) if name in COPIES else _step_into(self, func, args, kwargs)
            _synchronise(tensors)
        finally:
            copies, self.inside = tuple(self.inside.copies), None
        time_us = (time.perf_counter() - start) * 1e6
        made = _tensors(result)
        for tensor in made:
            self.known[tensor] = True
        results = tuple(_value(x, True) for x in made)
        shared = {x.storage for x in operands} & {x.storage for x in results} - {0}
        is_view = bool(shared) and not func._schema.is_mutable
        self.calls.append(
            Call(
                len(self.calls),
                name,
                self.functions.current,
                self.path[-1],
                _source(sys._getframe(1)),
                operands,
                results,
                is_view,
                copies,
                time_us,
            )
        )
        return result


class _Inside:
    """What happens inside of one operator."""

    def __init__(self, operands: Sequence[Value]) -> None:
        self.operands = operands
        self.copies: list[Copy] = []

    def step(self, mode: _Operators, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        name = operator_name(func)
        if name not in COPIES:
            return _step_into(mode, func, args, kwargs)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        _synchronise([result])
        time_us = (time.perf_counter() - start) * 1e6
        before = _value(args[1] if name == "aten.copy_" else args[0], True)
        after = _value(result, True)
        if before.storage != after.storage:
            places = [x.address for x in self.operands]
            operand = places.index(before.address) if before.address in places else None
            self.copies.append(Copy(name, before, after, operand, time_us))
        return result


def _step_into(mode: _Operators, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Runs an operator's own kernel with the mode on, so that what the kernel calls is seen."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # A view copies nothing (and detach, under a mode, calls itself). Numbers that C++ passes as tensors come
    # to Python as numbers, which a kernel does not take.
    if not tensors or func.is_view or _has_wrapped_numbers(func, args, kwargs):
        return func(*args, **kwargs)
    keys = functools.reduce(operator.or_, map(torch._C._dispatch_keys, tensors))
    keys = (keys & torch._C._after_autograd_keyset).remove(torch._C.DispatchKey.ADInplaceOrView)
    with mode:
        return func.redispatch(keys, *args, **kwargs)


def _has_wrapped_numbers(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        if isinstance(argument.type, torch.TensorType) and isinstance(value, (int, float, complex)):
            return True
    return False


def _tensors(tree: Any) -> list[Tensor]:
    return [
        leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    ]


def _value(x: Tensor, known: bool) -> Value:
    shape, bytes_ = tuple(x.shape), x.numel() * x.element_size()
    return Value(shape, x.stride(), bytes_, x.untyped_storage().data_ptr(), x.data_ptr(), known)


def _synchronise(tensors: Sequence[Any]) -> None:
    """An accelerator runs behind: its time is only known when it has caught up."""
    device = next((x.device for x in tensors if isinstance(x, Tensor) and x.device.type != "cpu"), None)
    if device is not None and device.type != "meta":
        torch.accelerator.synchronize(device)


def operator_name(func: Any) -> str:
    """`aten.clone` for every overload of it."""
    return str(func._schema.name).replace("::", ".")


def _function_name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "") or ""
    owner = getattr(func, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    return f"{'F' if module == 'torch.nn.functional' else module}.{name}"


def _source(frame: FrameType | None) -> str:
    """The innermost line that belongs neither to torch nor to us."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
