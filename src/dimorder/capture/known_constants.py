"""Let Python decide by what a network computes from its constants alone, as a network is exported.

torch.export knows no elements, not even those of a buffer: `if self.is_ready:` ends it, as does a loop over
`torch.arange(1, 4).tolist()`. Beside each call that reads nothing but constants, the same call is made of
their elements. Python reads the numbers of such values. An `assert` about other elements
is left out, as those of torch are, and so is an `if` that only raises an error.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from dimorder.errors import UnsupportedError

_READS = (
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.equal, Tensor.equal, torch.allclose, Tensor.allclose, torch.is_nonzero, Tensor.is_nonzero),
)
_UNKNOWN = (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)
_OWN = (str(Path(torch.__file__).parent), __file__, str(Path(__file__).with_name("keep_dynamic.py")))
_MOST = 2**20  # elements of a parameter or buffer by which Python may decide


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


class KnownConstants(TorchFunctionMode):
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
        super().__init__()
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
        self.first: dict[str, tuple[Tensor, int]] = {}  # each with its version when it was found
        self.names: dict[int, str] = {}  # by the ids of the tensors that the model holds as it is traced

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # torch's own kernels call operators; dynamo traces the branches of torch.cond
        if isinstance(function, torch._ops.OpOverload) or torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        operands = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        known = [each for operand in operands if (each := self._find(operand)) is not None]
        is_constant = len(known) == len(operands) and not any(isinstance(leaf, _UNKNOWN) for leaf in leaves)
        names = frozenset[str]().union(*(each.names for each in known))
        if function in _READS and is_constant:
            self.read |= names
            return self._computed(function, args, kwargs)
        holds = _asserted() if function is Tensor.__bool__ else None
        if holds is not None:
            return holds
        result = function(*args, **kwargs)
        traced = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        written = [each for each in known if each.traced._version != each.version]
        if is_constant and (traced or written):
            elements = self._computed(function, args, kwargs)
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
            if name in self.read and traced._version != version:
                found = f"Python decides by the elements of {name}, which the network writes"
                raise UnsupportedError(
                    "the network", found, "choose by torch.where, or by a number of Python"
                )

    def _find(self, tensor: Tensor) -> _Known | None:
        """Return what is known of an operand."""
        first = next((each for _, each in self._held() if each is not None), None)
        if id(first) not in self.names:  # torch has put its own tensors into the model, perhaps seen before
            self.names = {id(each): name for name, each in self._held() if each is not None}
            self.other = {place: each for place, each in self.other.items() if place not in self.names}
        if id(tensor) in self.other:
            return None
        if id(tensor) in self.known:
            known = self.known[id(tensor)]
            return known if known.version == tensor._version else None
        name = self.names.get(id(tensor))
        own = tensor if name is None else self.state.get(name)
        if own is None or not _has_elements(own) or own.numel() > _MOST:
            self.other[id(tensor)] = tensor
            return None
        with _disable_current_modes():
            copied = own.detach().clone()
        if name is not None:
            self.first[name] = tensor, tensor._version
        found = _Known(tensor, tensor._version, copied, frozenset([name] if name else []))
        self.known[id(tensor)] = found
        return found

    def _held(self) -> Iterator[tuple[str, Tensor | None]]:
        """Yield the names of the model's parameters and buffers with what it holds there now."""
        return ((name, held.get(key)) for name, held, key in self.places)

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return what a call computes of elements; None if it draws random numbers."""
        given = pytree.tree_map_only(Tensor, lambda each: self.known[id(each)].elements, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            state = torch.get_rng_state()
            result = function(*given[0], **given[1])
            if torch.equal(torch.get_rng_state(), state):
                return result
            torch.set_rng_state(state)
        return None


def _has_elements(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"


def _asserted() -> bool | None:
    """Return the truth value without which the network's code raises an error; None if it does not."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return None
    rest = (each.opname for each in dis.get_instructions(frame.f_code) if each.offset >= frame.f_lasti)
    jump = next((name for name in rest if name != "TO_BOOL"), "")
    error = itertools.dropwhile(lambda name: name.startswith(_COMPUTING), rest)
    raises = "JUMP" in jump and next(error, "") == "RAISE_VARARGS"
    return jump.endswith("TRUE") if raises else None


# Instructions by which Python computes an error before it is raised.
_COMPUTING = ("LOAD_", "PUSH_", "CALL", "PRECALL", "KW_NAMES", "BUILD_", "FORMAT_", "CONVERT_", "BINARY_")
