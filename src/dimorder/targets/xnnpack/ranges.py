"""Merge the delegates of one plan at several sizes into delegates for all sizes.

XNNPACK derives every shape from those of its inputs. So a graph for all sizes is the graph of one size, with
three exceptions. A reshape may leave out one entry, a slice may take a dimension whole, and a constant of one
repeated row becomes that row. The program around the delegates is traced with symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import set_value
from dimorder.sizes.affine import fit_quotient
from dimorder.sizes.merge_specializations import FIX, GraphMerger, SizesError, broadcast_row
from dimorder.sizes.symbolic import SizeTable
from dimorder.sizes.symbolic_program import dims_of
from dimorder.targets.delegate import lowered
from dimorder.targets.xnnpack.all_sizes import unify
from dimorder.targets.xnnpack.graph import XnnGraph
from dimorder.targets.xnnpack.serialize import separate_constants, serialize

Parts = tuple[
    Sequence[Tensor], Sequence[Tensor], XnnGraph
]  # the tensors that a delegate reads, those that it returns, its graph


@dataclass(frozen=True)
class Outer:
    """A program of delegates and portable operators.

    `values` maps nodes of the physical program to its own nodes.
    """

    root: torch.nn.Module
    graph: Graph
    values: Mapping[Node, Node]
    delegates: Mapping[str, Parts]


def for_ranges(outers: Sequence[Outer], contract: Contract, table: SizeTable) -> tuple[GraphModule, Any]:
    """Merge programs that differ in sizes; return one program and its inputs' symbols for torch.export.

    Raises `UnsupportedError` for the first operator that XNNPACK cannot compute at all sizes.
    """
    first = outers[0]
    for outer in outers:
        for node, made in outer.values.items():
            set_value(made, node.meta["val"])
    root, broadcast = torch.nn.Module(), {}
    for node in first.graph.find_nodes(op="get_attr"):
        held = [outer.root.get_buffer(str(node.target)) for outer in outers]
        row = broadcast_row(held)
        if row is None:
            raise SizesError(node, "a constant that is another one for each size")
        root.register_buffer(str(node.target), row)
        if len({each.shape for each in held}) > 1:
            broadcast[node.name] = held
    for name in first.delegates:
        _add(root, name, [outer.delegates[name] for outer in outers], table)
    graph = GraphMerger([outer.graph for outer in outers], table.formula).merge(broadcast)
    return GraphModule(root, graph), _symbols(contract)


def _add(root: torch.nn.Module, name: str, parts: Sequence[Parts], table: SizeTable) -> None:
    """Add a delegate for all sizes; `table` has the sizes of its results."""
    reads, gives, graph = parts[0]
    unify([each for _, _, each in parts])
    separate_constants(graph)
    columns = [
        sizes
        for each in zip(*(p[0] for p in parts), strict=True)
        for sizes in _sizes([x.shape for x in each])
    ]
    shapes = []
    for each in zip(*(p[1] for p in parts), strict=True):
        rows = _sizes([x.shape for x in each])
        made = [
            sizes[0]
            if len(set(sizes)) == 1
            else table.formula(sizes, columns) or fit_quotient(sizes, columns)
            for sizes in rows
        ]
        if None in made:
            found = f"results of {rows}, which are made of no sizes of its operands"
            raise UnsupportedError(name.replace("_", " "), found, FIX)
        shapes.append([size for size in made if size is not None])
    varying = [
        [d for d, sizes in enumerate(_sizes([x.shape for x in each])) if len(set(sizes)) > 1]
        for each in zip(*(p[0] for p in parts), strict=True)
    ]
    blob = serialize(graph)
    root.add_module(name, lowered("XnnpackBackend", reads, gives, *blob, shapes=shapes, varying=varying))


def _sizes(shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the sizes of each dimension, in several programs."""
    return list(zip(*(map(int, shape) for shape in shapes), strict=True))


def _symbols(contract: Contract) -> Any:
    dims = dims_of(contract.symbols)
    return tuple(
        {d: dims[size] for d, size in enumerate(spec.boundary_shape) if isinstance(size, str)}
        for spec in contract.inputs
    )
