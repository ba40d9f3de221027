"""One file for ranges of sizes, with scales of integers that it finds as it runs, and with state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from torchao.quantization import Int8DynamicActivationIntxWeightConfig
from torchao.quantization.granularity import PerAxis

import dimorder
from dimorder.errors import VerificationError
from dimorder.verification import xnnpack_roundings
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but
from tests.targets.quantised import by_torchao, by_xnnpack, by_xnnpack_dynamically
from tests.targets.test_xnnpack_dynamic import Convolved, by_channel, by_rows, near, seeded
from tests.zoo import perturb, stateful

SUFFIX = {"xnnpack": ".pte", "litert": ".tflite"}
INT4: Any = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerAxis(0))
ROWS = ({0: Dim("N", min=1, max=6), 1: Dim("L", min=1, max=11)},)
TOKENS = Dim("L", min=1, max=12)
PICTURES = ({0: Dim("N", min=1, max=5), 2: Dim("H", min=4, max=12), 3: Dim("W", min=5, max=13)},)


@pytest.mark.parametrize("target", SUFFIX)
def test_a_linear_rounds_each_row_at_all_sizes(target: str) -> None:
    x, net = torch.randn(3, 5, 24), seeded(nn.Linear, 24, 7)
    quantised, weight = by_xnnpack_dynamically(net, x), by_channel(net.weight)
    lowered = dimorder.lower(quantised, (x,), target=target, dynamic_shapes=ROWS)
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert lowered.plan.float_islands == ()
    for shape in ((1, 1, 24), (6, 11, 24), (2, 9, 24)):
        x = torch.randn(shape)
        wanted = F.linear(by_rows(x, 1).double(), weight.double(), net.bias.detach().double())
        assert near(lowered.run(x), wanted.float())


def test_a_convolution_rounds_each_image_at_all_sizes() -> None:
    x, layer = torch.randn(2, 6, 9, 11), seeded(nn.Conv2d, 6, 10, 3, padding=1)
    quantised = by_xnnpack_dynamically(Convolved(copy.deepcopy(layer)), x)
    lowered = dimorder.lower(quantised, (x,), target="xnnpack", dynamic_shapes=PICTURES)
    assert lowered.plan.float_islands == ()
    layer.weight.data = by_channel(layer.weight)
    layer.double()
    for shape in ((1, 6, 4, 13), (5, 6, 12, 5), (3, 6, 7, 8)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert near(lowered.run(x), layer(by_rows(x, 3).double()).mean((2, 3)).float())


@pytest.mark.parametrize("target", SUFFIX)
def test_rows_that_are_rounded_otherwise_at_one_size_are_found(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of the longest input share a scale in the model, which no runtime does."""
    integers = xnnpack_roundings.DynamicIntegers
    of = integers.of
    wrong = staticmethod(lambda x, last: of(x, x.dim() if x.shape[-2] == 11 else last))
    monkeypatch.setattr(integers, "of", wrong)
    net, x = by_torchao(seeded(nn.Linear, 24, 7), INT4), torch.randn(3, 5, 24) * torch.rand(3, 5, 1)
    with pytest.raises(VerificationError, match="of dynamically quantised integers"):
        dimorder.lower(net, (x,), target=target, dynamic_shapes=ROWS)


class Attention(nn.Module):
    """Attention with a cache of keys and values, of which each call writes some rows."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.take, self.ask = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.give = nn.Linear(width, 10)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, length, width))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.keys[:, at], self.values[:, at] = self.take(x).chunk(2, -1)
        hidden = torch.arange(self.keys.shape[1]) > at[:, None]
        scores = self.ask(x) @ self.keys.transpose(1, 2)
        given: Tensor = self.give(scores.masked_fill(hidden, -1e9).softmax(-1) @ self.values)
        return given


def step(first: int, count: int) -> dict[str, Tensor]:
    return {"x": torch.randn(1, count, 32), "at": torch.arange(first, first + count)}


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["xnnpack"]))
def test_attention_of_four_bits_takes_a_prompt_then_tokens(target: str, tmp_path: Path) -> None:
    net = by_torchao(perturb(Attention(32, 70)).eval(), INT4)
    require_decodes(net, step, {"x": 1, "at": 0}, target, tmp_path)


@pytest.mark.slow
def test_attention_of_pt2e_takes_a_prompt_then_tokens(tmp_path: Path) -> None:
    """PT2E has one step for all tokens of a call; XNNPACK's is finer, one for each."""
    sizes = ({1: TOKENS}, {0: TOKENS})
    net = by_xnnpack_dynamically(perturb(Attention(32, 70)).eval(), *step(0, 5).values(), dims=sizes)
    require_decodes(net, step, {"x": 1, "at": 0}, "xnnpack", tmp_path, typical=0.02, most=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("target", SUFFIX)
@pytest.mark.parametrize(("make", "length"), [(stateful.gpt2, 40), (stateful.llama, 70)])
def test_a_language_model_of_four_bits_takes_a_prompt_then_tokens(
    make: Callable[[], nn.Module], length: int, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateful, "LENGTH", length)
    net = by_torchao(make(), INT4)

    def call(first: int, count: int) -> dict[str, Tensor]:
        ids = torch.randint(3, stateful.VOCABULARY, (1, count))
        return {"input_ids": ids, "cache_position": torch.arange(first, first + count)}

    sizes = {"input_ids": 1, "cache_position": 0}  # what a tie moves stays in the cache
    require_decodes(net, call, sizes, target, tmp_path, length - 6, typical=1e-3, most=0.05)


def require_decodes(
    net: nn.Module,
    call: Callable[[int, int], dict[str, Tensor]],
    dims: dict[str, int],
    target: str,
    folder: Path,
    count: int = 64,
    typical: float = 1e-5,
    most: float = 0.02,
) -> None:
    """Check a prompt and tokens: the network's numbers, but for integers that a tie moves by one step.

    `typical` is the error of half of the calls, and `most` that of all.
    """
    torch.manual_seed(0)
    sizes = {name: {dim: TOKENS} for name, dim in dims.items()}
    lowered = dimorder.lower(copy.deepcopy(net), (), call(0, 5), target=target, dynamic_shapes=sizes)
    assert lowered.plan.float_islands == ()
    program = dimorder.load(lowered.save(folder / f"net{SUFFIX[target]}"))
    for prompt in (6, 1):
        eager, errors = copy.deepcopy(net), list[float]()
        program.reset()
        for each in (call(0, prompt), *(call(at, 1) for at in range(prompt, prompt + count))):
            with torch.no_grad():
                wanted = eager(**each)
            errors.append(relative_error(program.run(**each)[0], wanted))
        assert sorted(errors)[len(errors) // 2] <= typical and max(errors) <= most


@pytest.mark.parametrize("target", slow_but(SUFFIX, ["litert"]))
def test_a_stream_in_int8_comes_in_pieces_of_any_length(target: str, tmp_path: Path) -> None:
    x, rows = torch.randn(1, 3, 7, 9), ({2: Dim("T", min=1, max=16)},)
    network = by_xnnpack(perturb(stateful.StreamingConv2d()).eval(), x, dims=rows)
    lowered = dimorder.lower(
        copy.deepcopy(network), (x,), dynamic_shapes=rows, target=target, input_orders="NHWC"
    )
    program = dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}"))
    for count in (16, 1, 5, 2, 11):
        x = torch.randn(1, 3, count, 9)
        with torch.no_grad():
            assert relative_error(program(x), network(x)) <= 0.03
