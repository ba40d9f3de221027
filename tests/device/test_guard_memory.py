"""Memory that dimorder::Program reads and writes: state, outputs fed back, odd addresses, every order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from tests.device.guarded_programs import Pair, file_of, lowered, numbers, padded, right_inputs, stock
from tests.device.native_fixture import NativeError, NativeProgram, native_convert, native_nbytes, views

pytestmark = pytest.mark.usefixtures("guard_native")

# State


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


# Conversions


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


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [
        ((3, 5), 60),
        ((), 4),
        ((1 << 40, 1 << 40), (1 << 64) - 1),
        ((1 << 62,), (1 << 64) - 1),
        ((1 << 40, 1 << 40, 0), 0),
    ],
)
def test_bytes_are_counted_up_to_the_largest_number(shape: tuple[int, ...], nbytes: int) -> None:
    assert native_nbytes(shape, torch.float32) == nbytes


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


class PassedThrough(nn.Module):
    """Two of its outputs are its inputs."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x + y, y


def unplanned(
    path: Path, network: nn.Module, *args: Tensor, inputs: bool, outputs: bool, partitioned: bool = False
) -> Path:
    """Write a program of ExecuTorch that has memory for its inputs and outputs only where asked."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    partitioner = [XnnpackPartitioner()] if partitioned else []
    edge = to_edge_transform_and_lower(torch.export.export(network, args), partitioner=partitioner)
    planning = MemoryPlanningPass(alloc_graph_input=inputs, alloc_graph_output=outputs)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    path.write_bytes(bytes(edge.to_executorch(config).buffer))
    return path


@pytest.mark.parametrize(("inputs", "outputs"), [(False, False), (False, True), (True, False), (True, True)])
def test_an_output_that_is_an_input_may_be_fed_back(inputs: bool, outputs: bool, tmp_path: Path) -> None:
    x, y = numbers(2, 3, 4, 5), numbers(2, 3, 4, 5) + 7
    path = unplanned(tmp_path / "net.pte", PassedThrough(), x, y, inputs=inputs, outputs=outputs)
    program = NativeProgram(path)
    program.run(x.to(memory_format=torch.channels_last), y.to(memory_format=torch.channels_last))
    new = (x - 3).to(memory_format=torch.channels_last)  # its conversion must not overwrite what is fed back
    given = views([new, new])
    given[1] = program.output_view(0)
    assert torch.equal(program.run_views(given)[1], new + x)
    given[0], given[1] = program.output_view(2), program.output_view(0)
    swapped = program.run_views(given)
    assert torch.equal(swapped[0], x) and torch.equal(swapped[2], new)


def test_an_output_that_is_an_input_may_be_fed_back_as_a_view(tmp_path: Path) -> None:
    x, y = numbers(2, 3, 4, 5), numbers(2, 3, 4, 5) + 7
    path = unplanned(tmp_path / "net.pte", PassedThrough(), x, y, inputs=False, outputs=False)
    program, given = NativeProgram(path), views([x, y])
    program.run(x.to(memory_format=torch.channels_last), y)
    given[0] = program.output_view(0)
    given[0].data += 3 * 5 * x.itemsize  # the rows from the last to the first
    given[0].strides[2] = -5
    assert torch.equal(program.run_views(given)[1], x.flip(2) + y)


def test_an_output_outlives_the_input_that_it_is(tmp_path: Path) -> None:
    x, y = numbers(2, 3, 4, 5), numbers(2, 3, 4, 5) + 7
    path = unplanned(tmp_path / "net.pte", PassedThrough(), x, y, inputs=False, outputs=False)
    program = NativeProgram(path)
    program.run(x, y)
    assert program.output_view(0).data != x.data_ptr()
    assert program.stats.conversions == 0


@pytest.mark.parametrize("partitioned", [False, True])
def test_outputs_that_a_file_has_no_memory_for_get_some(partitioned: bool, tmp_path: Path) -> None:
    network, path = nn.Sequential(nn.Linear(5, 7), nn.Tanh()).eval(), tmp_path / "net.pte"
    unplanned(path, network, numbers(3, 5), inputs=True, outputs=False, partitioned=partitioned)
    program = NativeProgram(path)
    for x in (numbers(3, 5), numbers(3, 5) + 1):
        torch.testing.assert_close(program.run(x)[0], network(x).detach())


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x)
        return self.seen * 2


@pytest.mark.parametrize("resets", [1, 2])
@pytest.mark.parametrize("outputs", [False, True])
def test_an_output_outlives_reset(outputs: bool, resets: int, tmp_path: Path) -> None:
    x = numbers(3, 5)
    path = unplanned(tmp_path / "sum.pte", Sum(), x, inputs=True, outputs=outputs)
    program, given = NativeProgram(path), views([x])
    program.run(x)
    for _ in range(resets):
        program.reset()
    given[0] = program.output_view(0)
    torch.testing.assert_close(program.run_views(given)[0], 4 * x)


def test_state_of_another_tools_file_begins_with_zeros_and_is_reset(tmp_path: Path) -> None:
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
