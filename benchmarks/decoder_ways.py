"""Make decoders of random weights, and lower them as dimorder and ExecuTorch do.

A call gets tokens and their positions, and returns the logits of its last token: all that sampling needs.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import dimorder
from dimorder.capture.state import with_one_name
from dimorder.errors import UnsupportedError
from dimorder.executorch import pte
from tests.targets.quantised import by_torchao
from tests.zoo import stateful

FLOAT = "float32"
_GROUP = 32  # weights of 4 bits that share a scale
WEIGHTS = (FLOAT, "8da8w", "8da4w")  # the last two by torchao: activations of 8 bits, quantised dynamically


@dataclass(frozen=True)
class Decoder:
    """A decoder of transformers: its class, its configuration, and how many tokens it gets."""

    kind: str
    config: str
    options: Mapping[str, Any]
    prompt: int = 128
    steps: int = 64
    cache: int = 256

    def build(self, weights: str) -> nn.Module:
        """Return the network with a static cache; its linears are quantised if `weights` says so."""
        torch.manual_seed(0)
        network = stateful.decoder(self.kind, self.config, length=self.cache, **self.options)
        network.model.forward = partial(network.model.forward, logits_to_keep=1)
        if weights == FLOAT:
            return network
        _use_linears(network)
        return by_torchao(network, _torchao(weights))

    @property
    def tokens(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(3, self.options["vocab_size"], (1, self.cache), generator=generator)

    def call(self, first: int, count: int) -> dict[str, Tensor]:
        """Return the arguments for so many tokens of a fixed text."""
        positions = torch.arange(first, first + count)
        return {"input_ids": self.tokens[:, first : first + count], "cache_position": positions}

    @property
    def sizes(self) -> dict[str, dict[int, Any]]:
        length = Dim("L", min=1, max=self.prompt)
        return {"input_ids": {1: length}, "cache_position": {0: length}}


def _use_linears(network: nn.Module) -> None:
    """Replace transformers' Conv1D, a linear whose weight lies transposed: torchao quantises linears."""
    from transformers.pytorch_utils import Conv1D

    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(*child.weight.shape)
                linear.weight, linear.bias = nn.Parameter(child.weight.T.contiguous()), child.bias
                setattr(parent, name, linear)


def _torchao(weights: str) -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerAxis, PerGroup

    in_4_bits = weights == "8da4w"
    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4 if in_4_bits else torch.int8,
        weight_granularity=PerGroup(_GROUP) if in_4_bits else PerAxis(0),
    )


_BOTH, _PROMPT, _STEP = "both.pte", "prompt.pte", "step.pte"


@dataclass(frozen=True)
class Files:
    """The programs of one way: for the prompt, and for one token a call. They may be one file."""

    prompt: Path | None
    step: Path

    @property
    def each(self) -> list[Path]:
        return list(dict.fromkeys(path for path in (self.prompt, self.step) if path is not None))

    @classmethod
    def within(cls, folder: Path) -> Files:
        """Return the files that a way wrote into a folder."""
        if (both := folder / _BOTH).exists():
            return cls(both, both)
        prompt = folder / _PROMPT
        return cls(prompt if prompt.exists() else None, folder / _STEP)


Opened = Callable[[int, int], Tensor]  # runs so many tokens from a position on, and returns the logits


@dataclass(frozen=True)
class Way:
    """A way to lower a decoder: `lower` writes files into a folder, `open` opens one of them.

    `inputs` are the flat inputs of a call, and `runtime` is the name under which `dimorder.latency` runs it.
    `modules` bring the kernels that its programs need.
    """

    title: str
    lower: Callable[[Decoder, nn.Module, Path], None]
    open: Callable[[Path], Callable[[Sequence[Tensor]], Sequence[Tensor]]]
    inputs: Callable[[Mapping[str, Tensor]], list[Tensor]]
    runtime: str
    fits: Callable[[Decoder, str], bool] = lambda decoder, weights: True
    modules: tuple[str, ...] = ()

    def opened(self, decoder: Decoder, path: Path) -> Opened:
        for module in self.modules:
            importlib.import_module(module)
        run = self.open(path)

        def logits(first: int, count: int) -> Tensor:
            (result,) = run(self.inputs(decoder.call(first, count)))
            return result.flatten()

        return logits


def _tokens_and_positions(call: Mapping[str, Tensor]) -> list[Tensor]:
    return [call["input_ids"], call["cache_position"]]


# -- dimorder


def _ours(decoder: Decoder, network: nn.Module, folder: Path) -> None:
    """One program for all lengths; one for a single token if the target takes no other of this network."""
    lower = partial(dimorder.lower, network, (), target="xnnpack")
    try:
        lowered = lower(decoder.call(0, decoder.prompt), dynamic_shapes=decoder.sizes)
    except UnsupportedError:
        lower(decoder.call(0, 1)).save(folder / _STEP)
    else:
        lowered.save(folder / _BOTH)


def _open_ours(path: Path) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    program = dimorder.load(path, threads=torch.get_num_threads())
    return lambda inputs: program.run(*inputs)


# -- ExecuTorch


def _exported(decoder: Decoder, network: nn.Module, count: int, dynamic: bool) -> ExportedProgram:
    """Export a network as transformers does.

    ExecuTorch cannot lower what torch.export returns for this cache, since it has each counter of positions
    under two names. dimorder gives it one.
    """
    sizes = decoder.sizes if dynamic else None
    with torch.no_grad():
        exported = torch.export.export(network, (), decoder.call(0, count), dynamic_shapes=sizes)
        return with_one_name(exported).run_decompositions({})


def _write_stock(exported: ExportedProgram, path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    partitioners = [XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()]  # as its Llama export
    edge = to_edge_transform_and_lower(exported, partitioner=partitioners)
    config = ExecutorchBackendConfig(run_reinplace_pass=True)  # rows of the cache are written in place
    path.write_bytes(edge.to_executorch(config).buffer)


def _stock(decoder: Decoder, network: nn.Module, folder: Path) -> None:
    """One program for all lengths."""
    _write_stock(_exported(decoder, network, decoder.prompt, dynamic=True), folder / _BOTH)


def _stock_by_size(decoder: Decoder, network: nn.Module, folder: Path) -> None:
    """One program for the prompt's length and one for a token: two copies of the weights, and two caches."""
    for name, count in ((_PROMPT, decoder.prompt), (_STEP, 1)):
        _write_stock(_exported(decoder, network, count, dynamic=False), folder / name)


def _open_stock(path: Path) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    import executorch.kernels.quantized  # noqa: F401  the kernels of what a quantised network leaves outside

    pte.set_threads(torch.get_num_threads())
    return pte.method_of_file(path)


# -- ExecuTorch's own Llama (executorch.examples.models.llama), with its operators for attention and cache


_NAMES = {  # of a layer's parts: in transformers, and in ExecuTorch's Llama
    **{f"self_attn.{name}_proj": f"attention.w{name}" for name in "qkvo"},
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _stock_llama(decoder: Decoder, network: nn.Module, folder: Path) -> None:
    """One program for all lengths, as its export_llama writes with `use_sdpa_with_kv_cache`."""
    from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
        replace_kv_cache_with_custom_kv_cache,
    )
    from executorch.examples.models.llama.source_transformation.sdpa import replace_sdpa_with_custom_op
    from executorch.extension.llm.export.builder import DType, LLMEdgeManager
    from executorch.extension.llm.export.partitioner_lib import get_xnnpack_partitioner

    llama = _transformer(decoder, network.model)
    llama = replace_kv_cache_with_custom_kv_cache(replace_sdpa_with_custom_op(llama))
    manager = LLMEdgeManager(
        llama,
        "llama",
        decoder.prompt + 1,  # it exports lengths below that
        use_kv_cache=True,
        example_inputs=(decoder.tokens[:, :3], {"input_pos": torch.tensor([0])}),
        dtype=DType.fp32,
        enable_dynamic_shape=True,
    ).export()
    manager.run_canonical_optimizations()
    manager.to_edge_transform_and_lower([get_xnnpack_partitioner(each) for each in (True, False)])
    (folder / _BOTH).write_bytes(manager.to_executorch().export_program.buffer)


def _transformer(decoder: Decoder, network: Any) -> nn.Module:
    """Return ExecuTorch's network with the same parameters."""
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    config = network.config
    llama = construct_transformer(
        ModelArgs(
            dim=config.hidden_size,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            vocab_size=config.vocab_size,
            hidden_dim=config.intermediate_size,
            norm_eps=config.rms_norm_eps,
            use_hf_rope=True,
            max_seq_len=decoder.prompt + 1,
            max_context_len=decoder.cache,
            use_kv_cache=True,
            use_sdpa_with_kv_cache_op=True,
            enable_dynamic_shape=True,
        )
    ).eval()
    parts = [(network.model.embed_tokens, llama.tok_embeddings), (network.model.norm, llama.norm)]
    parts += [(network.lm_head, llama.output)]
    for ours, theirs in zip(network.model.layers, llama.layers, strict=True):
        parts += [(ours.get_submodule(name), theirs.get_submodule(other)) for name, other in _NAMES.items()]
    for ours, theirs in parts:
        theirs.weight = copy.deepcopy(ours.weight)
    angles = torch.outer(torch.arange(decoder.cache), network.model.rotary_emb.inv_freq).repeat(1, 2)
    llama.rope.freqs_cos, llama.rope.freqs_sin = angles.cos(), angles.sin()
    return llama


def _tokens_and_first(call: Mapping[str, Tensor]) -> list[Tensor]:
    return [call["input_ids"], call["cache_position"][:1]]


OURS = "dimorder"
WAYS: Mapping[str, Way] = {
    OURS: Way("dimorder", _ours, _open_ours, _tokens_and_positions, "xnnpack"),
    "executorch": Way("ExecuTorch", _stock, _open_stock, _tokens_and_positions, "executorch"),
    "executorch-by-size": Way(
        "ExecuTorch, a program for each of two sizes",
        _stock_by_size,
        _open_stock,
        _tokens_and_positions,
        "executorch",
        fits=lambda decoder, weights: weights == FLOAT,  # two sizes are no faster, and take minutes to lower
    ),
    "executorch-llama": Way(
        "ExecuTorch's own Llama",
        _stock_llama,
        _open_stock,
        _tokens_and_first,
        "executorch",
        fits=lambda decoder, weights: decoder.kind == "LlamaForCausalLM",
        modules=("executorch.extension.llm.custom_ops.custom_ops",),
    ),
}
