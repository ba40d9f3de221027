"""Let Python decide by what a network computes from its constants alone, as a network is exported.

torch.export knows no elements, not even those of a buffer: `if self.is_ready:` ends it, as does a loop over
`torch.arange(1, 4).tolist()`. Beside each call that reads nothing but constants, the same call is made of
their elements. Python reads the numbers of such values. The places where a constant mask is true are a
constant too, so the size of `x[mask]` is known. An `assert` about other elements is left out, as those of
torch are, and so is an `if` that only raises an error.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from dimorder.capture.call_mode import CallMode
from dimorder.errors import UnsupportedError

_READS = (
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.equal, Tensor.equal, torch.allclose, Tensor.allclose, torch.is_nonzero, Tensor.is_nonzero),
    *(Tensor.numpy, Tensor.__array__),
)
_PLACES = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
_NORMS = (functional.batch_norm, functional.instance_norm, torch.batch_norm, torch.instance_norm)
_UNKNOWN = (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)
_OWN = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))  # not the network's code
_MOST = 2**20  # elements of a parameter or buffer by which Python may decide
_MOST_COMPUTED = 2**24  # elements of what is computed from these
_RANDOM = object()  # what a call computes that draws random numbers


@dataclass(frozen=True)
class _Known:
    """A constant with its elements, and the names of the network's tensors from which it is computed.

    `traced` is the tensor without data that stands for it. It is kept alive, so that its id stays unique. Its
    version is another one once something is written into it.
    """

    traced: Tensor
    version: int
    elements: Tensor
    names: frozenset[str]


class KnownConstants(CallMode):
    """Compute the elements of constants, and of what is computed from them, beside an export.

    Args:
        model: the network that is exported. Its tensors stay as they are.

    Attributes:
        read: The names of the network's tensors by whose elements Python decided.

    >>> class Ready(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.register_buffer("is_ready", torch.tensor([True]))
    ...     def forward(self, x):
    ...         return x.sum(torch.arange(1, x.dim()).tolist()) if self.is_ready else x
    >>> model = Ready()
    >>> with KnownConstants(model) as known:
    ...     program = torch.export.export(model, (torch.ones(2, 3, 5),))
    >>> [node.args[1] for node in program.graph.nodes if node.name == "sum_1"], known.read
    ([[1, 2]], {'is_ready'})
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.read = set[str]()
        self.known: dict[int, _Known] = {}
        self.other: dict[int, Tensor] = {}  # kept alive too
        self.places = [
            (f"{path}.{key}".lstrip("."), held, key)
            for path, part in model.named_modules()
            for held in (part._parameters, part._buffers)
            for key in held
        ]
        self.state = {name: tensor for name, tensor in self._held() if tensor is not None}
        # What the model holds as a call begins, with its versions: torch has put its own tensors there.
        self.first: dict[str, tuple[Tensor, int]] = {}
        self.names: dict[int, str] = {}
        self.written = set[str]()  # without another version

    def __enter__(self) -> KnownConstants:
        self.numbers = patch.object(torch.SymBool, "__bool__", _truth)
        self.numbers.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.numbers.stop()

    def begin(self) -> None:
        held = {name: tensor for name, tensor in self._held() if tensor is not None}
        self.first = {name: (tensor, tensor._version) for name, tensor in held.items()}
        self.names = {id(tensor): name for name, tensor in held.items()}
        self.other = {place: each for place, each in self.other.items() if place not in self.names}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # torch's own kernels call operators; dynamo traces the branches of torch.cond
        if isinstance(function, torch._ops.OpOverload) or torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        args, kwargs = self._with_numbers(function, args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        operands = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        known = [each for operand in operands if (each := self._find(operand)) is not None]
        is_constant = len(known) == len(operands) and not any(isinstance(leaf, _UNKNOWN) for leaf in leaves)
        names = frozenset[str]().union(*(each.names for each in known))
        if function in _READS and is_constant:
            value = self._computed(function, args, kwargs)
            if function is not Tensor.__bool__ or value is not _asserted():
                self.read |= names
            return value.copy() if isinstance(value, np.ndarray) else value  # which Python may write
        if function in _PLACES and is_constant:
            self.read |= names
            found = self._computed(function, args, kwargs)
            return pytree.tree_map_only(Tensor, lambda each: self._constant(each, names), found)
        if function is Tensor.__getitem__:
            args = (args[0], self._known_index(args[1]))
        holds = _asserted() if function is Tensor.__bool__ else None
        if holds is not None:
            return holds
        result = function(*args, **kwargs)
        if _writes_unseen(function, args, kwargs):
            self._forget(known)
            return result
        traced = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        written = [each for each in known if each.traced._version != each.version]
        is_computed = is_constant and bool(traced or written)
        if is_computed and all(each.numel() <= _MOST_COMPUTED for each in traced):
            elements = self._computed(function, args, kwargs)
            if elements is _RANDOM:
                return result
            found = [leaf for leaf in pytree.tree_leaves(elements) if isinstance(leaf, Tensor)]
            pairs = [(each.traced, each.elements) for each in written]
            pairs += zip(traced, found, strict=True) if len(traced) == len(found) else []
            for tensor, own in pairs:
                self.known[id(tensor)] = _Known(tensor, tensor._version, own, names)
        return result

    def refuse_state(self) -> None:
        """Refuse a network that writes to a buffer by whose elements Python decided.

        Raises:
            UnsupportedError: for such a buffer, whose later elements would decide otherwise.
        """
        for name, (traced, version) in self.first.items():
            if name in self.read and (name in self.written or traced._version != version):
                found = f"Python decides by the elements of {name}, which the network writes"
                raise UnsupportedError(
                    "the network", found, "choose by torch.where, or by a number of Python"
                )

    def _find(self, tensor: Tensor) -> _Known | None:
        """Return what is known of an operand."""
        if id(tensor) in self.other:
            return None
        if id(tensor) in self.known:
            known = self.known[id(tensor)]
            return known if known.version == tensor._version else None
        name = self.names.get(id(tensor))
        own = tensor if name is None else self.state.get(name)
        is_written = name is not None and self.first[name][1] != tensor._version
        if own is None or is_written or not _has_elements(own) or _extent(own) > _MOST:
            self.other[id(tensor)] = tensor
            return None
        with _disable_current_modes():  # the copy has the same strides, so that the same calls return views
            places = own.detach().as_strided((_extent(own),), (1,)).clone()
            copied = places.as_strided(own.shape, own.stride())
        found = _Known(tensor, tensor._version, copied, frozenset([name] if name else []))
        self.known[id(tensor)] = found
        return found

    def _constant(self, elements: Tensor, names: frozenset[str]) -> Tensor:
        """Return a constant of the exported program with these elements."""
        traced = torch.tensor(elements.tolist(), dtype=elements.dtype).reshape(elements.shape)
        self.known[id(traced)] = _Known(traced, traced._version, elements, names)
        return traced

    def _known_index(self, index: Any) -> Any:
        """Return an index with the places of known masks' true elements, and numbers for slices' ends."""
        parts = list(index) if isinstance(index, tuple) else [index]
        for i, part in reversed(list(enumerate(parts))):
            if isinstance(part, slice):
                parts[i] = slice(*map(self._number, (part.start, part.stop, part.step)))
            is_mask = isinstance(part, Tensor) and part.dtype == torch.bool and part.dim()
            known = self._find(part) if is_mask else None
            if known is not None:
                self.read |= known.names
                with _disable_current_modes():
                    places = known.elements.nonzero(as_tuple=True)
                parts[i : i + 1] = [self._constant(each, known.names) for each in places]
        return tuple(parts) if isinstance(index, tuple) or len(parts) > 1 else parts[0]

    def _with_numbers(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return a call with numbers for known tensors that torch would read as numbers, such as sizes."""
        takes = _numbers_of(function)
        first = min(
            (place for place, is_list in takes if is_list and isinstance(place, int)), default=len(args)
        )
        is_spread = first < len(args) and not isinstance(args[first], (list, tuple))  # as in x.view(2, 3)
        places = {place for place, _ in takes} | (set(range(first, len(args))) if is_spread else set())
        numbers = (
            pytree.tree_map(self._number, each) if i in places else each for i, each in enumerate(args)
        )
        named = {
            name: pytree.tree_map(self._number, each) if name in places else each
            for name, each in kwargs.items()
        }
        return tuple(numbers), named

    def _number(self, value: Any) -> Any:
        """Return the number in a known tensor of one element; anything else as it is."""
        known = self._find(value) if isinstance(value, Tensor) else None
        if known is None or known.elements.numel() != 1:
            return value
        self.read |= known.names
        with _disable_current_modes():
            return known.elements.item()

    def _forget(self, written: Iterable[_Known]) -> None:
        """Forget what shares memory with values that a call wrote without giving them another version."""
        memory = {each.elements.untyped_storage()._cdata for each in written}
        for place, each in self.known.items():
            if each.elements.untyped_storage()._cdata in memory:
                self.other[place] = each.traced
                self.written |= each.names

    def _held(self) -> Iterator[tuple[str, Tensor | None]]:
        """Yield the names of the model's parameters and buffers with what it holds there now."""
        return ((name, held.get(key)) for name, held, key in self.places)

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return what a call computes of elements; `_RANDOM` if it draws random numbers."""
        given = pytree.tree_map_only(Tensor, lambda each: self.known[id(each)].elements, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            state = torch.get_rng_state()
            result = function(*given[0], **given[1])
            if torch.equal(torch.get_rng_state(), state):
                return result
            torch.set_rng_state(state)
        return _RANDOM


@functools.cache
def _numbers_of(function: Any) -> frozenset[tuple[int | str, bool]]:
    """Return the arguments of a torch function that are numbers, and not tensors, by place and by name.

    Beside each is whether it is a list.

    >>> (1, True) in _numbers_of(functional.pad), (1, False) in _numbers_of(torch.unsqueeze)
    (True, True)
    >>> 1 in dict(_numbers_of(torch.mul)), ("size", False) in _numbers_of(functional.interpolate)
    (False, True)
    """
    found: dict[int | str, set[str]] = {}
    for place, name, kind in _arguments_of(function):
        for key in (name,) if place is None else (place, name):
            found.setdefault(key, set()).add(kind)
    kinds = {key: " ".join(types) for key, types in found.items()}
    return frozenset(
        (key, "List[int]" in types)
        for key, types in kinds.items()
        if "Tensor" not in types and any(kind in types for kind in ("int", "number", "float"))
    )


def _arguments_of(function: Any) -> Iterator[tuple[int | None, str, str]]:
    """Yield the place, name and type of each argument of ATen's function, or of a function in Python."""
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        for overload in packet.overloads():
            for place, argument in enumerate(getattr(packet, overload)._schema.arguments):
                yield None if argument.kwarg_only else place, argument.name, str(argument.type)
    elif isinstance(function, FunctionType):
        for place, parameter in enumerate(inspect.signature(function).parameters.values()):
            yield place, parameter.name, str(parameter.annotation)


def _has_elements(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, nn.Parameter) and not is_functorch_wrapped_tensor(tensor)
    return is_plain and tensor.layout == torch.strided and tensor.device.type == "cpu"


def _extent(tensor: Tensor) -> int:
    """Return how many places in memory a tensor spans."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _writes_unseen(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call may write its operands and leave them their versions."""
    if function in _NORMS:  # on the input's statistics they write the running ones
        default = args[5] if len(args) > 5 else function is functional.instance_norm
        return bool(kwargs.get("training", kwargs.get("use_input_stats", default)))
    name, replaces = getattr(function, "__name__", ""), Tensor.data.__set__  # type: ignore[attr-defined]
    return function == replaces or (name.startswith("_foreach_") and name.endswith("_"))


def _truth(condition: torch.SymBool) -> bool:
    """Return the truth value of a condition; of numbers read out of tensors if it is only asserted."""
    holds = _asserted() if free_unbacked_symbols(condition) else None
    return condition.node.bool_() if holds is None else holds


def _asserted() -> bool | None:
    """Return the truth value without which the network's code raises an error; None if it does not.

    It is None too if the network may catch the error.
    """
    frames = [frame for frame in _frames() if not frame.f_code.co_filename.startswith(_OWN)]
    if not frames or any(_catches(frame.f_code) for frame in frames):
        return None
    return _needed(frames[0].f_code, frames[0].f_lasti)


def _frames() -> Iterator[FrameType]:
    """Yield the calls that led here, from the last one to that of torch.export."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != torch.export.__file__:
        yield frame
        frame = frame.f_back


def _needed(code: CodeType, place: int) -> bool | None:
    """Return the truth value without which code raises an error next; None if it does not.

    >>> def check(x):
    ...     assert x > 0, f"not {x}"
    >>> jump, = (each.offset for each in dis.get_instructions(check) if "JUMP" in each.opname)
    >>> _needed(check.__code__, jump)
    True
    """
    rest = (each for each in dis.get_instructions(code) if each.offset >= place)
    jump = next((each for each in rest if each.opname not in ("TO_BOOL", "COMPARE_OP")), None)
    if jump is None or "JUMP" not in jump.opname or jump.argval < place:
        return None
    error = itertools.dropwhile(lambda each: each.opname.startswith(_COMPUTING), rest)
    raises = any(each.opname == "RAISE_VARARGS" for each in itertools.islice(error, 1))
    return jump.opname.endswith("TRUE") if raises else None


def _catches(code: CodeType) -> bool:
    """Return whether code may catch an error: it has an `except`, or a caller takes the error for an end.

    >>> def first(x):
    ...     try:
    ...         return x[0]
    ...     except IndexError:
    ...         return None
    >>> _catches(first.__code__), _catches(_catches.__code__)
    (True, False)
    """
    if code.co_name in ("__next__", "__getitem__", "__getattr__") or "suppress" in code.co_names:
        return True
    found = list(dis.get_instructions(code))
    starts = {each.argval for each in found if each.opname == "SETUP_FINALLY"}  # Python 3.10
    return any(
        each.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH")
        or (each.opname == "POP_TOP" and (before.opname == "PUSH_EXC_INFO" or each.offset in starts))
        for before, each in itertools.pairwise(found)
    )


# Instructions by which Python computes an error before it is raised.
_COMPUTING = ("LOAD_", "PUSH_", "CALL", "PRECALL", "KW_NAMES", "BUILD_", "FORMAT_", "CONVERT_", "BINARY_")
