"""Build the layout problem, of the ways in which each operator could run, and solve it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import operator_at, operator_name, results
from dimorder.graph.tracing import shape_of
from dimorder.layout.annotate import Annotated, annotate, results_of
from dimorder.layout.candidate_orders import Closure, Proposal, TooManyCandidates
from dimorder.layout.capabilities import Capabilities, Verdicts
from dimorder.layout.costs import Costs, transpose_rank
from dimorder.ops.operator import Implementation
from dimorder.ops.problem_map import Arrangement, BufferInfo, BufferView, Site, dimension_axes, layout_of
from dimorder.ops.relation import AxedTensor, AxisOrder, Relation, Token, token_axes
from dimorder.ops.table import implementations, operands
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Buffer, Config, Cost, InvalidChoice, LayoutProblem, Step
from dimorder.planning.solve import solve

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

    Raises:
        UnsupportedError: if a call can run neither way, or if the target does not accept an input.
    """
    for name, node in zip(annotated.program.input_names, annotated.program.inputs, strict=True):
        reason = capabilities.takes(node.meta["val"])
        if reason is not None:
            fix = "change its type or shape, or choose another target"
            raise UnsupportedError(f"input {name!r}", reason, fix)
    verdicts = Verdicts(capabilities)

    def build() -> Extracted | dict[torch.fx.Node, str]:
        given = (annotated, input_orders, output_orders, costs, verdicts)
        for listed in capabilities.implementations:
            with suppress(TooManyCandidates):
                return _Extractor(*given, listed, sparing=False).run()
        return _Extractor(*given, capabilities.implementations[-1], sparing=True).run()

    row_major: dict[torch.fx.Node, str] = {}
    while True:
        refused = build()
        if isinstance(refused, Extracted):  # report the first obstacle
            outside = {call: row_major.get(call, reason) for call, reason in refused.outside.items()}
            return replace(refused, outside=outside)
        for call, reason in refused.items():
            if call in row_major or annotated.relations[call].kind == "opaque":
                raise UnsupportedError(
                    operator_at(call),
                    row_major.get(call, reason),  # the first obstacle
                    "replace it in the module, or choose another target",
                )
        row_major |= refused
        annotated = annotate(annotated.program, row_major)


def choose(extracted: Extracted, max_rank: int | None) -> LayoutPlan:
    """Return the cheapest plan.

    Raises:
        UnsupportedError: if every plan needs a transpose of a rank above `max_rank`.
    """
    try:
        return solve(extracted.problem)
    except InvalidChoice as error:
        stuck = [
            operator_at(info.root) if info.root.op == "call_function" else f"input {info.root.name!r}"
            for info, buffer in zip(extracted.buffers, extracted.problem.buffers, strict=True)
            if None in buffer.exceptions.values()
        ]
        raise UnsupportedError(
            " or ".join(stuck[:3]),
            f"its result is wanted in an order that takes a transpose of more than {max_rank} dimensions",
            "permute fewer dimensions at once, or choose another target",
        ) from error


@dataclass
class _Extractor:
    """One attempt to build the problem with the implementations `listed`.

    Unless it is `sparing`, it gives up if there are too many candidates.
    """

    annotated: Annotated
    input_orders: Sequence[DimOrder]
    output_orders: Sequence[DimOrder]
    costs: Costs
    verdicts: Verdicts
    listed: Collection[str]
    sparing: bool
    buffers: list[BufferInfo] = field(default_factory=list)
    views: dict[torch.fx.Node, BufferView] = field(default_factory=dict)
    outside: dict[torch.fx.Node, str] = field(default_factory=dict)
    truncated: bool = False

    def run(self) -> Extracted | dict[torch.fx.Node, str]:
        """Return the problem, or the calls that have no configuration and why."""
        sites = self._sites()
        proposals = Closure(sites, self.buffers, self._seeds(sites), self.sparing).run()
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
            reads, writes = (tuple(view.buffer for view in side) for side in (site.reads, site.writes))
            steps.append(Step(name, reads, writes, configs, carries=site.kind == "state"))
        if refused:
            return refused
        candidates = "truncated" if self.truncated or proposals.truncated else "complete"
        buffers = self._priced(proposals.candidates)
        problem = LayoutProblem(self.costs.units, buffers, tuple(steps), candidates)
        maps = (tuple(self.buffers), self.views, tuple(sites), tuple(arrangements), self.outside)
        return Extracted(problem, self.annotated, *maps)

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
        """Return the site of a buffer of the state, which a call finds as the last call left it."""
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
        """Return the axes of each input, which all uses see alike; without uses, its dimensions are whole."""
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
        outputs = zip(self.output_orders, self.annotated.program.outputs, strict=True)
        orders = {
            "input": iter(self.input_orders),
            "output": (order for order, node in outputs if node in self.views),
        }
        return {
            index: boundary_axes(site, next(orders[site.kind]), self.buffers)
            for index, site in enumerate(sites)
            if site.kind in orders
        }

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
            why, why_not_outside = None, None
            if site.implementations:  # the contract's sides have none
                arrangement = Arrangement(tokens, proposal.some_absorbed, implementation)
                why, why_not_outside = self.verdicts.of(
                    site, arrangement, self.annotated.program, self.buffers
                )
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
                if not self.sparing:
                    raise TooManyCandidates
                self.truncated = True
                break
            arrangement = Arrangement(tokens, absorbed, implementation)
            layouts = tuple(layout_of(i, site, arrangement) for i in range(len(site.views)))
            pairs = zip(site.views, layouts, strict=True)
            if not all(order in candidates[view.buffer] for view, order in pairs):
                continue
            reads, writes = layouts[: len(site.reads)], layouts[len(site.reads) :]
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


def boundary_axes(site: Site, order: DimOrder, buffers: Sequence[BufferInfo]) -> AxisOrder:
    """Return the axes of an input's or output's buffer for a dim order of its value."""
    axes = dimension_axes(site.views[0], shape_of(site.node), buffers)
    return tuple(axis for dim in order for axis in axes[dim])


def _relabelled(view: BufferView, before: AxedTensor, after: AxedTensor) -> BufferView:
    """Return the view that results from a relabel: axes follow their labels."""
    axes = [-1] * len(after.sizes)
    for label, positions in after.labels.items():
        for target, source in zip(positions, before.labels[label], strict=True):
            axes[target] = view.axes[source]
    return BufferView(view.buffer, tuple(axes))


def _tokens(view: BufferView, tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    return {t: tuple(view.axes[a] for a in axes) for t, axes in token_axes(tensor, relation).items()}
