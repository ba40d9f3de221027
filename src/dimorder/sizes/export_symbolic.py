"""Export a network with dynamic sizes, and read the range of each dynamic size from the exported program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import _DimHint, _DimHintType
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.capture.calls import call_leaves, require_arguments
from dimorder.capture.export import export, export_branch, is_narrowed
from dimorder.capture.refusals import refuse_choices_by_data, refuse_sparse
from dimorder.capture.size_refusals import refuses_some_sizes
from dimorder.capture.state import with_one_name
from dimorder.contract import Symbol
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.nodes import clone_repeated_tensors
from dimorder.graph.prediction import assumptions_of, fake_mode_of
from dimorder.modules import eval_mode, left_as_it_was
from dimorder.sizes.merge_branches import merge_branches
from dimorder.sizes.numbers import sizes_in
from dimorder.sizes.specialize_shapes import input_nodes, resize_tensor
from dimorder.sizes.symbolic_program import Point, SymbolicProgram


def export_symbolic(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> SymbolicProgram | None:
    """Return the network with its dynamic sizes; None if all sizes are fixed.

    Args:
        model: a module, an exported program, or a `.pt2` file.
        args: example positional inputs.
        kwargs: example keyword inputs.
        dynamic_shapes: the dynamic sizes, as in torch.export. An exported program has its own.

    Raises:
        UsageError: if a size has no upper bound, or is not a multiple of a symbol.
        UnsupportedError: if data decide sizes, or control flow other than `torch.cond`.

    >>> batch = Dim("N", min=1, max=16)
    >>> found = export_symbolic(torch.nn.ReLU(), (torch.ones(2, 3),), None, ({0: batch},))
    >>> print(*found.symbols, found.input_shapes, found.middle)
    N = 1 … 16 [('N', 3)] {'N': 4}
    """
    if isinstance(model, torch.nn.Module):
        if dynamic_shapes is None:
            return None
        require_arguments(args, kwargs)
        args, kwargs = clone_repeated_tensors(tuple(args), dict(kwargs or {}))
        args, kwargs, names = _resized(model, args, kwargs, dynamic_shapes, _from_two)
    elif dynamic_shapes is not None:
        fix = "leave them out, or export the network again with other ones"
        raise UsageError("dynamic_shapes", "an exported program, which has its own", fix)
    else:
        names = {}
    try:
        # torch cannot decompose a program that writes one tensor under two names
        exported = with_one_name(export(model, args, kwargs, dynamic_shapes))
    except UnsupportedError as error:
        if not isinstance(model, torch.nn.Module) or not refuses_some_sizes(error.__cause__):
            raise
        merged = _merged(model, args, kwargs or {}, dynamic_shapes, names)
        if merged is None:
            raise
        exported = merged
    if not _has_symbols(exported):
        hints = [leaf for leaf in pytree.tree_leaves(dynamic_shapes) if isinstance(leaf, _DimHint)]
        if any(hint.type is not _DimHintType.STATIC for hint in hints):
            fix = 'give torch.export.Dim("N", min=1, max=16), or no dynamic size'
            raise UsageError("dynamic_shapes", "Dim.AUTO or such, which torch took for a fixed size", fix)
        return None
    if isinstance(model, torch.nn.Module) and (is_narrowed(exported) or _has_unit_sizes(exported)):
        exported = _exported_larger(model, args, kwargs or {}, dynamic_shapes) or exported
    if any(node.op == "get_attr" for node in exported.graph.nodes):  # subgraphs have modes of their own
        exported = exported.run_decompositions({})
    refuse_choices_by_data(exported)
    refuse_sparse(exported)
    call = (args, kwargs or {}) if args or kwargs else exported.example_inputs
    if call is None:
        raise UsageError("args", "neither given nor in the program", "give example arguments")
    leaves = tuple(call_leaves(exported, *call))
    symbols, roots = _symbols(exported, leaves, names)
    _restore_ranges(exported, symbols, roots)
    return SymbolicProgram(exported, leaves, symbols, roots)


def _merged(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    names: Mapping[int, Mapping[int, Any]],
) -> ExportedProgram | None:
    """Return the program of a branch that is right at all sizes if the network decides by them, else None."""

    def branch(args: Any, kwargs: Any, names: Mapping[int, Mapping[int, Any]]) -> SymbolicProgram | None:
        exported = export_branch(model, args, kwargs, dynamic_shapes)
        if exported is None or is_narrowed(exported):
            return None
        leaves = tuple(call_leaves(exported, args, kwargs))
        try:
            symbols, roots = _symbols(exported, leaves, names)
        except UsageError:  # two sizes are one
            return None
        if not all(each.free_symbols <= {*roots.values()} for each in assumptions_of(exported)):
            return None  # something else decides
        return SymbolicProgram(with_one_name(exported), leaves, symbols, roots)

    def branch_at(point: Point) -> SymbolicProgram | None:
        found = branch(*_resized(model, args, kwargs, dynamic_shapes, lambda dim, _: point[dim.__name__]))
        return found if found is not None and len(found.symbols) == len(point) else None

    def network(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), eval_mode(model), left_as_it_was(model, (args, kwargs)):
            return model(*args, **kwargs)

    dims = {dim.__name__: dim for named in names.values() for dim in named.values()}
    first = branch(args, kwargs, names)
    if first is None or len(first.symbols) < len(dims) or any(hasattr(dim, "fn") for dim in dims.values()):
        return None
    merged = merge_branches(first, branch_at, network)
    return None if merged is None else merged.exported


def _has_unit_sizes(exported: ExportedProgram) -> bool:
    """Return whether a dynamic size of a value is 1 in the example. torch may take it for a fixed one."""
    sizes = (size for size in sizes_in(exported) if isinstance(size, torch.SymInt))
    return any(size.node.has_hint() and size.node.hint == 1 for size in sizes)


def _exported_larger(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> ExportedProgram | None:
    """Return a network exported with larger examples, or None if torch refuses these or keeps less too.

    torch takes a size of 1, as deep layers have it of small images, for a fixed one.
    """
    args, kwargs, _ = _resized(model, args, kwargs, dynamic_shapes, _enlarged)
    try:
        exported = with_one_name(export(model, args, kwargs, dynamic_shapes))
    except UnsupportedError:
        return None
    return None if is_narrowed(exported) else exported


def _restore_ranges(
    exported: ExportedProgram, symbols: Iterable[Symbol], roots: Mapping[str, sympy.Symbol]
) -> None:
    """Give torch's symbols the ranges of the dynamic sizes, if torch keeps less.

    Else bounds and memory would be computed from less.
    """
    mode = fake_mode_of(exported)
    if mode is None or mode.shape_env is None:
        return
    for symbol in symbols:
        root, (low, high) = roots[symbol.name], (symbol.minimum, symbol.maximum)
        known = mode.shape_env.var_to_range.get(root)
        if known is not None and high is not None and known.upper < high // symbol.step:
            mode.shape_env.var_to_range[root] = ValueRanges(low // symbol.step, high // symbol.step)


class _NamedDim(Dim):
    """A dynamic size whose name is a name alone: torch 2.13 reads N, O, Q and S as functions of sympy."""

    def _derived_name(self, derive: Callable[[Any], Any]) -> str:
        return str(derive(sympy.Symbol(self.__name__)))


def dims_of(symbols: Iterable[Symbol]) -> dict[str, Any]:
    """Return bounded dynamic sizes as torch.export wants them, by their names: a `Dim`, or a multiple of one.

    >>> print(dims_of([Symbol("N", 64, 256, 32)])["N"])
    32*N
    """
    dims: dict[str, Any] = {}
    for symbol in symbols:
        assert symbol.maximum is not None
        root = _NamedDim(symbol.name, min=symbol.minimum // symbol.step, max=symbol.maximum // symbol.step)
        dims[symbol.name] = root if symbol.step == 1 else symbol.step * root
    return dims


def dynamic_shapes_of(program: SymbolicProgram) -> dict[str, Any]:
    """Return a program's dynamic sizes by the names of its arguments, as torch.export wants them."""
    dims, shapes = dims_of(program.symbols), iter(program.input_shapes)
    own = [
        {d: dims[size] for d, size in enumerate(next(shapes)) if isinstance(size, str)}
        if isinstance(leaf, torch.Tensor)
        else None
        for leaf in program.examples
    ]
    args, kwargs = pytree.tree_unflatten(own, program.exported.call_spec.in_spec)
    forward = program.exported.module(check_guards=False).forward
    return dict(inspect.signature(forward).bind(*args, **kwargs).arguments)


def _has_symbols(exported: ExportedProgram) -> bool:
    values = (node.meta.get("val") for node in input_nodes(exported))
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(not isinstance(size, int) for value in tensors for size in value.shape)


def _symbols(
    exported: ExportedProgram, leaves: Sequence[Any], names: Mapping[int, Mapping[int, Any]]
) -> tuple[tuple[Symbol, ...], dict[str, sympy.Symbol]]:
    """Return the contract's dynamic sizes, and torch's own symbols by their names."""
    found: dict[sympy.Symbol, Symbol] = {}
    for node, leaf in zip(input_nodes(exported), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            continue
        for d, size in enumerate(node.meta["val"].shape):
            if isinstance(size, int):
                continue
            root, step = _root_and_step(size.node.expr, f"input {node.name}")
            dim = names.get(id(leaf), {}).get(d)
            dim = getattr(dim, "root", dim)
            limits = exported.range_constraints.get(root)
            least = getattr(limits, "lower", 0) if dim is None else dim.min
            most = getattr(limits, "upper", None) if dim is None else dim.max
            name = str(root) if dim is None else dim.__name__
            if not isinstance(most, (int, sympy.Integer)):
                fix = f'say how large it may be: torch.export.Dim("{name}", min=1, max=16)'
                raise UsageError(
                    f"input {node.name}, dim {d}", f"the size {name}, without an upper bound", fix
                )
            symbol = Symbol(name, step * max(1, int(least)), step * int(most), step)
            other = found.setdefault(root, symbol)
            if other != symbol:
                fix = "let all be one multiple of it, or fix the size: lower one program for each size"
                own, first = (f"{each.step}*{other.name}" for each in (symbol, other))
                said = f"the size {own}, and {first} in another place: two multiples of one Dim"
                raise UsageError(f"input {node.name}, dim {d}", said, fix)
    return tuple(found.values()), {symbol.name: root for root, symbol in found.items()}


def _root_and_step(expression: Any, where: str) -> tuple[sympy.Symbol, int]:
    step, root = expression.as_coeff_Mul()
    if not isinstance(root, sympy.Symbol) or not isinstance(step, (int, sympy.Integer)):
        fix = "give sizes that are a Dim, or a multiple of one"
        raise UsageError(where, f"the size {expression}", fix)
    return root, int(step)


def _dims(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> dict[int, tuple[torch.Tensor, Mapping[int, Any]]]:
    """Return the tensors of a call that have named dimensions, with these dimensions, by the tensors' ids."""
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise UsageError("the arguments", str(error), "give what the network's forward takes") from error
    found: dict[int, tuple[torch.Tensor, Mapping[int, Any]]] = {}

    def walk(value: Any, shapes: Any) -> None:
        """Collect tensors with their dimensions; torch.export reports shapes of another form."""
        if isinstance(value, torch.Tensor) and isinstance(shapes, (Mapping, list, tuple)):
            pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes)
            found[id(value)] = value, {d: dim for d, dim in pairs if isinstance(dim, Dim)}
        elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
            for key in value:
                walk(value[key], shapes.get(key))
        elif isinstance(value, (list, tuple)) and isinstance(shapes, (list, tuple)):
            for each in zip(value, shapes, strict=False):
                walk(*each)

    whole: Any = dict(bound) if isinstance(dynamic_shapes, Mapping) else tuple(bound.values())
    walk(whole, dynamic_shapes)
    return found


def _resized(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    new_size: Callable[[Any, int], int],
) -> tuple[Any, Any, dict[int, Mapping[int, Any]]]:
    """Return the arguments of a call with other dynamic sizes, and the named dimensions of each by its id.

    `new_size` takes a `Dim` and the size that the example has there.
    """
    dims, made = _dims(model, args, kwargs, dynamic_shapes), dict[int, torch.Tensor]()
    for key, (leaf, named) in dims.items():
        shape = list(leaf.shape)
        for d, dim in named.items():
            if -leaf.dim() <= d < leaf.dim():
                shape[d] = new_size(dim, shape[d])
        made[key] = resize_tensor(leaf, shape)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: made.get(id(x), x), (args, kwargs))
    return args, kwargs, {id(made[key]): named for key, (_, named) in dims.items()}


def _from_two(dim: Any, size: int) -> int:
    """Return a size of 1 enlarged: torch would specialize a 1."""
    at = getattr(dim, "fn", int)
    return max(int(at(2)), int(dim.min)) if size == at(1) else size


_TIMES = 8  # by which examples are enlarged


def _enlarged(dim: Any, size: int) -> int:
    """Return a larger size, within its range."""
    at, root = getattr(dim, "fn", int), getattr(dim, "root", dim)
    return int(at(min(int(root.max), _TIMES * (size // int(at(1))))))
