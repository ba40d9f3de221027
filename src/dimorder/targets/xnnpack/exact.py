"""Decides how it is known, bit for bit, what a file gives that computes in integers.

A model computes it anew, and torch what runs outside of delegates. Floats they round otherwise here and
there, so the file is made a second time with more outputs: what floats were rounded to, and what portable
kernels gave. The model is held to each of these that is a float, and takes it from there.
The model is made of what was written, so it is held to the physical program, value by value: nothing else
would show that the wrong thing was written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from dimorder.capture.captured import operator_name, where
from dimorder.graph.exported import readable
from dimorder.ops.quantization import is_dynamic
from dimorder.targets.delegate import TO_NCHW, TO_NHWC
from dimorder.targets.table import View
from dimorder.targets.xnnpack.graph import XnnValue
from dimorder.targets.xnnpack.model import XnnModel, require_near
from dimorder.verification import float64_interpreter
from dimorder.verification.verify import Run, verify

aten = torch.ops.aten


@dataclass(frozen=True)
class Computed:
    """What one delegate computes, in torch, and the same delegate with more outputs.

    `nhwc` says which of its operands and results are NHWC to it; `rounded` are the positions, among the
    outputs of `telling`, of the values that floats were rounded to. `integers` says where the model has what
    nodes of the physical program quantise.
    """

    model: XnnModel
    nhwc: tuple[Sequence[bool], Sequence[bool]]
    telling: Callable[[], LoweredBackendModule]
    rounded: Sequence[int]
    integers: Mapping[Node, View[XnnValue]]


def exact_run(
    physical: ExportedProgram,
    graph: Graph,
    root: torch.nn.Module,
    delegates: Mapping[str, Computed],
    run_module: Callable[[GraphModule, Sequence[Tensor]], list[Tensor]],
) -> Run:
    """What the program `graph` over `root` gives, whose delegates are those; `run_module` is the runtime.

    Raises `VerificationError` where that is not what the physical program says.
    """
    integers: dict[Node, Tensor] = {}
    model = GraphModule(
        {**dict(root.named_buffers()), **{n: _Modelled(c, integers) for n, c in delegates.items()}},
        _fed(graph, delegates),
    )
    outputs = len(graph.output_node().args[0])  # type: ignore[arg-type]  # a tuple

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        given: Sequence[Tensor] = ()
        if any(computed.rounded for computed in delegates.values()) or any(map(_is_portable, graph.nodes)):
            parts = {name: computed.telling() for name, computed in delegates.items()}
            module = GraphModule({**dict(root.named_buffers()), **parts}, _told(graph, delegates))
            given = run_module(module, inputs)[outputs:]
        results = list(model(*inputs, *given))
        if not is_dynamic(physical.graph_module):  # XNNPACK's own scales give other integers
            _require_meant(physical, inputs, results, integers)
        return results

    return run


def _require_meant(
    physical: ExportedProgram,
    inputs: Sequence[Tensor],
    results: Sequence[Tensor],
    integers: Mapping[Node, Tensor],
) -> None:
    """The physical program computes these integers, each from those before it, and of them these results."""
    nodes = {node.name: node for node in integers}
    forced = {name: integers[node] for name, node in nodes.items()}
    wanted, found = float64_interpreter.run(readable(physical), inputs, forced)
    for each, differences in found.items():
        node = nodes[each.name]
        differences.require_few(f"{operator_name(node)} ({where(node)}) as it was written for XNNPACK")
    # What else there is may be a choice between floats that are nearly the same.
    real = [pair for pair in zip(results, wanted, strict=True) if pair[0].dtype in _NUMBERS]
    verify([g for g, _ in real], [w.to(g.dtype) for g, w in real], what="what was written for XNNPACK")


_NUMBERS = (torch.float32, torch.int8, torch.uint8)


def _told(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """The graph whose outputs are besides the roundings of each delegate and what portable kernels give."""
    made, more = _copied(graph), list[Node]()
    for node in list(made.nodes):
        if _is_portable(node):
            more.append(node)
        elif node.op == "call_module":
            with made.inserting_after(node):
                rounded = delegates[str(node.target)].rounded
                more += [made.call_function(operator.getitem, (node, i)) for i in rounded]
    output = made.output_node()
    output.args = ((*output.args[0], *more),)  # type: ignore[misc]  # a tuple
    return made


def _fed(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """The graph whose inputs are besides what `_told` tells: the roundings of each delegate, which is called
    with them, and what portable kernels gave, which is read instead of what torch gives."""
    made = _copied(graph)
    last = [node for node in made.nodes if node.op == "placeholder"][-1]
    for node in list(made.nodes):
        if node.target is aten.view.default:  # in the runtime all it reads is dense
            node.target = aten.reshape.default
        if _is_portable(node):
            with made.inserting_after(last):
                last = made.placeholder(f"{node.name}_given")
            readers = list(node.users)
            with made.inserting_after(node):
                given = made.call_function(_given, (node, last))
            for reader in readers:
                reader.replace_input_with(node, given)
        elif node.op == "call_module":
            for position in range(len(delegates[str(node.target)].rounded)):
                with made.inserting_after(last):
                    last = made.placeholder(f"{node.target}_rounded_{position}")
                node.args = (*node.args, last)
    return made


def _is_portable(node: Node) -> bool:
    """Whether a portable kernel gives this tensor."""
    if node.op != "call_function" or any(user.target is operator.getitem for user in node.users):
        return False
    return node.target is not operator.getitem or node.all_input_nodes[0].op != "call_module"


def _given(computed: Tensor, given: Tensor) -> Tensor:
    """What a portable kernel gave, which torch computed nearly; of whole numbers what torch computed."""
    if not computed.is_floating_point():
        return computed
    require_near(given, computed, "a portable kernel")
    return given


def _copied(graph: Graph) -> Graph:
    made = Graph()
    made.output(made.graph_copy(graph, {}))
    return made


class _Modelled(torch.nn.Module):
    def __init__(self, computed: Computed, integers: dict[Node, Tensor]) -> None:
        super().__init__()
        self.computed, self.integers = computed, integers

    def forward(self, *given: Tensor) -> list[Tensor]:
        model, (reads, gives) = self.computed.model, self.computed.nhwc
        inputs = [x.permute(TO_NHWC) if nhwc else x for x, nhwc in zip(given, reads, strict=False)]
        rounded = [
            x.permute(TO_NHWC) if i < len(gives) and gives[i] else x
            for i, x in zip(self.computed.rounded, given[len(reads) :], strict=True)
        ]
        held = model.run(inputs, rounded)
        for node, view in self.computed.integers.items():
            if view.value.id in held:  # else nothing reads it
                self.integers[node] = held[view.value.id].permute(view.order)
        results = [held[index] for index in model.outputs]
        return [y.permute(TO_NCHW) if nhwc else y for y, nhwc in zip(results, gives, strict=True)]
