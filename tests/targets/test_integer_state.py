"""Test quantised networks that write buffers: each call of a loaded file gives what the network gives."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but
from tests.zoo import perturb, stateful

pytest.importorskip("torchao")
SUFFIX = {"xnnpack": ".pte", "litert": ".tflite"}


def worst_error(program: dimorder.Program, network: nn.Module, calls: list[dict[str, Tensor]]) -> float:
    """Return the largest error over the largest value in any call. A few integers may be off by one."""
    errors = []
    for call in calls:
        with torch.no_grad():
            wanted = network(**call)
        (got,) = program.run(**call)
        errors.append(relative_error(got, wanted))
    return max(errors)


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["xnnpack"]))
def test_a_stream_in_int8(target: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)

    def drawn() -> Tensor:
        return torch.randn((1, 3, 7, 9), generator=generator)

    network = perturb(stateful.StreamingConv2d()).eval()
    quantised = dimorder.quantize(network, [drawn() for _ in range(8)], target=target)
    held = dict(quantised.module.named_buffers())
    for name, buffer in network.named_buffers():  # calibration has left no state
        torch.testing.assert_close(held[name], buffer, rtol=0, atol=0)
    lowered = dimorder.lower(quantised, target=target, input_orders="NHWC")
    assert {spec.order for spec in lowered.contract.state} == {"NHWC (0, 2, 3, 1)"}
    program = dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}"))
    calls = [{"x": drawn()} for _ in range(20)]
    for _ in range(2):
        assert worst_error(program, copy.deepcopy(quantised.module), calls) <= 0.03
        program.reset()


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["litert"]))
def test_a_decoder_with_integer_weights(target: str, tmp_path: Path) -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    network = stateful.llama()
    quantize_(network, Int8DynamicActivationInt8WeightConfig())
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, stateful.VOCABULARY, (stateful.LENGTH, 1, 1), generator=generator)
    calls = [{"input_ids": each, "cache_position": torch.tensor([at])} for at, each in enumerate(ids)]
    lowered = dimorder.lower(copy.deepcopy(network), (), calls[0], target=target)
    program = dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}"))
    assert worst_error(program, network, calls) <= 0.05
