"""Test which results count as the same, and that a wrong program is never handed out."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import dimorder
from dimorder.capture.captured import capture
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.ops import normalization
from dimorder.plans.make_contract import make_contract
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import FunctionalProgram, NoisyRun
from dimorder.verification.reference import verify
from dimorder.verification.relative_error import relative_error
from dimorder.verification.verify import Trial

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("got", "wanted", "error"),
    [
        ([1.0, 2.5, 3.0], [1.0, 2.0, 4.0], 0.25),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1e-9], [0.0, 0.0], INF),
        ([1.0, NAN, 3.0], [1.0, NAN, 4.0], 0.25),
        ([1.0, NAN, 4.0], [1.0, 2.0, 4.0], INF),
        ([1.0, 2.0, 4.0], [1.0, NAN, 4.0], INF),
        ([1.0, -INF], [1.0, -INF], 0.0),
        ([1.0, INF], [1.0, -INF], INF),
        ([INF, INF], [INF, INF], 0.0),
        ([NAN, NAN], [NAN, NAN], INF),
        ([1 + 1j, 4.0], [1 + 2j, 4.0], 0.25),
        ([1, 2, 8], [1, 4, 8], 0.25),
        ([], [], 0.0),
    ],
)
def test_relative_error(got: list[complex], wanted: list[complex], error: float) -> None:
    assert relative_error(torch.tensor(got), torch.tensor(wanted)) == error


def test_another_shape_is_never_the_same() -> None:
    assert relative_error(torch.ones(2, 3), torch.ones(3, 2)) == INF


def test_a_wrong_program_is_refused_with_its_output() -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(VerificationError) as caught:
        verify([x, x + 0.5], [x, x], what="the program", tolerance=0.1)
    assert "output 1 differs from PyTorch's by 2.50e-01" in str(caught.value)
    assert str(caught.value).startswith("the program\n")


class Clamped(torch.nn.Module):
    """Clamps at a bound that no standard normal input reaches."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, max=self.bound)


def trial(network: torch.nn.Module) -> Trial:
    x = torch.randn(30, 50)
    program = capture(network, (x,))
    return Trial(network, program, make_contract(program, None, None, None))


def test_a_fault_among_large_numbers_is_found() -> None:
    with pytest.raises(VerificationError, match="on inputs of many magnitudes"):
        trial(Clamped(math.inf)).compare(lambda held: [torch.clamp(held[0], max=50.0)], "the program")


def test_what_does_not_run_is_told() -> None:
    def broken(held: object) -> list[torch.Tensor]:
        raise RuntimeError("method->execute() failed\nin frame 0")

    with pytest.raises(
        VerificationError, match="it does not run: method->execute\\(\\) failed\n  fix: report"
    ):
        trial(Waves()).compare(broken, "the program")


class Waves(torch.nn.Module):
    """Computes the sine of large numbers, whose last digits decide the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * 10)


def test_what_a_network_amplifies_itself_is_no_fault() -> None:
    network = Waves()
    trial(network).compare(lambda held: [network.double()(held[0].double()).float()], "the program")


class Offset(torch.nn.Sequential):
    """Convolves to numbers about `offset`, which the batch-norm takes away again. Eager rounds the numbers
    while they are large, and a folded batch-norm does not."""

    def __init__(self, offset: float) -> None:
        super().__init__(torch.nn.Conv2d(3, 5, (2, 3)), torch.nn.BatchNorm2d(5))
        convolution, norm = self
        with torch.no_grad():
            convolution.bias.add_(offset)
            norm.running_mean.add_(offset)
            norm.weight.add_(0.1 * torch.randn(5))
        self.eval()


class Times(torch.nn.Module):
    """Takes a number beside its tensor, and nothing in a third place."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, factor: float, nothing: None) -> torch.Tensor:
        return self.inner(x) * factor


IMAGE = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_a_program_may_be_as_far_from_float64_as_its_network(target: str) -> None:
    if target == "xnnpack":
        pytest.importorskip("executorch")
    network = Offset(1e4)
    lowered = dimorder.lower(network, (IMAGE,), target=target)
    verified = lowered.verified
    assert verified.eager_error is not None and min(verified.max_rel_error, verified.eager_error) > 1e-4
    exact = Offset(0.0).double()
    exact.load_state_dict(network.state_dict())
    with torch.no_grad():
        wanted = exact(IMAGE.double()).float()
        assert relative_error(lowered.run(IMAGE), wanted) < relative_error(network(IMAGE), wanted)


def test_rounding_is_measured_of_networks_that_take_numbers_too() -> None:
    lowered = dimorder.lower(Times(Offset(1e4)).eval(), (IMAGE, 2.0, None), target="torch")
    assert lowered.verified.eager_error is not None


def test_what_float32_is_worth_is_asked_only_above_the_tolerance() -> None:
    assert dimorder.lower(Offset(3.0), (IMAGE,)).verified.eager_error is None


@pytest.mark.parametrize("offset", [3.0, 1e4])
def test_a_wrong_rule_is_refused_where_float32_is_inexact_too(
    offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = normalization._fold_into_conv
    monkeypatch.setattr(normalization, "_fold_into_conv", lambda n, x, w, b: fold(n, x, w, b + 0.02))
    with pytest.raises(VerificationError, match="a rule, or the target, is wrong"):
        dimorder.lower(Offset(offset), (IMAGE,))


def test_a_network_that_is_all_rounding_is_refused_with_that_reason() -> None:
    with pytest.raises(VerificationError, match=r"and PyTorch's own torch.float32 from float64 by \d"):
        dimorder.lower(Offset(3e6), (IMAGE,))


class Exported(torch.nn.Module):
    """Computes another function once it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if torch.compiler.is_exporting() else 2.01) + 1e4 - 1e4


def test_an_export_that_is_another_network_is_refused() -> None:
    with pytest.raises(
        VerificationError, match=r"as torch\.export's program does\n.*when torch\.export traces"
    ):
        dimorder.lower(Exported(), (IMAGE,))


def test_another_type_is_never_the_same() -> None:
    assert relative_error(torch.tensor([True]), torch.tensor([1.0])) == INF


HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@HALVES
def test_half_precision_may_differ_by_its_rounding(dtype: torch.dtype) -> None:
    x, eps = torch.tensor([1.0, 2.0], dtype=dtype), torch.finfo(dtype).eps
    assert verify([torch.tensor([1 + eps, 2.0], dtype=dtype)], [x], what="it") > 0
    with pytest.raises(VerificationError):
        verify([x * (1 + eps)], [x], what="it")


class Scores(torch.nn.Module):
    """Products of which each is rounded, and in the middle of which float32 becomes half precision."""

    def __init__(self, dtype: torch.dtype, takes: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.takes = dtype, takes
        weight = torch.randn(50, 50, generator=torch.Generator().manual_seed(5)) / 7
        self.weight = torch.nn.Parameter(weight.to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        for _ in range(3):
            x = torch.tanh(x @ self.weight * 2)
        return x.to(self.takes)


@HALVES
@pytest.mark.parametrize("takes", [torch.float32, None])
def test_half_precision_is_held_to_float64(dtype: torch.dtype, takes: torch.dtype | None) -> None:
    """Test that exact results and PyTorch's own pass; results five times as far from float64 do not."""
    network = Scores(dtype, takes or dtype)
    held = trial_on(network, torch.randn(30, 50).to(takes or dtype))
    exact = Scores(torch.float64, torch.float64)
    exact.load_state_dict(network.state_dict())

    def far(factor: float, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            right = exact(x.double())
            return [(right + factor * (network(x).double() - right)).to(x.dtype)]

    for factor in (0.0, 1.0):
        held.compare(lambda given, factor=factor: far(factor, given[0]), "the program")
    with pytest.raises(VerificationError, match="a rule, or the target, is wrong"):
        held.compare(lambda given: far(5.0, given[0]), "the program", half_sums=False)


def test_a_program_may_keep_its_sums_in_float16_where_the_network_is_of_float16() -> None:
    network, exact = Scores(torch.float16, torch.float16), Scores(torch.float64, torch.float64)
    exact.load_state_dict(network.state_dict())
    held = trial_on(network, torch.randn(30, 50).half())

    def far(factor: float, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad(), HalfSums():
            summed, right = network(x).double(), exact(x.double())
        return [(right + factor * (summed - right)).half()]

    held.compare(lambda given: far(1.0, given[0]), "the program")
    for factor, half_sums in ((1.0, False), (5.0, True)):
        with pytest.raises(VerificationError, match="a rule, or the target, is wrong"):
            held.compare(lambda given, f=factor: far(f, given[0]), "the program", half_sums=half_sums)


class Root(torch.nn.Module):
    """The lower triangular L, 5×5, of which L·Lᵀ = x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x)


class Angle(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.acos(x)


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * math.nan


class Power(torch.nn.Module):
    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.exponent + x


class Negatives(torch.nn.Module):
    """Its first output is NaN wherever any number of a row is negative, or above 1."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.log(x.amin(1)) + torch.log(1 - x.amax(1)), x


def trial_on(network: torch.nn.Module, x: torch.Tensor) -> Trial:
    program = capture(network, (x,))
    return Trial(network, program, make_contract(program, None, None, None))


def test_a_network_of_small_numbers_is_tried_on_these() -> None:
    found = trial_on(Angle(), torch.tensor(0.25))  # the normal number is beyond 1, and its angle NaN
    assert 0 < found.inputs[0] < 1 and found.input_matters
    assert found.compare(lambda held: [torch.acos(held[0])], "the program") == 0
    with pytest.raises(VerificationError):
        found.compare(lambda held: [torch.acos(held[0] * 0.999)], "the program")


@pytest.mark.parametrize("is_real", [True, False])
def test_a_network_of_positive_numbers_is_tried_on_these(is_real: bool) -> None:
    """Half of the normal numbers have no real power, but not all of them."""
    found = trial_on(Power(1.3 if is_real else 0), torch.rand(5, 7))
    assert bool((found.inputs[0] < 0).any()) is not is_real and found.input_matters


def test_a_network_that_takes_few_inputs_is_tried_near_the_examples() -> None:
    half = torch.randn(5, 5)
    example = half @ half.T + 5 * torch.eye(5)
    found = trial_on(Root(), example)  # no matrix of random numbers is positive definite
    assert 0 < relative_error(found.inputs[0], example) < 0.1 and found.input_matters
    assert found.compare(lambda held: [torch.linalg.cholesky(held[0])], "the program") == 0
    with pytest.raises(VerificationError):
        found.compare(lambda held: [torch.linalg.cholesky(held[0]).mT.contiguous()], "the program")


def test_a_network_that_computes_nothing_of_its_examples_is_told() -> None:
    with pytest.raises(UnsupportedError) as error:
        trial_on(Root(), -torch.eye(5))
    where, found, fix = str(error.value).splitlines()
    assert where == "the network on its example inputs"
    assert "LinAlgError: linalg.cholesky" in found and fix.startswith("  fix: give example inputs")


def test_an_output_of_nan_alone_shows_nothing() -> None:
    with pytest.raises(UnsupportedError, match="every element of output 0 is NaN"):
        trial_on(Nothing(), torch.randn(3, 4))


def test_what_is_nan_for_steep_inputs_hides_no_other_output() -> None:
    found = trial_on(Negatives(), torch.rand(30, 50))
    with pytest.raises(VerificationError, match="output 1 differs"):
        found.compare(lambda held: [Negatives()(held[0])[0], held[0].clamp(max=50.0)], "the program")


def test_a_tie_that_another_sequence_of_products_breaks_is_no_fault() -> None:
    """Test inputs of 0, whose factors are 1: neighbouring products are equal but for their rounding."""

    class Places(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            products = (x * 0.3 + 1).cumprod(2)
            return torch.nn.functional.max_pool2d(products, 2, return_indices=True)[1].to(x.dtype)

    pytest.importorskip("tosa_serializer")
    lowered = dimorder.lower(Places(), (torch.randn(2, 4, 6, 4),), target="tosa")
    assert lowered.max_rel_error == 0


def test_a_zero_of_the_other_sign_is_no_fault() -> None:
    """Kernels differ in the sign of a sum of zeros, and the angle of a point on an axis in half a turn."""

    class Angle(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.atan2(x * -0.7, x.flip(1))

    def other_zeros(held: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = held
        return [torch.atan2(x * -0.7 + 0.0, x.flip(1))]

    def other_turn(held: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.atan2((held[0] * -0.7).abs(), held[0].flip(1))]

    assert trial(Angle()).compare(other_zeros, "the program") < 1e-6
    with pytest.raises(VerificationError, match="output 0 differs"):
        trial(Angle()).compare(other_turn, "the program")


def test_numbers_below_the_normal_ones_are_zero_to_some_kernels() -> None:
    """Then the place of the least is another, as it is where XNNPACK makes them zero."""

    class Place(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 1e-20 * 1e-20).argmin(1).to(x.dtype)

    x = torch.tensor([[1.0, 2.0, -3.0, 4.0], [3.0, 2.0, 1.0, -4.0]])
    program = FunctionalProgram(torch.export.export(Place(), (x,)))
    found = [program.run((x,), partial(NoisyRun, seed=seed))[0].tolist() for seed in range(3)]
    assert Place()(x).tolist() == [2.0, 3.0]
    assert [0.0, 0.0] in found


def test_integers_that_a_rounding_chooses_show_nothing() -> None:
    """The pixels of a plane are equal but for roundings, which decide where the largest one is."""

    class Places(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            alike = torch.matmul(x.softmax(-1), torch.ones(7, 6)).sigmoid()
            return torch.nn.functional.max_pool2d(alike, 2, return_indices=True)[1]

    net = Places()
    with pytest.raises(VerificationError, match=r"with other roundings.*\n.*nothing can be shown"):
        trial_on(net, torch.randn(1, 3, 4, 7)).compare_once(lambda inputs: [net(*inputs) + 1], "the program")
