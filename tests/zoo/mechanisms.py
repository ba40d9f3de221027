"""Networks with what most networks lack: parts in integers or in half precision, selections, state, branches.

Each row names the targets that take it; `tests/targets/test_named_targets.py` lowers it for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.targets.quantised import by_arm, by_x86, by_xnnpack

from . import stateful
from .audio import HIFIGAN
from .hugging_face import MOBILEVIT, VOCABULARY, ids, text, transformers
from .network import Network, in_half, row
from .vision import load_torchvision, torchvision

PHOTO = (1, 3, 64, 96)
EXACT, INTEGERS = 1e-4, 0.03  # integers may be off by one where a sum of floats rounds otherwise


SQUEEZENET = torchvision("squeezenet1_1", num_classes=7)


def by_dimorder(part: nn.Module, *args: Any) -> nn.Module:
    """Quantise a part by the recipe of target tosa, on its inputs and a little more and less."""
    import dimorder

    examples = [tuple(factor * x for x in args) for factor in (1, 0.8, 1.1)]
    return dimorder.quantize(part, examples, target="tosa").module


class EarlyExit(nn.Module):
    """A vision transformer that stops after the first of its two blocks if the classifier there is sure."""

    def __init__(self) -> None:
        super().__init__()
        load_torchvision()
        from timm.models.vision_transformer import VisionTransformer

        sizes = {"img_size": (32, 48), "patch_size": 16, "embed_dim": 40, "depth": 2, "num_heads": 4}
        self.network = VisionTransformer(**sizes, num_classes=7)
        self.exit = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 7))

    def forward(self, x: Tensor) -> Tensor:
        y, scores = self.begin(x)
        found: Tensor = torch.cond(
            self.is_sure(scores), lambda y, scores: scores.clone(), self.go_on, (y, scores)
        )
        return found

    def begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first block's result, and the scores of its classifier."""
        y = self.network.blocks[0](self.network._pos_embed(self.network.patch_embed(x)))
        return y, self.exit(y.mean(1))

    def is_sure(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).amax() > 0.24

    def go_on(self, y: Tensor, scores: Tensor) -> Tensor:
        return self.network.forward_head(self.network.norm(self.network.blocks[1](y)))


def _token(generator: torch.Generator, batch: int) -> dict[str, Any]:
    """Draw one token, and a place for it in a cache that has room for one sequence."""
    place = torch.randint(5, stateful.LENGTH, (1,), generator=generator)
    return {"input_ids": ids(generator, 1, 1), "cache_position": place}


RT_DETR = transformers(
    "RTDetrForObjectDetection",
    "RTDetrConfig",
    backbone_config={
        "model_type": "rt_detr_resnet",
        "embedding_size": 12,
        "hidden_sizes": [12, 16, 20, 24],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_indices": [2, 3, 4],
    },
    freeze_backbone_batch_norms=False,  # so that they are calibrated
    initializer_range=0.2,  # with 0.01 the picture is lost on the way
    encoder_hidden_dim=32,
    encoder_in_channels=[16, 20, 24],
    encoder_ffn_dim=40,
    encoder_attention_heads=4,
    d_model=32,
    num_queries=9,
    decoder_in_channels=[32, 32, 32],
    decoder_ffn_dim=40,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_n_points=2,
    num_labels=5,
)
MIXTURE_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 28,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
    "use_cache": False,
}
MIXTURE = transformers(
    "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **MIXTURE_SIZES, experts_implementation="batched_mm"
)
GROUPED_MIXTURE = transformers("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **MIXTURE_SIZES)
FLOATS = {"xnnpack": EXACT, "litert": EXACT, "tosa": EXACT}
IN_INTEGERS = dict.fromkeys(FLOATS, INTEGERS)
WITH_STATE = {**FLOATS, "tosa": "programs for tosa have no state"}

NETWORKS: tuple[Network, ...] = (
    row(
        "squeezenet_two_quantizers",
        SQUEEZENET,
        PHOTO,
        "torchvision parts",
        parts={"features": by_xnnpack, "classifier": by_arm},
        targets=IN_INTEGERS,
    ),
    row(
        "squeezenet_uint8",
        SQUEEZENET,
        PHOTO,
        "torchvision parts",
        parts={"": by_x86},
        targets=IN_INTEGERS,
    ),
    row(
        "mobilevit_int8_and_half",
        MOBILEVIT,
        (1, 3, 64, 64),
        "transformers parts",
        parts={
            **{f"mobilevit.encoder.layer.{i}": by_xnnpack for i in (0, 1)},
            **{f"mobilevit.encoder.layer.{i}": in_half for i in (2, 3, 4)},
        },
        targets={"xnnpack": INTEGERS, "litert": INTEGERS, "tosa": "floats, where a graph of integers"},
    ),
    row("rt_detr", RT_DETR, PHOTO, "transformers selects", targets=FLOATS),
    row("mixture_of_experts", MIXTURE, text(9, mask=False), "transformers selects", targets=FLOATS),
    row("grouped_experts", GROUPED_MIXTURE, text(9, mask=False), "transformers selects", targets=FLOATS),
    row("llama_cached", stateful.llama, _token, "transformers state", targets=WITH_STATE),
    row("gpt2_cached", stateful.gpt2, _token, "transformers state", targets=WITH_STATE),
    row(
        "early_exit",
        EarlyExit,
        (1, 3, 32, 48),
        "timm branches",
        targets={"xnnpack": EXACT, "litert": "LiteRT has no cond", "tosa": "TOSA has no cond"},
    ),
    row(
        "hifigan_int8",
        HIFIGAN,
        (1, 17, 20),
        "transformers parts",
        parts={"": by_dimorder},
        targets=IN_INTEGERS,
    ),
)
