"""Keep dimensions of size 1 in a physical program, so that fewer views lie between dynamic sizes.

On a target, a view may infer one size but not two, and may copy when it does. If rows (N, T, D) are read as
(N, 1, T, D), every value computed from them row by row gets that shape. This ends at the program's inputs and
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import Elements
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import args_of, call_before, copy_meta
from dimorder.graph.tracing import shape_of
from dimorder.ops.table import elements_of

aten = torch.ops.aten

_VIEW = aten.view.default
_GROWTH = 4  # of the elements in views: a view of few is not worth views of many
_TRIES = 3  # to lift a value, with fewer calls each time


def keep_unit_dims(
    programs: Sequence[ExportedProgram],
    refused: Callable[[Sequence[ExportedProgram], Collection[str]], Collection[str]] = lambda programs, _: (),
) -> list[ExportedProgram]:
    """Return physical programs whose values keep dimensions of size 1 that views add among dynamic sizes.

    A view of few elements stays if views would then have many.

    Args:
        programs: The physical program at each of several points, where it has the same nodes.
        refused: Takes such programs and the names of calls that now have more dimensions. Returns the names
            of those that the target does not compute at all sizes. These keep their dimensions.

    >>> class Added(torch.nn.Module):
    ...     def forward(self, x, y):
    ...         return (x.relu().view(-1, 1, 5) + y).exp()
    >>> inputs = [(torch.ones(size, 5), torch.ones(size, 7, 5)) for size in (2, 3)]
    >>> programs = keep_unit_dims([torch.export.export(Added(), each) for each in inputs])
    >>> [str(node.target) for node in programs[0].graph.nodes]
    ['x', 'y', 'aten.view.default', 'aten.relu.default', 'aten.add.Tensor', 'aten.exp.default', 'output']
    """
    programs = list(programs)
    rows = zip(*(_views(program.graph) for program in programs), strict=False)
    names = [row[0].name for row in rows if len({shape_of(view) for view in row}) > 1]
    apart = set[str]()  # calls that keep their dimensions
    for name in names:
        for _ in range(_TRIES):
            view = next((view for view in _views(programs[0].graph) if view.name == name), None)
            if view is None or _ones(view) is None:
                break
            first, calls = _lifted(programs[0], name, apart)
            if _viewed(first) > _GROWTH * _viewed(programs[0]):
                break
            lifted = [first, *(_lifted(program, name, apart)[0] for program in programs[1:])]
            unfit = {calls[each] for each in refused(lifted, calls)}
            if not unfit:
                programs = lifted
                break
            apart |= unfit
    return programs


def _lifted(
    program: ExportedProgram, name: str, apart: Collection[str]
) -> tuple[ExportedProgram, dict[str, str]]:
    """Return the program whose values keep the dimensions of size 1 that a view adds.

    Also return the names that calls had before, by their new names.
    """
    graph = copy_graph(program.graph)
    view = next(node for node in _views(graph) if node.name == name)
    ones = _ones(view)
    assert ones is not None
    lift = _Lift(graph, ones, apart)
    lift.run(args_of(view)[0])
    left = set(graph.nodes)
    before = {made.name: old for old, made in lift.calls.items() if made in left}
    return replace_parts(program, root=torch.nn.Module(), graph=graph), before


def _viewed(program: ExportedProgram) -> int:
    """Return how many elements the views of a program have."""
    return sum(math.prod(shape_of(view)) for view in _views(program.graph))


def _views(graph: Graph) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=_VIEW))


@dataclass(frozen=True)
class _Ones:
    """Dimensions of size 1: `count` of them before dimension `at` of values of rank `rank`."""

    rank: int
    at: int
    count: int

    def added(self, shape: Sequence[int]) -> list[int]:
        return [*shape[: self.at], *[1] * self.count, *shape[self.at :]]

    def moved(self, dim: int) -> int:
        dim %= self.rank
        return dim + self.count if dim >= self.at else dim


def _ones(view: Node) -> _Ones | None:
    """Return the dimensions of size 1 that a view adds inside a shape, or None."""
    before, after = shape_of(args_of(view)[0]), shape_of(view)
    for at in range(1, len(before)):
        ones = _Ones(len(before), at, len(after) - len(before))
        if ones.count > 0 and tuple(ones.added(before)) == tuple(after):
            return ones
    return None


_OF_ROWS = (aten.linear.default, aten.layer_norm.default)  # they read rows only in their first operand
_ALONG_DIMS = (Elements.MOVES, Elements.REDUCES, Elements.MIXES)


def _takes_dims(node: Node) -> bool:
    """Return whether a call acts along the dimensions that its second argument names."""
    if elements_of(node.target) not in _ALONG_DIMS:
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]  # elements are those of overloads
    return len(arguments) > 1 and arguments[1].name in ("dim", "dims")


class _Lift:
    """A pass that adds the same dimensions of size 1 to a value and all values computed from it by rows."""

    def __init__(self, graph: Graph, ones: _Ones, apart: Collection[str]) -> None:
        self.graph, self.ones, self.apart = graph, ones, apart
        self.lifted: dict[Node, Node] = {}  # by value: the same with dimensions of size 1
        self.kept = set[Node]()  # the values that are computed as before, and then viewed
        self.named: dict[Node, str] = {}  # by replacement: the name of the value
        self.calls: dict[str, Node] = {}  # by a call's name: the call that replaces it

    def run(self, value: Node) -> None:
        found = self._together(value)
        self.kept = {node for node in found if not self._is_by_rows(node)}
        for node in [node for node in self.graph.nodes if node in found]:
            self.lifted[node] = self._with_ones(node)
        calls = [node for node in self.lifted if node not in self.kept]
        self.calls = {node.name: self.lifted[node] for node in calls}
        for node in list(self.lifted):
            self._give_back(node)
        self.graph.eliminate_dead_code()
        for node, name in self.named.items():  # the signature knows outputs by their names
            node.name = name

    def _together(self, value: Node) -> set[Node]:
        """Return the values that need dimensions of size 1 if `value` has them."""
        found, todo = {value}, [value]
        while todo:
            node = todo.pop()
            read = self._read(node) if self._is_by_rows(node) else []
            new = [n for n in (*read, *filter(self._is_by_rows, node.users)) if n not in found]
            found.update(new)
            todo += new
        return found

    def _read(self, node: Node) -> list[Node]:
        """Return the operands of a call that have dimensions of size 1 if its result has them."""
        operands = [args_of(node)[0]] if node.target in _OF_ROWS else node.all_input_nodes
        return [operand for operand in operands if len(shape_of(operand)) == self.ones.rank]

    def _is_by_rows(self, node: Node) -> bool:
        """Return whether a call can keep the dimensions of size 1 of its operands in its result."""
        if node.op != "call_function" or not isinstance(node.meta["val"], torch.Tensor):
            return False
        if len(shape_of(node)) != self.ones.rank or node.name in self.apart:
            return False
        if any(
            read.target is aten.permute.default for read in node.all_input_nodes
        ):  # a view needs a dense operand
            return False
        behind = self.ones.rank - self.ones.at
        if node.target in _OF_ROWS:
            return node.target is aten.linear.default or len(args_of(node)[1]) <= behind
        if _takes_dims(node) or node.target is aten.clone.default:
            return True
        if not elements_of(node.target).is_pointwise:
            return False
        return all(len(shape_of(n)) in (self.ones.rank, *range(behind + 1)) for n in node.all_input_nodes)

    def _with_ones(self, node: Node) -> Node:
        shape = self.ones.added(shape_of(node))
        source = args_of(node)[0] if node.target is _VIEW else node
        if list(shape_of(source)) == shape:
            return source
        place = node.next
        while node.op == "placeholder" and place.op == "placeholder":
            place = place.next
        with self.graph.inserting_before(place):
            if node in self.kept:
                made = self.graph.call_function(_VIEW, (source, shape))
            else:
                read = self._read(node)
                made = self.graph.node_copy(node, lambda n: self.lifted[n] if n in read else n)
                if _takes_dims(node):
                    dims: Any = args_of(node)[1]
                    moved = (
                        self.ones.moved(dims) if isinstance(dims, int) else [self.ones.moved(d) for d in dims]
                    )
                    made.args = (made.args[0], moved, *made.args[2:])
        return copy_meta(made, node, node.meta["val"].new_empty(shape))

    def _stays(self, reader: Node) -> bool:
        """Return whether a call stays, so that it must read what has no new dimensions."""
        return reader not in self.lifted or reader in self.kept

    def _give_back(self, node: Node) -> None:
        """Let the remaining readers of a value read the new value, or a view of it in the old shape."""
        made, output = self.lifted[node], self.graph.output_node()
        for view in [reader for reader in node.users if reader.target is _VIEW and reader is not made]:
            view.args = (made, *view.args[1:])
            if shape_of(view) == shape_of(made) and output not in view.users:
                view.replace_all_uses_with(made)
        if node in self.kept:
            return
        named = made
        if any(map(self._stays, node.users)):
            named = call_before(made.next, _VIEW, (made, list(shape_of(node))), like=node)
            node.replace_all_uses_with(named, delete_user_cb=self._stays)
        self.named[named] = node.name
