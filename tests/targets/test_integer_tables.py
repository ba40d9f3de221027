"""Quantised networks that read tables at computed positions, as networks of texts do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.lowered import Lowered
from tests.marks import slow_but

pytest.importorskip("executorch")
pytest.importorskip("torchao")
pytest.importorskip("tosa_serializer")

WORDS, WIDE = 50, 16
TARGETS = ("xnnpack", "litert", "tosa", "ethos-u85-256")


class Text(nn.Module):
    """An encoder of texts: words, positions, a layer of a transformer, and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDE, padding_idx=1), nn.Embedding(30, WIDE)
        self.layer = nn.TransformerEncoderLayer(WIDE, 2, 24, batch_first=True)
        self.scores = nn.Linear(WIDE, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(self.layer(self.words(ids) + self.place(ids)).mean(1))

    def place(self, ids: Tensor) -> Tensor:
        return self.positions(torch.arange(ids.shape[1], dtype=ids.dtype))


class Counted(Text):
    """Words whose positions are counted without the padding, as RoBERTa has them."""

    def place(self, ids: Tensor) -> Tensor:
        kept = (ids != 1).to(ids.dtype)
        return self.positions((torch.cumsum(kept, 1) * kept).to(ids.dtype) + 1)


class Masked(Text):
    """Words some of which a mask hides: from attention, and from their mean."""

    def forward(self, ids: Tensor, kept: Tensor) -> Tensor:
        found = self.layer(self.words(ids) + self.place(ids), src_key_padding_mask=~kept)
        weights = kept.unsqueeze(-1).to(found.dtype)
        return self.scores((found * weights).sum(1) / weights.sum(1).clamp(min=1.0))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"words": Text, "counted positions": Counted, "a mask": Masked}


def inputs(name: str, seed: int, shape: tuple[int, int] = (2, 12)) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, shape, generator=generator, dtype=torch.int32)
    lengths = torch.randint(3, shape[1], (shape[0], 1), generator=generator)
    return (ids, torch.arange(shape[1]) < lengths) if name == "a mask" else (ids,)


def lower(network: nn.Module, target: str, name: str = "words", **options: Any) -> Lowered:
    torch.manual_seed(0)
    quantized = dimorder.quantize(network.eval(), [inputs(name, seed) for seed in range(4)], target=target)
    return dimorder.lower(quantized, inputs(name, 7), target=target, **options)


@pytest.mark.parametrize(
    ("name", "target"),
    slow_but(
        product(NETWORKS, TARGETS),
        [("words", "ethos-u85-256"), ("counted positions", "litert"), ("a mask", "xnnpack")],
    ),
)
def test_a_table_is_read_as_it_is_stored(name: str, target: str) -> None:
    program = lower(NETWORKS[name](), target, name).physical
    tables = [x for x in (*program.constants.values(), *program.buffers()) if x.shape == (WORDS, WIDE)]
    assert [x.dtype for x in tables] == [torch.int8]


@pytest.mark.parametrize("name", slow_but(NETWORKS, ["counted positions"]))
def test_arms_reference_model_reads_the_same(name: str) -> None:
    assert lower(NETWORKS[name](), "tosa", name, run_artifact=True).verified.artifact_ran


class Scored(nn.Module):
    """Scores of words, and what a function makes of the words and the scores."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(WORDS, WIDE), nn.Linear(WIDE, 5)
        self.function = function

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        found = self.words(ids)
        scores = self.scores(found)
        return scores, self.function(found, scores)


def test_a_table_stays_in_floats_if_only_one_of_its_readers_quantises_it() -> None:
    program = lower(Scored(lambda found, scores: found.cos()), "xnnpack").physical
    assert [x.dtype for x in program.buffers() if x.shape == (WORDS, WIDE)] == [torch.float32]


def test_positions_of_64_bits_are_refused_by_an_npu_with_what_to_do() -> None:
    network = Text()
    quantized = dimorder.quantize(network.eval(), [inputs("words", 0)], target="ethos-u85-256")
    with pytest.raises(UnsupportedError, match=r"give the example as int32: x.to\(torch.int32\); the module"):
        dimorder.lower(quantized, (inputs("words", 7)[0].long(),), target="ethos-u85-256")


def test_rows_of_a_table_that_are_returned_as_integers_have_their_scale() -> None:
    torch.manual_seed(3)
    network, at = nn.Embedding(9, 5).eval(), [torch.randint(0, 9, (3, 4)) for _ in range(3)]
    quantized = dimorder.quantize(network, at, target="tosa")
    lowered = dimorder.lower(quantized, (at[0],), target="tosa")
    (spec,), (found,) = lowered.contract.outputs, quantized.compare(lowered)
    assert spec.dtype == "int8" and spec.scale is not None
    assert found.snr_db is not None and found.snr_db > 40
