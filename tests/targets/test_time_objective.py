"""Plans by nanoseconds: what tells a kernel's time, the table, and the plans that are priced by it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import UsageError
from dimorder.planning.problem import evaluate
from dimorder.targets.xnnpack import times as times_module
from dimorder.targets.xnnpack.emit import emit
from dimorder.targets.xnnpack.kernels import KernelRun, transpose
from dimorder.targets.xnnpack.target import target
from dimorder.targets.xnnpack.times import Times, measured_times

FAMILY = "a CPU of tests"


def kernels_of(module: nn.Module, *inputs: Tensor) -> list[KernelRun]:
    lowered = dimorder.lower(module.eval(), inputs, target="xnnpack", run_artifact=False)
    return list(emit(lowered.physical).kernels)


class Apply(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("shape", "order", "name", "sizes"),
    [
        ((3, 35), (1, 0), "transpose", (105, 35, 3, 2)),
        ((35, 3), (1, 0), "transpose", (105, 3, 35, 2)),
        ((2, 3, 5, 7), (0, 2, 3, 1), "transpose", (210, 35, 3, 3)),
        ((4, 6, 8), (1, 0, 2), "transpose of rows", (192, 8, 3)),
        ((4, 1, 6, 8), (2, 1, 0, 3), "transpose of rows", (192, 8, 3)),
    ],
)
def test_transposes_are_told_by_what_stays_together(
    shape: tuple[int, ...], order: tuple[int, ...], name: str, sizes: tuple[int, ...]
) -> None:
    kernel = transpose(shape, order)
    assert kernel is not None
    assert (kernel.name, kernel.sizes) == (name, sizes)
    assert kernel.moved == 8 * math.prod(shape)


def test_a_transpose_of_sizes_one_alone_is_none() -> None:
    assert transpose((1, 5, 1), (2, 1, 0)) is None


def test_what_a_network_runs() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 5, 1))
    found = kernels_of(net, torch.randn(1, 3, 9, 11))
    assert [(kernel.name, kernel.sizes) for kernel in found] == [
        ("transpose", (297, 99, 3, 2)),
        ("convolution", (63, 8, 27)),
        ("depthwise 9", (35, 8)),
        ("product", (35, 5, 8)),
        ("transpose", (175, 5, 35, 2)),
    ]
    assert [kernel.flops for kernel in found] == [0, 2 * 63 * 8 * 27, 2 * 35 * 8 * 9, 2 * 35 * 5 * 8, 0]


@pytest.mark.parametrize(
    ("function", "shapes", "name", "sizes"),
    [
        (lambda x, y: x + y, [(4, 6), (4, 6)], "Add", (24,)),
        (lambda x: x * 2, [(4, 6)], "Multiply with a number", (24,)),
        (lambda x, y: x - y, [(4, 6), (6,)], "Subtract by rows", (24, 6)),
        (lambda x, y: x / y, [(4, 6), (4, 1)], "Div by columns", (24, 1)),
        (lambda x: x[:, 1:4], [(4, 6)], "StaticSlice", (12, 3)),
        (lambda x, y: torch.cat([x, y], 1), [(4, 6), (4, 2)], "Concatenate", (32, 2)),
        (lambda x: torch.softmax(x, -1), [(4, 6)], "Softmax", (4, 6)),
        (torch.matmul, [(2, 3, 4), (2, 4, 5)], "products of a batch", (2, 3, 5, 4)),
    ],
)
def test_a_kernel_and_its_sizes(
    function: object, shapes: list[tuple[int, ...]], name: str, sizes: tuple[int, ...]
) -> None:
    (kernel,) = kernels_of(Apply(function), *map(torch.randn, shapes))
    assert (kernel.name, kernel.sizes) == (name, sizes)


def moving(name: str, *sizes: int) -> KernelRun:
    return KernelRun(name, sizes, 0, 8 * sizes[0])


TIMES = Times(
    FAMILY,
    2,
    64.0,
    16.0,
    100.0,
    (
        *(
            (moving("transpose of rows", 1 << 10, 1 << run, 3), float(1 << (17 - 2 * run)))
            for run in range(0, 8, 2)
        ),
        *((moving("transpose", 1 << 10, 1 << a, 1 << b, 2), 1e6) for a in range(8) for b in range(8)),
        (moving("StaticSlice", 1 << 10, 1), 1e5),
        (moving("StaticSlice", 1 << 10, 64), 1e2),
    ),
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "times.json"
    path.write_text(json.dumps({FAMILY: TIMES.to_dict()}))
    monkeypatch.setattr(times_module, "TABLE", path)
    measured_times.cache_clear()
    yield path
    measured_times.cache_clear()


def test_the_table_is_read_as_it_was_written(table: Path) -> None:
    assert measured_times() == {FAMILY: TIMES}


def test_what_was_measured_is_told_as_it_was() -> None:
    for kernel, ns in TIMES.measured:
        assert TIMES.of(kernel) == pytest.approx(ns)


def test_between_two_that_were_measured_times_lie_between_theirs() -> None:
    wanted = [TIMES.of(moving("transpose of rows", 1 << 10, run, 3)) for run in (4, 8, 16)]
    assert wanted[0] > wanted[1] > wanted[2]


def test_a_kernel_that_was_not_measured_takes_the_least() -> None:
    assert TIMES.of(KernelRun("Abs", (16,), 0, 1600)) == 100 + 100
    assert TIMES.of(KernelRun("product", (2, 3, 4), 6400, 16)) == 100 + 100


class Heads(nn.Module):
    """Attention over rows of several heads: conversions of rows and of single elements would do."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(24, 72), nn.Linear(24, 20)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        made: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return made


def test_a_plan_by_time_is_proven_and_right(table: Path) -> None:
    chosen = target(cpu=FAMILY)
    lowered = dimorder.lower(Heads().eval(), (torch.randn(2, 13, 24),), target=chosen, objective="time")
    certificate = lowered.plan.layout_plan.certificate
    assert certificate.optimal
    assert lowered.plan.layout_plan.units == ("ns", "bytes")
    assert lowered.max_rel_error < 1e-5
    by_bytes = dimorder.lower(Heads().eval(), (torch.randn(2, 13, 24),), target=chosen)
    priced = by_bytes.plan.layout_plan.choice  # in the problem by time, what moves the fewest bytes
    problem = lowered.plan.extracted.problem
    assert certificate.cost[0] <= evaluate(problem, priced).cost[0]


class Experts(nn.Module):
    """Products with a constant of three dimensions, a slope whose view is itself, positions, and a sum that
    runs beside the delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.slope = nn.Embedding(11, 5), nn.PReLU(7)
        self.weight = nn.Parameter(torch.randn(2, 5, 7))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) @ self.weight
        made: Tensor = self.slope(x.flatten(0, 1)[:1]) + x.double().cumsum(1).float()[0, :1]
        return made


def test_constants_positions_and_what_runs_beside_a_delegate_are_priced(table: Path) -> None:
    ids = torch.randint(0, 11, (2, 3))
    lowered = dimorder.lower(Experts().eval(), (ids,), target=target(cpu=FAMILY), objective="time")
    assert lowered.artifact.outside
    assert lowered.plan.layout_plan.certificate.optimal


@pytest.mark.parametrize(
    ("model", "inputs", "options", "found"),
    [
        (nn.Linear(3, 5), (torch.ones(2, 3),), {}, "no times of XNNPACK on .*, but on a CPU of tests"),
        (nn.Linear(3, 5).half(), (torch.ones(2, 3).half(),), {"cpu": FAMILY}, "a network of torch.float16"),
    ],
)
def test_what_has_no_times_is_refused(
    table: Path, model: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, str], found: str
) -> None:
    with pytest.raises(UsageError, match=found) as error:
        dimorder.lower(model.eval(), inputs, target=target(**options), objective="time")  # type: ignore[arg-type]
    assert "plan by bytes" in error.value.fix


def test_symbolic_sizes_have_no_times(table: Path) -> None:
    with pytest.raises(UsageError, match="its costs are known of fixed ones"):
        dimorder.lower(
            nn.Linear(3, 5).eval(),
            (torch.ones(2, 3),),
            target=target(cpu=FAMILY),
            objective="time",
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=8)},),
        )


def test_kernels_are_measured() -> None:
    from dimorder.latency.kernel_times import measure

    grid = [(torch.abs, [(64,)], []), (torch.matmul, [(2, 3, 4), (2, 4, 5)], [])]
    found = measure(FAMILY, 1, rounds=5, grid=grid)
    assert [kernel.name for kernel, _ in found.measured] == ["Abs", "products of a batch"]
    assert all(ns > 0 for _, ns in found.measured)
    assert Times.from_dict(FAMILY, json.loads(json.dumps(found.to_dict()))).threads == 1


def test_the_grid_has_each_kernel_by_one_name() -> None:
    from dimorder.latency.kernel_times import program, samples

    some = list(samples())[::40]
    for sample in some:
        kernels, call = program(sample, 2)
        assert kernels == kernels[:1] * 2, (sample[1:], kernels)
        assert len(kernels) == 2
        assert [x.numel() for x in call()] == [1, 1]


def test_a_wrong_objective_is_refused_before_the_network_is_captured() -> None:
    for refuse in (dimorder.plan, dimorder.lower):
        with pytest.raises(UsageError, match="no objective of target torch, but of xnnpack") as raised:
            refuse("missing.pt2", target="torch", objective="time")
        assert raised.value.where == "objective 'time'"
