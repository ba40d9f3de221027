"""Networks in C++, from files: here as in Python to the bit, on emulated Arm cores as near as promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from tests.device import emulation
from tests.device.networks import NETWORKS, Call, Shipped, shipped
from tests.targets import halves

QUICK = ("rnet", "zero_bias_unperturbed", "streaming tcn", "linears dynamic int4")
ARM_FLOAT32 = 1e-4  # of the largest magnitude
ARM_DYNAMIC = 2e-2  # where a core rounds an integer of a row otherwise, all products of the row move


def cases() -> Iterator[Any]:
    """Each network on each core, one network after the other."""
    for name in NETWORKS:
        for core in (emulation.HOST, *emulation.CORES):
            marks = [] if name in QUICK and core in (emulation.HOST, "cortex-a76") else [pytest.mark.slow]
            yield pytest.param(name, core, marks=marks, id=f"{name}-{core}")


@pytest.mark.parametrize(("name", "core"), list(cases()))
def test_a_network_gives_in_cpp_what_it_gives_in_python(name: str, core: str, tmp_path: Path) -> None:
    if reason := emulation.missing(core):
        pytest.skip(reason)
    row, made = NETWORKS[name], shipped(name)
    for call in (made.call, *row.others):
        wanted = in_python(made, call, row.steps)
        finished = in_cpp(made, call, row.steps, core, tmp_path)
        assert finished.code == 0, finished.error
        if core == emulation.HOST or row.numbers == "int8":
            for got, own in zip(finished.outputs, wanted, strict=True):
                assert_same_bits(got, own)
        elif row.numbers == "float16":
            assert half_error(finished.outputs, made, call) <= 1
        else:
            allowed = ARM_DYNAMIC if row.numbers == "dynamic" else ARM_FLOAT32
            for got, own in zip(finished.outputs, wanted, strict=True):
                assert relative_error(got, own) <= allowed


def fed(made: Shipped, call: Call) -> dict[str, Tensor]:
    """The tensors of a call, by the names of the contract's inputs."""
    args, kwargs = call
    values = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    return dict(zip((spec.name for spec in made.lowered.contract.inputs), values, strict=True))


def in_python(made: Shipped, call: Call, steps: int) -> Sequence[Tensor]:
    program = dimorder.load(made.path)
    for _ in range(steps):
        outputs = program.run(*fed(made, call).values())
    return outputs


def in_cpp(made: Shipped, call: Call, steps: int, core: str, folder: Path) -> emulation.Finished:
    options = ["--loader", "poison", "--steps", str(steps)]
    return emulation.run(
        made.path, fed(made, call), made.lowered.contract, folder, core=core, options=options
    )


def assert_same_bits(got: Tensor, wanted: Tensor) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    own, theirs = (x.contiguous().flatten().view(torch.uint8) for x in (got, wanted))
    differing = int((got != wanted).sum())
    assert torch.equal(own, theirs), f"{differing} of {got.numel()} elements differ"


def relative_error(got: Tensor, wanted: Tensor) -> float:
    if not got.is_floating_point():
        return float((got != wanted).sum())
    assert torch.equal(got.isnan(), wanted.isnan())
    scale = float(wanted.nan_to_num().abs().max()) or 1.0
    return float((got - wanted).nan_to_num().abs().max()) / scale


def half_error(outputs: Sequence[Tensor], made: Shipped, call: Call) -> float:
    """The error as a share of what is allowed, on a core that computes in float16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "HAS_HALF_SUMS", True)
        args, _ = call
        got = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return halves.share_of_allowed(got, made.network, args)
