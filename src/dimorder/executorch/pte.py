"""Load a .pte of any tool, after checking the file as far as its bytes allow.

Its contract is the one inside the file, or else follows from the file's own tensor table.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from subprocess import CalledProcessError as FlatcError
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.contract_file import CONTRACT_METHOD, is_intact
from dimorder.errors import ContractError, UnsupportedError, UsageError, install_of
from dimorder.executorch.argument_checks import (
    DTYPES,
    require_arguments,
    require_constant_sizes,
    require_constants,
)
from dimorder.runtime.kernels import dangers, executorch_version

if TYPE_CHECKING:
    from dimorder.executorch.delegate_orders import Misread

# The errors of reading tables whose indices lead nowhere. The process of flatc reads delegates.
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, UsageError, FlatcError)
# Errors of runtime/core/error.h that say what a build or a device lacks: OperatorMissing, NotFound, and the
# three of memory. By all others the runtime or a backend refuses what it reads.
_LACKS = r"error: 0x:?(14|20|21|25|31)\b"
_LOADED: WeakSet[PteMethod] = WeakSet()  # their delegates use the pool of threads
_METHOD = "forward"  # the method that a program is called by


@dataclass(eq=False)
class PteMethod:
    """A method of an open program, which must live as long as the method."""

    method: Callable[..., Sequence[torch.Tensor]]
    program: Any
    # The lock is held until outputs are copied, since the next call overwrites them and a reset frees them.
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self._lock:
            return [_copy(x) for x in self.method(list(inputs), clone_outputs=False)]

    def reset(self) -> None:
        """Reset the state to the one in the file, which is not read again."""
        with self._lock:
            self.method = self.program.load_method(_METHOD)


def _copy(dense: torch.Tensor) -> torch.Tensor:
    """Return a copy, written by this thread alone.

    PyTorch copies a large tensor with its own threads. They wait for more work in a loop and so occupy a core
    that ExecuTorch's pool needs. That makes the next call of a small network up to twice as long.
    """
    copy = torch.empty_like(dense)
    ctypes.memmove(copy.data_ptr(), dense.data_ptr(), dense.nbytes)
    return copy


def method_of(data: bytes) -> PteMethod:
    """Return one of our programs as a function of tensors, with its own state.

    It is opened from a file, as on a device: ExecuTorch never frees data that it read from memory.
    """
    with _file_of(data) as path:
        return method_of_file(path)  # its pages stay mapped after the file is deleted


@contextmanager
def _file_of(data: bytes) -> Iterator[Path]:
    """Write a .pte to a temporary file."""
    with tempfile.TemporaryDirectory(prefix="dimorder-") as folder:
        path = Path(folder, "program.pte")
        path.write_bytes(data)
        yield path


def method_of_file(path: Path) -> PteMethod:
    """Return the program in a file as a function, as `method_of` does."""
    from executorch.extension.pybindings import _C

    program = _C._load_program(str(path))
    return PteMethod(program.load_method(_METHOD), program)


def load(path: str | os.PathLike[str]) -> tuple[Contract, PteMethod]:
    """Return the contract of a .pte, and its program as a function of tensors in its own shapes.

    Raises `UsageError` if the file does not exist. Raises `ContractError` if it is damaged, cut off or no
    .pte, or if the contract inside is not the program's. Raises `UnsupportedError` if the runtime is not
    installed, lacks something that the program needs, or has kernels that are not known. It is raised too if
    a program of any tool calls a kernel that is wrong for its orders (`runtime.kernels`).
    """
    file, native, tables = open_file(path)
    contract = contract_of(file, tables)
    _refuse_dangers(file, tables)
    require_constants(forward_plan(tables, f"loading {file}"), f"loading {file}")
    try:
        method = native.load_method(_METHOD)
    except RuntimeError as error:
        _require_backends(file, tables)
        found = f"ExecuTorch: {error}"
        if not re.search(_LACKS, str(error)):
            found += ": a part that is damaged, or that is for another version or processor"
            raise damage_error(f"loading {file}", found) from error
        raise UnsupportedError(
            f"loading {file}",
            found,
            "see the line that ExecuTorch logged before: this build lacks an operator, a backend or memory",
        ) from error
    loaded = PteMethod(method, native)
    _LOADED.add(loaded)
    return contract, loaded


def _require_backends(file: Path, tables: Any) -> None:
    """Refuse a program with a delegate whose backend this build of the runtime lacks."""
    from executorch.extension.pybindings import _C

    where = f"loading {file}"
    called = {delegate.id for delegate in forward_plan(tables, where).delegates}
    missing = sorted(called - set(_C._get_registered_backend_names()))
    if missing:
        raise UnsupportedError(
            where,
            f"it calls {', '.join(missing)}, which this build of ExecuTorch's runtime has not",
            "run it on the device it was lowered for; `dimorder check` reads it anywhere",
        )


def set_threads(count: int) -> None:
    """Set the number of threads of ExecuTorch's one pool, if no loaded program uses it with another."""
    from executorch.extension.pybindings import _C

    found = _C._threadpool_get_thread_count()
    if found == count:
        return
    if _LOADED:
        gc.collect()  # an error that a program raised keeps it alive in a cycle of frames
    if _LOADED:
        raise UsageError(
            f"{count} threads",
            f"a program with {found} is loaded in this process, and all share one pool",
            f"say threads={count} where the first is loaded, or load this one in another process",
        )
    _C._unsafe_reset_threadpool(count)


def read_contract(path: str | os.PathLike[str]) -> Contract:
    """Return the contract of a .pte without loading the network. Raises the errors of `load`."""
    file, _, tables = open_file(path)
    return contract_of(file, tables)


def open_file(path: str | os.PathLike[str]) -> tuple[Path, Any, Any]:
    """Check a file, open its program, which maps the file's pages, and read its tables.

    Raises the errors of `load`.
    """
    file = Path(path)
    where = f"loading {file}"
    try:
        with file.open("rb") as opened:
            empty = not os.fstat(opened.fileno()).st_size  # an empty file cannot be mapped
            with nullcontext(b"") if empty else mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
                _check_bytes(file, data)
                native, tables = _verified(file, data, where)
    except OSError as error:
        raise UsageError(where, str(error.strerror or error), "give the path of a .pte file") from error
    from dimorder.executorch.delegate_checks import require_delegates

    plan = forward_plan(tables, where)
    with consistent_tables(where):
        require_arguments(plan)
        require_constant_sizes(tables, plan)
        require_delegates(tables, plan, where)
    return file, native, tables


def _verified(file: Path, data: bytes | mmap, where: str) -> tuple[Any, Any]:
    """Return the open program of a file that the runtime has verified, and its tables."""
    try:
        # executorch.runtime would also import the exporter, which takes eight seconds.
        from executorch.extension.pybindings import _C

        from dimorder.executorch.program_tables import read_program
    except ImportError as error:
        found = f"no ExecuTorch runtime ({error})"
        raise UnsupportedError(where, found, install_of("executorch")) from error
    try:
        verified = _C.Verification.InternalConsistency  # an inconsistent file may crash the runtime
        native = _C._load_program(str(file), program_verification=verified)
    except (RuntimeError, UnicodeDecodeError, MemoryError) as error:
        raise damage_error(where, f"ExecuTorch: {error}") from error
    with consistent_tables(where):
        return native, read_program(data)


def _check_bytes(file: Path, data: bytes | mmap) -> None:
    """Refuse a file whose damage shows without the runtime; exir's _ExtendedHeader defines the header."""
    if not re.fullmatch(rb"ET\d\d", data[4:8]):
        error = damage_error(
            f"loading {file}", f"{len(data)} bytes that do not begin as a .pte does (ET12 at byte 4)"
        )
        if file.suffix == ".pte":
            raise error
        raise ContractError(
            error.where,
            error.found,
            "give a .pte; dimorder.load and dimorder run also take a .tflite, .tosa or .pt2 of dimorder's",
        )
    if data[8:12] == b"eh00":
        program, segments_at, segments = (int.from_bytes(data[at : at + 8], "little") for at in (16, 24, 32))
        if int.from_bytes(data[12:16], "little") <= 24:  # of an ExecuTorch that did not write the last number
            segments = 0
        whole = max(32, program, segments_at + segments)
        if len(data) < whole:
            raise damage_error(f"loading {file}", f"{len(data)} bytes of {whole}: it is cut off")
    if is_intact(data) is False:
        raise damage_error(
            f"loading {file}", "bytes other than those that were written (their SHA-256 differs)"
        )


def damage_error(where: str, found: str) -> ContractError:
    """Return the error for a file whose bytes are not those that were written."""
    return ContractError(where, found, "lower the program again, or copy the file again")


@contextmanager
def consistent_tables(where: str) -> Iterator[None]:
    """Raise the errors of reading tables that contradict each other as one `ContractError`.

    >>> with consistent_tables("loading net.pte"):
    ...     [][3]
    Traceback (most recent call last):
    dimorder.errors.ContractError: loading net.pte
      found: tables that contradict each other (IndexError: list index out of range)
      fix: lower the program again, or copy the file again
    """
    try:
        yield
    except _DAMAGE as error:
        said = error.found if isinstance(error, UsageError) else error
        found = f"tables that contradict each other ({type(error).__name__}: {said})"
        raise damage_error(where, found) from error


def contract_of(file: Path, tables: Any) -> Contract:
    """Return the contract of a program. Raises `ContractError` if one inside it is not that program's."""
    embedded = _embedded_contract(tables)
    if embedded is None:
        return _foreign_contract(file, tables)
    where = f"loading {file}"
    with consistent_tables(where):
        text = embedded.values[embedded.outputs[0]].val.string_val
    contract, plan = Contract.from_json(text), forward_plan(tables, where)
    if (len(plan.inputs), len(plan.outputs)) != (len(contract.inputs), len(contract.outputs)):
        found = "a contract of another number of inputs or outputs than the program has"
        raise damage_error(where, found)
    for kind, specs, indices in (
        ("input", contract.inputs, plan.inputs),
        ("output", contract.outputs, plan.outputs),
    ):
        for place, (spec, index) in enumerate(zip(specs, indices, strict=True)):
            with consistent_tables(where):
                why = _difference(plan.values[index].val, spec, contract)
            if why:
                found = f"a contract that is not the program's: for {kind} {place} that has {why}"
                raise damage_error(where, found)
    return contract


def _difference(own: Any, spec: TensorSpec, contract: Contract) -> str:
    """Return why a tensor of the program is not what the contract promises; "" if it is."""
    if type(own).__name__ != "Tensor":
        return "no tensor"
    if DTYPES.get(own.scalar_type.name) != spec.dtype:
        return "another type"
    if {len(own.sizes), len(own.dim_order)} != {len(spec.shape)}:
        return "another number of dimensions"
    symbols = {symbol.name: symbol for symbol in contract.symbols}
    for size, planned in zip(spec.boundary_shape, own.sizes, strict=True):
        if isinstance(size, int) and size != planned:
            return "other sizes"
        if size in symbols and (symbols[size].maximum or 0) > planned:
            return "a smaller largest size"  # the program has the largest size that it was planned for
    order = DimOrder(*own.dim_order)
    return "" if order.equivalent(spec.boundary_order, own.sizes) else "another order"


def _foreign_contract(file: Path, tables: Any) -> Contract:
    """Return the contract in the tensor table of a .pte: ExecuTorch stores orders, unchecked."""
    where, symbols = f"loading {file}", list[Symbol]()
    plan = forward_plan(tables, where)
    with consistent_tables(where):
        inputs = tuple(
            _spec(file, f"input{i}", plan.values[v].val, symbols) for i, v in enumerate(plan.inputs)
        )
        outputs = tuple(_spec(file, f"output{i}", plan.values[v].val, []) for i, v in enumerate(plan.outputs))
        return Contract(inputs, outputs, tuple(symbols))


def _refuse_dangers(file: Path, tables: Any) -> None:
    """Refuse a program that calls kernels in wrong orders, which no guard at the inputs can repair."""
    where = f"loading {file}"
    with consistent_tables(where):
        plan = forward_plan(tables, where)
        inside = [call for call, verdict in misread_in_delegates(tables, plan, where) if verdict == "wrong"]
        found = [*dangers(plan, executorch_version()), *inside]
    if found:
        first, more = found[0], f" (and {len(found) - 1} more such calls)" if len(found) > 1 else ""
        raise UnsupportedError(
            where,
            f"it calls {first.operator} in {first.orders}{more}: that kernel returns wrong numbers, silently",
            "lower it again with canonicalize(program), and with transform_passes=[legalize] or "
            "partitioner=[guarded(XnnpackPartitioner(), XNNPACK)], all of dimorder.executorch; "
            "`dimorder check` lists every such call",
        )


def misread_in_delegates(tables: Any, plan: Any, where: str) -> list[Misread]:
    """Return the calls inside delegates of other tools that give wrong numbers, or that fail."""
    from dimorder.executorch.delegate_orders import misread_calls

    return [] if _embedded_contract(tables) else misread_calls(tables, plan, where)


def _embedded_contract(tables: Any) -> Any:
    """Return the method that returns a program's contract; None in a program of another tool."""
    return next((plan for plan in tables.execution_plan if plan.name == CONTRACT_METHOD), None)


def read_tables(data: bytes, where: str) -> Any:
    """Return the tables of the bytes of a .pte, which the runtime verifies in a file, as in `method_of`."""
    with _file_of(data) as file:
        return read_tables_of(file, data, where)


def read_tables_of(file: Path, data: bytes, where: str) -> Any:
    """Return the tables of a .pte, of which `data` are the bytes."""
    return _verified(file, data, where)[1]


def forward_plan(tables: Any, where: str) -> Any:
    """Return the plan of the method `forward`, by which a program is called."""
    plans = {plan.name: plan for plan in tables.execution_plan or ()}
    if _METHOD not in plans:
        fix = f"export a program with the method {_METHOD!r}"
        raise UnsupportedError(where, f"the methods {sorted(map(str, plans))}", fix)
    plan = plans[_METHOD]
    with consistent_tables(where):
        names = {*(each.name for each in plan.operators), *(each.id for each in plan.delegates)}
        names |= {spec.key for each in plan.delegates for spec in each.compile_specs}
    if None in names:
        raise damage_error(where, "an operator, a delegate or a compile spec without a name")
    return plan


def _spec(file: Path, name: str, value: Any, symbols: list[Symbol]) -> TensorSpec:
    """Return the spec of one tensor of a foreign program; a size that is an upper bound becomes a symbol."""
    if type(value).__name__ != "Tensor":
        raise UnsupportedError(
            f"loading {file}",
            f"{name} is no tensor but {type(value).__name__}",
            "export it with tensors alone",
        )
    shape: list[int | str] = list(value.sizes)
    if value.shape_dynamism.name != "STATIC":
        symbols += [Symbol(f"{name}_size{dim}", 0, size) for dim, size in enumerate(value.sizes)]
        shape = [f"{name}_size{dim}" for dim in range(len(shape))]
    dtype = DTYPES.get(value.scalar_type.name)
    if dtype is None:
        raise UnsupportedError(
            f"loading {file}",
            f"{name} is of type {value.scalar_type.name}",
            f"use one of {', '.join(DTYPES.values())}",
        )
    # The file has the logical shape in every order, so the boundary is logical.
    return TensorSpec(name, tuple(shape), dtype, DimOrder(*value.dim_order), "logical")
