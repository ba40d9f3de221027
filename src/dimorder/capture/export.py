"""Export a network with torch.export, and check torch's assertions about sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from dimorder.capture.assigned_buffers import with_assigned_buffers
from dimorder.capture.calls import refuse_meta, require_arguments
from dimorder.capture.caught_errors import caught_errors
from dimorder.capture.claims import holds, holds_throughout
from dimorder.capture.compute_under_masks import compute_under_masks
from dimorder.capture.data_attributes import DataAttributes
from dimorder.capture.decompose_flex_attention import decompose_flex_attention
from dimorder.capture.derived_sizes import derived_sizes_first
from dimorder.capture.inline_grad_modes import inline_grad_modes
from dimorder.capture.keep_dynamic import KeepDynamic
from dimorder.capture.known_constants import KnownConstants
from dimorder.capture.prepare_branches import prepare_branches
from dimorder.capture.proven_contiguity import proven_contiguity
from dimorder.capture.refusals import (
    WITHOUT_DATA,
    explaining,
    not_exported,
    refuse_gradients,
    require_data,
    sized_by_data,
)
from dimorder.capture.size_refusals import (
    refuses_some_sizes,
    refusing_line,
    unsolved_sizes,
)
from dimorder.capture.undecided_by_example import undecided_by_example
from dimorder.capture.whole_quotients import whole_quotients
from dimorder.errors import UnsupportedError, UsageError, first_line
from dimorder.files import require_exported_program, require_sound_archive
from dimorder.graph.nodes import clone_repeated_tensors, tensors_in
from dimorder.graph.prediction import assume_assertions, assumptions_of
from dimorder.modules import eval_mode, unchanged, without_fake_tensors


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
        UsageError: `model` is not a network, or the arguments are no tuple.
        UnsupportedError: The network cannot be exported.
    """
    require_arguments(args, kwargs)
    if torch.is_autocast_enabled("cpu"):
        fix = "lower outside of torch.autocast; within the network's forward it is kept"
        raise UsageError("torch.autocast", "it is on, and would change the types of operators", fix)
    if isinstance(model, (str, Path)):
        model = read_exported(model)
    if isinstance(model, ExportedProgram):
        return _prepared(model)
    if not isinstance(model, torch.nn.Module):
        raise _no_network(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError("the network", *_SCRIPTED)
    refuse_meta("the network", dict(model.named_parameters()), dict(model.named_buffers()))
    return _prepared(_export_module(model, args, kwargs, dynamic_shapes))


def _export_module(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """Return a module's program by the first way to export it that works."""
    call = (model, args, kwargs, dynamic_shapes)
    try:
        program = _exported(*call)
    except UnsupportedError:
        raise
    except Exception as error:
        first = error  # handled below, so that a later error does not carry it
    else:
        if any(node.target in _READS or sized_by_data(node) for node in program.graph.nodes):
            program = _by_constants(*call)[0] or program
        if dynamic_shapes is not None and fixes_a_size(program):
            program = _traced(*call) or program
        return program
    known, later = _by_constants(*call)
    last: Exception | None = None
    if known is None and dynamic_shapes is not None:
        known, last = _with_assertions(*call)
        known = known or _traced(*call) or _with_assertions(*call, strict=True)[0]
    if known is not None:
        return known
    for name, part in model.named_modules():  # a traced part is read, unless it was saved and loaded
        if isinstance(part, torch.jit._script.RecursiveScriptModule):
            raise UnsupportedError(f"part {name!r} of {type(model).__name__}", *_SCRIPTED) from first
    reason = explaining(first, later)
    if last is not None and all(map(refuses_some_sizes, (reason, last))):
        reason = last  # this export asks less of sizes
    line = refusing_line(reason) or refusing_line(first)
    raise not_exported(model, reason, dynamic_shapes, line) from reason


_SCRIPTED = (
    "TorchScript, which torch.export cannot read",
    "pass the module that torch.jit.script or torch.jit.trace was given",
)
_SAVE_AGAIN = "export the network again: torch.export.save(torch.export.export(network, inputs), file)"
_READS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)  # of a tensor's element


def _prepared(program: ExportedProgram) -> ExportedProgram:
    return prepare_branches(compute_under_masks(decompose_flex_attention(inline_grad_modes(program))))


def read_exported(path: str | Path, where: str = "") -> ExportedProgram:
    """Return the program in a `.pt2` file, or raise a `UsageError` that says what to do."""
    try:
        return load_exported(path)
    except Exception as error:
        found, fix = f"not a readable exported program: {first_line(error)}", _SAVE_AGAIN
        if not Path(path).is_file():
            found = "a folder" if Path(path).is_dir() else "no such file"
            fix = "give the path of a .pt2 file, without ~ or variables"
        raise UsageError(where or str(path), found, fix) from error


def load_exported(path: str | Path, extra_files: dict[str, Any] | None = None) -> ExportedProgram:
    """Return the program in a `.pt2` file, as torch.export.load does.

    Raises `ValueError` if the archive is damaged, which torch does not notice, or has no exported program.
    torch may raise anything else.
    """
    require_sound_archive(path)
    require_exported_program(path)
    return torch.export.load(str(path), extra_files=extra_files)


def _no_network(model: object) -> UsageError:
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        found, fix = f"the class {model.__name__}", f"pass an instance: {model.__name__}()"
        return UsageError("model", found, fix)
    found = f"{type(model).__name__} is neither a torch.nn.Module nor an ExportedProgram"
    return UsageError("model", found, "pass one of these; a function needs a module whose forward calls it")


def _exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    defers: bool = False,
    strict: bool = False,
) -> ExportedProgram:
    if dynamic_shapes is not None:
        _forget_conds()
    parts = nullcontext() if dynamic_shapes is None or strict else KeepDynamic()
    quotients = nullcontext() if dynamic_shapes is None else whole_quotients()

    def run(attributes: DataAttributes | None = None) -> ExportedProgram:
        with unchanged(model), without_fake_tensors(model), attributes or nullcontext():
            program = torch.export.export(
                model,
                *clone_repeated_tensors(tuple(args), dict(kwargs or {})),
                dynamic_shapes=dynamic_shapes,
                strict=strict,
                prefer_deferred_runtime_asserts_over_guards=defers,
            )
        require_data(program)
        return program

    with (
        torch.no_grad(),
        eval_mode(model),
        parts,
        quotients,
        derived_sizes_first(),
        unsolved_sizes(),
        caught_errors(),
    ):
        try:
            program = with_assigned_buffers(model, run)
        except RuntimeError as error:
            if strict or WITHOUT_DATA not in str(error):
                raise
            program = with_assigned_buffers(model, partial(run, DataAttributes(model)))
    refuse_gradients(program)
    return program


def _forget_conds() -> None:
    """Let torch trace each `torch.cond` anew: what it kept of an export with fixed sizes would fix sizes."""
    for code in torch.cond.__code__.co_consts:
        if isinstance(code, CodeType):
            torch._dynamo.reset_code(code)  # type: ignore[attr-defined]


def _by_constants(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> tuple[ExportedProgram | None, Exception | None]:
    """Export a module in which Python decides by constants; None and the error if that does not suffice.

    Raises:
        UnsupportedError: Python decides by a buffer that the network writes.
    """
    try:
        with KnownConstants(model) as known:
            program = _exported(model, args, kwargs, dynamic_shapes)
    except Exception as error:
        return None, error
    known.refuse_state()
    return program, None


def _with_assertions(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    strict: bool = False,
) -> tuple[ExportedProgram | None, Exception | None]:
    """Export a module with assertions for what torch could not prove of its sizes.

    Return None unless all hold, and the error of the last attempt, if there was one.
    """
    last: Exception | None = None
    for decides in (nullcontext, undecided_by_example):
        try:
            with proven_contiguity(), decides():
                program = _exported(model, args, kwargs, dynamic_shapes, defers=True, strict=strict)
        except Exception as error:
            last = error
            continue
        last = None
        if holds_throughout(program) and not is_narrowed(program) and not fixes_a_size(program):
            return program, None
    return None, last


def export_branch(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> ExportedProgram | None:
    """Return what a network computes at the example's sizes as a program of all, or None if that fails."""
    try:
        with proven_contiguity(), undecided_by_example():
            program = _exported(model, args, kwargs, dynamic_shapes, defers=True)
    except Exception:  # the error of the first export is told
        return None
    assume_assertions(program)
    return _prepared(program)


def _traced(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram | None:
    """Return the program that TorchDynamo traces, or None if it fails or fixes sizes too.

    It reads Python's bytecode. So `int(size * 2)` and `math.ceil(size / 2)` stay dynamic, of which
    torch.export alone fixes the size. It takes several times as long.
    """
    try:
        program = _exported(model, args, kwargs, dynamic_shapes, strict=True)
    except Exception:  # the error of the first export is told
        return None
    return None if is_narrowed(program) or fixes_a_size(program) else program


def fixes_a_size(program: ExportedProgram) -> bool:
    """Return whether torch fixed a size of an input, or a number that it computed from sizes, as `int(size)`.

    >>> class Rows(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.new_ones(int(x.shape[0] // 3 * 3))
    >>> dims = ({0: 3 * torch.export.Dim("length", min=2, max=9)},)
    >>> fixes_a_size(torch.export.export(Rows(), (torch.ones(12),), dynamic_shapes=dims))
    True
    """
    assumed = (each for each in assumptions_of(program) if isinstance(each, sympy.Eq))
    equal = (each for each in assumed if each.rhs.is_Integer and each.rhs > 1)
    nodes = program.graph.find_nodes(op="placeholder")
    values = itertools.chain(*(tensors_in(node.meta.get("val")) for node in nodes))
    sizes: Iterator[Any] = (size for value in values for size in value.shape)
    is_fixed = any(isinstance(size, torch.SymInt) and size.node.expr.is_Integer for size in sizes)
    return is_fixed or not all(holds(each, program.range_constraints) for each in equal)


def is_narrowed(program: ExportedProgram) -> bool:
    """Return whether torch keeps less than a size's range: it asserts nothing of a size that it fixes."""
    for expression, wanted in program.range_constraints.items():
        step, root = expression.as_coeff_Mul()
        own = program.range_constraints.get(root, wanted)
        if own.lower > max(wanted.lower / step, 2) or step * own.upper < wanted.upper:
            return True
    return False
