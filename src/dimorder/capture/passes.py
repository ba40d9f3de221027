"""List the passes of capture: on the exported program, on the graph in normal form, and on its linears.

Each list is run from first to last. Between the first two lists, `captured` writes the graph anew in the
spellings of the normal form.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch.export import ExportedProgram
from torch.fx import GraphModule

from dimorder.capture.common_subexpressions import merge_common_subexpressions
from dimorder.capture.crop_conv_padding import crop_conv_padding
from dimorder.capture.dynamic import with_dynamic
from dimorder.capture.fold_into_weights import fold_into_weights
from dimorder.capture.functionalize import functionalize
from dimorder.capture.integers import normalize_quantization
from dimorder.capture.merge_parallel_linear import merge_parallel_linear
from dimorder.capture.refusals import refuse_random
from dimorder.capture.split_attention_heads import HeadLimits, split_attention_heads
from dimorder.capture.split_packed_linear import split_packed_linear
from dimorder.capture.state import require_apart
from dimorder.graph.passes import Pass
from dimorder.ops.quantization import is_quantised
from dimorder.ops.table import OPERATORS


def graph_faults(module: GraphModule) -> Iterator[str]:
    """Yield what no pass may leave: nodes without a value, calls of an operator that writes."""
    for node in module.graph.nodes:
        if node.op != "output" and "val" not in node.meta:
            yield f"{node}: no value"
        if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            yield f"{node}: it writes to its operand"
    try:
        module.graph.lint()
    except RuntimeError as error:
        yield str(error)


def quantized_faults(module: GraphModule) -> Iterator[str]:
    """Yield a fault if a graph is quantized."""
    if is_quantised(module):
        yield "a quantized network"


EXPORTED_PASSES: tuple[Pass[ExportedProgram], ...] = (
    Pass("refuse buffers that share memory", require_apart),
    Pass("write dynamic quantization as one operator", with_dynamic),
    Pass("functionalize", partial(functionalize, operators=OPERATORS)),
)

_GRAPH = (graph_faults,)
GRAPH_PASSES: tuple[Pass[GraphModule], ...] = (
    Pass("normalize quantization", normalize_quantization, _GRAPH, _GRAPH),
    Pass("merge common subexpressions", merge_common_subexpressions, _GRAPH, _GRAPH),
    Pass("crop padding of convolutions", crop_conv_padding, _GRAPH, _GRAPH),
    Pass("refuse random numbers", refuse_random),
)


def linear_passes(
    fewest: int | None, heads: HeadLimits | None, varying: frozenset[int]
) -> tuple[Pass[GraphModule], ...]:
    """Return the passes on linears and convolutions of a network that is not quantized.

    Args:
        fewest: The fewest channels of a piece, if linears whose results are only cut become several.
        heads: The attention heads whose linears become batched matmuls.
        varying: The values of dynamic sizes.
    """
    requires = (graph_faults, quantized_faults)
    first, last = list[Pass[GraphModule]](), list[Pass[GraphModule]]()
    if fewest is not None:
        split = partial(split_packed_linear, fewest=fewest)
        first.append(Pass("split packed linears", split, requires, _GRAPH))
    if heads is not None:
        by_head = partial(split_attention_heads, limits=heads, varying=varying)
        last.append(Pass("split attention heads", by_head, requires, _GRAPH))
    return (
        *first,
        Pass("merge parallel linears", merge_parallel_linear, requires, _GRAPH),
        Pass("fold into weights", fold_into_weights, requires, _GRAPH),
        *last,
    )
