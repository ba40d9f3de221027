"""Build the layout problem from the ways in which each operator could run, and solve it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import operator_at, operator_name
from dimorder.graph.tracing import shape_of
from dimorder.layout.annotate import Annotated, annotate_points
from dimorder.layout.candidate_orders import Closure, Proposal, TooManyCandidates
from dimorder.layout.capabilities import Capabilities, Verdicts
from dimorder.layout.costs import Costs
from dimorder.layout.site_map import SiteMap, map_sites, require_alike
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site, dimension_axes, layouts_of, transposes
from dimorder.ops.relation import AxisOrder, Token
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Buffer, Config, Cost, InvalidChoice, LayoutProblem, Step, add_costs
from dimorder.planning.solve import solve

MAX_CONFIGS = 2048  # configurations of one operator


@dataclass(frozen=True)
class Extracted(SiteMap):
    """The layout problem of a program, and the maps from its indices back to the program.

    Attributes:
        problem: The layout problem. Its steps are aligned with `sites`.
        arrangements: The arrangements of each site, aligned with the configurations of its step.
        outside: The calls that the target does not compute, and why.
        max_rank: The highest rank of a transpose on the target; None is unlimited.
    """

    problem: LayoutProblem
    arrangements: tuple[tuple[Arrangement, ...], ...]
    outside: Mapping[torch.fx.Node, str]
    max_rank: int | None

    def repriced(self, buffers: tuple[BufferInfo, ...], costs: Costs) -> LayoutProblem:
        """Return the problem with buffers of other sizes, each with only the orders of configurations."""
        orders: list[dict[AxisOrder, None]] = [{} for _ in buffers]
        for step in self.problem.steps:
            for config in step.configs:
                pairs = zip((*step.reads, *step.writes), (*config.reads, *config.writes), strict=True)
                for buffer, order in pairs:
                    orders[buffer][order] = None  # type: ignore[index]  # an order is a tuple here
        assert costs.configuration is not None
        steps = []
        for site, step, arrangements in zip(self.sites, self.problem.steps, self.arrangements, strict=True):
            configs = tuple(
                replace(config, cost=costs.configuration(site, arrangement, buffers))
                for config, arrangement in zip(step.configs, arrangements, strict=True)
            )
            steps.append(replace(step, configs=configs))
        made = _priced(buffers, orders, costs, self.max_rank)
        return replace(self.problem, buffers=made, steps=tuple(steps))


def extract(
    annotated: Sequence[Annotated],
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    costs: Costs,
    capabilities: Capabilities,
    points: Sequence[str] = ("",),
) -> list[Extracted]:
    """Return the layout problem of a network, at each point of its sizes.

    A call that the target computes in no configuration is left outside if the target allows that. It may run
    in any order if it then runs on dense tensors unchanged. Else it runs row-major, and the program is
    annotated again.

    `annotated` has the network at each point. `points` are these in words, for errors.

    Raises:
        UnsupportedError: if a call can run neither way, if the target does not accept an input, or if an
            operator may run in other ways at one point than at another.
    """
    first = annotated[0].program
    for name, node in zip(first.input_names, first.inputs, strict=True):
        reason = capabilities.takes(node.meta["val"])
        if reason is not None:
            fix = "change its type or shape, or choose another target"
            raise UnsupportedError(f"input {name!r}", reason, fix)
    verdicts = Verdicts(capabilities)
    row_major: list[dict[torch.fx.Node, str]] = [{} for _ in annotated]
    while True:
        found = _extract(annotated, input_orders, output_orders, costs, verdicts, points)
        if not isinstance(found, _Refused):  # report the first obstacle
            return [
                replace(each, outside={call: known.get(call, why) for call, why in each.outside.items()})
                for each, known in zip(found, row_major, strict=True)
            ]
        for call, reason in found.reasons[0].items():
            if call in row_major[0] or annotated[0].relations[call].kind == "opaque":
                raise UnsupportedError(
                    operator_at(call),
                    row_major[0].get(call, reason),  # the first obstacle
                    "replace it in the module, or choose another target",
                )
        for known, reasons in zip(row_major, found.reasons, strict=True):
            known |= reasons
        annotated = annotate_points([each.program for each in annotated], row_major)


def choose(extracted: Extracted) -> LayoutPlan:
    """Return the cheapest plan.

    Raises:
        UnsupportedError: if every plan needs a conversion that the target lacks.
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
            f"its result is wanted in an order that no transposes of {extracted.max_rank} dimensions lead to",
            "permute fewer dimensions at once, or choose another target",
        ) from error


@dataclass(frozen=True)
class _Refused:
    """The calls that have no configuration and why, at each point."""

    reasons: list[dict[torch.fx.Node, str]]


def _extract(
    annotated: Sequence[Annotated],
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    costs: Costs,
    verdicts: Verdicts,
    points: Sequence[str],
) -> list[Extracted] | _Refused:
    """Return the problems, or the calls that have no configuration and why."""
    capabilities = verdicts.capabilities

    def run(listed: Collection[str], *, sparing: bool) -> list[Extracted] | _Refused:
        maps = [map_sites(each, listed, capabilities.own_implementations) for each in annotated]
        require_alike(maps, points)
        return _Extractor(maps, input_orders, output_orders, costs, verdicts, sparing).run()

    for listed in capabilities.implementations:
        with suppress(TooManyCandidates):
            return run(listed, sparing=False)
    return run(capabilities.implementations[-1], sparing=True)


@dataclass
class _Extractor:
    """One attempt to find the configurations, in terms of the sites at the first point.

    Unless it is `sparing`, it gives up if there are too many candidates.
    """

    maps: Sequence[SiteMap]
    input_orders: Sequence[DimOrder]
    output_orders: Sequence[DimOrder]
    costs: Costs
    verdicts: Verdicts
    sparing: bool
    outside: dict[int, str] = field(default_factory=dict)  # by place of the site
    truncated: bool = False

    @property
    def first(self) -> SiteMap:
        return self.maps[0]

    def run(self) -> list[Extracted] | _Refused:
        sites, first = self.first.sites, self.first
        proposals = Closure(sites, first.buffers, self._seeds(), self.sparing).run()
        steps, arrangements = [], []
        refused: dict[int, str] = {}
        for index, (site, proposal) in enumerate(zip(sites, proposals.per_site, strict=True)):
            found = self._configs(index, proposal, proposals.candidates)
            if isinstance(found, str):
                refused[index] = found
                continue
            kept, configs = found
            arrangements.append(kept)
            name = site.kind if site.kind in ("output", "state") else operator_name(site.node)
            reads, writes = (tuple(view.buffer for view in side) for side in (site.reads, site.writes))
            steps.append(Step(name, reads, writes, configs, carries=site.kind == "state"))
        if refused:
            return _Refused([self._by_node(each, refused) for each in self.maps])
        candidates = "truncated" if self.truncated or proposals.truncated else "complete"
        max_rank = self.verdicts.capabilities.max_rank
        buffers = _priced(first.buffers, proposals.candidates, self.costs, max_rank)
        problem = LayoutProblem(self.costs.units, buffers, tuple(steps), candidates)
        extracted = self._at(first, problem, tuple(arrangements))
        others = self.maps[1:]
        problems = [extracted.repriced(each.buffers, self.costs) for each in others]
        return [
            extracted,
            *(self._at(*each, tuple(arrangements)) for each in zip(others, problems, strict=True)),
        ]

    def _at(
        self, found: SiteMap, problem: LayoutProblem, arrangements: tuple[tuple[Arrangement, ...], ...]
    ) -> Extracted:
        return Extracted(
            **vars(found),
            problem=problem,
            arrangements=arrangements,
            outside=self._by_node(found, self.outside),
            max_rank=self.verdicts.capabilities.max_rank,
        )

    def _by_node(self, found: SiteMap, reasons: Mapping[int, str]) -> dict[torch.fx.Node, str]:
        return {found.sites[index].node: reason for index, reason in reasons.items()}

    # -- boundaries

    def _seeds(self) -> dict[int, AxisOrder]:
        """Return the promised order of every input and output, by site index."""
        outputs = zip(self.output_orders, self.first.annotated.program.outputs, strict=True)
        orders = {
            "input": iter(self.input_orders),
            "output": (order for order, node in outputs if node in self.first.views),
        }
        return {
            index: boundary_axes(site, next(orders[site.kind]), self.first.buffers)
            for index, site in enumerate(self.first.sites)
            if site.kind in orders
        }

    # -- configurations

    def _configs(
        self, index: int, proposal: Proposal, candidates: Sequence[Mapping[AxisOrder, None]]
    ) -> tuple[tuple[Arrangement, ...], tuple[Config, ...]] | str:
        """Return the configurations of a site, or why the target cannot run it in any way.

        If the target computes none, the ways that it leaves outside are offered.
        """
        site = self.first.sites[index]
        inside: list[tuple[int, tuple[Token, ...]]] = []
        outside: list[tuple[int, tuple[Token, ...]]] = []
        reasons: list[str] = []
        for implementation, tokens in proposal.tokens:
            why, why_not_outside = None, None
            if site.implementations:  # the contract's sides have none
                arrangement = Arrangement(tokens, proposal.some_absorbed, implementation)
                why, why_not_outside = self.verdicts.of(index, arrangement, self.maps)
            if why is None:
                inside.append((implementation, tokens))
                continue
            reasons.append(why)
            if why_not_outside is None:
                outside.append((implementation, tokens))
        offered = inside or outside
        if not offered:
            return reasons[0] if reasons else "no implementation of it is offered"
        if not inside:
            self.outside[index] = reasons[0]
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
            layouts = layouts_of(site, arrangement)
            pairs = zip(site.views, layouts, strict=True)
            if not all(order in candidates[view.buffer] for view, order in pairs):
                continue
            reads, writes = layouts[: len(site.reads)], layouts[len(site.reads) :]
            cost = self.verdicts.cost(index, arrangement, self.first, self.costs)
            known = kept.get((reads, writes))
            if known is None or cost < known[1].cost:
                kept[reads, writes] = (arrangement, Config(reads, writes, cost))
        if not kept:
            return reasons[0] if reasons else "its orders are beyond the candidates that are kept"
        return tuple(a for a, _ in kept.values()), tuple(c for _, c in kept.values())


def _priced(
    infos: Sequence[BufferInfo],
    orders: Sequence[Iterable[AxisOrder]],
    costs: Costs,
    max_rank: int | None,
) -> tuple[Buffer, ...]:
    """Return all buffers with their costs; buffers of one shape, type and set of orders cost the same."""
    known, made = dict[object, Buffer](), []
    for info, own in zip(infos, map(tuple, orders), strict=True):
        alike = info.shape, info.tensor.sizes, info.value.dtype, own
        if alike not in known:
            known[alike] = _priced_buffer(info, own, costs, max_rank)
        made.append(replace(known[alike], name=info.root.name))
    return tuple(made)


def _priced_buffer(
    info: BufferInfo, layouts: tuple[AxisOrder, ...], costs: Costs, max_rank: int | None
) -> Buffer:
    """Return a buffer with the most common cost of its conversions, and the pairs with other costs."""
    pairs: Iterable[tuple[AxisOrder, AxisOrder]] = itertools.permutations(layouts, 2)
    if costs.alike and len(layouts) > 1:
        several, once = _transposes_of(layouts, max_rank), costs.conversion(info, *layouts[:2])
        prices = {n: _total([once] * n, costs) for n in {1, *several.values()} if n is not None}
        tally = Counter({prices[1]: math.perm(len(layouts), 2) - len(several)})
        tally.update(prices[n] for n in several.values() if n is not None)
        if prices[1] is not None and tally.most_common(1)[0][0] == prices[1]:
            pairs = several  # all others have the most common cost
        found = {pair: None if (n := several.get(pair, 1)) is None else prices[n] for pair in pairs}
    else:
        found = {pair: _price(info, *pair, costs, max_rank) for pair in pairs}
        tally = Counter(found.values())
    usual = (cost for cost, _ in tally.most_common() if cost is not None)
    default = next(usual, (0,) * len(costs.units))
    return Buffer(info.root.name, default, {p: cost for p, cost in found.items() if cost != default})


def _price(
    info: BufferInfo, source: AxisOrder, target: AxisOrder, costs: Costs, max_rank: int | None
) -> Cost | None:
    """Return the cost of the transposes from one order to another; None if the target has not all of them."""
    steps = transposes(source, target, max_rank)
    if steps is None:
        return None
    return _total([costs.conversion(info, *pair) for pair in itertools.pairwise((source, *steps))], costs)


def _total(prices: Sequence[Cost | None], costs: Costs) -> Cost | None:
    offered = [cost for cost in prices if cost is not None]
    return add_costs(offered, len(costs.units)) if len(offered) == len(prices) else None


@lru_cache(maxsize=256)
def _transposes_of(
    layouts: tuple[AxisOrder, ...], max_rank: int | None
) -> Mapping[tuple[AxisOrder, AxisOrder], int | None]:
    """Return the pairs of orders with several transposes between them: how many, None if none are enough."""
    if max_rank is None or len(layouts[0]) <= max_rank:
        return {}
    found: dict[tuple[AxisOrder, AxisOrder], int | None] = {}
    for pair in itertools.permutations(layouts, 2):
        steps = transposes(*pair, max_rank)
        if steps is None or len(steps) > 1:
            found[pair] = None if steps is None else len(steps)
    return found


def boundary_axes(site: Site, order: DimOrder, buffers: Sequence[BufferInfo]) -> AxisOrder:
    """Return the axes of an input's or output's buffer for a dim order of its value."""
    axes = dimension_axes(site.views[0], shape_of(site.node), buffers)
    return tuple(axis for dim in order for axis in axes[dim])
