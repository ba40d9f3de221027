"""Test that half precision is never refused for its own roundings, and that wrong numbers still are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.capture.captured import capture
from dimorder.errors import VerificationError
from dimorder.ops import normalization
from dimorder.plans.make_contract import make_contract
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import FunctionalProgram, NoisyRun
from dimorder.verification.verify import Trial
from tests import zoo

REFUSED = pytest.mark.parametrize("offset", [0.05, -0.05])
WRONG = "a rule, or the target, is wrong"


def tcn(seed: int) -> nn.Module:
    """Seven outputs of a sequence, which all move together if an early value is rounded otherwise."""
    return zoo.network("tcn").build(seed).half()


SEQUENCE = torch.ones(1, 6, 700, dtype=torch.float16)


@pytest.mark.parametrize("seed", [11, 21])
def test_few_outputs_may_be_near_float64_by_chance(seed: int) -> None:
    """PyTorch's rounding of one input cancels here, and that of a folded batch-norm does not."""
    pytest.importorskip("executorch")
    lowered = dimorder.lower(tcn(seed), (SEQUENCE,), target="xnnpack")
    assert 5e-4 < lowered.max_rel_error < 5e-2


@pytest.mark.slow
def test_a_detector_beyond_the_sizes_of_its_calibration() -> None:
    pytest.importorskip("executorch")
    x = torch.ones(1, 3, 160, 160, dtype=torch.float16)
    for seed in (0, 2):
        assert dimorder.lower(zoo.network("yolo").build(seed).half(), (x,), target="xnnpack").max_rel_error


@REFUSED
@pytest.mark.parametrize("seed", [11, 21])
def test_a_wrong_rule_is_refused(seed: int, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fold = normalization._fold_into_conv
    monkeypatch.setattr(normalization, "_fold_into_conv", lambda n, x, w, b: fold(n, x, w, b + offset))
    with pytest.raises(VerificationError, match=WRONG):
        dimorder.lower(tcn(seed), (SEQUENCE,), target="torch")


@REFUSED
def test_a_wrong_file_is_refused(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("executorch")
    from dimorder.targets.xnnpack.artifact import Pte

    def start(self: Pte) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        return lambda inputs: [y + offset * y.abs().max() for y in self.run(inputs)]

    monkeypatch.setattr(Pte, "start", start)
    with pytest.raises(VerificationError, match=WRONG):
        dimorder.lower(tcn(11), (SEQUENCE,), target="xnnpack")


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(50, 40, generator=torch.Generator().manual_seed(5)) / 7
        self.weight = nn.Parameter(weight.half())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_file_may_be_as_far_off_as_its_program_with_sums_in_float16() -> None:
    """The program begins its sums at 64, where float16 is coarse; the network begins at 0."""
    network = Product()
    program = capture(network, (torch.randn(30, 50).half(),))
    trial = Trial(network, program, make_contract(program, None, None, None))

    def physical(given: Sequence[Tensor], factor: float = 1.0) -> list[Tensor]:
        with torch.no_grad():
            return [factor * (torch.addmm(torch.tensor(64.0).half(), given[0], network.weight) - 64.0)]

    def file(given: Sequence[Tensor], factor: float) -> list[Tensor]:
        with HalfSums():
            return physical(given, factor)

    right = partial(file, factor=1.0)
    trial.compare_once(right, "the file", physical=physical)
    with pytest.raises(VerificationError, match=WRONG):
        trial.compare_once(right, "the file")
    with pytest.raises(VerificationError, match=WRONG):
        trial.compare_once(partial(file, factor=1.5), "the file", physical=physical)


def test_the_noise_that_explains_a_rounding_is_about_one_rounding() -> None:
    network, x = Product(), torch.randn(30, 50).half()
    program = FunctionalProgram(torch.export.export(network, (x,)))
    with torch.no_grad():
        (exact,) = (x.double() @ network.weight.double(),)
    errors = [
        (program.run((x,), numerics)[0] - exact).square().mean().sqrt().item()
        for numerics in (partial(NoisyRun, roundings=0.0), partial(NoisyRun, roundings=0.25))
    ]
    assert 1.2 < errors[1] / errors[0] < 2
