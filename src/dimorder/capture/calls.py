"""Read the arguments of a call: their leaves, in the sequence of an exported program, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export._tree_utils import reorder_kwargs
from torch.export.graph_signature import InputKind

from dimorder.errors import UsageError


def require_arguments(args: object, kwargs: object) -> None:
    """Raise `UsageError` unless arguments are in a tuple, and those by name in a dict."""
    if not isinstance(args, (tuple, list)):
        raise UsageError("args", type(args).__name__, "give a tuple of the network's arguments: (x,)")
    if not isinstance(kwargs, Mapping | None):
        raise UsageError("kwargs", type(kwargs).__name__, 'give a dict by name: {"mask": mask}')


def call_leaves(exported: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of a call in the program's sequence, keywords and keys by name.

    An argument that the program has by position may come by name.

    Raises:
        UsageError: The call has another structure than the program's.
    """
    spec = exported.call_spec.in_spec
    positional, named = spec.children()
    count, names = positional.num_children, list(named.context or ())
    signature = exported.module_call_graph[0].signature
    known = (signature and signature.forward_arg_names) or []
    missing, called = known[len(args) : count], (len(args), list(kwargs))
    if set(missing) <= set(kwargs):
        args = (*args, *(kwargs[name] for name in missing))
        kwargs = {name: value for name, value in kwargs.items() if name not in missing}
    try:
        leaves: list[Any] = spec.flatten_up_to((tuple(args), reorder_kwargs(dict(kwargs), spec)))
    except (ValueError, TypeError, KeyError) as error:
        if (len(args), set(kwargs)) == (count, set(names)):
            reason = " ".join(str(error).split())[:200]
            found = f"another structure than the network was exported with ({reason})"
        else:
            found = _counted(*called)
        fix = f"give {_counted(count, names, known[:count])}"
        if len(args) + len(kwargs) > count + len(names):
            fix += "; others are fixed, unless the network is lowered with them"
        raise UsageError("the arguments", found, fix) from error
    return leaves


def _counted(count: int, named: Sequence[str], positional: Sequence[str] = ()) -> str:
    """Return how many arguments a call has by position and by name, with the names that are known.

    >>> _counted(1, ["mask"], ["x"]), _counted(0, [])
    ('1 by position (x), by name mask', 'no arguments')
    """
    if not count and not named:
        return "no arguments"
    by_position = f"{count} by position" + (f" ({', '.join(positional)})" if positional else "")
    return f"{by_position}, by name {', '.join(named) or 'none'}"


def example_leaves(
    exported: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the leaves of the call that stands for all: the caller's arguments, or the program's own.

    The caller's arguments must fit the program.
    """
    call = (args, kwargs) if args or kwargs else exported.example_inputs
    if call is None:
        raise UsageError("args", "neither given nor in the program", "give example arguments")
    examples = call_leaves(exported, *call)
    leaves = iter(examples)
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            leaf, own = next(leaves), placeholders[spec.arg.name].meta.get("val")
            if isinstance(own, torch.Tensor) and not _fits(leaf, own):
                found = f"{tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise UsageError(
                    f"input {spec.arg.name}",
                    f"{found}, where the program was exported for {tuple(own.shape)} of {own.dtype}",
                    "export it again for that input",
                )
    return tuple(examples)


def _fits(leaf: Any, own: torch.Tensor) -> bool:
    """Return whether a tensor may stand for another; dynamic sizes are refused elsewhere."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype != own.dtype:
        return False
    return leaf.shape == own.shape or not all(isinstance(size, int) for size in own.shape)


def refuse_meta(where: str, *trees: Any) -> None:
    """Refuse tensors on the meta device: they have no numbers that could be compared."""
    if torch.get_default_device().type == "meta":
        found = "the meta device, on which the network's inputs would be drawn"
        raise UsageError("torch's default device", found, 'lower outside of torch.device("meta")')
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
