"""Build the layout problem: the buffers, and for each operator the ways in which it could run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import operator_name, results, where
from dimorder.layout.annotate import Annotated, annotate, results_of
from dimorder.layout.candidate_orders import Closure, Proposal, TooManyCandidates
from dimorder.layout.capabilities import Capabilities, Verdicts
from dimorder.layout.costs import Costs, transpose_rank
from dimorder.ops.operator import Implementation, Relation
from dimorder.ops.problem_map import Arrangement, BufferInfo, BufferView, Site, layout_of
from dimorder.ops.table import implementations, operands
from dimorder.ops.tokens import AxedTensor, AxisOrder, Token, token_axes
from dimorder.planning.problem import Buffer, Config, Cost, LayoutProblem, Step

MAX_CONFIGS = 2048  # configurations of one operator


@dataclass(frozen=True)
class Extracted:
    """The layout problem of a program, and the maps from its indices back to the program."""

    problem: LayoutProblem
    annotated: Annotated
    buffers: tuple[BufferInfo, ...]
    views: dict[torch.fx.Node, BufferView]
    sites: tuple[Site, ...]  # aligned with problem.steps
    arrangements: tuple[tuple[Arrangement, ...], ...]  # aligned with each step's configs
    outside: Mapping[torch.fx.Node, str]  # calls that the target does not compute, and why


def extract(
    annotated: Annotated,
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    costs: Costs,
    capabilities: Capabilities,
) -> Extracted:
    """Return the layout problem of an annotated program.

    A call that the target computes in no configuration is left outside if the target allows that. It may run
    in any order if it then runs on dense tensors unchanged. Else it runs row-major, and the program is
    annotated again.

    Args:
        annotated: the program with its axes.
        input_orders: the orders that the contract promises for inputs.
        output_orders: the orders that the contract promises for outputs.
        costs: what conversions and configurations cost.
        capabilities: what the target can do.

    Raises:
        UnsupportedError: if a call can run neither way, or if the target does not accept an input.
    """
    for name, node in zip(annotated.program.input_names, annotated.program.inputs, strict=True):
        reason = capabilities.takes(node.meta["val"])
        if reason is not None:
            fix = "change its type or shape, or choose another target"
            raise UnsupportedError(f"input {name!r}", reason, fix)
    verdicts = Verdicts(capabilities)
    row_major: dict[torch.fx.Node, str] = {}
    while True:
        refused = _extract(annotated, input_orders, output_orders, costs, capabilities, verdicts)
        if isinstance(refused, Extracted):  # report the first obstacle
            outside = {call: row_major.get(call, reason) for call, reason in refused.outside.items()}
            return replace(refused, outside=outside)
        for call, reason in refused.items():
            if call in row_major or annotated.relations[call].kind == "opaque":
                raise UnsupportedError(
                    f"{operator_name(call)} ({where(call)})",
                    row_major.get(call, reason),  # the first obstacle
                    "replace it in the module, or choose another target",
                )
        row_major |= refused
        annotated = annotate(annotated.program, row_major)


def _extract(
    annotated: Annotated,
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    costs: Costs,
    capabilities: Capabilities,
    verdicts: Verdicts,
) -> Extracted | dict[torch.fx.Node, str]:
    """Return the problem, or the calls that have no configuration and why."""
    given = (annotated, input_orders, output_orders, costs)
    for listed in capabilities.implementations:
        with suppress(TooManyCandidates):
            return _Extractor(*given, listed, verdicts, sparing=False, give_up=True).run()
    return _Extractor(*given, capabilities.implementations[-1], verdicts, sparing=True, give_up=False).run()


class _Extractor:
    def __init__(
        self,
        annotated: Annotated,
        input_orders: Sequence[DimOrder],
        output_orders: Sequence[DimOrder],
        costs: Costs,
        listed: Collection[str],
        verdicts: Verdicts,
        *,
        sparing: bool,
        give_up: bool,
    ) -> None:
        self.annotated, self.sparing, self.give_up = annotated, sparing, give_up
        self.input_orders, self.output_orders = input_orders, output_orders
        self.costs, self.listed, self.verdicts = costs, listed, verdicts
        self.buffers: list[BufferInfo] = []
        self.views: dict[torch.fx.Node, BufferView] = {}
        self.outside: dict[torch.fx.Node, str] = {}
        self.truncated = False

    def run(self) -> Extracted | dict[torch.fx.Node, str]:
        sites = self._sites()
        proposals = Closure(sites, self.buffers, self._seeds(sites), self.sparing, self.give_up).run()
        steps, arrangements = [], []
        refused: dict[torch.fx.Node, str] = {}
        for site, proposal in zip(sites, proposals.per_site, strict=True):
            found = self._configs(site, proposal, proposals.candidates)
            if isinstance(found, str):
                refused[site.node] = found
                continue
            kept, configs = found
            arrangements.append(kept)
            name = site.kind if site.kind in ("output", "state") else operator_name(site.node)
            steps.append(
                Step(
                    name,
                    tuple(v.buffer for v in site.reads),
                    tuple(v.buffer for v in site.writes),
                    configs,
                    carries=site.kind == "state",
                )
            )
        if refused:
            return refused
        candidates = "truncated" if self.truncated or proposals.truncated else "complete"
        buffers = self._priced(proposals.candidates)
        problem = LayoutProblem(self.costs.units, buffers, tuple(steps), candidates)
        return Extracted(
            problem,
            self.annotated,
            tuple(self.buffers),
            self.views,
            tuple(sites),
            tuple(arrangements),
            self.outside,
        )

    # -- buffers and sites

    def _sites(self) -> list[Site]:
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
        """Return the site of a buffer of the state.

        Each call finds the buffer in the order in which the last call left it.
        """
        reads = (self.views[left],) if left in self.views else ()  # a constant is in any order
        tokens: tuple[dict[Token, AxisOrder], ...] = tuple(
            {("axis", i): (axis,) for i, axis in enumerate(view.axes)} for view in (*reads, found)
        )
        return Site(self.buffers[found.buffer].root, "state", reads, (found,), tokens)

    def _offered(self, call: torch.fx.Node, relation: Relation) -> list[tuple[Implementation, str]]:
        """Return the implementations of a call that run on the target, each with its order."""
        known, name = implementations(call, relation), operator_name(call)
        pairs = list(zip(known, relation.forms, strict=True))
        listed = [pair for pair in pairs if len(known) == 1 or f"{name}/{pair[0].name}" in self.listed]
        orders = {implementation.form: form for implementation, form in pairs}
        own = self.verdicts.capabilities.own_implementations.get(name, ())
        added = [(each, orders[each.form]) for each in own if relation.kind != "opaque"]
        return [(each, form) for each, form in (*listed, *added) if each.applies(call)]

    def _root_tensors(self) -> dict[torch.fx.Node, AxedTensor]:
        """Return the axes of each input, from any use of it: all uses see the same axes.

        An input without uses has whole dimensions.
        """
        found = {}
        for node in self.annotated.program.inputs:
            shape = tuple(node.meta["val"].shape)
            dims = [d for d, size in enumerate(shape) if size != 1]
            found[node] = AxedTensor(tuple(shape[d] for d in dims), tuple(dims), {})
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

    def _seeds(self, sites: Sequence[Site]) -> dict[int, AxisOrder]:
        """Return the promised order of every input and output, by site index."""
        inputs, outputs = (
            iter(self.input_orders),
            iter(
                o
                for o, n in zip(self.output_orders, self.annotated.program.outputs, strict=True)
                if n in self.views
            ),
        )
        seeds = {}
        for index, site in enumerate(sites):
            if site.kind in ("input", "output"):
                order = next(inputs if site.kind == "input" else outputs)
                owner = self._dims_of(site)
                view = site.views[0]
                seeds[index] = tuple(view.axes[i] for d in order for i in range(len(owner)) if owner[i] == d)
        return seeds

    def _dims_of(self, site: Site) -> tuple[int, ...]:
        """Return the logical dimension of each axis of an input or output."""
        node, view = site.node, site.views[0]
        sizes = self.buffers[view.buffer].tensor.sizes
        shape, owner, d, left = tuple(node.meta["val"].shape), [], 0, 1
        for axis in view.axes:
            while left == 1:
                left, d = shape[d], d + 1
            owner.append(d - 1)
            left //= sizes[axis]
        return tuple(owner)

    # -- configurations

    def _priced(self, candidates: Sequence[Mapping[AxisOrder, None]]) -> tuple[Buffer, ...]:
        """Return all buffers with their costs; buffers of one shape, type and set of orders cost the same."""
        max_rank, known, made = self.verdicts.capabilities.max_rank, dict[object, Buffer](), []
        for info in self.buffers:
            orders = tuple(candidates[info.index])
            alike = info.shape, info.tensor.sizes, info.value.dtype, orders
            if alike not in known:
                known[alike] = priced(info, orders, self.costs, max_rank)
            made.append(replace(known[alike], name=info.root.name))
        return tuple(made)

    def _configs(
        self, site: Site, proposal: Proposal, candidates: Sequence[Mapping[AxisOrder, None]]
    ) -> tuple[tuple[Arrangement, ...], tuple[Config, ...]] | str:
        """Return the configurations of a site, or why the target cannot run it in any way.

        If the target computes none, the ways that it leaves outside are offered.
        """
        inside: list[tuple[int, tuple[Token, ...]]] = []
        beside: list[tuple[int, tuple[Token, ...]]] = []
        reasons: list[str] = []
        for implementation, tokens in proposal.tokens:
            if not site.implementations:  # the contract's side
                inside.append((implementation, tokens))
                continue
            arrangement = Arrangement(tokens, (), implementation)
            arrangement = replace(arrangement, absorbed=proposal.some_absorbed)
            why, why_not_outside = self.verdicts.of(site, arrangement, self.annotated.program, self.buffers)
            if why is None:
                inside.append((implementation, tokens))
                continue
            reasons.append(why)
            if why_not_outside is None:
                beside.append((implementation, tokens))
        offered = inside or beside
        if not offered:
            return reasons[0] if reasons else "no implementation of it is offered"
        if not inside:
            self.outside[site.node] = reasons[0]
        kept: dict[tuple[tuple[AxisOrder, ...], tuple[AxisOrder, ...]], tuple[Arrangement, Config]] = {}
        choices = itertools.product(*(list(orders) for orders in proposal.absorbed))
        first = [next(choices)]  # for each way before the cap counts: the default is among them
        ways = itertools.chain(itertools.product(first, offered), itertools.product(choices, offered))
        for count, (absorbed, (implementation, tokens)) in enumerate(ways):
            if count > max(MAX_CONFIGS, len(offered)):
                if self.give_up:
                    raise TooManyCandidates
                self.truncated = True
                break
            arrangement = Arrangement(tokens, absorbed, implementation)
            layouts = [layout_of(i, site, arrangement) for i in range(len(site.views))]
            if any(
                order not in candidates[view.buffer] for view, order in zip(site.views, layouts, strict=True)
            ):
                continue
            reads, writes = tuple(layouts[: len(site.reads)]), tuple(layouts[len(site.reads) :])
            asked = site, arrangement, self.annotated.program, self.buffers
            cost = self.verdicts.cost(*asked, self.costs)
            known = kept.get((reads, writes))
            if known is None or cost < known[1].cost:
                kept[reads, writes] = (arrangement, Config(reads, writes, cost))
        if not kept:
            return reasons[0] if reasons else "its orders are beyond the candidates that are kept"
        return tuple(a for a, _ in kept.values()), tuple(c for _, c in kept.values())


def priced(info: BufferInfo, layouts: Iterable[AxisOrder], costs: Costs, max_rank: int | None) -> Buffer:
    """Return a buffer with the most common cost of its conversions, and the pairs with other costs."""

    def is_offered(source: AxisOrder, target: AxisOrder) -> bool:
        return max_rank is None or len(source) <= max_rank or transpose_rank(source, target) <= max_rank

    found: dict[tuple[AxisOrder, AxisOrder], Cost | None] = {
        pair: costs.conversion(info, *pair) if is_offered(*pair) else None
        for pair in itertools.permutations(layouts, 2)
    }
    usual = Counter(cost for cost in found.values() if cost is not None).most_common(1)
    default = usual[0][0] if usual else (0,) * len(costs.units)
    return Buffer(info.root.name, default, {p: cost for p, cost in found.items() if cost != default})


def _relabelled(view: BufferView, before: AxedTensor, after: AxedTensor) -> BufferView:
    """Return the view that results from a relabel: axes follow their labels."""
    axes = [-1] * len(after.sizes)
    for label, positions in after.labels.items():
        for target, source in zip(positions, before.labels[label], strict=True):
            axes[target] = view.axes[source]
    return BufferView(view.buffer, tuple(axes))


def _tokens(view: BufferView, tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    return {t: tuple(view.axes[a] for a in axes) for t, axes in token_axes(tensor, relation).items()}
