"""Capture a network in the normal form: one functional graph of few ATen operators."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from dimorder.capture.calls import example_leaves, refuse_meta, require_arguments
from dimorder.capture.decompose_dynamic_resize import RESIZES
from dimorder.capture.export import export
from dimorder.capture.passes import EXPORTED_PASSES, GRAPH_PASSES
from dimorder.capture.refusals import no_normal_form, refuse_sparse, refuse_write, writes_no_buffer
from dimorder.capture.state import StateBuffer, left_in_state, with_one_name
from dimorder.errors import UnsupportedError
from dimorder.graph.branches import COND, branches
from dimorder.graph.nodes import may_resize, operator_at
from dimorder.graph.pairs import is_pair
from dimorder.graph.passes import run_passes
from dimorder.graph.quantized import Scaled, equal_ones
from dimorder.graph.tracing import Tracer, Value, dtype_of
from dimorder.ops.complex_numbers import as_real, write_pairs
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.parts import parts_of
from dimorder.ops.table import SPELLINGS, find


@dataclass(frozen=True)
class Slices:
    """A constant that depends on dynamic sizes: a window of a longer one.

    Attributes:
        whole: The longer constant.
        shares: By dimension that varies, where the window lies: 0 is the beginning of the longer constant, 1
            its end, 1/2 its middle.
    """

    whole: torch.Tensor
    shares: Mapping[int, float]

    def windows(self, shape: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the dimensions that vary, each with the start and the end of a constant of this shape."""
        starts = {
            dim: int(share * (self.whole.shape[dim] - shape[dim])) for dim, share in self.shares.items()
        }
        return [(dim, start, start + shape[dim]) for dim, start in starts.items()]

    def write(self, tracer: Tracer, node: torch.fx.Node) -> Value:
        """Write the slices of `whole` that have the sizes of a node, and return the last one."""
        value: Value = tracer.as_node(self.whole)
        for window in self.windows([int(size) for size in node.meta["val"].shape]):
            value = tracer.emit(SLICE_CONSTANT, value, *window)
        return value


@dataclass(frozen=True)
class Captured:
    """A captured network: a functional graph.

    Its placeholders are the user's inputs, and its constants are attributes.

    `examples` are the leaves of the call it was captured with, in the sequence of `exported`. `out_spec`
    restores the structure of the result. `fixed_results` are the leaves of the result that are not tensors,
    by position. `exported` is the program as it was exported, which defines what "the same numbers" means.

    `size_constants` are what the network computes from nothing but sizes, by the names of the nodes.

    Each buffer of the `state` is one more placeholder, its value before a call, and one more result, its
    value after the call. These come first, in the sequence of `state`.

    With `in_pairs` a complex result is as torch.view_as_real returns it.
    """

    module: torch.fx.GraphModule
    examples: tuple[Any, ...]
    input_names: tuple[str, ...]
    out_spec: pytree.TreeSpec
    fixed_results: Mapping[int, Any]
    exported: ExportedProgram
    state: tuple[StateBuffer, ...] = ()
    size_constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    in_pairs: bool = False

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what the network returns, with these tensors in it."""
        feed, places = iter(tensors), range(self.out_spec.num_leaves)
        leaves = [self.fixed_results[i] if i in self.fixed_results else next(feed) for i in places]
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

    def share_constants(self, other: Captured) -> None:
        """Read the constants that another program also has from that program: memory holds them once."""
        own, theirs = (dict(each.module.named_buffers()) for each in (self, other))
        for name, tensor in equal_ones(own, theirs).items():
            setattr(self.module, name, tensor)

    def forget_float64(self) -> None:
        """Release what verification has widened, and memory with it."""
        for tensor in self.module.buffers():
            if isinstance(tensor, Scaled):
                tensor.forget_float64()

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
    in_parts: Mapping[Any, Callable[..., Any]] | None = None,
    in_pairs: bool = False,
    fused: Collection[Any] = (),
) -> Captured:
    """Export `model` with example arguments and bring it into normal form.

    Constants that the network computes are evaluated.

    Args:
        model: A module, which is exported in eval mode, an `ExportedProgram`, or the path of a `.pt2` file.
        args: Example arguments. For a program or a file, its own example inputs replace missing ones.
        kwargs: Example arguments by name.
        slices: Constants that depend on dynamic sizes, by the names of their nodes. A node that reads one of
            them reads a slice, unless it is one of them itself.
        in_parts: Functions that write operators in simpler ones, by operator, as `ops.parts` has them.
        in_pairs: Whether complex numbers are written as pairs of real ones. A complex result becomes what
            torch.view_as_real gives of it.
        fused: Operators that stay as they are, although the normal form has them in simpler ones.

    Raises:
        UsageError: `model` is not a network, or the arguments do not fit it.
        UnsupportedError: The network cannot be exported or brought into normal form.
    """
    require_arguments(args, kwargs)
    refuse_meta("the arguments", args, kwargs)
    exported = with_one_name(export(model, args, kwargs))
    refuse_meta("the network", exported.state_dict, exported.constants)
    refuse_sparse(exported)
    try:
        plain = run_passes(EXPORTED_PASSES, exported)
    except GuardOnDataDependentSymNode:  # torch decomposes no operator that asks for a size that data decide
        _refuse_calls(exported)
        raise
    except RuntimeError as error:
        raise writes_no_buffer(error) or error from error
    _refuse(plain)  # only this form's signature lists every write
    examples = example_leaves(exported, args, kwargs or {})
    return _normal_form(plain, exported, examples, slices or {}, in_parts or {}, in_pairs, fused)


def _refuse(exported: ExportedProgram) -> None:
    ends: Any = exported.graph.output_node().args[0]
    for spec, end in zip(exported.graph_signature.output_specs, ends, strict=True):
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            kind = spec.kind.name.removesuffix("_MUTATION").replace("_", " ").lower()
            raise refuse_write(kind, spec.target or "", end)
    _refuse_calls(exported)


def _refuse_calls(exported: ExportedProgram) -> None:
    for node in list(exported.graph.nodes)[:-1]:  # torch.export.load gives the output a value too
        reason = no_normal_form(node)
        if reason is not None:
            raise UnsupportedError(operator_at(node), *reason)


def _normal_form(
    exported: ExportedProgram,
    original: ExportedProgram,
    examples: tuple[Any, ...],
    slices: Mapping[str, Slices],
    in_parts: Mapping[Any, Callable[..., Any]],
    in_pairs: bool,
    fused: Collection[Any],
) -> Captured:
    """Trace the program again in the normal form's spellings."""
    parts = partial(parts_of, in_parts=in_parts)
    forms: dict[str, Any] = {"fused": fused, **({"pairs": write_pairs} if in_pairs else {})}
    tracer = Tracer(SPELLINGS, lambda name: find(name) is not None or name in in_parts, parts, **forms)
    env, names, state = _bind_inputs(tracer, exported)
    if in_pairs:
        _refuse_complex(tracer)
    sliced, constants = dict[torch.fx.Node, Value](), dict[str, torch.Tensor]()
    held = {node for node, value in env.items() if isinstance(value, torch.Tensor)}
    known = ChainMap(sliced, env)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            target, args = (node.target, node.args) if node.target is not COND else branches(node)
            read = env if node.name in slices else known  # a slice's node is evaluated from whole constants
            args, kwargs = pytree.tree_map_only(torch.fx.Node, read.__getitem__, (args, node.kwargs))
            value = env[node] = tracer.trace(node, target, args, kwargs)
            if isinstance(value, torch.Tensor):
                is_held = bool(node.all_input_nodes) and held.issuperset(node.all_input_nodes)
                if is_held and not may_resize(node):
                    held.add(node)
                else:
                    constants[node.name] = value
            if node.name in slices:
                sliced[node] = slices[node.name].write(tracer, node)
            elif target is SLICE_CONSTANT:
                sliced[node] = tracer.emit(target, tracer.as_node(args[0]), *args[1:])
            elif target in RESIZES and may_resize(node) and isinstance(args[0], torch.Tensor):
                sliced[node] = tracer.trace(node, target, (_computed(tracer, args[0]), *args[1:]), kwargs)
    left = left_in_state(exported)
    results: Any = exported.graph.output_node().args[0][len(left) :]
    fixed = {i: result for i, result in enumerate(results) if not isinstance(result, torch.fx.Node)}
    if len(fixed) == len(results):
        found = f"no tensor in what the network returns: {', '.join(map(repr, fixed.values())) or 'nothing'}"
        raise UnsupportedError("output", found, "return what it computes")
    returned = [result for result in results if isinstance(result, torch.fx.Node)]
    values = (known[each] for each in (*(left[buffer.name] for buffer in state), *returned))
    module = tracer.module([as_real(tracer, value) if is_pair(value) else value for value in values])
    run_passes(GRAPH_PASSES, module).recompile()
    if not names:
        raise UnsupportedError("the network", "no tensor among its inputs", "give it what it computes from")
    out_spec = exported.call_spec.out_spec
    return Captured(
        module, examples, tuple(names), out_spec, fixed, original, tuple(state), constants, in_pairs
    )


def _computed(tracer: Tracer, constant: torch.Tensor) -> Value:
    """Return a constant as a value that each call computes: as its slice of all elements."""
    size, dim = max((size, dim) for dim, size in enumerate(constant.shape))
    return tracer.emit(SLICE_CONSTANT, tracer.as_node(constant), dim, 0, size) if size > 1 else constant


def _refuse_complex(tracer: Tracer) -> None:
    for node in tracer.given:
        if dtype_of(node).is_complex:
            fix = f"pass torch.view_as_real({node.name}), and begin with torch.view_as_complex"
            raise UnsupportedError(
                f"input {node.name}", f"{dtype_of(node)}: the target has no such type", fix
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
            tensor = state[spec.target]
            if not isinstance(tensor, torch.Tensor):
                raise UnsupportedError(
                    f"{spec.target}, which the network holds",
                    f"a {type(tensor).__name__}",
                    "keep tensors alone; random numbers can be an input",
                )
            if spec.target in written and tensor.numel():
                env[node] = tracer.input(node.name, tensor)
                initial = tensor.detach().clone(
                    memory_format=torch.contiguous_format
                )  # its owner may write it
                buffers.append(StateBuffer(spec.target, initial))
            else:
                env[node] = tracer.named(spec.target.replace(".", "_"), tensor.detach())
        elif not isinstance(value, torch.Tensor):
            env[node] = value
        elif value.numel() == 0:
            found = f"shape {tuple(value.shape)} has no elements"
            raise UnsupportedError(
                f"input {node.name}", found, "give an example with elements; leave out what is always empty"
            )
        else:
            env[node] = tracer.input(node.name, value)
            names.append(node.name)
    return env, names, buffers
