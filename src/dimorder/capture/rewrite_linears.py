"""Rewrite the linears and convolutions of a network at one size or several, by the passes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import Graph, GraphModule

from dimorder.capture.captured import Captured
from dimorder.capture.passes import linear_passes
from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.graph.nodes import graph_module
from dimorder.graph.passes import run_passes
from dimorder.ops.quantization import is_quantised


def rewrite_linears(
    programs: Sequence[Captured],
    fewest: int | None,
    heads: HeadLimits | None = None,
    varying: Sequence[frozenset[int]] | None = None,
) -> list[Captured]:
    """Fold into weights what can be folded, in the same network at several sizes.

    Programs stay as they are if they are quantized, or if the sizes decide what can be folded.

    Args:
        programs: The network at each size.
        fewest: The fewest channels of a piece, if linears and convolutions whose results are only cut become
            several; None leaves them whole.
        heads: The attention heads whose linears become batched matmuls.
        varying: For each program, the values of its dynamic sizes; none by default.

    >>> from dimorder.capture.captured import capture
    >>> net = torch.nn.Sequential(torch.nn.LayerNorm(5), torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    >>> def operators(program):
    ...     return [str(node.target) for node in program.nodes if node.op == "call_function"]
    >>> program = capture(net, (torch.randn(3, 5),))
    >>> operators(program)
    ['aten.layer_norm.default', 'aten.linear.default', 'aten.mul.Tensor', 'aten.add.Tensor']
    >>> operators(rewrite_linears([program], None)[0])
    ['aten.layer_norm.default', 'aten.linear.default']
    """
    if any(is_quantised(program.module) for program in programs):
        return list(programs)
    made = [
        replace(program, module=_rewritten(program.module, fewest, heads, sizes))
        for program, sizes in zip(programs, varying or [frozenset()] * len(programs), strict=True)
    ]
    return made if _have_equal_results(programs, made) else list(programs)


def _have_equal_results(programs: Sequence[Captured], made: Sequence[Captured]) -> bool:
    """Return whether all programs have the same nodes, and equal new constants at all sizes."""
    if len({tuple((node.op, node.target) for node in program.nodes) for program in made}) > 1:
        return False
    old = dict(programs[0].module.named_buffers())
    for name, value in made[0].module.named_buffers():
        others = [getattr(program.module, name) for program in made[1:]] if name not in old else []
        if not all(torch.equal(value, other) for other in others):
            return False
    return True


def _rewritten(
    module: GraphModule, fewest: int | None, heads: HeadLimits | None, varying: frozenset[int]
) -> GraphModule:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    made = graph_module(module, graph)
    run_passes(linear_passes(fewest, heads, varying), made)
    return graph_module(made, made.graph)  # without the constants that nothing reads
