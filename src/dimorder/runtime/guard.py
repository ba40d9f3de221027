"""Check a caller's tensors against a contract, and convert each to the tensor that the runtime reads.

ExecuTorch never checks the order of dimensions: a wrong order silently gives wrong numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.algebra.strides import NotDense, read
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.errors import ContractError, UsageError

OnMismatch = Literal["adapt", "error", "warn"]
_CHOICES = get_args(OnMismatch)


@dataclass(frozen=True)
class Adaptation:
    """One tensor that lay in another order than promised, and was copied; `cost_bytes` is its size."""

    value: str
    found: str
    promised: DimOrder
    cost_bytes: int

    def __str__(self) -> str:
        return f"{self.value}: {self.found} -> {describe(self.promised)}, {self.cost_bytes:,} bytes"


@dataclass(frozen=True)
class Checked:
    """Tensors that keep the contract, and the copies that were needed."""

    tensors: tuple[torch.Tensor, ...]
    conversions: tuple[Adaptation, ...]

    @property
    def cost_bytes(self) -> int:
        return sum(conversion.cost_bytes for conversion in self.conversions)


def check(
    contract: Contract,
    tensors: Sequence[torch.Tensor],
    on_mismatch: OnMismatch = "adapt",
    device: str | None = None,
) -> Checked:
    """Return the inputs as the program's own signature has them: canonical strides, and the boundary's shape.

    A tensor of an equivalent order is never copied. One that has another order or is not dense is copied
    ("adapt"), copied with a warning ("warn"), or refused ("error"). `device` is the type of the device that
    the program runs on, None for any. Raises `ContractError` if the number of tensors, a type, a size or a
    device is wrong.

    >>> x = TensorSpec("x", (2, 3, 5, 7), "float32", DimOrder(0, 2, 3, 1))
    >>> guarded = check(Contract((x,), ()), [torch.zeros(2, 3, 5, 7)])
    >>> guarded.tensors[0].stride()
    (105, 1, 21, 3)
    >>> print(guarded.conversions[0])
    x: NCHW (0, 1, 2, 3) -> NHWC (0, 2, 3, 1), 840 bytes
    """
    require_choice(on_mismatch)
    _check_count(contract.inputs, tensors, "input")
    sizes: dict[str, int] = {}
    for spec, tensor in zip(contract.inputs, tensors, strict=True):
        _check_kind(spec, tensor, device)
        check_shape(spec, tensor, contract.symbols, sizes)
    return _conform("input", contract.inputs, tensors, on_mismatch)


def restore(
    contract: Contract, tensors: Sequence[torch.Tensor], on_mismatch: OnMismatch = "adapt"
) -> Checked:
    """Return the outputs as logical tensors in the promised order, which needs a copy only if it is broken.

    >>> y = TensorSpec("y", (2, 3, 5), "float32", DimOrder(0, 2, 1))
    >>> guarded = restore(Contract((), (y,)), [torch.zeros(2, 5, 3)])
    >>> guarded.tensors[0].shape, guarded.tensors[0].stride(), guarded.conversions
    (torch.Size([2, 3, 5]), (15, 1, 3), ())
    """
    _check_count(contract.outputs, tensors, "output")
    logical = [spec.from_boundary(tensor) for spec, tensor in zip(contract.outputs, tensors, strict=True)]
    return _conform("output", contract.outputs, logical, on_mismatch)


def require_choice(on_mismatch: str) -> None:
    """Raise `UsageError` unless `on_mismatch` is "adapt", "error" or "warn"."""
    if not isinstance(on_mismatch, str) or on_mismatch not in _CHOICES:
        raise UsageError("on_mismatch", repr(on_mismatch), f"say one of {', '.join(_CHOICES)}")


def _conform(
    kind: Literal["input", "output"],
    specs: Sequence[TensorSpec],
    tensors: Sequence[torch.Tensor],
    on_mismatch: OnMismatch,
) -> Checked:
    conversions = []
    result = []
    for spec, given in zip(specs, tensors, strict=True):
        # A subclass that has its numbers in memory, such as a picture of torchvision, is read as a tensor.
        tensor = given.as_subclass(torch.Tensor).detach()
        canonical = spec.memory_order.strides(tensor.shape)
        found = _mismatch(spec, tensor, canonical)
        if found is None:
            tensor = tensor.as_strided(tensor.shape, canonical)
        else:
            fix = (
                _order_fix(spec, tensor)
                if kind == "input"
                else "lower the program again, or load it to adapt"
            )
            error = ContractError(
                f"{kind} {spec.name!r}, promised in {describe(spec.dim_order)}",
                f"{found}, shape {tuple(tensor.shape)}, strides {tensor.stride()}",
                fix,
            )
            if on_mismatch == "error":
                raise error
            if on_mismatch == "warn":
                warnings.warn(str(error), stacklevel=4)
            # torch.contiguous(memory_format=...) would leave ambiguous strides as they are.
            tensor = spec.dense_copy(tensor)
            conversions.append(Adaptation(spec.name, found, spec.dim_order, tensor.nbytes))
        result.append(spec.to_boundary(tensor) if kind == "input" else tensor)
    return Checked(tuple(result), tuple(conversions))


def _mismatch(spec: TensorSpec, tensor: torch.Tensor, canonical: tuple[int, ...]) -> str | None:
    """Return what the tensor is if its memory is not that of the promised order, else None."""
    if tensor.is_neg() or tensor.is_conj():
        return "lazily negated or conjugated"
    if tensor.stride() == canonical:
        return None
    found = read(tensor.shape, tensor.stride())
    if isinstance(found, NotDense):
        return str(found)
    if found == spec.dim_order.canonical(tensor.shape):
        return None
    named = (DimOrder.contiguous(tensor.dim()), DimOrder.channels_last(tensor.dim()))
    return describe(next((order for order in named if order.equivalent(found, tensor.shape)), found))


def _order_fix(spec: TensorSpec, tensor: torch.Tensor) -> str:
    """Return the line of code that brings a tensor into the promised order."""
    name, order = _variable(spec), spec.dim_order
    if tensor.is_neg() or tensor.is_conj():
        return f"{name} = {name}.resolve_conj().resolve_neg()"
    if order.is_contiguous:
        return f"{name} = {name}.contiguous()"
    if order == DimOrder.channels_last(4):
        return f"{name} = {name}.contiguous(memory_format=torch.channels_last)"
    return f"{name} = {name}.permute{order.dims}.contiguous().permute{order.inverse.dims}"


def _check_count(specs: Sequence[TensorSpec], tensors: Sequence[object], kind: str) -> None:
    if len(tensors) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        raise ContractError(
            f"the {kind}s of the program",
            f"{len(tensors)} where {len(specs)} are promised",
            f"pass exactly: {names or 'nothing'}" if kind == "input" else "lower the program again",
        )


def _check_kind(spec: TensorSpec, tensor: object, device: str | None) -> None:
    where, name = f"input {spec.name!r}", _variable(spec)
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor)
        found, fix = f"a {kind.__module__}.{kind.__name__}", f"{name} = torch.as_tensor({name})"
        if isinstance(tensor, (list, tuple, dict)):
            found, fix = f"a {kind.__name__}", "pass each tensor by itself, in the sequence of the contract"
        raise ContractError(where, found, fix)
    if tensor.is_nested:
        fix = f"{name} = torch.nested.to_padded_tensor({name}, 0.0)"
        raise ContractError(where, "a nested tensor, whose parts have sizes of their own", fix)
    if tensor.layout != torch.strided:
        raise ContractError(where, f"a tensor of layout {tensor.layout}", f"{name} = {name}.to_dense()")
    if device is not None and tensor.device.type != device:
        raise ContractError(
            where,
            f"a tensor on {tensor.device}, for a program that runs on {device}",
            f'{name} = {name}.to("{device}")',
        )
    if lacks := lacks_memory(tensor):
        raise ContractError(
            where, lacks, "pass a plain torch.Tensor, and call the program outside of torch.func"
        )
    dtype = getattr(torch, spec.dtype)
    if tensor.is_quantized:
        raise _quantised_error(spec, tensor)
    if tensor.dtype != dtype:
        promised = f"{dtype}{spec.type_name.removeprefix(spec.dtype)}"
        raise ContractError(where, f"{tensor.dtype}, where {promised} is promised", _type_fix(spec, tensor))


def lacks_memory(tensor: torch.Tensor) -> str:
    """Return why a tensor's numbers are not in memory of its own; "" if they are.

    >>> lacks_memory(torch.ones(2)), lacks_memory(torch.ones(0))
    ('', '')
    """
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"a {kind.__name__}, whose numbers only its own class can read"
    try:
        has_memory = tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:  # of torch.vmap, torch.func.grad and torch.func.jvp
        return "a tensor that torch.func transforms, which has no memory of its own"
    return "" if has_memory else "a tensor without memory (it was freed, or it stands for zeros)"


def _type_fix(spec: TensorSpec, tensor: torch.Tensor) -> str:
    """Return the line of code that brings a tensor to the promised type."""
    name, dtype = _variable(spec), getattr(torch, spec.dtype)
    if spec.scale is None:
        return f"{name} = {name}.to({dtype})"
    return _quantising(spec, name if tensor.is_floating_point() else f"{name}.float()")


def _quantising(spec: TensorSpec, value: str) -> str:
    low, high = spec.integer_range
    quanta = f"torch.round({value} / {spec.scale}) + {spec.zero_point}"
    return f"{_variable(spec)} = torch.clamp({quanta}, {low}, {high}).to(torch.{spec.dtype})"


def _quantised_error(spec: TensorSpec, tensor: torch.Tensor) -> ContractError:
    """Return the error for a tensor of torch's own quantised types, whose integers come with a scale."""
    where, name = f"input {spec.name!r}", _variable(spec)
    if tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric) or spec.scale is None:
        found = f"{tensor.dtype}, where torch.{spec.type_name} is promised"
        real = f"{name}.dequantize()"
        return ContractError(
            where, found, f"{name} = {real}" if spec.scale is None else _quantising(spec, real)
        )
    own = tensor.q_scale(), tensor.q_zero_point(), tensor.int_repr().dtype
    if own == (spec.scale, spec.zero_point, getattr(torch, spec.dtype)):
        return ContractError(
            where, f"{tensor.dtype}, whose integers are promised", f"{name} = {name}.int_repr()"
        )
    found = f"{tensor.dtype} of scale {own[0]:.6g}, zero point {own[1]}, where {spec.type_name} is promised"
    return ContractError(where, found, _quantising(spec, f"{name}.dequantize()"))


def check_shape(
    spec: TensorSpec, tensor: torch.Tensor, symbols: Sequence[Symbol], sizes: dict[str, int]
) -> None:
    """Check the sizes of a tensor; `sizes` collects each dynamic size over all inputs of a call."""
    where, shape = f"input {spec.name!r}", tuple(tensor.shape)
    fits = len(shape) == len(spec.shape) and all(
        isinstance(promised, str) or promised == size
        for promised, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        promised = f"({', '.join(map(str, spec.shape))})"
        raise ContractError(where, f"shape {shape}, where {promised} is promised", _shape_fix(spec, shape))
    ranges = {symbol.name: symbol for symbol in symbols}
    for dim, (symbol, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if not isinstance(symbol, str):
            continue
        if sizes.setdefault(symbol, size) != size:
            raise ContractError(
                where,
                f"size {size} in dim {dim}, where {symbol} is {sizes[symbol]} elsewhere in this call",
                f"pass inputs that agree on {symbol}",
            )
        limit = ranges.get(symbol, Symbol(symbol))
        if size < limit.minimum or (limit.maximum is not None and size > limit.maximum):
            raise ContractError(
                where,
                f"size {size} in dim {dim}, where {symbol} is from {limit.minimum} to {limit.maximum}",
                f"pass a size within that range, or lower the program for a wider {symbol}",
            )
        if size % limit.step:
            raise ContractError(
                where,
                f"size {size} in dim {dim}, where {symbol} is a multiple of {limit.step}",
                f"pad to {-(-size // limit.step) * limit.step}, or lower the program for other sizes",
            )


def _shape_fix(spec: TensorSpec, shape: tuple[int, ...]) -> str:
    """Return the line of code that fixes a missing batch dimension, or channels in the last dimension."""
    name, rank = _variable(spec), len(spec.shape)
    if (1, *shape) == spec.shape:
        return f"{name} = {name}.unsqueeze(0)"
    last = DimOrder.channels_last(rank)
    if len(shape) == rank and shape == last.physical_shape(spec.shape):
        return f"{name} = {name}.permute{last.inverse.dims}, if its channels are its last dimension"
    return f"pass a tensor of the shape ({', '.join(map(str, spec.shape))})"


def _variable(spec: TensorSpec) -> str:
    """Return the name of an input as a variable in a line of code."""
    return spec.name if spec.name.isascii() and spec.name.isidentifier() else "x"
