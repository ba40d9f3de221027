"""Test networks that write buffers and have dynamic sizes: one file serves calls of all sizes in a row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import ContractError, UnsupportedError
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but
from tests.zoo import perturb, stateful

FRAMES = Dim("T", min=1, max=64)
TOKENS = Dim("L", min=1, max=stateful.LENGTH)
STREAMS = {
    "conv1d": (lambda: perturb(stateful.StreamingConv1d(3, 8, 5)).eval(), (2, 3, 7)),
    "conv2d": (lambda: perturb(stateful.StreamingConv2d()).eval(), (1, 3, 7, 9)),
    "tcn": (stateful.tcn, (2, 5, 6)),
}
SUFFIX = {"torch": ".pt2", "xnnpack": ".pte", "litert": ".tflite"}


def require_same(program: dimorder.Program, network: nn.Module, calls: list[dict[str, Tensor]]) -> None:
    eager = copy.deepcopy(network)
    for number, call in enumerate(calls):
        with torch.no_grad():
            wanted = eager(**call)
        (got,) = program.run(**call)
        assert relative_error(got, wanted) <= 1e-5, f"call {number}"


@pytest.mark.parametrize(
    ("name", "target"), slow_but(product(STREAMS, SUFFIX), zip(STREAMS, SUFFIX, strict=True))
)
def test_a_stream_in_pieces_of_any_length(name: str, target: str, tmp_path: Path) -> None:
    make, shape = STREAMS[name]
    network, generator = make(), torch.Generator().manual_seed(3)
    (argument,) = ("input",) if name == "tcn" else ("x",)
    lowered = dimorder.lower(network, (torch.randn(shape),), target=target, dynamic_shapes=({2: FRAMES},))
    program = dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}"))
    lengths = torch.randint(1, 65, (200,), generator=generator).tolist()
    calls = [
        {argument: torch.randn((*shape[:2], length, *shape[3:]), generator=generator)} for length in lengths
    ]
    for _ in range(2):
        require_same(program, network, calls)
        program.reset()
    with pytest.raises(ContractError, match="65"):
        program.run(torch.randn(*shape[:2], 65, *shape[3:]))


def last_logits() -> nn.Module:
    """Build a decoder that returns the logits of its last token alone."""
    network: Any = stateful.llama()
    network.model.forward = partial(network.model.forward, logits_to_keep=1)
    return cast("nn.Module", network)


@pytest.mark.parametrize(
    ("make", "target"),
    slow_but(
        product((stateful.gpt2, stateful.llama, last_logits), SUFFIX),
        [(stateful.llama, "xnnpack")],
    ),
)
def test_a_decoder_takes_a_prompt_of_any_length_then_tokens(
    make: Callable[[], nn.Module], target: str, tmp_path: Path
) -> None:
    network, generator = make(), torch.Generator().manual_seed(3)

    def call(first: int, count: int) -> dict[str, Tensor]:
        ids = torch.randint(3, stateful.VOCABULARY, (1, count), generator=generator)
        return {"input_ids": ids, "cache_position": torch.arange(first, first + count)}

    sizes = {"input_ids": {1: TOKENS}, "cache_position": {0: TOKENS}}
    lowered = dimorder.lower(network, (), call(0, 5), target=target, dynamic_shapes=sizes)
    program = dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}"))
    for prompt in (1, 6, stateful.LENGTH):
        tokens = [call(at, 1) for at in range(prompt, stateful.LENGTH)]
        require_same(program, network, [call(0, prompt), *tokens])
        program.reset()


def test_targets_without_state_refuse_it_for_ranges_too() -> None:
    network = perturb(stateful.StreamingConv1d(3, 8, 5)).eval()
    with pytest.raises(UnsupportedError, match="inductor have no state"):
        dimorder.lower(network, (torch.randn(2, 3, 7),), target="inductor", dynamic_shapes=({2: FRAMES},))


@pytest.mark.parametrize("target", slow_but(["xnnpack", "litert"], ["xnnpack"]))
def test_a_stream_in_half_precision_in_pieces_of_any_length(target: str) -> None:
    network = perturb(stateful.StreamingConv1d(3, 8, 5)).eval().half()
    example = torch.randn(2, 3, 7).half()
    lowered = dimorder.lower(network, (example,), target=target, dynamic_shapes=({2: FRAMES},))
    eager = copy.deepcopy(network).float()
    for length in (1, 64, 2, 7, 1, 33):
        x = torch.randn(2, 3, length).half()
        with torch.no_grad():
            wanted = eager(x.float())
        got = lowered.run(x)
        assert got.dtype == torch.float16
        assert relative_error(got.float(), wanted) <= 4e-3
