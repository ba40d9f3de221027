"""Explain why a network cannot be captured: the construct, its source line, and what to do instead."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from dimorder.capture.size_refusals import is_network_file, places_of, refused_sizes
from dimorder.errors import UnsupportedError, first_line
from dimorder.graph.branches import is_static
from dimorder.graph.nodes import operator_at, tensors_in, where
from dimorder.graph.tracing import is_random

aten = torch.ops.aten

_EXPORTABLE = "make the module exportable, and check the shapes of the example inputs"

# For each construct, by the name of torch's operator: what was found, and what to do instead.
_CONTROL_FLOW: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "cond": (
            "control flow within a branch of torch.cond",
            "compute both and choose: torch.where(condition, a, b)",
        ),
        "while_loop": (
            "control flow: data decide how often a loop runs",
            "run it a fixed number of times, or lower its body and loop outside",
        ),
        "map_impl": (
            "control flow: a function that is mapped over a dimension",
            "write it for all of the dimension at once, with torch.vmap perhaps",
        ),
        "scan": (
            "control flow: a function that is scanned over a dimension",
            "unroll it in Python, or lower one step that keeps what it carries in a buffer",
        ),
    }
)

_BY_DATA = (
    "Python decides by the elements of a tensor, in an `if`, a loop or a size",
    "choose by torch.where, or compute what decides before the export",
)

WRITING_BRANCH = (
    "control flow with a function that writes to what it gets",
    "compute a new value there: x + 1, not x.add_(1)",
)

WITHOUT_DATA = "found a fake tensor in the exported program constant's list"  # torch's words
_BY_GRADIENT = (
    "a gradient (torch.autograd.grad, torch.func.grad), which torch.export cannot trace",
    "lower its graph instead: torch.fx.experimental.proxy_tensor.make_fx(network)(*inputs)",
)

# What was found, and what to do, by a part of torch's text.
_BY_TEXT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "one of cond's output stride is not": (
            "a branch of torch.cond whose result has a size that is computed from a dynamic size",
            "return it flat, as x.flatten(), and give it its shape after torch.cond",
        ),
        "Must provide a tree_name": (  # torch 2.13 loses the names of dynamic arguments
            "dynamic sizes of tensors that forward takes by any name; torch.export lacks these",
            "name them: def forward(self, ids, mask), and not **batch",
        ),
        "uninitialized parameter": (
            "a lazy module, which has no weights before its first call",
            "call the network once before: network(*inputs)",
        ),
        "inference tensor outside InferenceMode": (
            "weights that were made within torch.inference_mode",
            "make or load the network outside of it, or lower it within it",
        ),
        WITHOUT_DATA: (
            "a gradient (torch.autograd.grad), or a tensor without data that an earlier export left",
            _BY_GRADIENT[1],
        ),
        ".numpy() is not supported for tensor subclasses": (
            "NumPy reads the elements of a tensor, which torch.export cannot trace",
            "compute it in torch, or before the export if the inputs do not matter",
        ),
        "functorch tensor": _BY_GRADIENT,
        "does not require grad and does not have a grad_fn": _BY_GRADIENT,
        "Higher order ops do not support aliasing": (
            "control flow with a function that gets or returns one tensor twice, or returns what it gets",
            "clone it: x.clone()",
        ),
        "Higher order ops do not support input mutation": WRITING_BRANCH,
    }
)
_PRODUCTS = (
    *(aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default, aten.addmm.default),
    *(aten.mv.default, aten.dot.default, aten.baddbmm.default),
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default),
)
_TWO_TYPES = (
    r"Input type \((\S+)\) and bias type \((\S+)\)"
    r"|same dtype, but got: (\w+) != ([\w:]+)|same dtype, but got (\w+) and (\w+)"
    r"|expected scalar type (\w+) but found (\w+)"
)
_DROPPED = "F.dropout drops in eval mode too, unless it is told not to: pass training=self.training"
_DROPOUTS = (aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)


_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READ_OUT = ("a number that is read out of a tensor", "keep it a tensor, or make it a constant")


def refuse_write(kind: str, name: str, write: torch.fx.Node) -> UnsupportedError:
    """Return the error for a write to what is no buffer: a parameter, or an input of the user."""
    fix = "return the new value as an output instead, or keep it in a buffer"
    if kind == "user input":
        fix = f"write to a copy, as {name} = {name}.clone(); or {fix}"
    if kind == "parameter":
        fix += "; call the network once before lowering if only its first call writes"
    return UnsupportedError(f"{kind} {name} ({where(write)})", "the program writes to it", fix)


def no_normal_form(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return what was found, and what to do, for a node that has no normal form; else None."""
    value = node.meta.get("val")
    found = _by_data(node) or _mixed_types(node)
    if found is not None:
        return found
    if isinstance(value, _NUMBERS):
        return _READ_OUT
    if isinstance(value, (tuple, list)) and any(each is None for each in value):
        return "gradients of operands, some of which are not asked for", "write it in operators without such"
    sizes: list[Any] = list(value.shape) if isinstance(value, torch.Tensor) else []
    dynamic = any(isinstance(size, torch.SymInt) for size in sizes)
    return (f"symbolic shape {tuple(sizes)}", "export with static shapes") if dynamic else None


def _mixed_types(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return what was found, and what to do, for a product of two types: torch only exports it."""
    if node.target not in _PRODUCTS:
        return None
    operands = tensors_in([each.meta.get("val") for each in node.all_input_nodes])
    types = [str(each.dtype).removeprefix("torch.") for each in operands]
    return None if len(set(types)) < 2 else _of_two_types(*list(dict.fromkeys(types))[:2])


def _of_two_types(given: str, held: str) -> tuple[str, str]:
    fix = "give inputs of the weights' type, as x.float(), or convert the network, as network.half()"
    return f"a product of {given} and {held}", fix


def refuse_choices_by_data(program: ExportedProgram) -> None:
    """Refuse a program with dynamic sizes if data decide more than a `torch.cond` of known sizes."""
    for node in program.graph.nodes:
        value, reason = node.meta.get("val"), None
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            reason = _by_sizes(node) or _by_data(node)
        elif isinstance(value, _NUMBERS) and free_unbacked_symbols(value):
            reason = _READ_OUT
        elif any(map(free_unbacked_symbols, tensors_in(value))):
            reason = _by_data(node)
        if reason is not None:
            raise UnsupportedError(operator_at(node), *reason)


def _by_sizes(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return what was found, and what to do, if dynamic sizes choose a branch of `torch.cond`."""
    choice = node.args[0]
    if not isinstance(choice, torch.fx.Node) or isinstance(choice.meta.get("val"), torch.Tensor):
        return None
    return "control flow with dynamic sizes", "decide it before export, or fix the sizes"


def _by_data(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return what was found, and what to do, if data decide what a node computes or how large it is."""
    if isinstance(node.target, torch._ops.HigherOrderOperator) and not is_static(node):
        return _CONTROL_FLOW.get(str(node.target), ("control flow", "decide it before the export"))
    for value in sized_by_data(node):
        return (
            f"a result whose size the data decide: ({', '.join(map(str, value.shape))})",
            "keep the size, torch.where(mask, x, 0), or take a fixed number: torch.topk",
        )
    return None


def sized_by_data(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the results of a node whose size the data decide. A later call may require one size of them."""
    return [value for value in tensors_in(node.meta.get("val")) if any(map(_is_by_data, value.shape))]


def _is_by_data(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return False
    return bool(size.node.expr.is_number or free_unbacked_symbols(size))


def refuse_gradients(program: ExportedProgram) -> None:
    """Refuse a program in which torch.export left tensors of torch.func.grad."""
    for name, value in program.constants.items():
        if isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise UnsupportedError(f"tensor {name} of the network", *_BY_GRADIENT)


def require_data(program: ExportedProgram) -> None:
    """Raise torch's own error for tensors without data, which it misses if functions are replaced."""
    tensors = (*program.constants.values(), *program.state_dict.values())
    if any(isinstance(value, FakeTensor) for value in tensors):
        raise RuntimeError(WITHOUT_DATA)


def refuse_sparse(program: ExportedProgram) -> None:
    """Refuse a program that computes on sparse or nested tensors, unless it does so on constants alone."""
    computed, inputs = set[torch.fx.Node](), set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.name in inputs or not computed.isdisjoint(node.all_input_nodes):
            computed.add(node)
            values = tensors_in([each.meta.get("val") for each in (node, *node.all_input_nodes)])
            odd = next((value.layout for value in values if value.layout != torch.strided), None)
            if odd is not None:
                dense = "torch.nested.to_padded_tensor(x, 0.0)" if odd == torch.jagged else "x.to_dense()"
                raise UnsupportedError(
                    operator_at(node), f"a tensor of layout {odd}", f"compute with {dense}"
                )


def writes_no_buffer(error: RuntimeError) -> UnsupportedError | None:
    """Return the error for a write to a plain attribute, if that is torch's error; else None."""
    match = re.match(r"Constant (\S+) is mutated", str(error))
    if match is None:
        return None
    return UnsupportedError(
        f"tensor {match[1]}, which the network writes",
        "it is an attribute, and no buffer",
        f"register it: self.register_buffer({match[1].rpartition('.')[2]!r}, tensor)",
    )


def not_exported(
    model: torch.nn.Module,
    error: Exception,
    dynamic_shapes: Any = None,
    place: traceback.FrameSummary | None = None,
) -> UnsupportedError:
    """Return the error for a network that torch.export cannot export, in three lines.

    `place` is a line of the network that the error may be about.
    """
    frame = next(_source_frames(error), None) or place
    line = "" if frame is None else f" ({Path(frame.filename).name}:{frame.lineno})"
    where = f"torch.export of {type(model).__name__}{line}"
    message = str(error).strip()
    code = "" if frame is None else frame.line  # an assertion without a text has its own
    reason = first_line(message) or code or "no more is known"
    if _is_by_elements(error):
        return UnsupportedError(where, *_BY_DATA)
    sizes = partial(refused_sizes, places=places_of(model, dynamic_shapes))
    found = (read(message) for read in (_unknown_class, sizes, _structure, _wrong_call, _types, _by_text))
    known = next(filter(None, found), None)
    return UnsupportedError(where, *(known or (f"{type(error).__name__}: {reason}", _EXPORTABLE)))


def _is_by_elements(error: Exception) -> bool:
    return "data-dependent" in str(error) or "DataDependent" in type(error).__name__


def explaining(error: Exception, later: Exception | None) -> Exception:
    """Return the error that says why a network is not exported.

    `later` is the error of an export in which Python decides by constants. It is the reason if elements
    ended the first export and not the second.
    """
    if later is None or not _is_by_elements(error) or _is_by_elements(later):
        return error
    return later


def _source_frames(error: BaseException | None) -> Iterator[traceback.FrameSummary]:
    """Yield the frames of the user's source where an error and its causes came from."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if is_network_file(frame.filename):
                yield frame
                break
        error = error.__cause__ or error.__context__


def _by_text(text: str) -> tuple[str, str] | None:
    """Return what was found, and what to do, if torch's text has a known part."""
    return next((known for part, known in _BY_TEXT.items() if part in text), None)


def _structure(text: str) -> tuple[str, str] | None:
    """Return what was found, and what to do, if dynamic shapes have another structure than the arguments."""
    match = re.match(r"Detected mismatch between the structure of \S+ and \S+: (.*)", text)
    if match is not None:
        fix = "give an entry for each argument, {dim: Dim} or None, and a tuple of them for *args"
        return f"dynamic_shapes of another structure than the arguments: {match[1]}", fix
    if match := re.match(r"When `dynamic_shapes` is .* but here they are (.*?)\. Alternatively", text):
        fix = 'give ({0: Dim("N", max=8)},), one entry for each argument, or {"x": {0: Dim("N", max=8)}}'
        return f"dynamic_shapes by {match[1]}, which are no names of arguments", fix
    if match := re.match(r"Unexpected dimension mapped to index (\S+) .* but got (.*) instead", text):
        fix = 'give torch.export.Dim("N", min=1, max=16) for a dynamic size'
        return f"dynamic_shapes with {match[2]} for dimension {match[1]}", fix
    return None


def _types(text: str) -> tuple[str, str] | None:
    """Return what was found, and what to do, if torch says that two types meet in a product."""
    match = re.search(_TWO_TYPES, text)
    if match is None:
        return None
    return _of_two_types(*(name.replace("c10::", "").lower() for name in match.groups() if name))


def _wrong_call(text: str) -> tuple[str, str] | None:
    """Return what was found, and what to do, if the example inputs are not those of `forward`."""
    if match := re.match(r"missing a required (?:keyword-only )?argument: '(\w+)'", text):
        name = match[1]
        fix = f'give it with the others: args=(..., {name}), or by name kwargs={{"{name}": {name}}}'
        return f"no example input for {name}", fix
    if re.match(r"too many positional arguments|got an unexpected keyword argument", text):
        return (
            f"example inputs that forward does not take: {text}",
            "give an example for each argument of forward; of a pair (x, label), x alone",
        )
    if match := re.match(r"Unsupported input type <class '([\w.]+)'>", text):
        return f"an example input of type {match[1]}", "give tensors, such as torch.as_tensor(x)"
    return None


def _unknown_class(text: str) -> tuple[str, str] | None:
    """Return what was found, and what to do, if torch.export does not know a value's class."""
    match = re.match(r"Found <class '([\w.]+)'> in (output|input)", text)
    if match is None:
        return None
    name, side = match[1].rsplit(".", 1)[-1], match[2]
    found = f"a {name} in its {side}, into which torch.export cannot see"
    if "Cache" not in name:
        return found, "give and return tensors, in tuples, lists and dicts"
    wrap = "for a cache, wrap it so that the cache's tensors are buffers, inputs or outputs"
    return found, f"call it with use_cache=False; {wrap}"


def refuse_random(module: torch.fx.GraphModule) -> None:
    """Refuse a captured graph that draws random numbers."""
    for node in module.graph.nodes:
        if node.op == "call_function" and is_random(node.target, node.args, node.kwargs):
            fix = _DROPPED if node.target in _DROPOUTS else "make them an input"
            raise UnsupportedError(operator_at(node), "random numbers", fix)
