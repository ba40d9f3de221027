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
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from dimorder.eager.inspection.traced import Copy, TracedCall, TracedValue

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

# Files whose frames are between the program's own frame and an operator.
_BETWEEN = (
    _HERE,
    "<",
    *(_TORCH + path for path in ("_compile.py", "_dynamo", "_ops.py", "_tensor.py", "utils")),
)
_FUNCTIONAL = os.path.join(_TORCH, "nn", "functional.py")


@contextmanager
def record_calls(model: nn.Module, inputs: Any) -> Iterator[list[TracedCall]]:
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
            synchronize(tensors)
        finally:
            copies, self.inside = tuple(self.inside.copies), None
        time_us = (time.perf_counter() - start) * 1e6
        outputs = _tensors(result)
        for tensor in outputs:
            self.known[tensor] = True
        results = tuple(_value(x, True) for x in outputs)
        shared = {x.storage for x in operands} & {x.storage for x in results} - {0}
        function, source = call_site(sys._getframe(1))
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
        synchronize([result])
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


def synchronize(values: Sequence[Any]) -> None:
    """Wait for an accelerator, which runs asynchronously, so that its time is known."""
    device = next((x.device for x in values if isinstance(x, Tensor) and x.device.type != "cpu"), None)
    if device is not None and device.type != "meta":
        torch.accelerator.synchronize(device)


# The line that called an operator


def call_site(frame: FrameType | None) -> tuple[str, str]:
    """Return the function that was called, such as `softmax`, and the line outside of torch.

    Only functions of torch.nn.functional have a frame; Python 3.11 reads others from the expression.
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
