"""Networks of transformers, small and with random weights."""

from __future__ import annotations

from torch import nn

from .network import Field, Network, row
from .vision import load_torchvision


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


NETWORKS: tuple[Network, ...] = (
    row("segformer", segformer, (1, 3, 96, 128), "transformers"),
    row("wav2vec2", wav2vec2, (1, 3200), "transformers"),
)
