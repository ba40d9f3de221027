"""Decides what the planner may choose from: buffers, and for every operator the orders it could run in.

Candidate orders are the closure of what contracts and operators ask for, carried through the operators that
share axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.lowering.annotate import Annotated, Tensor, results_of
from dimorder.lowering.capture.captured import operator_name
from dimorder.lowering.operators.op_rules import Relation, operands
from dimorder.planning.problem import Buffer, Config, LayoutProblem, Step

Order = tuple[int, ...]  # a buffer's axes, slowest first
Token = tuple[str, int]  # a shared axis of a label, or (label, -1) for a label whose axes stay together

MAX_LAYOUTS = 128  # candidate layouts of one buffer
MAX_CONFIGS = 2048  # configurations of one operator
UNITS = {"bytes": ("bytes", "conversions"), "count": ("conversions", "bytes")}


@dataclass(frozen=True)
class BufferInfo:
    """A value with all its relabelled views. Axes are those of `root`, the value that is produced."""

    index: int
    root: torch.fx.Node
    tensor: Tensor
    nbytes: int


@dataclass(frozen=True)
class BufferView:
    """A value as a view of a buffer: `axes[i]` is the buffer axis behind the value's axis `i`."""

    buffer: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One operator of the problem: its node, and per operand and result the buffer axes behind each token."""

    node: torch.fx.Node
    kind: str
    reads: tuple[BufferView, ...]
    writes: tuple[BufferView, ...]
    tokens: tuple[dict[Token, Order], ...]  # reads, then writes
    absorbed: frozenset[str]
    forms: tuple[str, ...]

    @property
    def views(self) -> tuple[BufferView, ...]:
        return (*self.reads, *self.writes)


@dataclass(frozen=True)
class Arrangement:
    """One way to run a site: the order of its tokens, and per tensor the order of its absorbed axes."""

    tokens: tuple[Token, ...]
    absorbed: tuple[tuple[tuple[Token, Order], ...], ...]  # per tensor, token → order


@dataclass(frozen=True)
class Extracted:
    """The layout problem of a program, with what leads back from its indices to the program."""

    problem: LayoutProblem
    annotated: Annotated
    buffers: tuple[BufferInfo, ...]
    views: dict[torch.fx.Node, BufferView]
    sites: tuple[Site, ...]  # aligned with problem.steps
    arrangements: tuple[tuple[Arrangement, ...], ...]  # aligned with each step's configs


def extract(
    annotated: Annotated,
    input_orders: Sequence[DimOrder],
    output_orders: Sequence[DimOrder],
    *,
    objective: str = "bytes",
    forms: Sequence[Mapping[object, tuple[str, ...]]] = ({},),
    max_rank: int | None = None,
) -> Extracted:
    """The layout problem of an annotated program under a contract and a target's rules.

    `forms` overrides the accepted orders of operators: richest first, and the first whose candidate orders
    are complete is taken. `max_rank` is the highest rank the target can transpose. `objective` is "bytes"
    (moved by conversions; ties: fewer conversions) or "count" (ties: fewer bytes).
    """
    *richer, plainest = forms
    for chosen in richer:
        try:
            return _Extractor(
                annotated, input_orders, output_orders, objective, chosen, max_rank, give_up=True
            ).run()
        except _TooMany:
            continue
    return _Extractor(
        annotated, input_orders, output_orders, objective, plainest, max_rank, give_up=False
    ).run()


class _TooMany(Exception):
    """A cap on candidates was reached."""


def layout_of(tensor_index: int, site: Site, arrangement: Arrangement) -> Order:
    """The buffer order that an arrangement means for one tensor of a site."""
    held, absorbed = site.tokens[tensor_index], dict(arrangement.absorbed[tensor_index])
    return tuple(
        axis for token in arrangement.tokens if token in held for axis in absorbed.get(token, held[token])
    )


class _Extractor:
    def __init__(
        self,
        annotated: Annotated,
        input_orders: Sequence[DimOrder],
        output_orders: Sequence[DimOrder],
        objective: str,
        forms: Mapping[object, tuple[str, ...]],
        max_rank: int | None,
        *,
        give_up: bool,
    ) -> None:
        self.annotated, self.give_up = annotated, give_up
        self.input_orders, self.output_orders = input_orders, output_orders
        self.objective, self.forms, self.max_rank = objective, forms, max_rank
        self.buffers: list[BufferInfo] = []
        self.views: dict[torch.fx.Node, BufferView] = {}
        self.truncated = False

    def run(self) -> Extracted:
        sites = self._sites()
        proposals = _Closure(sites, self.buffers, self._seeds(sites), self.give_up).run()
        operators, arrangements = [], []
        for site, proposal in zip(sites, proposals.per_site, strict=True):
            kept, configs = self._configs(site, proposal, proposals.candidates)
            arrangements.append(kept)
            name = operator_name(site.node) if site.kind != "output" else site.kind
            operators.append(
                Step(name, tuple(v.buffer for v in site.reads), tuple(v.buffer for v in site.writes), configs)
            )
        candidates = "truncated" if self.truncated or proposals.truncated else "complete"
        buffers = tuple(self._buffer(info, proposals.candidates[info.index]) for info in self.buffers)
        problem = LayoutProblem(UNITS[self.objective], buffers, tuple(operators), candidates)
        return Extracted(
            problem, self.annotated, tuple(self.buffers), self.views, tuple(sites), tuple(arrangements)
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
                    results_of(call), self.annotated.writes[call], _values(call), strict=True
                )
            ]
            forms = (
                self.forms.get(call.target, relation.forms) if relation.kind != "opaque" else relation.forms
            )
            tokens = tuple(_tokens(view, tensor, relation) for view, tensor in (*dynamic, *writes))
            sites.append(
                Site(
                    call,
                    relation.kind,
                    tuple(v for v, _ in dynamic),
                    tuple(v for v, _ in writes),
                    tokens,
                    relation.absorbed,
                    forms,
                )
            )
        for node in program.outputs:
            if node in self.views:
                sites.append(self._boundary(node, "output", self.views[node], write=False))
        return sites

    def _root_tensors(self) -> dict[torch.fx.Node, Tensor]:
        """A tensor for each input, from any use (all uses see the same axes); one without uses has whole
        dimensions."""
        found = {}
        for node in self.annotated.program.inputs:
            shape = tuple(node.meta["val"].shape)
            dims = [d for d, size in enumerate(shape) if size != 1]
            found[node] = Tensor(tuple(shape[d] for d in dims), tuple(dims), {})
        for call, tensors in self.annotated.reads.items():
            for node, tensor in zip(operands(call), tensors, strict=True):
                if node in found:
                    found[node] = tensor
        return found

    def _produce(self, node: torch.fx.Node, tensor: Tensor, value: torch.Tensor | None = None) -> BufferView:
        value = node.meta["val"] if value is None else value
        info = BufferInfo(len(self.buffers), node, tensor, int(value.numel()) * value.element_size())
        self.buffers.append(info)
        view = BufferView(info.index, tuple(range(len(tensor.sizes))))
        self.views.setdefault(node, view)
        return view

    def _boundary(self, node: torch.fx.Node, kind: str, view: BufferView, *, write: bool) -> Site:
        """A contract's side: one configuration, written or read as a block per dimension in the promised
        order."""
        tokens: dict[Token, Order] = {("axis", axis): (axis,) for axis in view.axes}
        reads, writes = ((), (view,)) if write else ((view,), ())
        return Site(node, kind, reads, writes, (tokens,), frozenset(), ("*",))

    def _seeds(self, sites: Sequence[Site]) -> dict[int, Order]:
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
        self, site: Site, proposal: _Proposal, candidates: Sequence[Mapping[Order, None]]
    ) -> tuple[tuple[Arrangement, ...], tuple[Config, ...]]:
        kept: dict[tuple[tuple[Order, ...], tuple[Order, ...]], tuple[Arrangement, Config]] = {}
        count = 0
        for tokens in proposal.tokens:
            for absorbed in itertools.product(*(list(orders) for orders in proposal.absorbed)):
                count += 1
                if count > MAX_CONFIGS:
                    if self.give_up:
                        raise _TooMany
                    self.truncated = True
                    break
                arrangement = Arrangement(tokens, absorbed)
                layouts = [layout_of(i, site, arrangement) for i in range(len(site.views))]
                if any(
                    order not in candidates[view.buffer]
                    for view, order in zip(site.views, layouts, strict=True)
                ):
                    continue
                reads, writes = tuple(layouts[: len(site.reads)]), tuple(layouts[len(site.reads) :])
                cost = self._cost(site, arrangement)
                known = kept.get((reads, writes))
                if known is None or cost < known[1].cost:
                    kept[reads, writes] = (arrangement, Config(reads, writes, cost))
        assert kept, f"{site.node} has no configuration"
        return tuple(a for a, _ in kept.values()), tuple(c for _, c in kept.values())

    def _cost(self, site: Site, arrangement: Arrangement) -> tuple[int, int]:
        """Cutting and joining in runs under MIN_RUN elements moves the result twice over (measured)."""
        if site.kind != "indexed" or not any(
            label.startswith("cut.") or label == "step" for tokens in site.tokens for label, _ in tokens
        ):
            return (0, 0)
        smaller = min(range(len(site.views)), key=lambda i: self.buffers[site.views[i].buffer].nbytes)
        held = site.tokens[smaller]
        sizes = self.buffers[site.views[smaller].buffer].tensor.sizes
        run = 1
        for token in reversed(list(arrangement.tokens)):
            if token[0].startswith("cut.") or token[0] == "step":
                run *= math.prod(sizes[a] for a in held.get(token, ()))
                break
            run *= math.prod(sizes[a] for a in held.get(token, ()))
        if run >= MIN_RUN:
            return (0, 0)
        moved = 2 * max(self.buffers[view.buffer].nbytes for view in site.views)
        return (moved, 0) if self.objective == "bytes" else (2, moved)

    def _buffer(self, info: BufferInfo, layouts: Mapping[Order, None]) -> Buffer:
        cost = (info.nbytes, 1) if self.objective == "bytes" else (1, info.nbytes)
        not_offered = {
            (a, b): None
            for a in layouts
            for b in layouts
            if self.max_rank is not None and transpose_rank(a, b) > self.max_rank
        }
        return Buffer(info.root.name, cost, not_offered)


MIN_RUN = 8  # elements; 28²×58: interleaving adds 176 µs to a cat, transposing explicitly adds 85


def transpose_rank(source: Order, target: Order) -> int:
    """How many dimensions a transpose between two orders has once runs that stay together are one."""
    position = {axis: i for i, axis in enumerate(source)}
    breaks = sum(position[b] != position[a] + 1 for a, b in itertools.pairwise(target))
    return breaks + 1


def _values(call: torch.fx.Node) -> list[torch.Tensor]:
    value = call.meta["val"]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _relabelled(view: BufferView, before: Tensor, after: Tensor) -> BufferView:
    """The view behind a pure relabel: axes follow their labels."""
    axes = [-1] * len(after.sizes)
    for label, positions in after.labels.items():
        for target, source in zip(positions, before.labels[label], strict=True):
            axes[target] = view.axes[source]
    return BufferView(view.buffer, tuple(axes))


def token_axes(tensor: Tensor, relation: Relation) -> dict[Token, Order]:
    """The tokens of one tensor under a relation, with the positions of their axes in logical order."""
    tokens: dict[Token, Order] = {}
    for label, axes in tensor.labels.items():
        if label in relation.blocks or label in relation.absorbed:
            if axes:
                tokens[label, -1] = axes
        else:
            tokens.update({(label, j): (axis,) for j, axis in enumerate(axes)})
    return tokens


def _tokens(view: BufferView, tensor: Tensor, relation: Relation) -> dict[Token, Order]:
    return {t: tuple(view.axes[a] for a in axes) for t, axes in token_axes(tensor, relation).items()}


@dataclass
class _Proposal:
    """What the closure found for one site: token orders, and per tensor the orders of its absorbed axes."""

    tokens: dict[tuple[Token, ...], None] = field(default_factory=dict)
    absorbed: list[dict[tuple[tuple[Token, Order], ...], None]] = field(default_factory=list)


class _Closure:
    """Carries candidate orders from tensor to tensor through every site until nothing new appears."""

    def __init__(
        self, sites: Sequence[Site], buffers: Sequence[BufferInfo], seeds: Mapping[int, Order], give_up: bool
    ) -> None:
        self.give_up = give_up
        self.sites, self.buffers, self.seeds = sites, buffers, seeds
        self.candidates: list[dict[Order, None]] = [{} for _ in buffers]
        self.per_site = [_Proposal(absorbed=[{} for _ in site.views]) for site in sites]
        self.defaults = [_default_tokens(site) for site in sites]
        self.readers: list[list[tuple[int, int]]] = [[] for _ in buffers]
        self.truncated = False
        self.queue: list[tuple[int, Order]] = []
        for index, site in enumerate(sites):
            for position, view in enumerate(site.views):
                self.readers[view.buffer].append((index, position))

    def run(self) -> _Closure:
        for index, site in enumerate(self.sites):
            if index in self.seeds:
                order = self.seeds[index]
                self.per_site[index].tokens[tuple(("axis", axis) for axis in order)] = None
                self.per_site[index].absorbed[0][()] = None
                self._add(site.views[0].buffer, order, seed=True)
                continue
            for form in site.forms:
                self.per_site[index].tokens[_formed(self.defaults[index], form)] = None
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

    def _add(self, buffer: int, order: Order, *, seed: bool = False) -> None:
        if order in self.candidates[buffer]:
            return
        if not seed and len(self.candidates[buffer]) >= MAX_LAYOUTS:
            if self.give_up:
                raise _TooMany
            self.truncated = True
            return
        self.candidates[buffer][order] = None
        self.queue.append((buffer, order))

    def _propose(self, index: int, position: int, order: Order) -> None:
        """Take a tensor's order into a site: its tokens in that order, the others where they were or beside
        their neighbour in logical order, sorted into each form."""
        site, proposal = self.sites[index], self.per_site[index]
        rank = {axis: i for i, axis in enumerate(order)}
        held = site.tokens[position]
        mine = sorted(held, key=lambda token: rank[held[token][0]])
        slots = iter(mine)
        in_place = tuple(next(slots) if token in held else token for token in self.defaults[index])
        beside = _insert_before_successors(mine, self.defaults[index])
        formed = dict.fromkeys(_formed(tokens, form) for form in site.forms for tokens in (in_place, beside))
        new = [tokens for tokens in formed if tokens not in proposal.tokens]
        absorbed = self._absorbed(site, position, rank)
        if new or absorbed not in proposal.absorbed[position]:
            proposal.tokens.update(dict.fromkeys(new))
            proposal.absorbed[position][absorbed] = None
            self._expand(index)

    def _absorbed(
        self, site: Site, position: int, rank: Mapping[int, int] | None
    ) -> tuple[tuple[Token, Order], ...]:
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
            for tokens in list(proposal.tokens):
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


_Refuses = Callable[[torch.fx.Node], str | None]
