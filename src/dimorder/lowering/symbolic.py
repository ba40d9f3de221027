"""Decides how an exported program with symbolic sizes is made of the programs of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.contract import Contract, Size, Symbol
from dimorder.lowering.capture.exported import remade
from dimorder.lowering.capture.ranged import Point
from dimorder.lowering.unify import Unifier, broadcast_row, refusal


def symbolic(
    programs: Sequence[ExportedProgram], points: Sequence[Point], contract: Contract
) -> ExportedProgram:
    """One program for all sizes that the contract's symbols may be, of those at a few points.

    At each of these points it has the shapes that the program there has. Raises `UnsupportedError` for the
    first operator of which no such program can be made.
    """
    first = programs[0]
    state: dict[str, torch.Tensor] = {}
    broadcast: dict[str, list[torch.Tensor]] = {}
    nodes = {node.name: node for node in first.graph.nodes}
    for spec in first.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        held = [program.state_dict[str(spec.target)] for program in programs]
        row = broadcast_row(held)
        if row is None:
            raise refusal(nodes[spec.arg.name], f"the constant {spec.target}, which is another one for each size")
        state[str(spec.target)] = row
        if len({tensor.shape for tensor in held}) > 1:
            broadcast[spec.arg.name] = held
    graph = Unifier([program.graph for program in programs]).unified(broadcast)
    sizes = _SymbolicSizes(contract, points[0])
    module = GraphModule(torch.nn.Module(), graph)
    given = iter(contract.inputs)
    with sizes.mode, torch.no_grad():
        fakes = [
            sizes.tensor(next(given))
            if spec.kind is InputKind.USER_INPUT
            else sizes.mode.from_tensor(state[str(spec.target)], static_shapes=True)
            for spec in first.graph_signature.input_specs
        ]
        FakeTensorProp(module, sizes.mode).propagate_dont_convert_inputs(*fakes)
    _require_shapes(module, programs, [sizes.roots_at(point) for point in points])
    made = remade(
        first, root=torch.nn.Module(), graph=module.graph, state_dict=state, range_constraints=sizes.ranges
    )
    return made


class _SymbolicSizes:
    """Symbols of torch for those of a contract, with their ranges; `hints` are sizes that they may be."""

    def __init__(self, contract: Contract, hints: Point) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.symbols = {symbol.name: symbol for symbol in contract.symbols}
        self.roots = {symbol.name: self._root(symbol, hints[symbol.name]) for symbol in contract.symbols}
        self.ranges = {self.roots[s.name].node.expr: _roots(s) for s in contract.symbols}

    def _root(self, symbol: Symbol, hint: int) -> Any:
        env, source = self.mode.shape_env, ConstantSource(symbol.name)
        assert env is not None
        limits = StrictMinMaxConstraint(vr=_roots(symbol), warn_only=False)
        made = env.create_symbol(hint // symbol.step, source, DimDynamic.DYNAMIC, limits)
        return env.create_symintnode(made, hint=hint // symbol.step, source=source)

    def roots_at(self, point: Point) -> Mapping[Any, int]:
        return {self.roots[name].node.expr: point[name] // s.step for name, s in self.symbols.items()}

    def size(self, size: Size) -> Any:
        return self.roots[size] * self.symbols[size].step if isinstance(size, str) else size

    def tensor(self, spec: Any) -> torch.Tensor:
        """An input as the program's own signature holds it."""
        shape = [self.size(size) for size in spec.boundary_shape]
        strides, step = [0] * len(shape), 1
        for dim in reversed(spec.boundary_order.dims):
            strides[dim] = step
            step = step * shape[dim]
        return torch.empty_strided(shape, strides, dtype=getattr(torch, spec.dtype))


def _roots(symbol: Symbol) -> ValueRanges[Any]:
    assert symbol.maximum is not None
    return ValueRanges(symbol.minimum // symbol.step, symbol.maximum // symbol.step)


def _require_shapes(
    module: GraphModule, programs: Sequence[ExportedProgram], points: Sequence[Mapping[Any, int]]
) -> None:
    """Holds the symbolic shape of each value to what it is in the program at each point."""
    made = {node.name: node for node in module.graph.nodes}
    for program, point in zip(programs, points, strict=True):
        for node in program.graph.nodes:
            if node.op == "call_function":
                found = [_at(shape, point) for shape in _shapes(made[node.name])]
                wanted = [tuple(shape) for shape in _shapes(node)]
                if found != wanted:
                    raise refusal(node, f"the shape {found[0]}, where {wanted[0]} was planned")


def _shapes(node: Node) -> list[Any]:
    values = pytree.tree_leaves(node.meta["val"])
    return [value.shape for value in values if isinstance(value, torch.Tensor)]


def _at(shape: Sequence[Any], point: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else int(size.node.expr.xreplace(point)) for size in shape)
