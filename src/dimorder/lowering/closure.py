"""Decides which orders are candidates: the closure of what contracts and operators ask for, carried through
the operators that share axes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dimorder.lowering.sites import Arrangement, AxisOrder, BufferInfo, Site, Token, layout_of

MAX_LAYOUTS = 128  # candidate layouts of one buffer


class TooManyCandidates(Exception):
    """A cap on candidates was reached."""


@dataclass
class Proposal:
    """What the closure found for one site: token orders, and per tensor the orders of its absorbed axes."""

    tokens: dict[tuple[int, tuple[Token, ...]], None] = field(default_factory=dict)  # by implementation
    absorbed: list[dict[tuple[tuple[Token, AxisOrder], ...], None]] = field(default_factory=list)

    @property
    def some_absorbed(self) -> tuple[tuple[tuple[Token, AxisOrder], ...], ...]:
        """Some order of the absorbed axes: it decides how a constant is re-laid, not what is computed."""
        return tuple(next(iter(orders)) for orders in self.absorbed)


class Closure:
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
        self.per_site = [Proposal(absorbed=[{} for _ in site.views]) for site in sites]
        self.defaults = [default_tokens(site) for site in sites]
        self.seen: list[set[tuple[int, int, tuple[Token, ...]]]] = [
            set() for _ in sites
        ]  # tensor, form, order
        self.readers: list[list[tuple[int, int]]] = [[] for _ in buffers]
        self.truncated = False
        self.queue: list[tuple[int, AxisOrder]] = []
        for index, site in enumerate(sites):
            for position, view in enumerate(site.views):
                self.readers[view.buffer].append((index, position))

    def run(self) -> Closure:
        for index, site in enumerate(self.sites):
            if index in self.seeds:
                order = self.seeds[index]
                self.per_site[index].tokens[0, tuple(("axis", axis) for axis in order)] = None
                self.per_site[index].absorbed[0][()] = None
                self._add(site.views[0].buffer, order, seed=True)
                continue
            defaults = self.defaults[index]
            self._offer(index, [(number, formed(defaults, form)) for number, form in enumerate(site.forms)])
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
                raise TooManyCandidates
            self.truncated = True
            return
        self.candidates[buffer][order] = None
        self.queue.append((buffer, order))

    def _propose(self, index: int, position: int, order: AxisOrder) -> None:
        """Take a tensor's order into a site: its tokens in that order, the others beside their neighbour in
        logical order, sorted into each form.

        A form in which the site has the order already needs no other: where the tensor lacks tokens, each
        would come with new places for those, and their number would grow with every site on the way.
        """
        site, proposal = self.sites[index], self.per_site[index]
        rank = {axis: i for i, axis in enumerate(order)}
        held = site.tokens[position]
        mine = sorted(held, key=lambda token: rank[held[token][0]])
        tokens = _insert_before_successors(mine, self.defaults[index])
        sorted_in = [(number, formed(tokens, form)) for number, form in enumerate(site.forms)]
        new = [way for way in sorted_in if (position, *_seen_by(held, way)) not in self.seen[index]]
        absorbed = self._absorbed(site, position, rank)
        if new or absorbed not in proposal.absorbed[position]:
            self._offer(index, new)
            proposal.absorbed[position][absorbed] = None
            self._expand(index)

    def _offer(self, index: int, ways: Iterable[tuple[int, tuple[Token, ...]]]) -> None:
        self.per_site[index].tokens.update(dict.fromkeys(ways))
        self.seen[index].update(
            (position, *_seen_by(held, way))
            for way in ways
            for position, held in enumerate(self.sites[index].tokens)
        )

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


def default_tokens(site: Site) -> tuple[Token, ...]:
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


def _seen_by(held: Collection[Token], way: tuple[int, tuple[Token, ...]]) -> tuple[int, tuple[Token, ...]]:
    """A form and its tokens, as far as one tensor has them."""
    number, tokens = way
    return number, tuple(token for token in tokens if token in held)


def _insert_before_successors(tokens: Sequence[Token], default: Sequence[Token]) -> tuple[Token, ...]:
    """Some tokens of a site in an order of their own; each missing one goes right before the token it
    precedes by default."""
    order = list(tokens)
    for i in reversed(range(len(default))):
        if default[i] not in order:
            order.insert(order.index(default[i + 1]) if i + 1 < len(default) else len(order), default[i])
    return tuple(order)


def formed(tokens: Iterable[Token], form: str) -> tuple[Token, ...]:
    """Tokens stable-sorted into a form."""
    names = form.split()

    def group(token: Token) -> int:
        label = token[0]
        return next(
            (i for i, name in enumerate(names) if label == name or label.startswith(f"{name}.")),
            names.index("*") if "*" in names else -1,
        )

    return tuple(sorted(tokens, key=group))
