"""Check a plan by looking only at which element lies where: no numbers, no lowering.

Every value's elements are numbered in logical order, and a layout puts the numbers in memory. ATen's own
operators run on the numbers, and say which number an operator must find, and which it must write, where.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dimorder.contract import Contract
from dimorder.layout.problem import Extracted
from dimorder.ops.problem_map import BufferView, Site, layout_of
from dimorder.planning.plan import LayoutPlan
from tests.layout.element_rules import Layout, Located, Shape, aten, relabel, row_major, rule_of, shape_of


def check(extracted: Extracted, plan: LayoutPlan, contract: Contract | None = None) -> list[str]:
    """The faults of a plan, none if every element lies where its operator looks for it.

    With a contract, inputs and outputs must also lie in the promised orders.
    """
    return list(_Checker(extracted, plan, contract).faults())


class _Checker:
    def __init__(self, extracted: Extracted, plan: LayoutPlan, contract: Contract | None) -> None:
        self.extracted, self.plan, self.contract = extracted, plan, contract
        self.program = extracted.annotated.program

    def faults(self) -> Iterator[str]:
        calls: dict[Any, int] = {}
        inputs, outputs = [], []
        for index, site in enumerate(self.extracted.sites):
            if site.kind in ("input", "output"):
                (inputs if site.kind == "input" else outputs).append(index)
            else:
                calls[site.node] = index
        yield from self.boundary("input", inputs, self.program.inputs)
        yield from self.boundary("output", outputs, [n for n in self.program.outputs if n.op != "get_attr"])
        for call in self.extracted.annotated.relations:
            yield from self.site(calls[call]) if call in calls else self.view(call)
        yield from self.conversions()

    # -- what the plan says ------------------------------------------------------------------------------

    def layouts(self, index: int) -> tuple[Layout, ...]:
        config = self.extracted.problem.steps[index].configs[self.plan.choice[index]]
        return (*config.reads, *config.writes)  # type: ignore[arg-type]

    def sizes(self, view: BufferView) -> Shape:
        return tuple(self.extracted.buffers[view.buffer].tensor.sizes[axis] for axis in view.axes)

    def place(self, view: BufferView, layout: Layout, shape: Shape) -> Located:
        return Located(shape, _memory(self.sizes(view), tuple(view.axes.index(axis) for axis in layout)))

    def misfit(self, view: BufferView, layout: Layout, shape: Shape) -> str | None:
        """Why a view's axes are no cut of a shape, or a layout no order of all of them."""
        if sorted(view.axes) != list(range(len(self.extracted.buffers[view.buffer].tensor.sizes))):
            return f"the axes {view.axes} are not those of buffer {view.buffer}"
        if sorted(layout) != sorted(view.axes):
            return f"the layout {layout} is no order of the axes {view.axes}"
        left = list(self.sizes(view))
        for extent in shape:
            while extent > 1 and left and extent % left[0] == 0:
                extent //= left.pop(0)
            if extent != 1:
                return f"the axes {self.sizes(view)} are no cut of the shape {shape}"
        return f"the axes {self.sizes(view)} are more than the shape {shape}" if left else None

    # -- the kinds of places -----------------------------------------------------------------------------

    def boundary(self, kind: str, sites: Sequence[int], nodes: Sequence[torch.fx.Node]) -> Iterator[str]:
        if [self.extracted.sites[i].node for i in sites] != list(nodes):
            yield f"{kind}s: not one operator for each, in order"
            return
        specs = None
        if self.contract is not None:
            every = self.contract.inputs if kind == "input" else self.contract.outputs
            both = zip(every, self.program.outputs, strict=True) if kind == "output" else []
            specs = [spec for spec, node in both if node.op != "get_attr"] if kind == "output" else every
        for number, index in enumerate(sites):
            site, (layout,), shape = self.extracted.sites[index], self.layouts(index), shape_of(nodes[number])
            (view,) = site.views
            where = f"{kind} {number}"
            if view != self.extracted.views[nodes[number]]:
                yield f"{where}: another view than that of {nodes[number]}"
                continue
            misfit = self.misfit(view, layout, shape)
            if misfit:
                yield f"{where}: {misfit}"
            elif specs is not None:
                found, order = self.place(view, layout, shape), tuple(specs[number].dim_order)
                if not torch.equal(found.memory, found.ids.permute(order).reshape(-1)):
                    yield f"{where}: does not lie as the contract promises"

    def view(self, call: torch.fx.Node) -> Iterator[str]:
        """A call that is no operator of the problem: it must leave memory alone."""
        source = call.args[0]
        if call.target not in (aten.reshape.default, aten.permute.default):
            yield f"{call}: missing from the problem"
            return
        before, after = self.extracted.views[source], self.extracted.views[call]  # type: ignore[index]
        if before.buffer != after.buffer:
            yield f"{call}: relabel: its result is another buffer"
            return
        order = tuple(range(len(before.axes)))
        misfit = self.misfit(before, order, shape_of(source)) or self.misfit(after, order, shape_of(call))
        if misfit:
            yield f"{call}: relabel: {misfit}"
            return
        read, written = self.place(before, order, shape_of(source)), self.place(after, order, shape_of(call))
        for fault in relabel(call, [read], [written]):
            yield f"{call}: {fault}"

    def site(self, index: int) -> Iterator[str]:
        site, layouts = self.extracted.sites[index], self.layouts(index)
        call = site.node
        read = [n for n in _nodes(call) if n.op != "get_attr"]
        made = _results(call)
        values = [*(shape_of(n) for n in read), *(tuple(value.shape) for _, value in made)]
        views = [*(self.extracted.views[n] for n in read), *site.writes]
        known = [
            self.extracted.views.get(n, v) if n else v for (n, _), v in zip(made, site.writes, strict=True)
        ]
        if list(site.views) != views or list(site.writes) != known or len(values) != len(views):
            yield f"{call}: reads or writes other buffers than the program"
            return
        for view, layout, shape in zip(views, layouts, values, strict=True):
            misfit = self.misfit(view, layout, shape)
            if misfit:
                yield f"{call}: {misfit}"
                return
        arrangement = self.extracted.arrangements[index][self.plan.choice[index]]
        if layouts != tuple(layout_of(i, site, arrangement) for i in range(len(views))):
            yield f"{call}: the arrangement means other layouts than the configuration"
        if not any(_is_formed(site, layouts, form) for form in site.forms):
            yield f"{call}: in none of the forms {site.forms}"
        places = [self.place(*where) for where in zip(views, layouts, values, strict=True)]
        rule = row_major if site.kind == "opaque" else rule_of(call)
        for fault in rule(call, places[: len(read)], places[len(read) :]):
            yield f"{call}: {fault}"

    def conversions(self) -> Iterator[str]:
        made: dict[int, Layout] = {}
        needed: set[tuple[int, Layout, Layout]] = set()
        for index, site in enumerate(self.extracted.sites):
            layouts = self.layouts(index)
            for view, layout in zip(site.reads, layouts, strict=False):
                if layout != made[view.buffer]:
                    needed.add((view.buffer, made[view.buffer], layout))
            for view, layout in zip(site.writes, layouts[len(site.reads) :], strict=True):
                made[view.buffer] = layout
        listed = [(c.buffer, c.from_order, c.to_order) for c in self.plan.conversions]
        for conversion in needed - set(listed):  # type: ignore[arg-type]
            yield f"conversion: {conversion} is needed, not listed"
        for conversion in set(listed) - needed:  # type: ignore[arg-type]
            yield f"conversion: {conversion} is listed, not needed"
        if len(set(listed)) < len(listed):
            yield "conversion: listed twice"
        for buffer, source, target in listed:
            if self.extracted.problem.buffers[buffer].cost(source, target) is None:
                yield f"conversion: {buffer}, {source}, {target} is not offered"


@lru_cache(maxsize=48)
def _memory(sizes: Shape, order: Layout) -> Tensor:
    ids = torch.arange(math.prod(sizes), dtype=torch.int32)
    return ids.reshape(sizes).permute(order).reshape(-1)


def _nodes(call: torch.fx.Node) -> list[torch.fx.Node]:
    return [n for n in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(n, torch.fx.Node)]


def _results(call: torch.fx.Node) -> list[tuple[torch.fx.Node | None, Tensor]]:
    value = call.meta["val"]
    if isinstance(value, Tensor):
        return [(call, value)]
    picked = {user.args[1]: user for user in call.users}
    return [(picked.get(i), part) for i, part in enumerate(value)]


def _is_formed(site: Site, layouts: Sequence[Layout], form: str) -> bool:
    """Whether on every tensor the labels come in the order of a form, and blocks stay whole."""
    names = form.split()

    def rank(label: str) -> int:
        exact = [i for i, name in enumerate(names) if label == name or label.startswith(f"{name}.")]
        return exact[0] if exact else names.index("*") if "*" in names else -1

    for tokens, layout in zip(site.tokens, layouts, strict=True):
        owner = {axis: token for token, axes in tokens.items() for axis in axes}
        ranks = [rank(owner[axis][0]) for axis in layout]
        if ranks != sorted(ranks):
            return False
    return True
