"""Check and restore tensors whose memory is exactly as a contract promises, as fast as Python can.

All other tensors are left to `guard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dimorder.contract import Contract, Memory, TensorSpec
from dimorder.errors import ContractError
from dimorder.runtime.guard import check_shape

_Expected = tuple[Memory, tuple[int, ...] | None]  # how a tensor lies, and the dims to permute it to
_Quick = Callable[[Sequence[object]], list[torch.Tensor] | None]
_REMEMBERED = 64  # sets of dynamic sizes


def quick_check(contract: Contract) -> _Quick:
    """Return a fast `check` on the CPU, for inputs that lie as the program reads them; None for all others.

    The network has emptied the processor's caches, so it reads no more than it must. Dynamic sizes that an
    earlier call had are not compared with their ranges again.
    """

    def expected(shapes: Sequence[tuple[int, ...]]) -> list[_Expected]:
        return [
            (spec.memory_of(shape), spec.dim_order.dims if spec.boundary == "physical" else None)
            for spec, shape in zip(contract.inputs, shapes, strict=True)
        ]

    def require(tensors: Sequence[torch.Tensor]) -> None:
        sizes: dict[str, int] = {}
        for spec, tensor in zip(contract.inputs, tensors, strict=True):
            check_shape(spec, tensor, contract.symbols, sizes)

    return _of_sizes([spec.shape for spec in contract.inputs], expected, require)


def quick_restore(contract: Contract) -> _Quick:
    """Return a fast `restore` for outputs that keep the promise exactly; it returns None for all others."""

    def expected(shapes: Sequence[tuple[int, ...]]) -> list[_Expected]:
        return [_raw(spec, shape) for spec, shape in zip(contract.outputs, shapes, strict=True)]

    raw = [spec.boundary_shape for spec in contract.outputs]
    return _of_sizes(raw, expected, lambda tensors: None)


def _raw(spec: TensorSpec, shape: tuple[int, ...]) -> _Expected:
    """Return how an output lies as the program returns it, and the dims that make it logical."""
    if spec.boundary == "logical":
        return spec.memory_of(shape), None
    order, back = spec.dim_order, spec.dim_order.inverse
    dtype, logical, steps = spec.memory_of(back.physical_shape(shape))
    return (dtype, order.physical_shape(logical), order.physical_shape(steps)), back.dims


def _of_sizes(
    shapes: Sequence[Sequence[int | str]],
    expected: Callable[[Sequence[tuple[int, ...]]], list[_Expected]],
    require: Callable[[Sequence[torch.Tensor]], None],
) -> _Quick:
    """Return a quick check of tensors with these shapes; `require` accepts values of dynamic sizes."""
    fixed = [tuple(size for size in shape if isinstance(size, int)) for shape in shapes]
    ranks = [len(shape) for shape in shapes]
    if [len(shape) for shape in fixed] == ranks:
        return _quick(expected(fixed))
    known: dict[tuple[tuple[int, ...], ...], _Quick] = {}

    def take(tensors: Sequence[object]) -> list[torch.Tensor] | None:
        given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        if len(given) != len(tensors) or [tensor.dim() for tensor in given] != ranks:
            return None
        sizes = tuple([tensor.shape for tensor in given])
        if sizes not in known:
            try:
                require(given)
            except ContractError:
                return None
            if len(known) == _REMEMBERED:
                known.clear()
            known[sizes] = _quick(expected(sizes))
        return known[sizes](given)

    return take


def _quick(expected: Sequence[_Expected]) -> _Quick:
    """Return a function that accepts tensors with the expected memory, and permutes those that have dims."""

    def take(tensors: Sequence[object]) -> list[torch.Tensor] | None:
        if len(tensors) != len(expected):
            return None
        taken = []
        for tensor, (memory, dims) in zip(tensors, expected, strict=True):
            if (
                type(tensor) is not torch.Tensor
                or tensor.layout is not torch.strided
                or (tensor.dtype, tensor.shape, tensor.stride()) != memory
                or not tensor.is_cpu
                or tensor.is_neg()
                or tensor.is_conj()
                or (not tensor.data_ptr() and tensor.numel())
            ):
                return None
            if tensor.requires_grad:
                tensor = tensor.detach()
            taken.append(tensor if dims is None else tensor.permute(dims))
        return taken

    return take
