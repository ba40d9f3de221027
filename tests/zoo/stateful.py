"""Networks that write buffers: what a call leaves there, the next one finds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .hugging_face import TEXT, VOCABULARY, transformers
from .network import perturb

LENGTH = 14  # of a cache: so many tokens


class Counter(nn.Module):
    """Counts its calls, in integers, and what it has seen, in floats; neither begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(3))
        self.register_buffer("seen", torch.arange(7.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.seen.add_(x.sum(0))
        return x * self.seen / self.calls, self.calls


class StreamingConv1d(nn.Module):
    """A causal convolution that is given a few frames at a time and keeps the last ones of before."""

    def __init__(self, channels: int, filters: int, taps: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, filters, taps)
        self.register_buffer("last", torch.zeros(2, channels, taps - 1))

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.cat([self.last, x], 2)
        self.last.copy_(frames[:, :, x.shape[2] :])
        return self.conv(frames)


class StreamingConv2d(nn.Module):
    """Rows of pictures, as a camera reads them, through two causal convolutions over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 10, (3, 3), padding=(0, 1)), nn.Conv2d(10, 6, (4, 1))
        self.register_buffer("rows", torch.full((1, 3, 2, 9), 0.5))
        self.register_buffer("features", torch.zeros(1, 10, 3, 9))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.rows, x], 2)
        self.rows = rows[:, :, -2:]
        features = torch.cat([self.features, self.first(rows).relu()], 2)
        self.features[:] = features[:, :, -3:]
        return self.second(features)


def tcn() -> nn.Module:
    """Build streaming convolutions one after the other, each with a state of its own."""
    parts = [StreamingConv1d(5, 8, 3), nn.ReLU(), StreamingConv1d(8, 11, 4), nn.Tanh()]
    return perturb(nn.Sequential(*parts)).eval()


def decoder(kind: str, config: str, *, length: int = 0, **options: Any) -> nn.Module:
    """A decoder of transformers with its static cache of the keys and values of so many tokens."""
    network = perturb(transformers(kind, config, **options)()).eval()
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    network.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        cache_config={"batch_size": 1, "max_cache_len": length or LENGTH},
    )
    return TorchExportableModuleWithStaticCache(network)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 40}
    return decoder("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, **sizes)


def llama() -> nn.Module:
    sizes = {"intermediate_size": 80, "num_key_value_heads": 2, "max_position_embeddings": 40}
    return decoder("LlamaForCausalLM", "LlamaConfig", **TEXT, **sizes)
