"""XNNPACK's kernels on Arm: integers give the bits of the model, special values are NaN or not as listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.executorch import pte
from dimorder.verification import xnnpack_roundings
from tests.device import emulation
from tests.marks import slow_but
from tests.targets import test_special_values as special
from tests.targets import xnnpack_runs
from tests.targets.cases import Net
from tests.targets.int8_cases import IN_INT8, PRODUCTS, Between, Weighted, X
from tests.targets.quantised import by_xnnpack_dynamically

ARM = [
    pytest.param(core, marks=[] if core == "cortex-a76" else [pytest.mark.slow]) for core in emulation.CORES
]
SCALE, ZERO_POINT = 0.0247, 5  # of what `Between` reads
ALL = (torch.arange(-128.0, 128.0) - ZERO_POINT) * SCALE
LEFT, RIGHT = (grid.contiguous() for grid in torch.meshgrid(ALL, ALL, indexing="ij"))
RESULTS = ((0.0311, -7), (0.0089, 3))


def inputs_of(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Every integer, or every pair of two, where the operator takes any shape; else its own picture."""
    if len(inputs) == 2 and inputs[0].shape == inputs[1].shape:
        return LEFT.view(1, 4, 64, 256), RIGHT.view(1, 4, 64, 256)
    every = torch.cat([ALL, ALL[:80]]).view(1, 6, 7, 8)
    return (every,) if len(inputs) == 1 and inputs[0] is X else tuple(inputs)


@pytest.mark.parametrize("core", ARM)
@pytest.mark.parametrize(
    "name",
    slow_but(
        IN_INT8,
        [
            "hardswish",
            "sigmoid",
            "abs",
            "add",
            "mul, broadcast",
            "mean over space",
            "average pool",
            "max pool",
        ],
    ),
)
def test_integers_on_arm_are_the_models(name: str, core: str, tmp_path: Path) -> None:
    compute, inputs = IN_INT8[name]
    for result in RESULTS:
        assert_same(Between(compute, result), inputs_of(inputs), core, tmp_path)


@pytest.mark.parametrize("core", ARM)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_arm_are_the_models(name: str, core: str, tmp_path: Path) -> None:
    compute, shape, *dim = PRODUCTS[name]
    assert_same(Weighted(compute, shape, *dim), (X,), core, tmp_path)


def assert_same(network: nn.Module, inputs: tuple[Tensor, ...], core: str, folder: Path) -> None:
    """The file gives on that core what it gives here, where it is held to the model bit for bit."""
    if reason := emulation.missing(core):
        pytest.skip(reason)
    lowered = dimorder.lower(network.eval(), inputs, target="xnnpack")
    path = lowered.save(folder / "net.pte")
    wanted = dimorder.load(path).run(*inputs)
    fed = dict(zip((spec.name for spec in lowered.contract.inputs), inputs, strict=True))
    done = emulation.run(path, fed, lowered.contract, folder, core=core)
    assert done.code == 0, done.error
    for got, own in zip(done.outputs, wanted, strict=True):
        assert torch.equal(got, own), f"{int((got != own).sum())} of {own.numel()} differ"


@pytest.mark.parametrize("core", ARM)
def test_rows_quantised_dynamically_on_arm_are_the_models(core: str, tmp_path: Path) -> None:
    """Half of the rows are symmetric, whose zero points lie at a half."""
    if reason := emulation.missing(core):
        pytest.skip(reason)
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    x[::2, 0] = -x[::2].abs().amax(1)
    x[::2, 1] = -x[::2, 0]
    net = nn.Linear(32, 32, bias=False).eval()
    nn.init.eye_(net.weight)
    lowered = dimorder.lower(by_xnnpack_dynamically(net, x), (x,), target="xnnpack")
    path = lowered.save(tmp_path / "net.pte")
    done = emulation.run(path, {lowered.contract.inputs[0].name: x}, lowered.contract, tmp_path, core=core)
    assert done.code == 0, done.error
    model = xnnpack_roundings.DynamicIntegers.of(x, 1)
    xnnpack_roundings.require_near_sum(done.outputs[0].double(), model.values, model.unsure, "linear")


@pytest.mark.parametrize("core", ARM)
@pytest.mark.parametrize("name", special.calls(special.xnnpack.ROWS))
def test_special_values_on_arm_are_as_listed(name: str, core: str, tmp_path: Path) -> None:
    rows = special.xnnpack.ROWS
    function, inputs = special.calls(rows)[name], special.inputs_of(name, rows)
    got = emulated(function, inputs, core, tmp_path)
    found = special.differing(got, function(*inputs), inputs)
    assert found == special.DEVIATIONS["xnnpack on Arm"].get(name, set())


@pytest.mark.parametrize("core", ARM)
@pytest.mark.parametrize("name", special.PLANES)
def test_special_values_of_planes_on_arm_are_as_listed(name: str, core: str, tmp_path: Path) -> None:
    function, reason = special.PLANES[name]
    x = special._image()
    got = emulated(function, (x,), core, tmp_path)
    alike = torch.allclose(got, function(x), rtol=1e-4, atol=1e-6, equal_nan=True)
    assert alike == (not reason or reason in special.ON_X86_ALONE), reason


def emulated(function: Callable[..., Tensor], inputs: Sequence[Tensor], core: str, folder: Path) -> Tensor:
    """Return what a function's .pte computes on an emulated core."""
    if reason := emulation.missing(core):
        pytest.skip(reason)
    path = folder / "net.pte"
    path.write_bytes(xnnpack_runs.emitted(Net(function), tuple(inputs)).data)
    contract: Any = pte.read_contract(path)
    fed = dict(zip((spec.name for spec in contract.inputs), inputs, strict=True))
    done = emulation.run(path, fed, contract, folder, core=core)
    assert done.code == 0, done.error
    return done.outputs[0]
