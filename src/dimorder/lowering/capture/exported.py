"""Decides how an exported program is made of a graph, and what it keeps when parts of it are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._export.verifier import TrainingIRVerifier
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree


def exported(module: GraphModule, examples: Sequence[torch.Tensor]) -> ExportedProgram:
    """The exported program of a graph of ATen calls, which is used up: its placeholders take `examples`, it
    returns a tuple of calls' results, and each tensor that it gets from the module is a buffer.

    What torch.export gives of such a module, without tracing it again.

    >>> graph = Graph()
    >>> result = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    >>> _ = graph.output((result,))
    >>> program = exported(GraphModule(torch.nn.Module(), graph), (torch.tensor([-1.0, 2.0]),))
    >>> program.module()(torch.tensor([-3.0, 5.0]))
    (tensor([0., 5.]),)
    """
    graph = module.graph
    graph.eliminate_dead_code()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    read = [node for node in graph.nodes if node.op == "get_attr"]
    with graph.inserting_before(next(iter(graph.nodes))):
        names = dict.fromkeys(str(node.target) for node in read)
        held = {name: graph.placeholder(f"b_{name}") for name in names}
    for node in held.values():
        node.target = node.name  # a word of Python, which the name of a buffer need not be
    for node in read:
        node.replace_all_uses_with(held[str(node.target)])
        graph.erase_node(node)
    state = {name: module.get_buffer(name) for name in held}
    with FakeTensorMode() as mode, torch.no_grad():
        fakes = [mode.from_tensor(x, static_shapes=True) for x in (*state.values(), *examples)]
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    results: Any = graph.output_node().args[0]
    returned = [TensorArgument(node.name) for node in results]
    signature = ExportGraphSignature(
        [
            *(
                InputSpec(InputKind.BUFFER, TensorArgument(node.name), name, persistent=True)
                for name, node in held.items()
            ),
            *(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in inputs),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, result, None) for result in returned],
    )
    call: tuple[tuple[torch.Tensor, ...], dict[str, Any]] = ((*examples,), {})
    trees = pytree.tree_structure(call), pytree.tree_structure((*returned,))
    root = ModuleCallSignature([TensorArgument(node.name) for node in inputs], [*returned], *trees)
    return ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", root)],
        example_inputs=call,
        verifiers=[TrainingIRVerifier],
    )


def remade(
    program: ExportedProgram, kind: type[ExportedProgram] = ExportedProgram, **parts: Any
) -> ExportedProgram:
    """A program of class `kind` with these parts, named as in its constructor, and the rest of `program`'s.

    >>> import torch
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
    >>> remade(program, constants={"c": torch.ones(5)}).constants["c"].shape, program.constants
    (torch.Size([5]), {})
    """
    kept: dict[str, Any] = {
        "root": program.graph_module,
        "graph": program.graph,
        "graph_signature": program.graph_signature,
        "state_dict": program.state_dict,
        "range_constraints": program.range_constraints,
        "module_call_graph": program.module_call_graph,
        "example_inputs": program.example_inputs,
        "constants": program.constants,
        "verifiers": program.verifiers,
    }
    return kind(**{**kept, **parts})


def keep_names(copied: Graph, original: Graph) -> None:
    """Give the nodes of a copied graph their names again: the signature knows them by these.

    A copy shuns names of Python's own: an `input` becomes `input_1`.
    """
    for node, old in zip(copied.nodes, original.nodes, strict=True):
        node.name = old.name
