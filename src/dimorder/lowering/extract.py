"""Decides what the planner may choose from: buffers, and for every operator the orders it could run in.

Candidate orders are the closure of what contracts and operators ask for, carried through the operators that
share axes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UnsupportedError
from dimorder.lowering.annotate import Annotated, annotate, results_of
from dimorder.lowering.capture.captured import Captured, operator_name, where
from dimorder.lowering.costs import Costs, transpose_rank
from dimorder.lowering.dry_run import physical_calls
from dimorder.lowering.operators.operator import Implementation, Relation, results
from dimorder.lowering.operators.table import implementations, operands
from dimorder.lowering.sites import (
    Arrangement,
    AxedTensor,
    AxisOrder,
    BufferInfo,
    BufferView,
    Site,
    Token,
    layout_of,
    token_axes,
)
from dimorder.planning.problem import Buffer, Config, Cost, LayoutProblem, Step

MAX_LAYOUTS = 128  # candidate layouts of one buffer
MAX_CONFIGS = 2048  # configurations of one operator


@dataclass(frozen=True)
class Ability:
    """What a target can do, as the planner needs it.

    `computes(call, constants)` is None for a call of a physical program that the target computes, else why it
    does not; `constants` are the nodes whose values are known. `leaves(call)` is None for a call that may run
    outside of what the target computes, on dense tensors, else why it may not. `declines` names the
    implementations that are not offered, as `operator/implementation`: the fewest first; the next set is
    taken where the candidate orders are too many. `max_rank` is the highest rank of a transpose, once
    dimensions that stay together count as one.
    """

    computes: Callable[[torch.fx.Node, Collection[torch.fx.Node]], str | None] | None = None
    leaves: Callable[[torch.fx.Node], str | None] | None = None
    declines: tuple[frozenset[str], ...] = (frozenset(),)
    max_rank: int | None = None


@dataclass(frozen=True)
class Extracted:
    """The layout problem of a program, with what leads back from its indices to the program."""

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
    ability: Ability = Ability(),
) -> Extracted:
    """The layout problem of an annotated program under a contract, a target's costs and its ability.

    A call that the target computes in no configuration is left outside where the target leaves it: in any
    order if it then runs on dense tensors as it is, else row-major, which is annotated anew. Raises
    `UnsupportedError` for a call that can run neither way.
    """
    verdicts = _Verdicts(ability)
    row_major: dict[torch.fx.Node, str] = {}
    while True:
        refused = _extract(annotated, input_orders, output_orders, costs, ability, verdicts)
        if isinstance(refused, Extracted):
            return refused
        for call, reason in refused.items():
            if call in row_major or annotated.relations[call].kind == "opaque":
                raise UnsupportedError(
                    f"{operator_name(call)} ({where(call)})",
                    reason,
                    "replace it in the module, or choose another target",
                )
        row_major |= refused
        annotated = annotate(annotated.program, row_major)


def _extract(
    annotated: Annotated,
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    costs: Costs,
    ability: Ability,
    verdicts: _Verdicts,
) -> Extracted | dict[torch.fx.Node, str]:
    """The problem, or the calls that have no configuration and why."""
    *richer, plainest = ability.declines
    for declined in richer:
        with suppress(_TooMany):
            return _Extractor(
                annotated, input_orders, output_orders, costs, declined, verdicts, give_up=True
            ).run()
    return _Extractor(annotated, input_orders, output_orders, costs, plainest, verdicts, give_up=False).run()


class _Verdicts:
    """What the target says of the ways to run an operator; like calls are asked about once."""

    def __init__(self, ability: Ability) -> None:
        self.ability = ability
        self.known: dict[object, tuple[str | None, str | None]] = {}

    def of(
        self, site: Site, arrangement: Arrangement, program: Captured, buffers: Sequence[BufferInfo]
    ) -> tuple[str | None, str | None]:
        """Why an arrangement cannot be computed by the target, and why it can neither run outside."""
        if self.ability.computes is None:
            return None, None
        implementation = site.implementations[arrangement.implementation]
        sizes = [
            tuple(
                (token, tuple(buffers[view.buffer].tensor.sizes[a] for a in axes))
                for token, axes in held.items()
            )
            for view, held in zip(site.views, site.tokens, strict=True)
        ]
        key = (_described(site.node), implementation.name, arrangement.tokens, *sizes)
        if key not in self.known:
            self.known[key] = self._asked(physical_calls(site, arrangement, program, buffers))
        return self.known[key]

    def _asked(self, calls: Sequence[torch.fx.Node]) -> tuple[str | None, str | None]:
        assert self.ability.computes is not None
        inside, outside = None, None
        for call in calls:
            constants = [node for node in call.all_input_nodes if node.op == "get_attr"]
            reason = self.ability.computes(call, constants)
            if reason is None:
                continue
            inside = inside or reason
            outside = outside or (reason if self.ability.leaves is None else self.ability.leaves(call))
        return inside, outside


def _described(node: torch.fx.Node) -> object:
    """A call as far as its own arguments go: two that are described alike are computed alike."""

    def told(operand: torch.fx.Node) -> Any:
        value = operand.meta["val"]
        return (operand.op == "get_attr", tuple(value.shape), str(value.dtype))

    return node.target, repr(torch.fx.map_arg((node.args, node.kwargs), told))


class _TooMany(Exception):
    """A cap on candidates was reached."""


class _Extractor:
    def __init__(
        self,
        annotated: Annotated,
        input_orders: Sequence[DimOrder],
        output_orders: Sequence[DimOrder],
        costs: Costs,
        declined: Collection[str],
        verdicts: _Verdicts,
        *,
        give_up: bool,
    ) -> None:
        self.annotated, self.give_up = annotated, give_up
        self.input_orders, self.output_orders = input_orders, output_orders
        self.costs, self.declined, self.verdicts = costs, declined, verdicts
        self.buffers: list[BufferInfo] = []
        self.views: dict[torch.fx.Node, BufferView] = {}
        self.outside: dict[torch.fx.Node, str] = {}
        self.truncated = False

    def run(self) -> Extracted | dict[torch.fx.Node, str]:
        sites = self._sites()
        proposals = _Closure(sites, self.buffers, self._seeds(sites), self.give_up).run()
        steps, arrangements = [], []
        refused: dict[torch.fx.Node, str] = {}
        for site, proposal in zip(sites, proposals.per_site, strict=True):
            found = self._configs(site, proposal, proposals.candidates)
            if isinstance(found, str):
                refused[site.node] = found
                continue
            kept, configs = found
            arrangements.append(kept)
            name = operator_name(site.node) if site.kind != "output" else site.kind
            steps.append(
                Step(name, tuple(v.buffer for v in site.reads), tuple(v.buffer for v in site.writes), configs)
            )
        if refused:
            return refused
        candidates = "truncated" if self.truncated or proposals.truncated else "complete"
        buffers = tuple(self._buffer(info, proposals.candidates[info.index]) for info in self.buffers)
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
                    tuple(implementation for implementation, _ in offered),
                    tuple(form for _, form in offered),
                )
            )
        for node in program.outputs:
            if node in self.views:
                sites.append(self._boundary(node, "output", self.views[node], write=False))
        return sites

    def _offered(self, call: torch.fx.Node, relation: Relation) -> list[tuple[Implementation, str]]:
        """The implementations of a call that the target does not decline, each with its order."""
        pairs = zip(implementations(call, relation), relation.forms, strict=True)
        return [
            (implementation, form)
            for implementation, form in pairs
            if implementation.applies(call)
            and f"{operator_name(call)}/{implementation.name}" not in self.declined
        ]

    def _root_tensors(self) -> dict[torch.fx.Node, AxedTensor]:
        """A tensor for each input, from any use (all uses see the same axes); one without uses has whole
        dimensions."""
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
        info = BufferInfo(len(self.buffers), node, tensor, int(value.numel()) * value.element_size())
        self.buffers.append(info)
        view = BufferView(info.index, tuple(range(len(tensor.sizes))))
        self.views.setdefault(node, view)
        return view

    def _boundary(self, node: torch.fx.Node, kind: str, view: BufferView, *, write: bool) -> Site:
        """A contract's side: one configuration, written or read as a block per dimension in the promised
        order."""
        tokens: dict[Token, AxisOrder] = {("axis", axis): (axis,) for axis in view.axes}
        reads, writes = ((), (view,)) if write else ((view,), ())
        return Site(node, kind, reads, writes, (tokens,))

    def _seeds(self, sites: Sequence[Site]) -> dict[int, AxisOrder]:
        """The promised order of every boundary, by site index."""
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
        """Which logical dimension each axis of a boundary value belongs to."""
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

    def _configs(
        self, site: Site, proposal: _Proposal, candidates: Sequence[Mapping[AxisOrder, None]]
    ) -> tuple[tuple[Arrangement, ...], tuple[Config, ...]] | str:
        """What the planner may choose from, or why the target can run the site in no way.

        Where the target computes none, the ways that it leaves outside are offered.
        """
        inside: list[tuple[int, tuple[Token, ...]]] = []
        beside: list[tuple[int, tuple[Token, ...]]] = []
        reasons: list[str] = []
        for implementation, tokens in proposal.tokens:
            if not site.implementations:  # the contract's side
                inside.append((implementation, tokens))
                continue
            arrangement = Arrangement(tokens, (), implementation)
            arrangement = replace(arrangement, absorbed=_any_absorbed(proposal))
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
        count = 0
        for implementation, tokens in offered:
            for absorbed in itertools.product(*(list(orders) for orders in proposal.absorbed)):
                count += 1
                if count > MAX_CONFIGS:
                    if self.give_up:
                        raise _TooMany
                    self.truncated = True
                    break
                arrangement = Arrangement(tokens, absorbed, implementation)
                layouts = [layout_of(i, site, arrangement) for i in range(len(site.views))]
                if any(
                    order not in candidates[view.buffer]
                    for view, order in zip(site.views, layouts, strict=True)
                ):
                    continue
                reads, writes = tuple(layouts[: len(site.reads)]), tuple(layouts[len(site.reads) :])
                cost = self.costs.configuration(site, arrangement, self.buffers)
                known = kept.get((reads, writes))
                if known is None or cost < known[1].cost:
                    kept[reads, writes] = (arrangement, Config(reads, writes, cost))
        assert kept, f"{site.node} has no configuration"
        return tuple(a for a, _ in kept.values()), tuple(c for _, c in kept.values())

    def _buffer(self, info: BufferInfo, layouts: Mapping[AxisOrder, None]) -> Buffer:
        """A buffer with the costs of its conversions: the commonest, and the pairs that cost otherwise."""
        costs: dict[tuple[AxisOrder, AxisOrder], Cost | None] = {
            pair: self.costs.conversion(info, *pair) if self._is_offered(*pair) else None
            for pair in itertools.permutations(layouts, 2)
        }
        usual = Counter(cost for cost in costs.values() if cost is not None).most_common(1)
        default = usual[0][0] if usual else (0,) * len(self.costs.units)
        return Buffer(info.root.name, default, {p: cost for p, cost in costs.items() if cost != default})

    def _is_offered(self, source: AxisOrder, target: AxisOrder) -> bool:
        max_rank = self.verdicts.ability.max_rank
        return max_rank is None or transpose_rank(source, target) <= max_rank


def _any_absorbed(proposal: _Proposal) -> tuple[tuple[tuple[Token, AxisOrder], ...], ...]:
    """Some order of the absorbed axes: it decides how a constant is re-laid, not what is computed."""
    return tuple(next(iter(orders)) for orders in proposal.absorbed)


def _relabelled(view: BufferView, before: AxedTensor, after: AxedTensor) -> BufferView:
    """The view behind a pure relabel: axes follow their labels."""
    axes = [-1] * len(after.sizes)
    for label, positions in after.labels.items():
        for target, source in zip(positions, before.labels[label], strict=True):
            axes[target] = view.axes[source]
    return BufferView(view.buffer, tuple(axes))


def _tokens(view: BufferView, tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    return {t: tuple(view.axes[a] for a in axes) for t, axes in token_axes(tensor, relation).items()}


@dataclass
class _Proposal:
    """What the closure found for one site: token orders, and per tensor the orders of its absorbed axes."""

    tokens: dict[tuple[int, tuple[Token, ...]], None] = field(default_factory=dict)  # by implementation
    absorbed: list[dict[tuple[tuple[Token, AxisOrder], ...], None]] = field(default_factory=list)


class _Closure:
    """Carries candidate orders from tensor to tensor through every site until nothing new appears."""

    def __init__(
        self,
        sites: Sequence[Site],
        buffers: Sequence[BufferInfo],
        seeds: Mapping[int, AxisOrder],
        give_up: bool,
    ) -> None:
        self.give_up = give_up
        self.sites, self.buffers, self.seeds = sites, buffers, seeds
        self.candidates: list[dict[AxisOrder, None]] = [{} for _ in buffers]
        self.per_site = [_Proposal(absorbed=[{} for _ in site.views]) for site in sites]
        self.defaults = [_default_tokens(site) for site in sites]
        self.readers: list[list[tuple[int, int]]] = [[] for _ in buffers]
        self.truncated = False
        self.queue: list[tuple[int, AxisOrder]] = []
        for index, site in enumerate(sites):
            for position, view in enumerate(site.views):
                self.readers[view.buffer].append((index, position))

    def run(self) -> _Closure:
        for index, site in enumerate(self.sites):
            if index in self.seeds:
                order = self.seeds[index]
                self.per_site[index].tokens[0, tuple(("axis", axis) for axis in order)] = None
                self.per_site[index].absorbed[0][()] = None
                self._add(site.views[0].buffer, order, seed=True)
                continue
            for number, form in enumerate(site.forms):
                self.per_site[index].tokens[number, _formed(self.defaults[index], form)] = None
            for position in range(len(site.views)):
                self.per_site[index].absorbed[position][self._absorbed(site, position, None)] = None
            self._expand(index, seed=True)
        done = 0
        while done < len(self.queue):
            buffer, order = self.queue[done]
            done += 1
            for index, position in self.readers[buffer]:
                if index not in self.seeds:
                    self._propose(index, position, order)
        return self

    def _add(self, buffer: int, order: AxisOrder, *, seed: bool = False) -> None:
        if order in self.candidates[buffer]:
            return
        if not seed and len(self.candidates[buffer]) >= MAX_LAYOUTS:
            if self.give_up:
                raise _TooMany
            self.truncated = True
            return
        self.candidates[buffer][order] = None
        self.queue.append((buffer, order))

    def _propose(self, index: int, position: int, order: AxisOrder) -> None:
        """Take a tensor's order into a site: its tokens in that order, the others where they were or beside
        their neighbour in logical order, sorted into each form."""
        site, proposal = self.sites[index], self.per_site[index]
        rank = {axis: i for i, axis in enumerate(order)}
        held = site.tokens[position]
        mine = sorted(held, key=lambda token: rank[held[token][0]])
        slots = iter(mine)
        in_place = tuple(next(slots) if token in held else token for token in self.defaults[index])
        beside = _insert_before_successors(mine, self.defaults[index])
        formed = dict.fromkeys(
            (number, _formed(tokens, form))
            for number, form in enumerate(site.forms)
            for tokens in (in_place, beside)
        )
        new = [tokens for tokens in formed if tokens not in proposal.tokens]
        absorbed = self._absorbed(site, position, rank)
        if new or absorbed not in proposal.absorbed[position]:
            proposal.tokens.update(dict.fromkeys(new))
            proposal.absorbed[position][absorbed] = None
            self._expand(index)

    def _absorbed(
        self, site: Site, position: int, rank: Mapping[int, int] | None
    ) -> tuple[tuple[Token, AxisOrder], ...]:
        held = site.tokens[position]
        return tuple(
            (token, tuple(sorted(axes, key=lambda a: rank[a])) if rank else axes)
            for token, axes in held.items()
            if token[0] in site.absorbed
        )

    def _expand(self, index: int, *, seed: bool = False) -> None:
        """Every order that the site's arrangements give to its tensors is a candidate of their buffers."""
        site, proposal = self.sites[index], self.per_site[index]
        for position, view in enumerate(site.views):
            for tokens in dict.fromkeys(tokens for _, tokens in proposal.tokens):
                for absorbed in list(proposal.absorbed[position]):
                    choice = ((),) * position + (absorbed,)
                    self._add(view.buffer, layout_of(position, site, Arrangement(tokens, choice)), seed=seed)


def _default_tokens(site: Site) -> tuple[Token, ...]:
    """All tokens of a site in one order: the tensor with most tokens in logical order, the others merged in
    after their predecessors."""
    order: list[Token] = []
    views = sorted(range(len(site.views)), key=lambda i: -len(site.tokens[i]))
    for i in views:
        previous = -1
        axes = site.views[i].axes
        place = {axis: p for p, axis in enumerate(axes)}
        for token in sorted(site.tokens[i], key=lambda t: place[site.tokens[i][t][0]]):
            if token in order:
                previous = order.index(token)
            else:
                previous += 1
                order.insert(previous, token)
    return tuple(order)


def _insert_before_successors(tokens: Sequence[Token], default: Sequence[Token]) -> tuple[Token, ...]:
    """Some tokens of a site in an order of their own; each missing one goes right before the token it
    precedes by default."""
    order = list(tokens)
    for i in reversed(range(len(default))):
        if default[i] not in order:
            order.insert(order.index(default[i + 1]) if i + 1 < len(default) else len(order), default[i])
    return tuple(order)


def _formed(tokens: Iterable[Token], form: str) -> tuple[Token, ...]:
    """Tokens stable-sorted into a form."""
    names = form.split()

    def group(token: Token) -> int:
        label = token[0]
        return next(
            (i for i, name in enumerate(names) if label == name or label.startswith(f"{name}.")),
            names.index("*") if "*" in names else -1,
        )

    return tuple(sorted(tokens, key=group))
