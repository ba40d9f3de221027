"""Every architecture of transformers, as AutoModel builds it from a configuration whose sizes are small."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .vision import load_torchvision

MOST_PARAMETERS = 40_000_000  # in sizes that no name below makes small
# What a configuration's fields become, where it has them.
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_experts_per_tok", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "layerdrop"), 0.0),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff"), 48),
    **dict.fromkeys(("n_inner", "hidden_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "image_size"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("head_dim", "rotary_dim", "d_kv"), 8),
    **dict.fromkeys(("embedding_size", "patch_size", "num_mel_bins"), 16),
    "moe_intermediate_size": 24,
    "vocab_size": 101,
    "conv_dim": [32] * 7,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Tensors(nn.Module):
    """A network that takes tensors by position, and returns the tensors of its output but those of caches."""

    def __init__(self, network: nn.Module, names: list[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.network, self.names, self.options = network, names, dict(options)

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        output = self.network(**dict(zip(self.names, tensors, strict=True)), **self.options)
        kept = [value for key, value in output.items() if "past" not in key and "cache" not in key]
        return [leaf for leaf in pytree.tree_leaves(kept) if isinstance(leaf, Tensor)]


def names() -> list[str]:
    """The types of configurations that transformers knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING)


def build(name: str) -> tuple[Tensors, tuple[Tensor, ...]] | None:
    """Return a network and its inputs; None if transformers does not build it in these sizes."""
    load_torchvision()
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    try:
        config = CONFIG_MAPPING[name]()
        _make_small(config)
        with torch.device("meta"):
            parameters = sum(each.numel() for each in AutoModel.from_config(config).parameters())
        if parameters > MOST_PARAMETERS:
            return None
        network = AutoModel.from_config(config).float().eval()
        inputs, options = _call(network, config)
    except Exception:  # a configuration whose sizes do not fit together, or another input than these
        return None
    return Tensors(network, list(inputs), options), tuple(inputs.values())


def first_outputs(network: Tensors, inputs: tuple[Tensor, ...]) -> list[Tensor] | None:
    """Return what a copy of a network computes; None if it does not run, or makes no finite numbers."""
    twin = copy.deepcopy(network)
    try:
        with torch.no_grad():
            outputs: list[Tensor] = twin(*inputs)
    except Exception:  # sizes that do not fit together, or inputs that it lacks
        return None
    return outputs if all(output.isfinite().all() for output in outputs) else None


def _make_small(config: Any) -> None:
    from transformers import PretrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _make_small(value)
        elif key in SIZES and type(value) in (int, float, type(SIZES[key])):
            setattr(config, key, SIZES[key])


def _call(network: Any, config: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    taken = inspect.signature(network.forward).parameters
    image = getattr(config, "image_size", None) or 64
    drawn = {
        "input_ids": lambda: torch.randint(3, 100, (1, 13)),
        "pixel_values": lambda: torch.randn(1, getattr(config, "num_channels", None) or 3, image, image),
        "input_values": lambda: torch.randn(1, 4000),
        "input_features": lambda: torch.randn(1, 16, 128),
    }
    main = network.main_input_name
    inputs = {main: drawn[main]()}
    if main == "input_ids" and "attention_mask" in taken:
        inputs["attention_mask"] = torch.ones(1, 13, dtype=torch.int64)
    if "decoder_input_ids" in taken:
        inputs["decoder_input_ids"] = torch.randint(3, 100, (1, 5))
    return inputs, {"use_cache": False} if "use_cache" in taken else {}
