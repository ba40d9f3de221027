"""Networks that are quantised dynamically, on target xnnpack: as the float network, but for its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from tests.zoo import network, timm
from tests.zoo.hugging_face import Field, transformers

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from tests.targets.quantised import by_torchao, by_xnnpack_dynamically

LOOKUP = {"aten::embedding.out": 1}
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
SIZES = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 40, "use_cache": False}


class Embedded(nn.Module):
    """A transformer that is given embeddings in place of ids, which nothing has to look up."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(inputs_embeds=x).last_hidden_state
        return found


def image(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def ids(length: int) -> Tensor:
    return torch.randint(0, 100, (1, length), generator=torch.Generator().manual_seed(1))


BERT_SMALL = transformers("BertModel", "BertConfig", **SMALL)
GPT2 = transformers("GPT2Model", "GPT2Config", **SIZES)
# Each network, its input, and what runs beside its delegate.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, int]]] = {
    "bert_small": (lambda: Embedded(BERT_SMALL()), image(1, 37, 512), {}),
    "bert_small by ids": (lambda: Field(BERT_SMALL(), "last_hidden_state"), ids(37), LOOKUP),
    "vit_tiny": (timm("vit_tiny_patch16_224"), image(1, 3, 224, 224), {}),
    "gpt2": (lambda: Field(GPT2(), "last_hidden_state"), ids(13), LOOKUP),
    "resnet18": (lambda: network("resnet18").build(), image(1, 3, 64, 96), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_delegate_with_the_float_networks_conversions(name: str) -> None:
    make, x, outside = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make().eval()
    check(net, by_xnnpack_dynamically(net, x), x, outside)


@pytest.mark.slow
def test_so_is_one_that_torchao_quantised() -> None:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    config: Any = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(64)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, again = (Embedded(BERT_SMALL()).eval() for _ in range(2))
    check(net, by_torchao(again, config), image(1, 37, 512), {})


def check(net: nn.Module, quantised: nn.Module, x: Tensor, outside: dict[str, int]) -> None:
    wanted = len(dimorder.plan(net, (x,), target="xnnpack").conversions)
    lowered = dimorder.lower(quantised, (x,), target="xnnpack")
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, outside)
    assert (told["optimal"], told["conversion_count"]) == (True, wanted)
    assert lowered.artifact.float_islands == ()
    assert len(lowered.artifact.data) < 0.5 * sum(p.numel() * 4 for p in net.parameters())
