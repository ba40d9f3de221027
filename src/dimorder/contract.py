"""Define what a lowered program promises at its inputs and outputs, and write it as JSON.

`contract_file` embeds it in a file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.errors import ContractError, UsageError
from dimorder.text import columns, shape_text

Size = int | str
Boundary = Literal["logical", "physical"]
Memory = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]  # type, shape and strides

FORMAT = "dimorder.contract"
VERSION = 1
_INTEGERS = ("int8", "uint8", "int16")  # types that may stand for real numbers


def range_of(dtype: torch.dtype) -> tuple[int, int]:
    """Return the least and the largest integer of a type that may stand for numbers, for int16 symmetric.

    >>> range_of(torch.int8), range_of(torch.int16)
    ((-128, 127), (-32767, 32767))
    """
    limits = torch.iinfo(dtype)
    return limits.min + (dtype == torch.int16), limits.max


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a program: its logical shape, type and promised order.

    Numbers may be quantised: an integer then stands for (integer − `zero_point`) · `scale`.

    Attributes:
        name: The name of the tensor.
        shape: The logical sizes; a str is a dynamic size.
        dtype: The name of a torch dtype, such as "float32".
        dim_order: The promised order.
        boundary: How the program's own signature shows the tensor. "logical" is `shape`, with its memory in
            `dim_order`. "physical" is the dense row-major tensor of shape `dim_order.physical_shape(shape)`.
            The default is logical if the order is contiguous or 4-D channels-last for this shape, else
            physical. The Python runtime of ExecuTorch 1.5 accepts no other orders.
        scale: The step between quantised values; None if numbers stand for themselves.
        zero_point: The integer that stands for 0.

    Raises:
        UsageError: if a field is invalid, or if the fields contradict each other.

    >>> spec = TensorSpec("x", (2, 3, 5), "float32", DimOrder(0, 2, 1))
    >>> spec.boundary, spec.boundary_shape
    ('physical', (2, 5, 3))
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    dim_order: DimOrder
    boundary: Boundary | None = None
    scale: float | None = None
    zero_point: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        _require(bool(self.name) and isinstance(self.name, str), "a tensor", f"name {self.name!r}", "name it")
        where, rank = f"tensor {self.name!r}", len(self.shape)
        for size in self.shape:
            _require(
                bool(size) if isinstance(size, str) else isinstance(size, int) and size >= 0,
                where,
                f"shape {self.shape}, in which {size!r} is no size",
                "give each size as an int from 0 on, or as the name of a symbol",
            )
        is_type = isinstance(getattr(torch, self.dtype, None), torch.dtype)
        _require(is_type, where, f"dtype {self.dtype!r}", "name a torch dtype, such as float32")
        fits = isinstance(self.dim_order, DimOrder) and len(self.dim_order) == rank
        found = f"dim order {self.dim_order} for shape {self.shape}"
        _require(fits, where, found, f"give a DimOrder of {rank} dims")
        if self.boundary is None:
            object.__setattr__(self, "boundary", "physical" if self._named_order is None else "logical")
        is_boundary = self.boundary in ("logical", "physical")
        _require(is_boundary, where, f"boundary {self.boundary!r}", "say logical or physical")
        if self.scale is None:
            _require(not self.zero_point, where, "a zero point without a scale", "give both")
            return
        object.__setattr__(self, "scale", float(self.scale))
        is_integer = self.dtype in _INTEGERS
        _require(is_integer, where, f"a scale, of {self.dtype}", f"quantise to {' or '.join(_INTEGERS)}")
        least, most = self.integer_range
        _require(
            0 < self.scale < math.inf and least <= self.zero_point <= most,
            where,
            f"scale {self.scale}, zero point {self.zero_point} in {self.dtype}",
            f"give a positive scale, and a zero point from {least} to {most}",
        )

    @property
    def integer_range(self) -> tuple[int, int]:
        """Return the least and the largest integer of the type."""
        return range_of(getattr(torch, self.dtype))

    def quantized(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of numbers as the integers that stand for them; unchanged if there is no scale.

        >>> spec = TensorSpec("x", (2,), "uint8", DimOrder(0), scale=0.5, zero_point=127)
        >>> spec.quantized(torch.tensor([1.0, -90.0])), spec.real(spec.quantized(torch.tensor([1.0, -90.0])))
        (tensor([129,   0], dtype=torch.uint8), tensor([  1.0000, -63.5000]))
        """
        if self.scale is None:
            return tensor
        quanta = (tensor * (1 / self.scale)).round().add(self.zero_point).nan_to_num(nan=self.zero_point)
        return quanta.clamp(*self.integer_range).to(getattr(torch, self.dtype))

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the numbers that integers stand for here."""
        return tensor if self.scale is None else (tensor.float() - self.zero_point) * self.scale

    @property
    def boundary_shape(self) -> tuple[Size, ...]:
        """Return the shape that the program's own signature shows."""
        return self.dim_order.physical_shape(self.shape) if self.boundary == "physical" else self.shape

    @staticmethod
    def row_major(name: str, tensor: torch.Tensor) -> TensorSpec:
        """Return the spec of tensors like this one, dense and row-major. A dynamic size is its expression.

        >>> TensorSpec.row_major("x", torch.zeros(2, 3)).dim_order
        DimOrder(0, 1)
        """
        shape = (size if isinstance(size, int) else str(size) for size in tensor.shape)
        return TensorSpec(name, tuple(shape), str(tensor.dtype), DimOrder.contiguous(tensor.dim()))

    @cached_property
    def boundary_order(self) -> DimOrder:
        """Return the dim order that the program's own signature shows, over `boundary_shape`.

        It is contiguous wherever it can be. With C = 1 or H = W = 1, NHWC and NCHW are the same memory.
        ExecuTorch's Python runtime then labels a tensor contiguous, whatever its strides. A program that was
        exported with another label fails (upstream #19153, #22520).

        >>> TensorSpec("x", (2, 1, 5, 7), "float32", DimOrder(0, 2, 3, 1)).boundary_order
        DimOrder(0, 1, 2, 3)
        """
        if self.boundary == "physical":
            return DimOrder.contiguous(len(self.shape))
        return self._named_order or self.dim_order

    def memory_of(self, sizes: tuple[int, ...]) -> Memory:
        """Return the type, shape and strides of the tensor that the program reads, for these sizes."""
        return getattr(torch, self.dtype), sizes, self.memory_order.strides(sizes)

    @property
    def memory_order(self) -> DimOrder:
        """Return the order of the dense tensor at the boundary, over the logical dimensions."""
        return self.dim_order if self.boundary == "physical" else self.boundary_order

    def dense_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a logical tensor, dense in `memory_order`, with canonical strides."""
        strides = self.memory_order.strides(tensor.shape)
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor)

    def to_boundary(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a logical tensor as the program's own signature shows it."""
        return tensor.permute(self.dim_order.dims) if self.boundary == "physical" else tensor

    def from_boundary(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the program's own signature as a logical one.

        >>> TensorSpec("y", (2, 3, 5), "float32", DimOrder(0, 2, 1)).from_boundary(torch.zeros(2, 5, 3)).shape
        torch.Size([2, 3, 5])
        """
        return tensor.permute(self.dim_order.inverse.dims) if self.boundary == "physical" else tensor

    @property
    def _named_order(self) -> DimOrder | None:
        # Not looked up per installed version: it says how a file's own signature is read, years after the
        # file was lowered. tests/executorch/test_boundaries.py checks that the truth table agrees.
        rank = len(self.shape)
        named = (DimOrder.contiguous(rank), *([DimOrder.channels_last(rank)] if rank == 4 else []))
        return next((order for order in named if order.equivalent(self.dim_order, self.shape)), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "dim_order": list(self.dim_order),
            "order": self.dim_order.name,
            "boundary": self.boundary,
            **({} if self.scale is None else {"scale": self.scale, "zero_point": self.zero_point}),
        }

    @property
    def type_name(self) -> str:
        """Return the type with the scale of its integers: `int8, scale 0.021, zero point -3`."""
        if self.scale is None:
            return self.dtype
        return f"{self.dtype}, scale {self.scale:.6g}, zero point {self.zero_point}"


@dataclass(frozen=True)
class Symbol:
    """The range of a dynamic size.

    Attributes:
        name: An identifier.
        minimum: The least size.
        maximum: The largest size; None is unbounded.
        step: All sizes are multiples of it, and so are both ends.

    Raises:
        UsageError: if the name is not an identifier, or the range is empty or does not fit the step.

    >>> str(Symbol("N", 1, 16)), str(Symbol("H", 64, 256, 32))
    ('N = 1 … 16', 'H = 64 … 256 in steps of 32')
    """

    name: str
    minimum: int = 0
    maximum: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        ends = (self.minimum, self.minimum if self.maximum is None else self.maximum)
        numbers = (*ends, self.step)
        valid = all(isinstance(each, int) for each in numbers) and 0 <= ends[0] <= ends[1] and self.step > 0
        _require(
            valid and isinstance(self.name, str) and self.name.isidentifier(),
            f"symbol {self.name!r}",
            f"range {self.minimum} to {self.maximum}",
            "give an identifier and 0 <= minimum <= maximum",
        )
        _require(
            not any(end % self.step for end in ends),
            f"symbol {self.name!r}",
            f"range {self.minimum} to {self.maximum} in steps of {self.step}",
            f"give multiples of {self.step} for both ends",
        )

    def to_dict(self) -> dict[str, Any]:
        step = {} if self.step == 1 else {"step": self.step}
        return {"name": self.name, "minimum": self.minimum, "maximum": self.maximum, **step}

    def __str__(self) -> str:
        end = "" if self.maximum is None else f" {self.maximum}"
        steps = "" if self.step == 1 else f" in steps of {self.step}"
        return f"{self.name} = {self.minimum} …{end}{steps}"


@dataclass(frozen=True)
class StateSpec:
    """One buffer that a program keeps from call to call, with its order between two calls, in words."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    order: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype, "order": self.order}


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs that a program promises, in the order of its signature.

    Attributes:
        inputs: The inputs. Their dynamic sizes are plain names.
        outputs: The outputs. Their dynamic sizes may be computed from others, such as "2*n".
        symbols: The ranges of the dynamic sizes.
        state: The buffers that the program keeps from call to call.

    Raises:
        UsageError: if two inputs or two outputs have one name, or if an input has a computed size.

    >>> x = TensorSpec("x", ("n", 3, 224, 224), "float32", DimOrder(0, 2, 3, 1))
    >>> y = TensorSpec("y", ("n", 1000), "float32", DimOrder(0, 1))
    >>> contract = Contract((x,), (y,), (Symbol("n", 1, 8),))
    >>> print(contract)
    input   x  n x 3 x 224 x 224  float32  NHWC (0, 2, 3, 1)
    output  y  n x 1000           float32  NC (0, 1)
    >>> Contract.from_json(contract.to_json()) == contract
    True
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()
    state: tuple[StateSpec, ...] = ()

    def __post_init__(self) -> None:
        for field in ("inputs", "outputs", "symbols", "state"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
            names = [item.name for item in getattr(self, field)]
            twice = sorted({name for name in names if names.count(name) > 1})
            _require(
                not twice, f"the {field} of a contract", f"{twice} more than once", "give each its own name"
            )
        for spec in self.inputs:
            odd = [size for size in spec.shape if isinstance(size, str) and not size.isidentifier()]
            _require(
                not odd,
                f"input {spec.name!r}",
                f"computed sizes {odd}",
                "export with a symbol of its own for each size",
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "symbols": [symbol.to_dict() for symbol in self.symbols],
            **({"state": [spec.to_dict() for spec in self.state]} if self.state else {}),
        }

    def to_json(self) -> str:
        """Return the contract as one line of JSON; equal contracts have equal texts."""
        return json.dumps(self.to_dict(), ensure_ascii=True)

    @staticmethod
    def from_json(text: str) -> Contract:
        """Return the contract that `to_json` wrote; raises `ContractError` for any other text."""
        where, fix = "the contract of a program", "lower the program again"
        try:
            data = json.loads(text)
            kind, version = data["format"], data["version"]
        except (ValueError, TypeError, KeyError) as error:
            raise ContractError(where, f"no JSON of the format {FORMAT} ({error!r})", fix) from error
        if kind != FORMAT or version != VERSION:
            raise ContractError(
                where,
                f"format {kind!r}, version {version!r}, where {FORMAT!r}, version {VERSION} was expected",
                "run it with the dimorder that lowered it, or lower it again",
            )
        try:
            return Contract(
                tuple(_spec(item) for item in data["inputs"]),
                tuple(_spec(item) for item in data["outputs"]),
                tuple(
                    Symbol(item["name"], item["minimum"], item["maximum"], item.get("step", 1))
                    for item in data["symbols"]
                ),
                tuple(
                    StateSpec(item["name"], tuple(item["shape"]), item["dtype"], item["order"])
                    for item in data.get("state", ())
                ),
            )
        except UsageError as error:
            raise ContractError(where, f"{error.where}: {error.found}", fix) from error
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            found = f"an entry that is missing or of a wrong type ({error!r})"
            raise ContractError(where, found, fix) from error

    def rows(self, times: str = " x ") -> list[tuple[str, str, str, str, str]]:
        """Return the kind, name, shape, type and order of each input, output and buffer, for a table."""
        sides = [("input", spec) for spec in self.inputs] + [("output", spec) for spec in self.outputs]
        rows = [(kind, x, x.type_name, describe(x.dim_order)) for kind, x in sides]
        return [
            *((kind, x.name, shape_text(x.shape, times), dtype, order) for kind, x, dtype, order in rows),
            *(("state", x.name, shape_text(x.shape, times), x.dtype, x.order) for x in self.state),
        ]

    def __str__(self) -> str:
        return "\n".join(columns(self.rows()))


def _spec(item: dict[str, Any]) -> TensorSpec:
    order = DimOrder(*item["dim_order"])
    quantised = item.get("scale"), item.get("zero_point", 0)
    return TensorSpec(item["name"], tuple(item["shape"]), item["dtype"], order, item["boundary"], *quantised)


def _require(holds: bool, where: str, found: str, fix: str) -> None:
    if not holds:
        raise UsageError(where, found, fix)
