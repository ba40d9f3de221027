"""Capture a network in the normal form: one functional graph of few ATen operators.

Constant subgraphs are evaluated, and batch norms are folded. Reshapes become `reshape` and `permute`, and
splits become `slice`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export._tree_utils import reorder_kwargs
from torch.export.graph_signature import InputKind, OutputKind

from dimorder.capture.check_size_assertions import holds_throughout
from dimorder.capture.common_subexpressions import drop_repeated
from dimorder.capture.crop_conv_padding import crop_convolutions
from dimorder.capture.dynamic import with_dynamic
from dimorder.capture.functionalize import functional
from dimorder.capture.integers import simplify
from dimorder.capture.refusals import control_flow, not_exported, size_by_data, writes_no_buffer
from dimorder.capture.state import (
    StateBuffer,
    left_in_state,
    require_apart,
    state_buffer,
    unchanged,
    with_one_name,
)
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.branches import COND, branches, is_static
from dimorder.graph.tracing import Tracer, Value, is_random
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.table import OPERATORS, SPELLINGS, find


@dataclass(frozen=True)
class Slices:
    """A constant that depends on dynamic sizes: the beginning of a longer one along the dimensions `dims`."""

    whole: torch.Tensor
    dims: tuple[int, ...]

    def written(self, tracer: Tracer, node: torch.fx.Node) -> Value:
        """Write the slices of `whole` that have the sizes of a node, and return the last one."""
        made: Value = tracer.as_node(self.whole)
        for dim in self.dims:
            made = tracer.emit(SLICE_CONSTANT, made, dim, 0, int(node.meta["val"].shape[dim]))
        return made


@dataclass(frozen=True)
class Captured:
    """A captured network: a functional graph.

    Its placeholders are the user's inputs, and its constants are attributes.

    `examples` are the leaves of the call it was captured with, in the sequence of `exported`. `out_spec`
    restores the structure of the result. `fixed_results` are the leaves of the result that are not tensors,
    by position. `exported` is the program as it was exported, which defines what "the same numbers" means.

    `made` are the constants that the network computes from nothing but sizes, by the names of their nodes.

    Each buffer of the `state` is one more placeholder, its value before a call, and one more result, its
    value after the call. These come first, in the sequence of `state`.
    """

    module: torch.fx.GraphModule
    examples: tuple[Any, ...]
    input_names: tuple[str, ...]
    out_spec: pytree.TreeSpec
    fixed_results: Mapping[int, Any]
    exported: ExportedProgram
    state: tuple[StateBuffer, ...] = ()
    made: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what the network returns, with these tensors in it."""
        feed = iter(tensors)
        held = range(self.out_spec.num_leaves)
        leaves = [self.fixed_results[i] if i in self.fixed_results else next(feed) for i in held]
        return pytree.tree_unflatten(leaves, self.out_spec)

    @property
    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(leaf for leaf in self.examples if isinstance(leaf, torch.Tensor))

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def inputs(self) -> list[torch.fx.Node]:
        return self._placeholders[len(self.state) :]

    @property
    def outputs(self) -> list[torch.fx.Node]:
        return self._results[len(self.state) :]

    @property
    def carried(self) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
        """The value of each state buffer before a call, and its value after the call."""
        return list(zip(self._placeholders, self._results, strict=False))[: len(self.state)]

    @property
    def _placeholders(self) -> list[torch.fx.Node]:
        return [node for node in self.nodes if node.op == "placeholder"]

    @property
    def _results(self) -> list[torch.fx.Node]:
        return list(self.module.graph.output_node().args[0])  # type: ignore[arg-type]

    @property
    def constant_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.module.buffers())

    def constant(self, node: torch.fx.Node) -> torch.Tensor:
        """Return the tensor that a `get_attr` node reads."""
        return getattr(self.module, str(node.target))  # type: ignore[no-any-return]


def capture(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    slices: Mapping[str, Slices] | None = None,
) -> Captured:
    """Export `model` with example arguments and bring it into normal form.

    Constants that the network computes are evaluated.

    Args:
        model: A module, which is exported in eval mode, an `ExportedProgram`, or the path of a `.pt2` file.
        args: Example arguments. For a program or a file, its own example inputs replace missing ones.
        kwargs: Example arguments by name.
        slices: Constants that depend on dynamic sizes, by the names of their nodes. A node that reads one of
            them reads a slice, unless it is one of them itself.

    Raises:
        UsageError: `model` is not a network, or the arguments do not fit it.
        UnsupportedError: The network cannot be exported or brought into normal form.
    """
    if not isinstance(args, (tuple, list)):
        raise UsageError("args", type(args).__name__, "give a tuple of the network's arguments: (x,)")
    _refuse_meta("the arguments", args, kwargs)
    exported = with_one_name(export(model, args, kwargs))
    _refuse_meta("the network", exported.state_dict, exported.constants)
    require_apart(exported)
    try:
        plain = functional(with_dynamic(exported), OPERATORS)
    except RuntimeError as error:
        raise writes_no_buffer(error) or error from error
    _refuse_state(plain)  # only this form's signature lists every write
    return _normal_form(plain, exported, _examples(exported, args, kwargs or {}), slices or {})


def arguments(exported: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of a call in the program's sequence, keywords and keys by name.

    Raises:
        UsageError: The call has another structure than the program's.
    """
    spec = exported.call_spec.in_spec
    try:
        leaves: list[Any] = spec.flatten_up_to((tuple(args), reorder_kwargs(dict(kwargs), spec)))
    except (ValueError, TypeError, KeyError) as error:
        positional, named = spec.children()
        raise UsageError(
            "the arguments",
            f"another structure than the network was exported with ({' '.join(str(error).split())[:200]})",
            f"give {positional.num_children} by position, by name {', '.join(named.context or ()) or 'none'}",
        ) from error
    return leaves


def _examples(exported: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the leaves of the call that stands for all: the caller's arguments, or the program's own.

    The caller's arguments must fit the program.
    """
    call = (args, kwargs) if args or kwargs else exported.example_inputs
    if call is None:
        raise UsageError("args", "neither given nor in the program", "give example arguments")
    examples = arguments(exported, *call)
    leaves = iter(examples)
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            leaf, held = next(leaves), placeholders[spec.arg.name].meta.get("val")
            if isinstance(held, torch.Tensor) and not _alike(leaf, held):
                found = f"{tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise UsageError(
                    f"input {spec.arg.name}",
                    f"{found}, where the program was exported for {tuple(held.shape)} of {held.dtype}",
                    "export it again for that input",
                )
    return tuple(examples)


def _alike(leaf: Any, held: torch.Tensor) -> bool:
    """Return whether a tensor may stand for another; dynamic sizes are refused elsewhere."""
    static = all(isinstance(size, int) for size in held.shape)
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.dtype == held.dtype
        and (not static or leaf.shape == held.shape)
    )


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Put a module into eval mode, and restore each part's own mode afterwards; a program has only one."""
    parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def where(node: torch.fx.Node) -> str:
    """Return where in the user's source an operator comes from: `file.py:12, in features.0`."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(modules[-1][0]) if modules else ""
    for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
        line = line.strip()
        written = line.startswith('File "') and not line.startswith('File "<')  # by a person, not by torch
        if written and "/torch/nn/modules/" not in line:
            path, number = line.split('"')[1], line.split("line ")[1].split(",")[0]
            return f"{Path(path).name}:{number}" + (f", in {module}" if module else "")
    return module or node.name


def operator_name(node: torch.fx.Node) -> str:
    """Return an operator's name for readers: `aten.convolution`, `placeholder x`, `output output`."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    return str(node.target).removesuffix(".default")


def export(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Return a network as an exported program; a module is exported in eval mode.

    Args:
        model: A module, an `ExportedProgram`, or the path of a `.pt2` file.
        args: Example arguments of a module.
        kwargs: Example arguments of a module by name.
        dynamic_shapes: The dynamic sizes of a module's inputs, as in torch.export.

    Raises:
        UsageError: `model` is not a network.
        UnsupportedError: The network cannot be exported.
    """
    if isinstance(model, (str, Path)):
        try:
            model = torch.export.load(str(model))
        except Exception as error:
            raise UsageError(
                str(model),
                f"not a readable exported program: {error}",
                "save it again with torch.export.save",
            ) from error
    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "model",
            f"{type(model).__name__} is neither a torch.nn.Module nor an ExportedProgram",
            "pass one of these",
        )
    _refuse_meta("the network", dict(model.named_parameters()), dict(model.named_buffers()))
    try:
        return _exported(model, args, kwargs, dynamic_shapes)
    except UnsupportedError:
        raise
    except Exception as error:
        proven = None if dynamic_shapes is None else _with_assertions(model, args, kwargs, dynamic_shapes)
        if proven is None:
            raise not_exported(model, error) from error
        return proven


def _exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    defers: bool = False,
) -> ExportedProgram:
    with torch.no_grad(), eval_mode(model), unchanged(model):
        return torch.export.export(
            model,
            *clone_repeated_tensors(tuple(args), dict(kwargs or {})),
            dynamic_shapes=dynamic_shapes,
            prefer_deferred_runtime_asserts_over_guards=defers,
        )


def _with_assertions(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram | None:
    """Export a module with assertions for what torch could not prove of its sizes.

    The result is None unless all assertions hold.
    """
    try:
        program = _exported(model, args, kwargs, dynamic_shapes, defers=True)
    except Exception:  # the first attempt's error explains it better
        return None
    return program if holds_throughout(program) else None


def clone_repeated_tensors(*call: Any) -> Any:
    """Clone a tensor that a call has twice: torch 2.13 exports two such arguments as one."""
    seen: set[int] = set()

    def another(leaf: torch.Tensor) -> torch.Tensor:
        again = id(leaf) in seen
        seen.add(id(leaf))
        return leaf.clone() if again else leaf

    return pytree.tree_map_only(torch.Tensor, another, call)


def _refuse_meta(where: str, *trees: Any) -> None:
    """Refuse tensors on the meta device: they have no numbers that could be compared."""
    leaves, _ = pytree.tree_flatten_with_path(trees)
    empty = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_meta]
    if empty:
        first = pytree.keystr(empty[0][1:]).strip("[]'\"")
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UsageError(
            where,
            f"no data in {first}{more}: on the meta device a tensor is a shape alone",
            "load the weights (load_state_dict(..., assign=True)), or make room by "
            "to_empty(device='cpu') and fill it"
            if where == "the network"
            else "give tensors with data, such as torch.randn of the same shape",
        )


def _refuse_state(exported: ExportedProgram) -> None:
    ends: Any = exported.graph.output_node().args[0]
    for spec, end in zip(exported.graph_signature.output_specs, ends, strict=True):
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            kind = spec.kind.name.removesuffix("_MUTATION").replace("_", " ").lower()
            raise UnsupportedError(
                f"{kind} {spec.target or ''} ({where(end)})",
                "the program writes to it",
                "return the new value as an output instead, or keep it in a buffer",
            )
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(node.target, torch._ops.HigherOrderOperator) and not is_static(node):
            raise UnsupportedError(f"{operator_name(node)} ({where(node)})", *control_flow(node.target))
        by_data = size_by_data(value) if isinstance(value, torch.Tensor) else None
        if by_data is not None:
            raise UnsupportedError(f"{operator_name(node)} ({where(node)})", *by_data)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise UnsupportedError(
                f"{operator_name(node)} ({where(node)})",
                "a number that is read out of a tensor",
                "keep it a tensor, or make it a constant",
            )
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            raise UnsupportedError(
                f"{operator_name(node)} ({where(node)})",
                f"symbolic shape {tuple(value.shape)}",
                "export with static shapes",
            )


def _normal_form(
    exported: ExportedProgram,
    original: ExportedProgram,
    examples: tuple[Any, ...],
    slices: Mapping[str, Slices],
) -> Captured:
    """Trace the program again in the normal form's spellings."""
    tracer = Tracer(SPELLINGS, lambda target: find(target) is not None)
    env, names, state = _bind_inputs(tracer, exported)
    sliced, made = dict[torch.fx.Node, Value](), dict[str, Value]()
    known = ChainMap(sliced, env)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            target, args = (node.target, node.args) if node.target is not COND else branches(node)
            read = env if node.name in slices else known  # a slice's node is evaluated from whole constants
            args, kwargs = pytree.tree_map_only(torch.fx.Node, read.__getitem__, (args, node.kwargs))
            env[node] = tracer.trace(node, target, args, kwargs)
            if made.keys() >= {each.name for each in node.all_input_nodes}:
                made[node.name] = env[node]
            if node.name in slices:
                sliced[node] = slices[node.name].written(tracer, node)
    left = left_in_state(exported)
    results: Any = exported.graph.output_node().args[0][len(left) :]
    fixed = {i: result for i, result in enumerate(results) if not isinstance(result, torch.fx.Node)}
    if len(fixed) == len(results):
        found = f"no tensor in what the network returns: {', '.join(map(repr, fixed.values())) or 'nothing'}"
        raise UnsupportedError("output", found, "return what it computes")
    returned = [result for result in results if isinstance(result, torch.fx.Node)]
    module = tracer.module([known[each] for each in (*(left[buffer.name] for buffer in state), *returned)])
    simplify(module)
    drop_repeated(module)
    crop_convolutions(module)
    _refuse_random(module)
    if not names:
        raise UnsupportedError("the network", "no tensor among its inputs", "give it what it computes from")
    out_spec = exported.call_spec.out_spec
    tensors = {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}
    return Captured(module, examples, tuple(names), out_spec, fixed, original, tuple(state), tensors)


def _refuse_random(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and is_random(node.target, node.args, node.kwargs):
            raise UnsupportedError(
                f"{operator_name(node)} ({where(node)})",
                "random numbers",
                "make them an input",
            )


def _bind_inputs(
    tracer: Tracer, exported: ExportedProgram
) -> tuple[dict[torch.fx.Node, Value], list[str], list[StateBuffer]]:
    """Return each placeholder's value, the names of the user's tensors, and the buffers that are written."""
    state = {**exported.state_dict, **exported.constants}
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    env: dict[torch.fx.Node, Value] = {}
    names, buffers = [], list[StateBuffer]()
    written = left_in_state(exported)
    for spec in exported.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        value = node.meta.get("val")
        if spec.kind != InputKind.USER_INPUT:
            held = state[spec.target]
            if not isinstance(held, torch.Tensor):
                raise UnsupportedError(
                    f"{spec.target}, which the network holds",
                    f"a {type(held).__name__}",
                    "keep tensors alone; random numbers can be an input",
                )
            if spec.target in written and held.numel():
                env[node] = tracer.input(node.name, held)
                buffers.append(state_buffer(exported, spec.target))
            else:
                env[node] = tracer.named(spec.target.replace(".", "_"), held.detach())
        elif not isinstance(value, torch.Tensor):
            env[node] = value
        elif value.numel() == 0:
            raise UnsupportedError(
                f"input {node.name}", f"shape {tuple(value.shape)} has no elements", "leave it out"
            )
        else:
            env[node] = tracer.input(node.name, value)
            names.append(node.name)
    return env, names, buffers
