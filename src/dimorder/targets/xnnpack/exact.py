"""Compute bit for bit the outputs of a file that computes in integers, to check the runtime.

A model computes the delegates anew, and torch the operators outside of them. Both may round floats
differently in some places. So the file is made a second time with more outputs: the roundings of floats, and
the results of portable kernels. The model is compared with each of these that is a float, and continues from
the runtime's value.

The model comes from the graph that was written, so it cannot show that the wrong graph was written. It is
therefore also compared with the physical program, value by value.
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
    """The model of one delegate in torch, and the same delegate with more outputs.

    `nhwc` says which of its operands and results are NHWC to it. `rounded` are the values that floats were
    rounded to, as positions among the outputs of `telling`. `integers` maps quantize nodes of the physical
    program to their values in the model.
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
    """Return a function for the outputs of program `graph` over `root`, with these delegates.

    `run_module` is the runtime. Raises `VerificationError` if the outputs differ from the physical program's.
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
    """Check that the physical program computes these integers and results.

    Each is computed from the integers before it.
    """
    nodes = {node.name: node for node in integers}
    forced = {name: integers[node] for name, node in nodes.items()}
    wanted, found = float64_interpreter.run(readable(physical), inputs, forced)
    for each, differences in found.items():
        node = nodes[each.name]
        differences.require_few(f"{operator_name(node)} ({where(node)}) as it was written for XNNPACK")
    # Another result may be a choice between floats that are nearly the same.
    real = [pair for pair in zip(results, wanted, strict=True) if pair[0].dtype in _NUMBERS]
    verify([g for g, _ in real], [w.to(g.dtype) for g, w in real], what="what was written for XNNPACK")


_NUMBERS = (torch.float32, torch.int8, torch.uint8)


def _told(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """Return the graph with more outputs: delegates' roundings, and results of portable kernels."""
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
    """Return the graph with more inputs, for the extra outputs of `_told`.

    Each delegate is called with its roundings. A portable kernel's result is read from its input instead of
    from torch.
    """
    made = _copied(graph)
    last = [node for node in made.nodes if node.op == "placeholder"][-1]
    for node in list(made.nodes):
        if node.target is aten.view.default:  # in the runtime all its operands are dense
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
    """Return whether this tensor is the result of a portable kernel."""
    if node.op != "call_function" or any(user.target is operator.getitem for user in node.users):
        return False
    return node.target is not operator.getitem or node.all_input_nodes[0].op != "call_module"


def _given(computed: Tensor, given: Tensor) -> Tensor:
    """Return a portable kernel's floats, if they are near torch's. For whole numbers return torch's."""
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
