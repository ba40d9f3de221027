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

from tests.targets.quantised import NOT_BY_HEADS, by_torchao, by_xnnpack_dynamically

LOOKUP = {"aten::embedding.out": 1}
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}


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
# Each network, its input, and what runs beside its delegate.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, int]]] = {
    "bert_small": (lambda: Embedded(BERT_SMALL()), image(1, 37, 512), {}),
    "bert_small by ids": (lambda: Field(BERT_SMALL(), "last_hidden_state"), ids(37), LOOKUP),
    "vit_tiny": (timm("vit_tiny_patch16_224"), image(1, 3, 224, 224), {}),
    "resnet18": (lambda: network("resnet18").build(), image(1, 3, 64, 96), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_delegate_that_moves_the_float_networks_bytes(name: str) -> None:
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


@pytest.mark.slow
def test_so_is_a_language_model_that_torchao_computes_in_integers() -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    row = network("llama")
    _, kwargs = row.call()
    net, quantised = row.build(), by_torchao(row.build(), Int8DynamicActivationInt8WeightConfig())
    floats, made = (dimorder.lower(each, kwargs=kwargs, target="xnnpack") for each in (net, quantised))
    assert len(made.plan.conversions) == len(floats.plan.conversions)
    assert (made.artifact.delegates, made.plan.float_islands) == (1, ())
    assert made.artifact.outside == floats.artifact.outside


def check(net: nn.Module, quantised: nn.Module, x: Tensor, outside: dict[str, int]) -> None:
    wanted = dimorder.plan(net, (x,), target=NOT_BY_HEADS).cost[0]
    lowered = dimorder.lower(quantised, (x,), target="xnnpack")
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, outside)
    assert (told["optimal"], lowered.plan.cost[0]) == (True, wanted)
    assert lowered.plan.float_islands == ()
    assert len(lowered.artifact.data) < 0.6 * sum(p.numel() * 4 for p in net.parameters())
