"""Record a run: every operator call, the orders that it reads and writes, and the copies inside it."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import operator
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import NotDense, read

Kind = Literal["channels-last", "row-major", "ambiguous", "permuted", "overlapping"]

# They only move memory, whoever calls them.
COPIES = frozenset({"aten.clone", "aten.contiguous", "aten._to_copy", "aten.copy_"})
# They are called views too, and may copy.
_MAY_COPY = frozenset(
    (
        *("aten.reshape", "aten.reshape_as", "aten.flatten", "aten.ravel", "aten.to", "aten.contiguous"),
        *("aten.resolve_conj", "aten.resolve_neg", "aten.pin_memory", "aten.coalesce"),
        *("aten._autocast_to_full_precision", "aten._autocast_to_reduced_precision"),
    )
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True)
class TracedValue:
    """A tensor as an operator saw it: sizes, strides in elements, bytes, and its place in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: int
    storage: int
    address: int
    known: bool = True  # an input of the model, or the result of an operator in the trace

    @property
    def order(self) -> DimOrder | None:
        """The order of its dims in memory, without regard to gaps; None if elements overlap.

        >>> TracedValue((2, 3, 5, 7), (210, 1, 42, 6), 840, 0, 0).order
        DimOrder(0, 2, 3, 1)
        """
        return _order(self.shape, self.strides)

    @property
    def is_dense(self) -> bool:
        return _is_dense(self.shape, self.strides)

    @property
    def kind(self) -> Kind:
        """The kind of its order. A value that fits both kinds, or is too small to have one, is ambiguous."""
        return _kind(self.shape, self.order)

    def lies_like(self, other: TracedValue) -> bool:
        """Return whether the dims larger than 1 in both have the same sequence in both.

        >>> image, pooled = (2, 3, 5, 7), (2, 3, 1, 1)
        >>> a, b = TracedValue(image, (105, 1, 21, 3), 840, 0, 0), TracedValue(pooled, (3, 1, 1, 1), 24, 0, 0)
        >>> c = TracedValue(image, (105, 35, 7, 1), 840, 0, 0)
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
        return _order_name(self.shape, self.strides)


@dataclass(frozen=True)
class Copy:
    """Memory moved inside an operator, by another operator that it calls.

    `operand` is the index of the copied operand, or None for an intermediate value.
    """

    operator: str
    before: TracedValue
    after: TracedValue
    operand: int | None
    time_us: float


@dataclass(frozen=True)
class TracedCall:
    """One operator as torch dispatched it.

    `module` is the path of the innermost module. `source` is the line outside of torch, and `function` the
    function called there. Values are tensors, in the sequence of the arguments.
    """

    index: int
    operator: str
    function: str
    module: str
    source: str
    operands: tuple[TracedValue, ...]
    results: tuple[TracedValue, ...]
    is_view: bool
    copies: tuple[Copy, ...]
    time_us: float


@functools.lru_cache(maxsize=4096)
def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> DimOrder | None:
    if 0 in shape:
        return DimOrder.contiguous(len(shape))
    step = 1
    inner_first = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: (strides[d], -d))
    for dim in inner_first:
        if strides[dim] < step:
            return None
        step = strides[dim] * shape[dim]
    ones = (dim for dim, size in enumerate(shape) if size == 1)
    return DimOrder(*ones, *reversed(inner_first)).canonical(shape)


@functools.lru_cache(maxsize=4096)
def _kind(shape: tuple[int, ...], order: DimOrder | None) -> Kind:
    if order is None:
        return "overlapping"
    last = order.equivalent(DimOrder.channels_last(len(shape)), shape)
    first = order.equivalent(DimOrder.contiguous(len(shape)), shape)
    if last and first:
        return "ambiguous"
    return "channels-last" if last else "row-major" if first else "permuted"


@functools.lru_cache(maxsize=4096)
def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return not isinstance(read(shape, strides), NotDense)


@functools.lru_cache(maxsize=4096)
def _order_name(shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    order = _order(shape, strides)
    kind = _kind(shape, order)
    if order is None:
        return kind
    last, first = DimOrder.channels_last(len(shape)).name, DimOrder.contiguous(len(shape)).name
    names = {"channels-last": last, "row-major": first, "ambiguous": f"{first} or {last}"}
    return names.get(kind, order.name) + ("" if _is_dense(shape, strides) else " with gaps")


@contextmanager
def watching(model: nn.Module, inputs: Any) -> Iterator[list[TracedCall]]:
    """Record the operators that run in the block, in sequence; the list is complete when the block ends."""
    calls: list[TracedCall] = []
    known = WeakIdKeyDictionary()
    for tensor in (*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs)):
        if isinstance(tensor, Tensor):
            known[tensor] = True
    path = [""]
    with ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in _follow(module, name, path):
                stack.callback(handle.remove)
        stack.enter_context(_Operators(calls, known, path))
        yield calls


def _follow(module: nn.Module, name: str, path: list[str]) -> Iterator[Any]:
    """Register hooks that track the path of the innermost running module, also if a module raises."""
    if isinstance(module, torch.jit.ScriptModule):
        return

    def enter(module: nn.Module, args: Any) -> None:
        path.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        path.pop()

    yield module.register_forward_pre_hook(enter, prepend=True)
    yield module.register_forward_hook(leave, always_call=True)


class _Operators(TorchDispatchMode):
    """A mode that records outermost operators, and steps into each to see the copies that it makes."""

    def __init__(self, calls: list[TracedCall], known: WeakIdKeyDictionary, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.known, self.path = calls, known, path
        self.inside: _Inside | None = None
        self.copying_nothing: set[Any] = set()  # the signatures of calls in which no copy was found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and this answer halves the time of a call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside is not None:
            return self.inside.step(self, func, args, kwargs)
        tensors = _tensors((args, kwargs))
        operands = tuple(_value(x, x in self.known) for x in tensors)
        kernel = _kernel(func)
        self.inside = _Inside(operands)
        start = time.perf_counter()
        try:
            result = func(*args, **kwargs) if kernel.copies else _step_into(self, func, kernel, args, kwargs)
            _synchronise(tensors)
        finally:
            copies, self.inside = tuple(self.inside.copies), None
        time_us = (time.perf_counter() - start) * 1e6
        made = _tensors(result)
        for tensor in made:
            self.known[tensor] = True
        results = tuple(_value(x, True) for x in made)
        shared = {x.storage for x in operands} & {x.storage for x in results} - {0}
        function, source = _called(sys._getframe(1))
        self.calls.append(
            TracedCall(
                len(self.calls),
                kernel.name,
                function,
                self.path[-1],
                source,
                operands,
                results,
                bool(shared) and not func._schema.is_mutable,
                copies,
                time_us,
            )
        )
        return result


class _Inside:
    """The events inside one operator."""

    def __init__(self, operands: Sequence[TracedValue]) -> None:
        self.operands = operands
        self.copies: list[Copy] = []

    def step(self, mode: _Operators, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        kernel = _kernel(func)
        if not kernel.copies:
            return _step_into(mode, func, kernel, args, kwargs)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        _synchronise([result])
        time_us = (time.perf_counter() - start) * 1e6
        before = _value(args[1] if kernel.name == "aten.copy_" else args[0], True)
        after = _value(result, True)
        if before.storage != after.storage:
            places = [x.address for x in self.operands]
            operand = places.index(before.address) if before.address in places else None
            self.copies.append(Copy(kernel.name, before, after, operand, time_us))
        return result


@dataclass(frozen=True)
class _Kernel:
    """How an operator is called; `tensors` says which of its arguments are single tensors."""

    name: str
    copies: bool
    is_view: bool
    tensors: tuple[bool, ...]


@functools.lru_cache(maxsize=4096)
def _kernel(func: Any) -> _Kernel:
    name = str(func._schema.name).replace("::", ".")
    tensors = tuple(isinstance(argument.type, torch.TensorType) for argument in func._schema.arguments)
    return _Kernel(name, name in COPIES, func.is_view and name not in _MAY_COPY, tensors)


def _step_into(mode: _Operators, func: Any, kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run an operator's own kernel with the mode on, so that the kernel's own calls are seen.

    A view is not stepped into. Neither is a call whose sizes, strides and numbers copied nothing before,
    since the copies of a kernel follow from these. A grouped convolution makes thousands of calls.
    """
    # (detach, under a mode, calls itself.)
    if kernel.is_view:
        return func(*args, **kwargs)
    signature = func, *map(_signature, args), *(_signature(pair) for pair in kwargs.items())
    if signature in mode.copying_nothing:
        return func(*args, **kwargs)
    copies = mode.inside.copies if mode.inside else []
    count = len(copies)
    result = _redispatched(mode, func, kernel, args, kwargs)
    if len(copies) == count:
        mode.copying_nothing.add(signature)
    return result


def _signature(value: Any) -> Any:
    """Return what decides a kernel's path: a tensor's sizes, strides and type, or the argument itself."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            return object()  # equal to nothing
        return value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg()
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return value


def _redispatched(mode: _Operators, func: Any, kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> Any:
    tensors = [x for x in args if isinstance(x, Tensor)] or _all_tensors((args, kwargs))
    if not tensors:
        return func(*args, **kwargs)
    # Numbers that C++ passes as tensors come to Python as numbers, which a kernel does not take.
    args = [
        _scalar(value, tensors[0].dtype) if is_tensor and isinstance(value, (int, float, complex)) else value
        for value, is_tensor in zip(args, kernel.tensors, strict=False)
    ]
    keys = functools.reduce(operator.or_, map(torch._C._dispatch_keys, tensors))
    keys = (keys & torch._C._after_autograd_keyset).remove(torch._C.DispatchKey.ADInplaceOrView)
    with mode:
        return func.redispatch(keys, *args, **kwargs)


def _scalar(number: complex, beside: torch.dtype) -> Tensor:
    """Return a tensor without dims that promotes beside a dtype as the number does."""
    return torch.tensor(number, dtype=torch.result_type(torch.empty(0, dtype=beside), number))


def _all_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _all_tensors(tree) if leaf.layout == torch.strided]


def _value(x: Tensor, known: bool) -> TracedValue:
    shape, bytes_ = tuple(x.shape), x.numel() * x.element_size()
    return TracedValue(shape, x.stride(), bytes_, x.untyped_storage().data_ptr(), x.data_ptr(), known)


def _synchronise(tensors: Sequence[Any]) -> None:
    """Wait for an accelerator, which runs asynchronously, so that its time is known."""
    device = next((x.device for x in tensors if isinstance(x, Tensor) and x.device.type != "cpu"), None)
    if device is not None and device.type != "meta":
        torch.accelerator.synchronize(device)


# Files whose frames are between the program's own frame and an operator.
_BETWEEN = (
    _HERE,
    "<",
    *(_TORCH + path for path in ("_compile.py", "_dynamo", "_ops.py", "_tensor.py", "utils")),
)
_FUNCTIONAL = os.path.join(_TORCH, "nn", "functional.py")


def _called(frame: FrameType | None) -> tuple[str, str]:
    """Return the function that was called, such as `softmax`, and the line outside of torch.

    A function of torch.nn.functional has a frame. Another function is read from the expression, from Python
    3.11 on.
    """
    function = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FUNCTIONAL:
            function = code.co_name
        elif not code.co_filename.startswith(_BETWEEN):
            function = function or _expression(code, frame.f_lasti)
            if not code.co_filename.startswith(_TORCH):
                return function, f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return function, ""


@functools.lru_cache(maxsize=4096)
def _expression(code: CodeType, instruction: int) -> str:
    """Return the name that an instruction calls, or an operator such as `+`; "" if it is unknown."""
    if not hasattr(code, "co_positions"):
        return ""
    first, last, start, end = next(itertools.islice(code.co_positions(), instruction // 2, None))
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[(first or 1) - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        parsed = ast.parse(b"".join(lines), mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(parsed, ast.Call):
        return parsed.func.attr if isinstance(parsed.func, ast.Attribute) else ast.unparse(parsed.func)
    if isinstance(parsed, ast.BinOp):
        return _SYMBOLS.get(type(parsed.op), "")
    return "[]" if isinstance(parsed, ast.Subscript) else ""


_SYMBOLS = MappingProxyType(
    {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
)
