"""Map a program to the sites of a layout problem, and to the buffers and views that they read and write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import FIX
from dimorder.graph.nodes import EXPORTED, operator_at, operator_name, results
from dimorder.layout.annotate import Annotated, results_of
from dimorder.ops.operator import Implementation
from dimorder.ops.problem_map import BufferInfo, BufferView, Site
from dimorder.ops.relation import AxedTensor, AxisOrder, Relation, Token, token_axes
from dimorder.ops.table import implementations, operands


@dataclass(frozen=True)
class SiteMap:
    """The sites of a program, and what they read and write.

    Attributes:
        annotated: The program with its axes.
        buffers: The values that sites produce, each with all its relabelled views.
        views: The values of the program, as views of buffers.
        sites: The operators, and the inputs, outputs and state, in sequence.
    """

    annotated: Annotated
    buffers: tuple[BufferInfo, ...]
    views: dict[torch.fx.Node, BufferView]
    sites: tuple[Site, ...]


def map_sites(
    annotated: Annotated, listed: Collection[str], own: Mapping[str, tuple[Implementation, ...]]
) -> SiteMap:
    """Return the sites of a program.

    Args:
        annotated: the program with its axes.
        listed: the implementations that run on the target, of the operators that have several.
        own: implementations that only this target has, by the operator.
    """
    mapper = _Mapper(annotated, listed, own)
    sites = tuple(mapper.sites())
    return SiteMap(annotated, tuple(mapper.buffers), mapper.views, sites)


def require_alike(maps: Sequence[SiteMap], points: Sequence[str]) -> None:
    """Check that the sites of one network at several points differ only in sizes.

    Raises:
        UnsupportedError: for the first operator that has other pieces at one point than at another.
    """
    first = maps[0]
    for other, point in zip(maps[1:], points[1:], strict=True):
        for site, twin in zip(first.sites, other.sites, strict=False):
            if _structure(site) != _structure(twin):
                name = site.node.meta.get(EXPORTED, site.node.name)  # what it was written for
                found = f"{name!r}: a dynamic size decides which elements or pieces it takes"
                found += f" ({point} differs from {points[0]} in more than sizes)"
                raise UnsupportedError(operator_at(site.node), found, FIX)
        if len(first.sites) != len(other.sites) or len(first.buffers) != len(other.buffers):
            raise UnsupportedError("the network", f"other operators at {point} than at {points[0]}", FIX)


def _structure(site: Site) -> object:
    """Return how a site may run, whatever the sizes."""
    ways = tuple(implementation.name for implementation in site.implementations)
    return site.node.name, site.kind, site.reads, site.writes, site.tokens, ways, site.forms


class _Mapper:
    def __init__(
        self,
        annotated: Annotated,
        listed: Collection[str],
        own: Mapping[str, tuple[Implementation, ...]],
    ) -> None:
        self.annotated, self.listed, self.own = annotated, listed, own
        self.buffers: list[BufferInfo] = []
        self.views: dict[torch.fx.Node, BufferView] = {}

    def sites(self) -> list[Site]:
        program, sites = self.annotated.program, []
        roots = self._root_tensors()
        found = {node: self._produce(node, tensor) for node, tensor in self.annotated.state.items()}
        for node in program.inputs:
            view = self._produce(node, roots[node])
            sites.append(self._boundary(node, "input", view, write=True))
        for call, relation in self.annotated.relations.items():
            reads = [
                (self.views.get(n), t)
                for n, t in zip(operands(call), self.annotated.reads[call], strict=True)
            ]
            if relation.is_view and reads[0][0] is not None:
                self.views[call] = _relabelled(reads[0][0], reads[0][1], self.annotated.writes[call][0])
                continue
            dynamic = [(view, tensor) for view, tensor in reads if view is not None]
            writes = [
                (self._produce(node or call, tensor, value), tensor)
                for node, tensor, value in zip(
                    results_of(call), self.annotated.writes[call], results(call), strict=True
                )
            ]
            tokens = tuple(_tokens(view, tensor, relation) for view, tensor in (*dynamic, *writes))
            offered = self._offered(call, relation)
            sites.append(
                Site(
                    call,
                    relation.kind,
                    tuple(v for v, _ in dynamic),
                    tuple(v for v, _ in writes),
                    tokens,
                    relation,
                    self.annotated.reads[call],
                    tuple(operands(call)),
                    tuple(implementation for implementation, _ in offered),
                    tuple(form for _, form in offered),
                )
            )
        for node in program.outputs:
            if node in self.views:
                sites.append(self._boundary(node, "output", self.views[node], write=False))
        return [*(self._carried(found[node], left) for node, left in program.carried), *sites]

    def _carried(self, found: BufferView, left: torch.fx.Node) -> Site:
        """Return the site of a buffer of the state, which a call finds as the last call left it."""
        reads = (self.views[left],) if left in self.views else ()  # a constant is in any order
        tokens: tuple[dict[Token, AxisOrder], ...] = tuple(
            {("axis", i): (axis,) for i, axis in enumerate(view.axes)} for view in (*reads, found)
        )
        return Site(self.buffers[found.buffer].root, "state", reads, (found,), tokens)

    def _offered(self, call: torch.fx.Node, relation: Relation) -> list[tuple[Implementation, str]]:
        """Return the implementations of a call that run on the target, each with its order.

        Those that only this target has come first among those of one order.
        """
        known, name = implementations(call, relation), operator_name(call)
        pairs = list(zip(known, relation.forms, strict=True))
        listed = [pair for pair in pairs if len(known) == 1 or f"{name}/{pair[0].name}" in self.listed]
        orders = {implementation.form: form for implementation, form in pairs}
        own = self.own.get(name, ())
        added = [(each, orders[each.form]) for each in own if relation.kind != "opaque"]
        forms = list(dict.fromkeys(form for _, form in (*listed, *added)))
        by_order = sorted((*added, *listed), key=lambda pair: forms.index(pair[1]))
        return [(each, form) for each, form in by_order if each.applies(call)]

    def _root_tensors(self) -> dict[torch.fx.Node, AxedTensor]:
        """Return the axes of each input, which all uses see alike; without uses, its dimensions are whole."""
        found = {}
        for node in self.annotated.program.inputs:
            shape = tuple(node.meta["val"].shape)
            dims = [d for d, size in enumerate(shape) if size != 1]
            found[node] = AxedTensor(tuple(shape[d] for d in dims), tuple(dims), {})
        for buffer, left in self.annotated.program.carried:
            if left in found:
                found[left] = self.annotated.state[buffer]
        for call, tensors in self.annotated.reads.items():
            for node, tensor in zip(operands(call), tensors, strict=True):
                if node in found:
                    found[node] = tensor
        return found

    def _produce(
        self, node: torch.fx.Node, tensor: AxedTensor, value: torch.Tensor | None = None
    ) -> BufferView:
        value = node.meta["val"] if value is None else value
        info = BufferInfo(len(self.buffers), node, tensor, value)
        self.buffers.append(info)
        view = BufferView(info.index, tuple(range(len(tensor.sizes))))
        self.views.setdefault(node, view)
        return view

    def _boundary(self, node: torch.fx.Node, kind: str, view: BufferView, *, write: bool) -> Site:
        """Return the site of an input or output, with one configuration: the promised order."""
        tokens: dict[Token, AxisOrder] = {("axis", axis): (axis,) for axis in view.axes}
        reads, writes = ((), (view,)) if write else ((view,), ())
        return Site(node, kind, reads, writes, (tokens,))


def _relabelled(view: BufferView, before: AxedTensor, after: AxedTensor) -> BufferView:
    """Return the view that results from a relabel: axes follow their labels."""
    axes = [-1] * len(after.sizes)
    for label, positions in after.labels.items():
        for target, source in zip(positions, before.labels[label], strict=True):
            axes[target] = view.axes[source]
    return BufferView(view.buffer, tuple(axes))


def _tokens(view: BufferView, tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    return {t: tuple(view.axes[a] for a in axes) for t, axes in token_axes(tensor, relation).items()}
