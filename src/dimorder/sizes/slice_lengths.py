"""Check that torch has the true length of each slice of a dynamic size, at the ends of the ranges.

torch 2.13 decides by the example whether a slice ends before its operand does, if the size is computed from
dynamic sizes: `x.flatten()[:60]` has 60 elements for it, and has 36 if `x` has.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import VALUE, bound, operator_at
from dimorder.sizes.specialize_shapes import CallSizes, input_nodes
from dimorder.sizes.symbolic_program import SymbolicProgram, format_point


def require_slice_lengths(sizes: SymbolicProgram) -> None:
    """Check the length of each slice.

    Args:
        sizes: the program; its slices are `aten.slice.Tensor`.

    Raises:
        UnsupportedError: if a slice has another length than torch says.
    """
    inputs, slices = input_nodes(sizes.exported), _slices(sizes)
    for point in sizes.corners if slices else ():
        known = CallSizes(list(zip(inputs, sizes.inputs_at(point), strict=True)))
        for node in slices:
            size, length, *cut = (known.number(each) for each in _numbers(node))
            if None in (size, length) or len(range(*slice(*cut).indices(size))) == length:
                continue
            raise UnsupportedError(
                f"{operator_at(node)}, at {format_point(point)}",
                f"a slice of a size of {size}, of which torch.export says that {length} are left",
                "narrow the ranges so that the slice takes as many everywhere, or fix the size",
            )


def _slices(sizes: SymbolicProgram) -> list[Node]:
    nodes = sizes.exported.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
    return [node for node in nodes if isinstance(_numbers(node)[0], torch.SymInt)]


def _numbers(node: Node) -> list[object]:
    """Return the size that is cut, the length that torch gives the slice, and its start, end and step."""
    read = bound(node.target, node.args, node.kwargs)
    whole, part = (each.meta[VALUE].shape[read["dim"]] for each in (read["self"], node))
    cut = (read[name] for name in ("start", "end", "step"))
    return [whole, part, *(each.meta[VALUE] if isinstance(each, Node) else each for each in cut)]
