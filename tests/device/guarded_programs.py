"""The programs on which the C++ guard is compared with Python's, the inputs, and how both are called."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import ContractError
from tests.device.native_fixture import NativeError, NativeProgram
from tests.runtime.networks import Conv, Pointwise, TwoInTwoOut, export_pte
from tests.targets.test_integer_boundaries import Photo
from tests.zoo import perturb, stateful

NHWC, NLC = DimOrder(0, 2, 3, 1), DimOrder(0, 2, 1)
# Of ExecuTorch's Error.
NOT_SUPPORTED, INVALID_ARGUMENT, OPERATOR_MISSING = 0x10, 0x12, 0x14
ACCESS_FAILED, INVALID_PROGRAM = 0x22, 0x23


class Joined(nn.Module):
    """Two inputs of other ranks, whose orders differ, and a dynamic size that both have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.image, self.sound = nn.Conv2d(3, 4, 3), nn.Conv1d(5, 4, 3)

    def forward(self, image: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.image(image).relu()
        return seen, self.sound(sound).mean(2) + seen.mean((2, 3))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.table, self.linear = nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(4)
    return perturb(make()).eval()


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def lowered(make: Callable[[], nn.Module], *args: Tensor, **options: Any) -> Callable[[Path], object]:
    return lambda path: dimorder.lower(make().eval(), args, target="xnnpack", **options).save(path)


def stock(
    network: nn.Module, *args: Tensor, contract: Contract | None = None, **options: Any
) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(export_pte(network, args, contract, **options))


IMAGE, EVEN, SOUND = numbers(2, 3, 11, 9), numbers(2, 3, 10, 9), numbers(2, 5, 8)
BATCH, HEIGHT = Dim("n", min=1, max=4), 2 * Dim("h", min=3, max=8)
BATCHED = (
    {0: BATCH, 2: HEIGHT, 3: Dim("w", min=5, max=20)},
    {0: BATCH},
)


def two_contract() -> Contract:
    image = TensorSpec("image", (2, 6, 5, 7), "float32", NHWC)
    sound = TensorSpec("sound", (2, 3, 11), "float32", NLC)
    outputs = (
        TensorSpec("doubled", image.shape, "float32", NHWC),
        TensorSpec("loud", sound.shape, "float32", NLC),
    )
    return Contract((image, sound), outputs)


def one_contract(order: DimOrder, shape: tuple[int, ...]) -> Contract:
    return Contract(
        (TensorSpec("x y", shape, "float32", order),), (TensorSpec("y", shape, "float32", order),)
    )


PROGRAMS: dict[str, Callable[[Path], object]] = {
    "NCHW": lowered(lambda: Conv(3), IMAGE),
    "NHWC": lowered(lambda: Conv(3), IMAGE, input_orders="NHWC", output_orders="NHWC"),
    "batch 1": lowered(lambda: Conv(3), IMAGE[:1], input_orders="NHWC"),
    "NLC": lowered(
        lambda: seeded(lambda: nn.Conv1d(5, 4, 3)), SOUND, input_orders="NLC", output_orders="NLC"
    ),
    "NDHWC": lowered(
        lambda: seeded(lambda: nn.Conv3d(2, 3, 2)),
        numbers(2, 2, 4, 5, 6),
        input_orders="NDHWC",
        output_orders="NDHWC",
    ),
    "int8": lowered(Photo, numbers(1, 3, 7, 9), input_orders="NHWC", input_types="int8", output_types="int8"),
    "uint8": lowered(
        Photo, numbers(1, 3, 7, 9), input_orders="NHWC", input_types="uint8", output_types="uint8"
    ),
    "int64": lowered(Words, torch.arange(10).reshape(2, 5)),
    "dynamic": lowered(lambda: Conv(3), EVEN, input_orders="NHWC", dynamic_shapes=BATCHED[:1]),
    "two": lowered(Joined, IMAGE, SOUND, input_orders=["NHWC", "NLC"], output_orders=["NHWC", "NC"]),
    "two dynamic": lowered(Joined, EVEN, SOUND, input_orders=["NCHW", "NLC"], dynamic_shapes=BATCHED),
    "state": lowered(lambda: seeded(stateful.StreamingConv2d), numbers(1, 3, 2, 9), input_orders="NHWC"),
    "foreign": stock(Pointwise(), numbers(2, 6, 5, 7)),
    "foreign NHWC": stock(Pointwise(), numbers(2, 6, 5, 7).to(memory_format=torch.channels_last)),
    "foreign conv": stock(Conv(3), IMAGE, xnnpack=True),
    "foreign dynamic": stock(
        Pointwise(), numbers(2, 3, 5), dynamic_shapes={"x": {0: Dim("n", min=1, max=4)}}
    ),
    "stock with a contract": stock(
        TwoInTwoOut(),
        numbers(2, 6, 5, 7).to(memory_format=torch.channels_last),
        numbers(2, 11, 3),
        contract=two_contract(),
    ),
    "a name with a space": stock(
        Pointwise(), numbers(2, 6, 5), contract=one_contract(DimOrder(0, 1, 2), (2, 6, 5))
    ),
    "an order without a name": stock(
        Pointwise(), numbers(6, 7, 2, 5), contract=one_contract(DimOrder(1, 3, 0, 2), (2, 6, 5, 7))
    ),
}


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dimorder-guard-")


@functools.cache
def file_of(name: str) -> Path:
    path = Path(folder().name) / f"{name.replace(' ', '-')}.pte"
    PROGRAMS[name](path)
    return path


def right_inputs(contract: Contract, size: int = 0) -> list[Tensor]:
    """Tensors that lie to the letter as promised; `size` picks among the dynamic sizes."""
    ranges = {symbol.name: symbol for symbol in contract.symbols}
    tensors = []
    for spec in contract.inputs:
        shape = [
            s
            if isinstance(s, int)
            else min(ranges[s].minimum + (size + 1) * ranges[s].step, ranges[s].maximum or 9)
            for s in spec.shape
        ]
        own = typed(shape, spec.dtype)
        tensors.append(
            torch.empty_strided(shape, spec.memory_order.strides(shape), dtype=own.dtype).copy_(own)
        )
    return tensors


def typed(shape: list[int], dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    found = getattr(torch, dtype)
    if found.is_floating_point:
        return torch.randn(shape, generator=generator).to(found)
    return torch.randint(0, 50, shape, generator=generator).to(found)


def padded(x: Tensor) -> Tensor:
    """The same numbers as a part of a larger tensor, in each dimension."""
    wide = F.pad(x, [1, 2] * x.dim())
    return wide[tuple(slice(1, size + 1) for size in x.shape)]


def stepped(x: Tensor, dim: int) -> Tensor:
    return torch.stack([x, x], dim + 1).flatten(dim, dim + 1)[(slice(None),) * dim + (slice(None, None, 2),)]


FED: dict[str, Callable[[Tensor], Tensor]] = {
    "as promised": lambda x: x,
    "row-major": lambda x: x.contiguous(),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "dims reversed": lambda x: (
        x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    ),
    "batch fastest": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "a part of a larger one": padded,
    "a channel slice": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "a later part of a batch": lambda x: torch.cat([x, x])[x.shape[0] :],
    "every second row": lambda x: stepped(x.contiguous(), x.dim() - 2),
    "every second element": lambda x: stepped(x.contiguous(), x.dim() - 1),
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "one number": lambda x: x.flatten()[0].expand(x.shape),
    "another type": lambda x: x.double(),
    "another integer type": lambda x: x.to(torch.int16),
    "no batch": lambda x: x[0],
    "channels as the last dimension": lambda x: x.movedim(1, -1).contiguous(),
    "a longer row": lambda x: torch.cat([x, x], -1),
    "a larger batch": lambda x: torch.cat([x] * 5),
    "an odd height": lambda x: x.narrow(-2, 0, x.shape[-2] - 1),
    "nothing": lambda x: x[:0],
}


@dataclass(frozen=True)
class Result:
    """The result of a call: its outputs or its error, the warnings, and the counts of the guard."""

    outputs: tuple[Tensor, ...]
    error: str
    warnings: tuple[str, ...]
    stats: tuple[int, ...]

    def same_as(self, other: Result) -> bool:
        assert (self.error, self.warnings, self.stats) == (other.error, other.warnings, other.stats)
        for one, two in zip(self.outputs, other.outputs, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())
            assert bits(one) == bits(two)
        return True


def bits(x: Tensor) -> bytes:
    return bytes(x.contiguous().flatten().view(torch.uint8).tolist())


def refused(path: Path, code: int = INVALID_PROGRAM, **options: Any) -> str:
    with pytest.raises(NativeError) as error:
        NativeProgram(path, **options)
    lines = str(error.value).splitlines()
    assert (len(lines), lines[0], error.value.code) == (3, f"loading {path}", code)
    return lines[1].removeprefix("  found: ")


class Pair:
    """One file, open in Python and in C++."""

    def __init__(self, path: Path, mode: str) -> None:
        self.python = dimorder.load(path, mode)
        self.native = NativeProgram(path, mode)
        self.told = 0

    def call_python(self, tensors: list[Tensor]) -> Result:
        outputs: tuple[Tensor, ...] = ()
        error = ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                outputs = self.python.run(*tensors)
            except ContractError as refused:
                error = str(refused)
        stats = self.python.stats
        return Result(
            outputs,
            error,
            tuple(str(warning.message) for warning in caught),
            (stats.calls, stats.conversions, stats.cost_bytes),
        )

    def call_native(self, tensors: list[Tensor]) -> Result:
        outputs: tuple[Tensor, ...] = ()
        error = ""
        try:
            outputs = self.native.run(*tensors)
            assert self.native.message == ""
        except NativeError as refused:
            error = str(refused)
            assert refused.code == INVALID_ARGUMENT
        stats, told = self.native.stats, self.native.warnings
        found = tuple(told[self.told :])
        self.told = len(told)
        return Result(outputs, error, found, (stats.calls, stats.conversions, stats.cost_bytes))

    def agree(self, tensors: list[Tensor]) -> Result:
        result = self.call_native(tensors)
        assert result.same_as(self.call_python(tensors))
        return result
