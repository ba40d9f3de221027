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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
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
    os.path.join(os.path.dirname(os.path.dirname(_HERE)), "modules.py"),
    "<",
    *(_TORCH + path for path in ("_compile.py", "_dynamo", "_ops.py", "_tensor.py", "utils")),
)
_COMMANDS = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "cli") + os.sep
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
        stack.enter_context(torch.compiler.set_stance("force_eager"))
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
    """A mode that records outermost operators, and steps into each to see the copies that it makes.

    A tensor of tensors writes its operators in those of its parts, which are recorded.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and this answer makes a call faster

    def __init__(self, calls: list[TracedCall], known: WeakIdKeyDictionary, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.known, self.path = calls, known, path
        self.inside: _Inside | None = None
        self.copying_nothing: set[Any] = set()  # the signatures of calls in which no copy was found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if isinstance(func, HigherOrderOperator):
            return func(*pytree.tree_map_only(_BODIES, self._watched, args), **kwargs)
        if self.inside is not None:
            return self.inside.step(self, func, args, kwargs)
        tensors = _tensors((args, kwargs))
        operands = tuple(_value(x, x in self.known) for x in tensors)
        kernel = _kernel(func)
        if kernel.is_composite and _takes_plain_tensors(kernel, args, kwargs):
            with self:
                return func.decompose(*args, **kwargs)
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

    def _watched(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a part of control flow as a function that this mode records."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return body(*args, **kwargs)

        return run


_BODIES = (FunctionType, MethodType, functools.partial, nn.Module)


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
        source = args[1] if kernel.name == "aten.copy_" else args[0]
        if not (_is_readable(source) and _is_readable(result)):
            return result
        before, after = _value(source, True), _value(result, True)
        if before.storage != after.storage and before.shape:  # a number has no order
            places = [x.address for x in self.operands]
            operand = places.index(before.address) if before.address in places else None
            self.copies.append(Copy(kernel.name, before, after, operand, time_us))
        return result


@dataclass(frozen=True)
class _Kernel:
    """How an operator is called.

    `is_composite` says that it is written in other operators. It comes whole where torch is below autograd,
    as in the branches of torch.cond.

    `tensors` says which of its arguments are single tensors. `has_layout` says that an argument decides
    whether the result is dense, and thereby which kernel runs. `passed_over` are the keys of a tensor
    without a kernel of their own.
    """

    name: str
    copies: bool
    is_view: bool
    is_composite: bool
    tensors: tuple[bool, ...]
    has_layout: bool
    passed_over: tuple[Any, ...]


@functools.lru_cache(maxsize=4096)
def _kernel(func: Any) -> _Kernel:
    name = str(func._schema.name).replace("::", ".")
    tensors = tuple(isinstance(argument.type, torch.TensorType) for argument in func._schema.arguments)
    has_layout = any(argument.name == "layout" for argument in func._schema.arguments)
    passed_over = tuple(
        key
        for key in _LAZY
        if _has_kernel(func, key)
        and torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(func.name(), key)
    )
    is_view = func.is_view and name not in _MAY_COPY
    is_composite = _has_kernel(func, torch._C.DispatchKey.CompositeImplicitAutograd)
    return _Kernel(name, name in COPIES, is_view, is_composite, tensors, has_layout, passed_over)


def _has_kernel(func: Any, key: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


# Tensors that are conjugated or negated when they are read.
_LAZY = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)


def _step_into(mode: _Operators, func: Any, kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run an operator's own kernel with the mode on, so that the kernel's own calls are seen.

    A view is not stepped into. Neither is a call whose sizes, strides and numbers copied nothing before,
    since the copies of a kernel follow from these. A grouped convolution makes thousands of calls. A call is
    passed on untouched if its kernel depends on more than plain tensors.
    """
    # (detach, under a mode, calls itself.)
    if kernel.is_view:
        return func(*args, **kwargs)
    if args and kernel.tensors[:1] == (True,) and isinstance(args[0], _NUMBERS):
        args = _without_numbers(kernel, args, kwargs)  # no operator takes a number first
    signature = func, *map(_signature, args), *(_signature(pair) for pair in kwargs.items())
    if signature in mode.copying_nothing or not _takes_plain_tensors(kernel, args, kwargs):
        return func(*args, **kwargs)
    copies = mode.inside.copies if mode.inside else []
    count = len(copies)
    result = _redispatched(mode, func, kernel, args, kwargs)
    if len(copies) == count:
        mode.copying_nothing.add(signature)
    return result


def _takes_plain_tensors(kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call reads plain tensors alone, and thus runs the kernel of their keys."""
    tensors = _all_tensors((args, kwargs))
    return bool(tensors) and not kernel.has_layout and all(map(_is_readable, tensors))


def _signature(value: Any) -> Any:
    """Return what decides a kernel's path: a tensor's sizes, strides and type, or the argument itself."""
    if isinstance(value, Tensor):
        if not _is_readable(value):
            return object()  # equal to nothing
        return value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg()
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return value


def _redispatched(mode: _Operators, func: Any, kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> Any:
    args = _without_numbers(kernel, args, kwargs)
    tensors = [x for x in args if isinstance(x, Tensor)] or _all_tensors((args, kwargs))
    keys = functools.reduce(operator.or_, map(torch._C._dispatch_keys, tensors))
    keys = keys & torch._C._after_autograd_keyset
    for key in (torch._C.DispatchKey.ADInplaceOrView, *kernel.passed_over):
        keys = keys.remove(key)
    with mode:
        return func.redispatch(keys, *args, **kwargs)


def _without_numbers(kernel: _Kernel, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """Return arguments with tensors for numbers that C++ passed as tensors, which a kernel does not take."""
    tensors = [x for x in args if isinstance(x, Tensor)] or _all_tensors((args, kwargs))
    if not tensors:
        return list(args)
    return [
        _scalar(value, tensors) if is_tensor and isinstance(value, _NUMBERS) else value
        for value, is_tensor in zip(args, kernel.tensors, strict=False)
    ]


def _scalar(number: complex, beside: Sequence[Tensor]) -> Tensor:
    """Return a tensor without dims that promotes beside others as the number does, with its value if it can.

    Beside dims of its own kind, the widest type promotes nothing.
    """
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in beside))
    promoted = torch.result_type(torch.empty(1, dtype=dtype, device="cpu"), number)
    wide = promoted == dtype and all(x.dim() for x in beside)
    return torch.tensor(number, dtype=_WIDEST[type(number)] if wide else promoted, device="cpu")


_NUMBERS = (int, float, complex)
_WIDEST = MappingProxyType(
    {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
)


def _all_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _tensors(tree: Any) -> list[Tensor]:
    return list(filter(_is_readable, _all_tensors(tree)))


def _is_readable(x: Tensor) -> bool:
    """Return whether a tensor has one size and one stride per dim, and memory; a forward gradient may not."""
    is_plain = x.layout == torch.strided and not x.is_nested and not x._is_zerotensor()
    return is_plain and not is_traceable_wrapper_subclass(x)


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

    The line is "" if a command of ours runs a network of torch's own modules. Only functions of
    torch.nn.functional have a frame; Python 3.11 reads others from the expression.
    """
    function = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_COMMANDS):
            break
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
