"""Export graphs, turn inputs of exported programs into buffers and back, and run programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dimorder.graph.construct import call_graph, program_of_values, replace_parts
from dimorder.graph.interpreter import GraphRun, GraphWithTensors
from dimorder.graph.nodes import call_after, copy_meta, replace_node, set_value
from dimorder.graph.prediction import predict


def export_graph(module: GraphModule, examples: Sequence[torch.Tensor]) -> ExportedProgram:
    """Return the exported program of a graph of ATen calls.

    The result is what torch.export gives for such a module, without tracing it again. The graph is changed in
    place and belongs to the program afterwards.

    Args:
        module: Its placeholders take `examples`, and it returns a tuple of calls' results. Each tensor that
            it reads becomes a buffer of the program.
        examples: One tensor per placeholder.

    >>> graph = Graph()
    >>> result = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    >>> _ = graph.output((result,))
    >>> program = export_graph(GraphModule(torch.nn.Module(), graph), (torch.tensor([-1.0, 2.0]),))
    >>> program.module()(torch.tensor([-3.0, 5.0]))
    (tensor([0., 5.]),)
    """
    graph = module.graph
    graph.eliminate_dead_code()
    read = [node for node in graph.nodes if node.op == "get_attr"]
    with graph.inserting_before(next(iter(graph.nodes))):
        names = dict.fromkeys(str(node.target) for node in read)
        buffers = {name: graph.placeholder(f"b_{name}") for name in names}
    for node in buffers.values():
        node.target = node.name  # a Python identifier; the name of a buffer need not be one
    for node in read:
        replace_node(node, buffers[str(node.target)])
    state = {name: module.get_buffer(name) for name in buffers}
    _ShapesRun(module, (*state.values(), *examples))
    return program_of_values(torch.nn.Module(), graph, examples, state, buffers)


class _ShapesRun(GraphRun):
    """A run without data that writes what each node returns. `tensors` are those of the placeholders."""

    def __init__(self, module: GraphModule, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(module)
        self.mode, self.device = FakeTensorMode(), tensors[0].device
        metas = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in tensors]
        for node, value in zip(module.graph.find_nodes(op="placeholder"), metas, strict=True):
            self.result(node, {}, value)
        self.run(*metas)

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return predict(target, args, kwargs)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        set_value(
            node, pytree.tree_map_only(torch.Tensor, lambda x: FakeTensor(self.mode, x, self.device), result)
        )
        return result


def turn_inputs_into_buffers(program: ExportedProgram, state: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """Turn the first inputs and results of a program into buffers that each call changes.

    Args:
        program: Its first inputs are the buffers, and its first results their new values, as in `state`.
        state: The initial values of the buffers, by name.

    >>> graph = Graph()
    >>> result = graph.call_function(torch.ops.aten.add.Tensor, (graph.placeholder("count"), 1))
    >>> twice = graph.call_function(torch.ops.aten.mul.Tensor, (result, graph.placeholder("x")))
    >>> _ = graph.output((result, twice))
    >>> program = export_graph(GraphModule(torch.nn.Module(), graph), (torch.zeros(1), torch.ones(1)))
    >>> module = own_module(turn_inputs_into_buffers(program, {"count": torch.zeros(1)}))
    >>> module(torch.ones(1)), module(torch.ones(1))
    ((tensor([1.]),), (tensor([2.]),))
    """
    if not state:
        return program
    old, count = program.graph_signature, len(state)
    assert not set(state) & set(program.state_dict), "a buffer and a constant of one name"
    arguments = [spec.arg for spec in old.input_specs if spec.kind is InputKind.USER_INPUT]
    buffers = {argument.name: name for argument, name in zip(arguments, state, strict=False)}
    inputs = [
        InputSpec(InputKind.BUFFER, spec.arg, buffers[spec.arg.name], persistent=True)
        if spec.arg.name in buffers
        else spec
        for spec in old.input_specs
    ]
    outputs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, spec.arg, name)
        for spec, name in zip(old.output_specs, state, strict=False)
    ]
    call: tuple[tuple[Any, ...], dict[str, Any]] = (program.example_inputs[0][count:], {})
    return replace_parts(
        program,
        graph_signature=ExportGraphSignature(inputs, [*outputs, *old.output_specs[count:]]),
        state_dict={**program.state_dict, **state},
        module_call_graph=call_graph(call, len(old.output_specs) - count),
        example_inputs=call,
    )


def turn_buffers_into_inputs(program: ExportedProgram) -> ExportedProgram:
    """Undo `turn_inputs_into_buffers`: buffers become the first inputs, and new values the first results."""
    written, old = state_of(program), program.graph_signature
    if not written:
        return program
    held = {**program.constants, **program.state_dict}
    mutated = [spec.target for spec in old.output_specs if spec.kind is OutputKind.BUFFER_MUTATION]
    assert mutated == [*written.values()], "buffers are written in another sequence than they are read"
    inputs = [
        InputSpec(InputKind.USER_INPUT, spec.arg, None) if spec.arg.name in written else spec
        for spec in old.input_specs
    ]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec in old.output_specs]
    state, (examples, named) = [held[name] for name in mutated], program.example_inputs
    call: tuple[tuple[Any, ...], dict[str, Any]] = ((*state, *examples), named)
    return replace_parts(
        program,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={name: x for name, x in program.state_dict.items() if name not in mutated},
        constants={name: x for name, x in program.constants.items() if name not in mutated},
        module_call_graph=call_graph(call, len(outputs)),
        example_inputs=call,
    )


def add_outputs(program: ExportedProgram, nodes: Sequence[Node]) -> ExportedProgram:
    """Return a program without state that also returns the values of some of its nodes.

    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> as_function(add_outputs(program, program.graph.find_nodes(op="placeholder")))([-torch.ones(2)])
    [tensor([0., 0.]), tensor([-1., -1.])]
    """
    graph, old = copy_graph(program.graph), program.graph_signature
    output, named = graph.output_node(), {node.name: node for node in graph.nodes}
    copies = [call_after(named[n.name], torch.ops.aten.clone.default, (named[n.name],)) for n in nodes]
    output.args = ((*output.args[0], *copies),)  # type: ignore[misc]  # a tuple
    added = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in copies]
    signature = ExportGraphSignature(old.input_specs, [*old.output_specs, *added])
    calls = call_graph(program.example_inputs, len(signature.output_specs))
    return replace_parts(program, graph=graph, graph_signature=signature, module_call_graph=calls)


def add_constants(
    program: ExportedProgram, graph: Graph, constants: Mapping[Node, torch.Tensor]
) -> ExportedProgram:
    """Return a program with another graph, whose first placeholders are more constants."""
    specs = [InputSpec(InputKind.BUFFER, TensorArgument(n.name), n.name, persistent=True) for n in constants]
    old = program.graph_signature
    signature = ExportGraphSignature([*specs, *old.input_specs], old.output_specs)
    state = {**program.state_dict, **{node.name: tensor for node, tensor in constants.items()}}
    return replace_parts(program, graph=graph, graph_signature=signature, state_dict=state)


def initial_state(program: ExportedProgram) -> list[torch.Tensor]:
    """Return the initial values of the buffers that a functional program writes."""
    held = {**program.constants, **program.state_dict}
    return [held[name] for name in state_of(program).values()]


def state_of(program: ExportedProgram) -> dict[str, str]:
    """Return the names of the buffers that a functional program writes, by their placeholders' names."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    return {name: buffer for name, buffer in signature.inputs_to_buffers.items() if buffer in written}


def own_module(program: ExportedProgram) -> GraphModule:
    """Return the program as a module with its own state.

    Neither the program nor another module of it sees what a call writes.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, GraphModule)
    for name in state_of(program).values():
        owner, _, buffer = name.rpartition(".")
        part = module.get_submodule(owner)
        setattr(part, buffer, getattr(part, buffer).clone())
    return module


def graph_with_tensors(program: ExportedProgram) -> GraphWithTensors | GraphModule:
    """Return the program for a `GraphRun`, which takes its tensors one after another.

    `ExportedProgram.module` writes and compiles Python code four times; this function writes none. If the
    program writes buffers, the result is that module, with its own state.

    >>> program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(5, 3),))
    >>> given = torch.randn(5, 3)
    >>> from dimorder.graph.interpreter import GraphRun
    >>> (result,) = GraphRun(graph_with_tensors(program)).run(given)
    >>> torch.equal(result, program.module()(given))
    True
    """
    signature = program.graph_signature
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        return own_module(program)
    tensors = {**program.state_dict, **program.constants}
    graph, copies = Graph(), dict[Node, Node]()
    constants: dict[str, torch.Tensor] = {}
    inputs = (node for node in program.graph.nodes if node.op == "placeholder")
    for node, spec in zip(inputs, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            copies[node] = graph.placeholder(node.name)
        else:
            constants[node.name] = tensors[str(spec.target)]
            copies[node] = graph.get_attr(node.name)
        copy_meta(copies[node], node)
    graph.output(graph.graph_copy(program.graph, copies))
    keep_names(graph, program.graph)
    return GraphWithTensors(graph, constants, dict(program.graph_module.named_children()))


def copy_graph(graph: Graph) -> Graph:
    """Return a copy of a graph whose nodes have the same names."""
    copied: Graph = copy.deepcopy(graph)
    keep_names(copied, graph)
    return copied


def keep_names(copied: Graph, original: Graph) -> None:
    """Restore the node names in a copied graph: the signature refers to nodes by name.

    A copy avoids Python's own names: an `input` becomes `input_1`.
    """
    for node, old in zip(copied.nodes, original.nodes, strict=True):
        node.name = old.name


class ProgramRun:
    """A program as a function of its tensors, in torch, with its own state."""

    def __init__(self, program: ExportedProgram) -> None:
        self.module = own_module(program)
        written = [self.module.get_buffer(name) for name in state_of(program).values()]
        self._initial = [(buffer, buffer.clone()) for buffer in written]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(self.module(*inputs))

    def reset(self) -> None:
        """Restore the initial state."""
        for buffer, initial in self._initial:
            buffer.copy_(initial)


class CarriedState:
    """A function of a state and inputs, as a function of inputs alone that keeps the state.

    Args:
        run: returns the new state and the outputs.
        initial: the state before the first call.

    >>> total = CarriedState(lambda given: [given[0] + given[1], given[0]], [torch.tensor(1)])
    >>> total([torch.tensor(5)]), total([torch.tensor(5)])
    ([tensor(1)], [tensor(6)])
    """

    def __init__(
        self,
        run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
        initial: Sequence[torch.Tensor],
    ) -> None:
        self._run, self._initial = run, initial
        self._state = [*initial]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = self._run([*self._state, *inputs])
        new = zip(results, self._initial, strict=False)
        self._state = [value.to(initial.dtype) for value, initial in new]
        return [*results[len(self._state) :]]

    def reset(self) -> None:
        """Restore the state from before the first call."""
        self._state = [*self._initial]


def as_function(program: ExportedProgram) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Return a program as a function of its tensors, for a few calls: no code is compiled without state.

    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> as_function(program)([torch.tensor([-1.0, 2.0])])
    [tensor([0., 2.])]
    """
    if state_of(program):
        return ProgramRun(program)
    run = GraphRun(graph_with_tensors(program))
    return lambda inputs: list(run.run(*inputs))
