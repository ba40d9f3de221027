"""Random networks of integers: quantised by PT2E or by hand, lowered, held to the bits of their kernels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("torchao")
pytest.importorskip("ai_edge_litert")

from tests import fuzz
from tests.fuzz.examining import network
from tests.fuzz.integer_operators import INTEGERS
from tests.fuzz.test_fuzz import AT_ONCE, _all_are_right

FAST, FULL = 1, 303
PER_TEST = AT_ONCE + 1  # so that the last slow test has many networks too


@pytest.mark.parametrize("target", ["int8", "int8-litert"])
def test_random_networks_are_lowered_right(target: str) -> None:
    _all_are_right(target, range(FAST))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FAST, FULL, PER_TEST))
@pytest.mark.parametrize("target", ["int8", "int8-litert"])
def test_three_hundred_random_networks_are_lowered_right(target: str, first: int) -> None:
    _all_are_right(target, range(first, min(first + PER_TEST, FULL)))


# -- the fuzzer itself


def test_every_quantizer_and_every_row_comes_up() -> None:
    cases = [fuzz.generate(seed, "int8") for seed in range(300)]
    quantizers = Counter(case.quantizer for case in cases)
    rows = Counter(step.operator for case in cases for step in case.steps)
    assert set(quantizers) == {"by_hand", "by_xnnpack", "by_xnnpack_per_tensor", "by_arm"}
    assert set(INTEGERS) <= set(rows)
    assert {each.kind for case in cases for each in case.inputs.values()} >= {"normal", "int8", "uint8"}


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_is_a_network_and_its_module_computes_what_its_steps_do(seed: int) -> None:
    case = fuzz.generate(seed, "int8")
    assert case == fuzz.generate(seed, "int8")
    values = fuzz.run(case)
    with torch.no_grad():
        results = case.module()(*case.args)
    for (name, _), result in zip(case.outputs, results, strict=True):
        assert torch.equal(result, values[name])


def _by_hand(*rows: str) -> fuzz.Case:
    """The first case by hand whose steps are of these rows, among others."""
    cases = (fuzz.generate(seed, "int8") for seed in range(500))
    return next(c for c in cases if c.quantizer == "by_hand" and set(rows) <= {s.operator for s in c.steps})


def test_a_wrong_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.lowered import Lowered

    right = Lowered.run

    def wrong(lowered: Lowered, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.roll(y, 1, -1) for y in right(lowered, *inputs)]

    case = _by_hand("conv2d_int8")
    monkeypatch.setattr(Lowered, "run", wrong)
    assert fuzz.examine(case, "int8").kind.endswith("unnoticed")


def test_the_script_of_a_case_runs(capsys: pytest.CaptureFixture[str]) -> None:
    case = _by_hand("requantised", "conv2d_int8")
    exec(fuzz.script(case, "int8", fuzz.Outcome("right", "as it is"), 6), {})
    assert capsys.readouterr().out.count("error") == len(case.outputs)


def test_a_network_is_quantised_by_the_tools_that_a_case_names() -> None:
    cases = (fuzz.generate(seed, "int8") for seed in range(500))
    case = next(c for c in cases if c.quantizer == "by_xnnpack" and "conv2d" in {s.operator for s in c.steps})
    targets = {str(node.target) for node in network(case).graph.nodes}
    assert "quantized_decomposed.dequantize_per_channel.default" in targets
