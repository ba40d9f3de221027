"""Decides how it is known, bit for bit, what a file gives that computes in integers.

A model computes it anew. Floats it rounds otherwise here and there, so the file is made a second time with
what floats were rounded to as further outputs: the model is held to each of these, and takes it from there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch.fx import Graph, GraphModule

from dimorder.lowering.verify import Run
from dimorder.targets.xnnpack.boundary import TO_NCHW, TO_NHWC
from dimorder.targets.xnnpack.model import XnnModel


@dataclass(frozen=True)
class Computed:
    """What one delegate computes, in torch, and the same delegate with more outputs.

    `nhwc` says which of its operands and results are NHWC to it; `rounded` are the positions, among the
    outputs of `telling`, of the values that floats were rounded to.
    """

    model: XnnModel
    nhwc: tuple[Sequence[bool], Sequence[bool]]
    telling: Callable[[], LoweredBackendModule]
    rounded: Sequence[int]


def exact_run(
    graph: Graph,
    root: torch.nn.Module,
    delegates: Mapping[str, Computed],
    run_module: Callable[[GraphModule, Sequence[Tensor]], list[Tensor]],
) -> Run:
    """What the program `graph` over `root` gives, whose delegates are those; `run_module` is the runtime."""
    model = GraphModule(
        {**dict(root.named_buffers()), **{n: _Modelled(c) for n, c in delegates.items()}},
        _fed(graph, delegates),
    )
    outputs = len(graph.output_node().args[0])  # type: ignore[arg-type]  # a tuple

    def exactly(inputs: Sequence[Tensor]) -> list[Tensor]:
        given: Sequence[Tensor] = ()
        if any(computed.rounded for computed in delegates.values()):
            parts = {name: computed.telling() for name, computed in delegates.items()}
            module = GraphModule({**dict(root.named_buffers()), **parts}, _told(graph, delegates))
            given = run_module(module, inputs)[outputs:]
        return list(model(*inputs, *given))

    return exactly


def _told(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """The graph whose outputs are besides the roundings of each delegate."""
    made, more = _copied(graph), []
    for node in made.nodes:
        if node.op == "call_module":
            with made.inserting_after(node):
                rounded = delegates[str(node.target)].rounded
                more += [made.call_function(operator.getitem, (node, i)) for i in rounded]
    output = made.output_node()
    output.args = ((*output.args[0], *more),)  # type: ignore[misc]  # a tuple
    return made


def _fed(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """The graph whose inputs are besides the roundings of each delegate, which is called with them."""
    made = _copied(graph)
    last = [node for node in made.nodes if node.op == "placeholder"][-1]
    for node in made.nodes:
        if node.op == "call_module":
            for position in range(len(delegates[str(node.target)].rounded)):
                with made.inserting_after(last):
                    last = made.placeholder(f"{node.target}_rounded_{position}")
                node.args = (*node.args, last)
    return made


def _copied(graph: Graph) -> Graph:
    made = Graph()
    made.output(made.graph_copy(graph, {}))
    return made


class _Modelled(torch.nn.Module):
    def __init__(self, computed: Computed) -> None:
        super().__init__()
        self.computed = computed

    def forward(self, *given: Tensor) -> list[Tensor]:
        model, (reads, gives) = self.computed.model, self.computed.nhwc
        inputs = [x.permute(TO_NHWC) if nhwc else x for x, nhwc in zip(given, reads, strict=False)]
        rounded = [
            x.permute(TO_NHWC) if i < len(gives) and gives[i] else x
            for i, x in zip(self.computed.rounded, given[len(reads) :], strict=True)
        ]
        results = model.run(inputs, rounded)
        return [y.permute(TO_NCHW) if nhwc else y for y, nhwc in zip(results, gives, strict=True)]
