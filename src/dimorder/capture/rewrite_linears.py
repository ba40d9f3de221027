"""List the passes that rewrite linears and convolutions, and run them on a network at one size or several.

Heads of attention are split and merged in quantized networks too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.fx import Graph, GraphModule

from dimorder.capture.captured import Captured
from dimorder.capture.fold_into_weights import fold_into_weights
from dimorder.capture.merge_parallel_linear import merge_parallel_linear
from dimorder.capture.passes import graph_faults
from dimorder.capture.slice_attention_heads import slice_attention_heads
from dimorder.capture.split_attention_heads import HeadLimits, split_attention_heads
from dimorder.capture.split_packed_linear import split_packed_linear
from dimorder.graph.nodes import graph_module
from dimorder.graph.passes import Pass, run_passes
from dimorder.ops.quantization import is_quantized


@dataclass(frozen=True)
class LinearLimits:
    """The linears for which a target is faster with several operators than with one.

    Attributes:
        split_channels: The fewest channels per slice for which a linear whose result is only sliced is
            split into one linear per slice. None means that a slice takes no time.
        heads: The attention heads for which a matmul per head is as fast as one matmul of all channels.
    """

    split_channels: int | None = None
    heads: HeadLimits | None = None


def rewrite_linears(
    programs: Sequence[Captured],
    limits: LinearLimits = LinearLimits(),
    varying: Sequence[frozenset[int]] | None = None,
) -> list[Captured]:
    """Rewrite the linears of the same network at several sizes, with the values of its `varying` sizes.

    Programs stay as they are if the sizes decide what can be folded.

    >>> from dimorder.capture.captured import capture
    >>> net = torch.nn.Sequential(torch.nn.LayerNorm(5), torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    >>> def operators(program):
    ...     return [str(node.target) for node in program.nodes if node.op == "call_function"]
    >>> program = capture(net, (torch.randn(3, 5),))
    >>> operators(program)
    ['aten.layer_norm.default', 'aten.linear.default', 'aten.mul.Tensor', 'aten.add.Tensor']
    >>> operators(rewrite_linears([program])[0])
    ['aten.layer_norm.default', 'aten.linear.default']
    """
    if varying is None and any(is_quantized(program.module) for program in programs):
        return list(programs)
    rewritten = [
        replace(program, module=_rewritten(program.module, limits, sizes))
        for program, sizes in zip(programs, varying or [frozenset()] * len(programs), strict=True)
    ]
    return rewritten if _have_equal_results(programs, rewritten) else list(programs)


def _have_equal_results(programs: Sequence[Captured], rewritten: Sequence[Captured]) -> bool:
    """Return whether all programs have the same nodes, and equal new constants at all sizes."""
    if len({tuple((node.op, node.target) for node in program.nodes) for program in rewritten}) > 1:
        return False
    old = dict(programs[0].module.named_buffers())
    new = ((name, value) for name, value in rewritten[0].module.named_buffers() if name not in old)
    return all(
        torch.equal(value, getattr(program.module, name)) for name, value in new for program in rewritten[1:]
    )


def _rewritten(module: GraphModule, limits: LinearLimits, varying: frozenset[int]) -> GraphModule:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    passes = [] if is_quantized(module) else [*linear_passes(limits, varying)]
    if limits.heads is not None and varying:
        slices = partial(slice_attention_heads, most=limits.heads.most_joined, varying=varying)
        passes.append(Pass("slice attention heads", slices, (graph_faults,), (graph_faults,)))
    copy = run_passes(passes, graph_module(module, graph))
    return graph_module(copy, copy.graph)  # without the constants that nothing reads


def quantized_faults(module: GraphModule) -> Iterator[str]:
    """Yield a fault if a graph is quantized."""
    if is_quantized(module):
        yield "a quantized network"


def linear_passes(limits: LinearLimits, varying: frozenset[int]) -> tuple[Pass[GraphModule], ...]:
    """Return the passes on linears and convolutions of a network that is not quantized.

    Args:
        limits: The linears that become several.
        varying: The values of dynamic sizes.
    """
    passes: dict[str, Callable[[GraphModule], None]] = {}
    if limits.split_channels is not None:
        passes["split packed linears"] = partial(split_packed_linear, fewest=limits.split_channels)
    passes["merge parallel linears"] = merge_parallel_linear
    passes["fold into weights"] = fold_into_weights
    if limits.heads is not None:
        passes["split attention heads"] = partial(split_attention_heads, limits=limits.heads, varying=varying)
    requires = (graph_faults, quantized_faults)
    return tuple(Pass(name, run, requires, (graph_faults,)) for name, run in passes.items())
