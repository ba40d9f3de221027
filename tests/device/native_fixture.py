"""Build tests/device/native with cmake, and call it: the guard of C and C++ as Python objects.

A test that asks for it is skipped, with the reason, where cmake, a compiler or ExecuTorch is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dimorder.cmake import PACKAGE, executorch_package
from dimorder.contract import Contract
from dimorder.contract_file import contract_lines
from dimorder.errors import UnsupportedError

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("native")
OK, OTHER_ORDER, REFUSED, DAMAGED = range(4)  # dimorder_status
MODES = ("adapt", "error", "warn")
# The numbers that ExecuTorch's ScalarType gives types: those that a contract may have, then others.
DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
}
_TYPES = {number: dtype for dtype, number in DTYPES.items()}
_RANK = 64


class View(ctypes.Structure):
    """A tensor as native/view.h declares it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * _RANK),
        ("strides", ctypes.c_int64 * _RANK),
    ]


def views(tensors: Sequence[torch.Tensor]) -> Any:
    """Return the tensors as an array of views, which the tensors must outlive."""
    array = (View * len(tensors))()
    for view, tensor in zip(array, tensors, strict=True):
        view.data, view.dtype, view.rank = tensor.data_ptr() or None, DTYPES[tensor.dtype], tensor.dim()
        view.sizes[: tensor.dim()] = tensor.shape
        view.strides[: tensor.dim()] = tensor.stride()
    return array


def built(target: str, *, sanitized: bool = False) -> Path:
    """Build one target of tests/device/native, and return its folder; skip where none can be built."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    try:
        executorch = executorch_package()
    except UnsupportedError as error:
        pytest.skip(error.found)
    return _built(target, sanitized, executorch)


@functools.cache
def _built(target: str, sanitized: bool, executorch: Path) -> Path:
    folder = ROOT / "build" / "device" / ("sanitized" if sanitized else "native")
    folder.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", SOURCE, "-B", folder, f"-Ddimorder_DIR={PACKAGE}"]
    configure += [f"-Dexecutorch_DIR={executorch}", f"-DDIMORDER_SANITIZE={'ON' if sanitized else 'OFF'}"]
    with (folder / ".lock").open("w") as lock:  # several processes of pytest may build at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", folder, "--target", target, "-j2"]):
            done = subprocess.run(command, capture_output=True, text=True, env=_environment())
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


def _environment() -> dict[str, str]:
    """Without flags of the caller's that would build something else."""
    return {name: value for name, value in os.environ.items() if name not in ("CFLAGS", "CXXFLAGS")}


class NativeContract:
    """contract.h, compiled as C99."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(built("contract_native") / "libcontract_native.so"))
        self._library.contract_find.restype = ctypes.c_size_t

    def parse(self, lines: str | bytes) -> tuple[int, str]:
        """Return the verdict on a text, and the message."""
        text, why = _encoded(lines), ctypes.create_string_buffer(1 << 16)
        status = self._library.contract_parse(text, _size(text), why, _size(why.raw))
        return status, why.value.decode()

    def check(self, lines: str | bytes, tensors: Sequence[torch.Tensor]) -> tuple[int, str]:
        """Return the verdict on the tensors of a call, and the message."""
        text, why = _encoded(lines), ctypes.create_string_buffer(1 << 16)
        count = ctypes.c_size_t(len(tensors))
        status = self._library.contract_check(text, _size(text), views(tensors), count, why, _size(why.raw))
        return status, why.value.decode()

    def memory_order(self, contract: Contract, index: int) -> tuple[int, ...]:
        """Return the order of the dense tensor that the program reads."""
        text, order = _encoded(contract_lines(contract)), (ctypes.c_int * _RANK)()
        self._library.contract_memory_order(text, _size(text), index, order)
        return tuple(order[: len(contract.inputs[index].shape)])

    def quantize(self, contract: Contract, numbers: torch.Tensor) -> torch.Tensor:
        """Return the integers that stand for float32 numbers in the first input."""
        to = torch.empty(numbers.shape, dtype=getattr(torch, contract.inputs[0].dtype))
        return self._convert("contract_quantize", contract, numbers, to)

    def dequantize(self, contract: Contract, integers: torch.Tensor) -> torch.Tensor:
        """Return the numbers that integers of the first input stand for."""
        return self._convert("contract_dequantize", contract, integers, torch.empty(integers.shape))

    def find(self, pte: bytes) -> bytes | None:
        """Return the contract's lines in a .pte."""
        length = ctypes.c_size_t()
        place = self._library.contract_find(pte, _size(pte), ctypes.byref(length))
        return None if place == ctypes.c_size_t(-1).value else pte[place : place + length.value]

    def _convert(self, name: str, contract: Contract, tensor: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        text = _encoded(contract_lines(contract))
        addresses = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(to.data_ptr())
        convert, count = getattr(self._library, name), ctypes.c_size_t(tensor.numel())
        if status := convert(text, _size(text), 0, addresses[0], count, addresses[1]):
            raise NativeError(status, f"{name} refused the input")
        return to


@dataclass(frozen=True)
class NativeStats:
    """dimorder::Stats."""

    calls: int
    conversions: int
    cost_bytes: int
    last_conversions: int
    last_cost_bytes: int


class NativeError(Exception):
    """An error of a native Program: the text is its three lines, `code` is ExecuTorch's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NativeProgram:
    """dimorder::Program with one file open. Raises `NativeError` where it does not open."""

    def __init__(
        self, path: Path, on_mismatch: str = "adapt", *, loading: str = "mmap", check_seal: bool = False
    ) -> None:
        library = self._library = _guard_library()
        mode, loader = MODES.index(on_mismatch), ("mmap", "file").index(loading)
        self._guard = ctypes.c_void_p(library.guard_open(os.fsencode(path), mode, loader, int(check_seal)))
        if code := library.guard_opened(self._guard):
            raise NativeError(code, self.message)

    def __del__(self) -> None:
        self._library.guard_close(self._guard)

    def run(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return copies of the outputs, with their strides."""
        return self.run_views(views(tensors))

    def run_views(self, given: Any) -> tuple[torch.Tensor, ...]:
        if code := self._library.guard_run(self._guard, given, ctypes.c_size_t(len(given))):
            raise NativeError(code, self.message)
        return tuple(self._output(i) for i in range(self._library.guard_outputs(self._guard)))

    def feed_back(self, *tensors: torch.Tensor, fed: int, times: int) -> tuple[torch.Tensor, ...]:
        """Run so many times, each time with the first output, where it lies, as input `fed`."""
        given = views(tensors)
        if code := self._library.guard_feed_back(
            self._guard, given, ctypes.c_size_t(len(given)), ctypes.c_size_t(fed), times
        ):
            raise NativeError(code, self.message)
        return tuple(self._output(i) for i in range(self._library.guard_outputs(self._guard)))

    def output_view(self, index: int) -> View:
        """Return an output of the latest call where it lies."""
        view = View()
        self._library.guard_output(self._guard, ctypes.c_size_t(index), ctypes.byref(view))
        return view

    def _output(self, index: int) -> torch.Tensor:
        view = self.output_view(index)
        sizes, strides = tuple(view.sizes[: view.rank]), tuple(view.strides[: view.rank])
        copy = torch.empty_strided(sizes, strides, dtype=_TYPES[view.dtype])
        assert copy.numel() == 0 or copy.untyped_storage().nbytes() == copy.nbytes, (
            "an output that is not dense"
        )
        ctypes.memmove(copy.data_ptr(), view.data, copy.nbytes)
        return copy

    def reset(self) -> None:
        if code := self._library.guard_reset(self._guard):
            raise NativeError(code, self.message)

    @property
    def message(self) -> str:
        return str(self._library.guard_message(self._guard).decode())

    @property
    def has_contract(self) -> bool:
        return bool(self._library.guard_has_contract(self._guard))

    @property
    def stats(self) -> NativeStats:
        numbers = (ctypes.c_uint64 * 5)()
        self._library.guard_stats(self._guard, numbers)
        return NativeStats(*numbers)

    @property
    def warnings(self) -> list[str]:
        count = self._library.guard_warnings(self._guard)
        return [self._library.guard_warning(self._guard, ctypes.c_size_t(i)).decode() for i in range(count)]


def native_convert(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy elements by dimorder::convert."""
    given = views([source, target])
    _guard_library().guard_convert(ctypes.byref(given[0]), ctypes.byref(given[1]))


def native_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return dimorder::Tensor::nbytes() of a tensor of these sizes."""
    view = View(None, DTYPES[dtype], len(shape))
    view.sizes[: len(shape)] = shape
    return int(_guard_library().guard_nbytes(ctypes.byref(view)))


@functools.cache
def _guard_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(built("guard_native") / "libguard_native.so"))
    library.guard_open.restype = ctypes.c_void_p
    library.guard_message.restype = library.guard_warning.restype = ctypes.c_char_p
    library.guard_outputs.restype = library.guard_warnings.restype = ctypes.c_size_t
    library.guard_nbytes.restype = ctypes.c_size_t
    return library


def _encoded(lines: str | bytes) -> bytes:
    return lines.encode() if isinstance(lines, str) else lines


def _size(data: bytes) -> ctypes.c_size_t:
    return ctypes.c_size_t(len(data))
