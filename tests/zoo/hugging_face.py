"""Networks of transformers, small and with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .network import Draw, Field, Network, row
from .vision import load_torchvision

VOCABULARY = 97
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "image_size": 64,
    "patch_size": 16,
}


def transformers(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A class of transformers, made from a configuration of these options."""

    def make() -> nn.Module:
        load_torchvision()
        import transformers

        return getattr(transformers, kind)(getattr(transformers, config)(**options))

    return make


# What they are fed


def ids(generator: torch.Generator, batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def padded(batch: int, length: int) -> Tensor:
    """A mask of ones that ends in zeros: fewer in each row."""
    return (torch.arange(length) < torch.arange(length - 3, length - 3 + batch)[:, None]).long()


def text(length: int, *, mask: bool = True) -> Draw:
    """Token ids and their mask, by name."""

    def draw(generator: torch.Generator, batch: int) -> dict[str, Any]:
        found = {"input_ids": ids(generator, batch, length)}
        return {**found, "attention_mask": padded(batch, length)} if mask else found

    return draw


def _clip_text(generator: torch.Generator, batch: int) -> dict[str, Any]:
    """Draw ids of which the largest, which marks the end, is not the last token."""
    tokens = ids(generator, batch, 11)
    tokens[:, 8] = VOCABULARY - 1
    return {"input_ids": tokens.clamp(max=VOCABULARY - 1), "attention_mask": padded(batch, 11)}


def _decoder_step(generator: torch.Generator, batch: int) -> dict[str, Any]:
    heard = torch.randn((batch, 15, 48), generator=generator)
    return {"input_ids": ids(generator, batch, 5), "encoder_hidden_states": heard, "use_cache": False}


def _cached(layers: int, heads: int, length: int, width: int) -> Draw:
    def draw(generator: torch.Generator, batch: int) -> tuple[Any, ...]:
        past = [
            tuple(torch.randn((batch, heads, length, width), generator=generator) for _ in range(2))
            for _ in range(layers)
        ]
        return ids(generator, batch, 1), past

    return draw


# Those that need more than a configuration


class Step(nn.Module):
    """One step of a decoder whose keys and values of the steps before are inputs, and whose new ones are
    outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, past: list[tuple[Tensor, Tensor]]) -> Any:
        from transformers import DynamicCache

        given = self.network(tokens, past_key_values=DynamicCache(past), use_cache=True)
        return given.logits, [(layer.keys, layer.values) for layer in given.past_key_values.layers]


def gpt2_step() -> nn.Module:
    return Step(GPT2())


def whisper(part: str) -> Callable[[], nn.Module]:
    make = transformers("WhisperModel", "WhisperConfig", **WHISPER)
    return lambda: getattr(make(), part)


def segformer() -> nn.Module:
    load_torchvision()
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=40,
        num_labels=7,
        return_dict=True,
    )
    return Field(SegformerForSemanticSegmentation(config), "logits")


def wav2vec2() -> nn.Module:
    load_torchvision()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(32, 32, 40),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return Field(Wav2Vec2Model(config), "last_hidden_state")


BERT = transformers("BertModel", "BertConfig", **TEXT, intermediate_size=80, max_position_embeddings=40)
FNET = transformers(  # Fourier transforms of rows and columns in place of attention
    "FNetModel",
    "FNetConfig",
    vocab_size=VOCABULARY,
    hidden_size=48,
    num_hidden_layers=2,
    intermediate_size=80,
    max_position_embeddings=40,
)
DISTILBERT = transformers(
    "DistilBertModel",
    "DistilBertConfig",
    vocab_size=VOCABULARY,
    dim=48,
    n_layers=2,
    n_heads=4,
    hidden_dim=80,
    max_position_embeddings=40,
)
T5 = transformers(
    "T5EncoderModel",
    "T5Config",
    vocab_size=VOCABULARY,
    d_model=48,
    num_layers=2,
    num_heads=4,
    d_kv=12,
    d_ff=80,
)
GPT2 = transformers(
    "GPT2LMHeadModel",
    "GPT2Config",
    vocab_size=VOCABULARY,
    n_embd=48,
    n_layer=2,
    n_head=4,
    n_positions=40,
    use_cache=False,
)
LLAMA = transformers(
    "LlamaForCausalLM",
    "LlamaConfig",
    **TEXT,
    intermediate_size=80,
    num_key_value_heads=2,
    max_position_embeddings=40,
    use_cache=False,
)
CLIP_TEXT = transformers(
    "CLIPTextModel",
    "CLIPTextConfig",
    **TEXT,
    intermediate_size=80,
    max_position_embeddings=40,
    bos_token_id=0,
    eos_token_id=VOCABULARY - 1,
)
WHISPER = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "num_mel_bins": 20,
    "max_source_positions": 15,
    "max_target_positions": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
DPT = transformers(
    "DPTForDepthEstimation",
    "DPTConfig",
    **{**VISION, "num_hidden_layers": 4},
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[12, 16, 24, 28],
    fusion_hidden_size=20,
    reassemble_factors=[4, 2, 1, 0.5],
    initializer_range=0.1,  # with 0.02 the picture is lost on the way
    is_hybrid=False,
)
MOBILEVIT = transformers(
    "MobileViTForImageClassification",
    "MobileViTConfig",
    image_size=64,
    hidden_sizes=[24, 32, 40],
    neck_hidden_sizes=[8, 12, 16, 20, 24, 28, 64],
    num_labels=7,
)
MAMBA = transformers(
    "MambaModel",
    "MambaConfig",
    vocab_size=VOCABULARY,
    hidden_size=48,
    num_hidden_layers=2,
    state_size=8,
    use_cache=False,
)
DEPLOYED = "transformers deployed"

NETWORKS: tuple[Network, ...] = (
    row("segformer", segformer, (1, 3, 96, 128), DEPLOYED),
    row("wav2vec2", wav2vec2, (1, 3200), DEPLOYED),
    row("bert", BERT, text(13), DEPLOYED),
    row("fnet", FNET, text(13, mask=False), DEPLOYED),
    row("distilbert", DISTILBERT, text(13), DEPLOYED),
    row("t5_encoder", T5, text(13), DEPLOYED),
    row("gpt2", GPT2, text(13), DEPLOYED),
    row("gpt2_step", gpt2_step, _cached(2, 4, 7, 12), DEPLOYED),
    row("llama", LLAMA, text(13), DEPLOYED),
    row("clip_text", CLIP_TEXT, _clip_text, DEPLOYED),
    row(
        "clip_vision", transformers("CLIPVisionModel", "CLIPVisionConfig", **VISION), (1, 3, 64, 64), DEPLOYED
    ),
    row("whisper_encoder", whisper("encoder"), (1, 20, 30), DEPLOYED),
    row("whisper_decoder", whisper("decoder"), _decoder_step, DEPLOYED),
    row("vit", transformers("ViTModel", "ViTConfig", **VISION), (1, 3, 64, 64), DEPLOYED),
    row("dinov2", transformers("Dinov2Model", "Dinov2Config", **VISION), (1, 3, 64, 64), DEPLOYED),
    row("dpt", DPT, (1, 3, 64, 64), DEPLOYED),
    row("mobilevit", MOBILEVIT, (1, 3, 64, 64), DEPLOYED),
    row("mamba", MAMBA, text(9, mask=False), DEPLOYED),
)
