"""dimorder::Program beside `dimorder.load`, on lowered networks: equal outputs, refusals, warnings, counts.

Both get the same memory. Outputs are compared bit for bit, texts character for character.
"""

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
from dimorder.contract_file import contract_lines
from dimorder.errors import ContractError, DimorderError
from tests.device.native_fixture import MODES, NativeError, NativeProgram, built, native_convert, views
from tests.runtime.networks import Conv, Pointwise, TwoInTwoOut, export_pte
from tests.targets.test_integer_boundaries import Photo
from tests.zoo import perturb, stateful

NHWC, NLC = DimOrder(0, 2, 3, 1), DimOrder(0, 2, 1)
ACCESS_FAILED, INVALID_PROGRAM, INVALID_ARGUMENT = 0x22, 0x23, 0x12  # of ExecuTorch's Error


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    built("guard_native")


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
        tensors.append(torch.empty_strided(shape, spec.held_order.strides(shape), dtype=own.dtype).copy_(own))
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
    """What became of a call."""

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


@pytest.mark.parametrize("fed", FED)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tensor_gets_the_answer_that_it_gets_in_python(name: str, fed: str) -> None:
    contract = dimorder.load(file_of(name)).contract
    for index in range(len(contract.inputs)):
        tensors = right_inputs(contract)
        tensors[index] = FED[fed](tensors[index])
        refused = {}
        for mode in MODES:
            pair = Pair(file_of(name), mode)
            refused[mode] = pair.agree(tensors).error
            pair.agree(right_inputs(contract))  # whatever came before
        if fed == "as promised":
            assert set(refused.values()) == {""}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_answers_all_of_them_in_turn(name: str, mode: str) -> None:
    pair = Pair(file_of(name), mode)
    contract = pair.python.contract
    for size in (0, 1, 0):
        for fed in FED.values():
            tensors = right_inputs(contract, size)
            pair.agree([fed(tensors[0]), *tensors[1:]])
            pair.agree([*tensors[:-1], fed(tensors[-1])])
    pair.agree([])
    pair.agree([*right_inputs(contract), torch.zeros(1)])
    assert pair.agree(right_inputs(contract)).error == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_in_order_are_neither_converted_nor_copied(name: str) -> None:
    program = NativeProgram(file_of(name), "error")
    contract = dimorder.load(file_of(name)).contract
    for size in (0, 1, 1, 0):
        program.run(*right_inputs(contract, size))
    stats = program.stats
    assert (stats.calls, stats.conversions, stats.cost_bytes, stats.last_conversions) == (4, 0, 0, 0)


@pytest.mark.parametrize("name", ["NHWC", "NLC", "two", "foreign"])
def test_the_latest_call_is_counted_apart(name: str) -> None:
    program = NativeProgram(file_of(name))
    right = right_inputs(dimorder.load(file_of(name)).contract)
    wrong = [FED["batch fastest"](tensor) for tensor in right]
    program.run(*wrong)
    program.run(*wrong)
    stats, cost = program.stats, sum(tensor.nbytes for tensor in right)
    assert (stats.conversions, stats.cost_bytes) == (2 * len(right), 2 * cost)
    assert (stats.last_conversions, stats.last_cost_bytes) == (len(right), cost)
    program.run(*right)
    assert (program.stats.last_conversions, program.stats.last_cost_bytes) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["NHWC", "NLC", "dynamic", "two", "foreign"])
def test_a_null_pointer_is_refused(name: str, mode: str) -> None:
    program, tensors = NativeProgram(file_of(name), mode), right_inputs(dimorder.load(file_of(name)).contract)
    for _ in range(2):
        given = views(tensors)
        given[len(tensors) - 1].data = None
        with pytest.raises(NativeError, match="no memory") as error:
            program.run_views(given)
        assert error.value.code == INVALID_ARGUMENT and len(str(error.value).splitlines()) == 3
        program.run(*tensors)


@pytest.mark.parametrize(
    ("rank", "found"),
    [
        (-1, "sizes, strides or an order that do not belong together"),  # what Tensor::in_order gives then
        (17, "17 dimensions"),
        (1000, "1000 dimensions"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(rank: int, found: str) -> None:
    program, tensors = NativeProgram(file_of("NHWC")), right_inputs(dimorder.load(file_of("NHWC")).contract)
    given = views(tensors)
    given[0].rank = rank
    with pytest.raises(NativeError, match=f"found: {found}"):
        program.run_views(given)


def test_sizes_of_two_calls_are_not_mixed() -> None:
    """The first call is refused at its first input; the second would have been taken for one seen before."""
    pair = Pair(file_of("two dynamic"), "error")
    small, large = (right_inputs(pair.python.contract, size) for size in (0, 1))
    pair.agree(small)
    assert "promised in NCHW" in pair.agree([FED["channels last"](large[0]), large[1]]).error
    assert "elsewhere in this call" in pair.agree([large[0], small[1]]).error
    assert pair.agree(small).error == ""


def test_a_contract_that_misdescribes_its_program_is_refused(tmp_path: Path) -> None:
    specs = (
        (TensorSpec("x", (2, 6, 5, 7), "float32", NHWC),),
        (TensorSpec("y", (2, 6, 5, 7), "float32", NHWC),),
    )
    path = tmp_path / "misdescribed.pte"
    path.write_bytes(export_pte(Pointwise(), (numbers(2, 6, 5, 7),), Contract(*specs)))
    assert refused(path) == "a contract that is not the program's: for input 0 that has another order"


# -- state ---------------------------------------------------------------------------------------------------


def test_state_goes_on_from_call_to_call_and_back_with_reset() -> None:
    pair = Pair(file_of("state"), "adapt")
    shape = pair.python.contract.inputs[0].shape
    steps = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    first = [pair.agree([step]).outputs[0] for step in steps]
    pair.python.reset()
    pair.native.reset()
    again = [pair.agree([step]).outputs[0] for step in steps]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(pair.agree([steps[0]]).outputs[0], first[0])


def test_two_programs_of_one_file_share_no_state() -> None:
    one, two = NativeProgram(file_of("state")), NativeProgram(file_of("state"))
    (x,) = right_inputs(dimorder.load(file_of("state")).contract)
    first = one.run(x)[0]
    for _ in range(3):
        one.run(x)
    assert torch.equal(two.run(x)[0], first)
    two.reset()
    assert torch.equal(two.run(x)[0], first) and not torch.equal(one.run(x)[0], first)


@pytest.mark.parametrize("name", ["NHWC", "foreign"])
def test_reset_of_a_program_without_state_is_nothing(name: str) -> None:
    program, tensors = NativeProgram(file_of(name)), right_inputs(dimorder.load(file_of(name)).contract)
    first = program.run(*tensors)
    program.reset()
    assert torch.equal(program.run(*tensors)[0], first[0])


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize("name", ["NHWC", "two", "foreign conv"])
def test_a_mapped_file_and_a_read_one_give_the_same(name: str, loading: str) -> None:
    python = dimorder.load(file_of(name))
    program = NativeProgram(file_of(name), loading=loading, check_seal="foreign" not in name)
    tensors = right_inputs(python.contract)
    assert program.has_contract == ("foreign" not in name)
    assert all(map(torch.equal, program.run(*tensors), python.run(*tensors)))


def refused(path: Path, code: int = INVALID_PROGRAM, **options: Any) -> str:
    with pytest.raises(NativeError) as error:
        NativeProgram(path, **options)
    lines = str(error.value).splitlines()
    assert (len(lines), lines[0], error.value.code) == (3, f"loading {path}", code)
    return lines[1].removeprefix("  found: ")


def python_refuses(path: Path) -> str:
    with pytest.raises(DimorderError) as error:
        dimorder.load(path)
    return error.value.found


@pytest.mark.parametrize("loading", ["mmap", "file"])
def test_a_missing_file_is_refused_as_in_python(tmp_path: Path, loading: str) -> None:
    path = tmp_path / "none.pte"
    assert (
        refused(path, ACCESS_FAILED, loading=loading) == python_refuses(path) == "No such file or directory"
    )


@pytest.mark.parametrize("loading", ["mmap", "file"])
def test_a_folder_is_refused(tmp_path: Path, loading: str) -> None:
    with pytest.raises(NativeError) as error:
        NativeProgram(tmp_path, loading=loading)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize(
    "content", [b"", b"no program", b"\x00" * 5000, b"PK\x03\x04" * 100, b"\x08\0\0\0ET12"]
)
def test_what_is_no_pte_is_refused(tmp_path: Path, content: bytes, loading: str) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(content)
    found = refused(path, loading=loading)
    if not content.endswith(b"ET12"):
        assert found == python_refuses(path) or (not content and "cannot be read" in found)


@pytest.mark.parametrize("loading", ["mmap", "file"])
@pytest.mark.parametrize("name", ["NHWC", "foreign conv"])
def test_a_file_cut_off_anywhere_is_refused_as_in_python(tmp_path: Path, name: str, loading: str) -> None:
    data, path = file_of(name).read_bytes(), tmp_path / "cut.pte"
    for length in range(1, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:length])
        found = refused(path, loading=loading)
        if length >= 40:
            assert found == python_refuses(path)


def test_a_changed_byte_is_refused_by_the_seal_as_in_python(tmp_path: Path) -> None:
    data, path = file_of("NHWC").read_bytes(), tmp_path / "changed.pte"
    mark = data.find(b"dimorder sha256 ")
    for place in range(40, len(data), len(data) // 100):
        if mark <= place < mark + 16:
            continue
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert refused(path, check_seal=True) == python_refuses(path)


@pytest.mark.parametrize("name", ["foreign", "foreign conv"])
def test_a_seal_that_is_asked_for_must_be_there(name: str) -> None:
    assert refused(file_of(name), check_seal=True) == "no checksum of dimorder's in it"


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("NHWC", ("4 2 3 11 9 0 2 3 1", "4 2 3 11 9 0 1 2 3"), "for input 0 that has another order"),
        ("NHWC", ("4 2 3 11 9 0 2 3 1", "4 2 3 11 9 1 2 3 0"), "for input 0 that has another order"),
        ("NHWC", ("4 2 4 9 7 0 2 3 1", "4 2 4 9 7 0 1 2 3"), "for output 0 that has another order"),
        ("NHWC", ("4 2 3 11 9", "4 2 3 11 8"), "for input 0 that has other sizes"),
        ("NHWC", ("4 2 3 11 9", "4 2 3 9 11"), "for input 0 that has other sizes"),
        ("NHWC", ("float32", "float64"), "for input 0 that has another type"),
        ("int8", ("int8", "bool"), None),
        ("NLC", ("3 2 5 8 0 2 1", "3 2 5 8 0 1 2"), "for input 0 that has other sizes"),
        ("NLC", ("3 2 4 6 0 2 1", "3 2 4 6 2 1 0"), "for output 0 that has other sizes"),
        ("NHWC", ("1 1 0 0\n", "1 1 0 9\n"), "a line of the state that is missing"),
        ("NHWC", ("contract 1 ", "contract 2 "), "another version of its lines"),
        ("NHWC", ("contract 1 1", "contract 1 0"), "a line of an input or output that is missing"),
        ("dynamic", (" 1 4 1\n", " 1 5 1\n"), "for input 0 that has a smaller largest size"),
        ("dynamic", (" 6 16 2\n", " 6 18 2\n"), "for input 0 that has a smaller largest size"),
    ],
)
def test_lines_that_are_not_the_programs_are_refused(
    tmp_path: Path, name: str, change: tuple[str, str], found: str | None
) -> None:
    data = file_of(name).read_bytes()
    lines = contract_lines(dimorder.load(file_of(name)).contract)
    assert data.count(lines.encode()) == 1
    changed = lines.replace(*change, 1)
    assert changed != lines and len(changed) == len(lines)
    path = tmp_path / "patched.pte"
    path.write_bytes(data.replace(lines.encode(), changed.encode()))
    assert (found or "") in refused(path)


# -- conversions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64])
def test_convert_gives_every_order_from_every_other(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    for shape in [
        (),
        (5,),
        (3, 70),
        (1, 3, 33, 40),
        (2, 16, 9, 17),
        (2, 1, 7, 3),
        (2, 3, 2, 5, 4),
        (0, 3),
        (300, 290),
    ]:
        for _ in range(12):
            x = torch.randint(-100, 100, shape, generator=generator).to(dtype)
            orders = [torch.randperm(len(shape), generator=generator).tolist() for _ in range(2)]
            given, target = (torch.empty_permuted(shape, order, dtype=dtype) for order in orders)
            given.copy_(x)
            native_convert(given, target)
            assert torch.equal(target, x)
            if len(shape) > 1 and x.numel():
                native_convert(padded(x), target)
                assert torch.equal(target, x)
                native_convert(x[:, :1].expand(shape), target)
                assert torch.equal(target, x[:, :1].expand(shape))


class Step(nn.Module):
    """A recurrent step by hand: the caller passes what the last step gave."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.table, self.linear = nn.Embedding(20, 6), nn.Linear(6 + 9, 9)

    def forward(self, ids: Tensor, last: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat([self.table(ids), last], 1))).cumsum(1)


STEP = (torch.tensor([3, 11, 7]), numbers(3, 9))


@pytest.mark.parametrize("is_stock", [False, True])
def test_an_output_may_be_an_input_of_the_next_call(is_stock: bool, tmp_path: Path) -> None:
    path, network = tmp_path / "step.pte", Step().eval()
    (stock(network, *STEP) if is_stock else lowered(lambda: network, *STEP))(path)
    (got,) = NativeProgram(path).feed_back(*STEP, fed=1, times=4)
    ids, wanted = STEP
    for _ in range(4):
        wanted = network(ids, wanted).detach()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("partitioned", [False, True])
def test_outputs_that_a_file_has_no_memory_for_get_some(partitioned: bool, tmp_path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    network, path = nn.Sequential(nn.Linear(5, 7), nn.Tanh()).eval(), tmp_path / "net.pte"
    edge = to_edge_transform_and_lower(
        torch.export.export(network, (numbers(3, 5),)),
        partitioner=[XnnpackPartitioner()] if partitioned else [],
    )
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(alloc_graph_output=False))
    path.write_bytes(bytes(edge.to_executorch(config).buffer))
    program = NativeProgram(path)
    for x in (numbers(3, 5), numbers(3, 5) + 1):
        torch.testing.assert_close(program.run(x)[0], network(x).detach())


def test_state_of_another_tools_file_begins_with_zeros_and_is_reset(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x)
            return self.seen * 2

    path, x = tmp_path / "sum.pte", numbers(3, 5)
    stock(Sum(), x)(path)
    program = NativeProgram(path)
    for _ in range(2):
        first, second = program.run(x)[0], program.run(x)[0]
        torch.testing.assert_close(first, 2 * x)
        torch.testing.assert_close(second, 4 * x)
        program.reset()


def test_memory_at_an_odd_address_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    lowered(lambda: nn.ReLU(), numbers(3, 5))(path)
    program, room = NativeProgram(path), torch.zeros(64, dtype=torch.uint8)
    given = views([numbers(3, 5)])
    given[0].data = room.data_ptr() + 1
    with pytest.raises(NativeError, match="no multiple of the elements' size"):
        program.run_views(given)
