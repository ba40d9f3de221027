"""Find the candidate orders: those that contracts and operators ask for, carried through shared axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dimorder.ops.problem_map import Arrangement, BufferInfo, Site, layout_of
from dimorder.ops.relation import AxisOrder, Token

MAX_LAYOUTS = 128  # candidate layouts of one buffer

_Absorbed = tuple[tuple[Token, AxisOrder], ...]  # the axes of each token that a tensor absorbs, in order


class TooManyCandidates(Exception):
    """A cap on candidates that was reached."""


@dataclass
class Proposal:
    """The candidates of one site: orders of its tokens, and per tensor the orders of its absorbed axes."""

    tokens: dict[tuple[int, tuple[Token, ...]], None] = field(default_factory=dict)  # by implementation
    absorbed: list[dict[_Absorbed, None]] = field(default_factory=list)

    @property
    def some_absorbed(self) -> tuple[_Absorbed, ...]:
        """Return some order of the absorbed axes: it affects how constants are re-laid, not results."""
        return tuple(next(iter(orders)) for orders in self.absorbed)


class Closure:
    """The search for candidate orders: each is carried through every site until nothing new appears.

    `seeds` are the orders that the contract promises, by the site of the input or output. In a `sparing`
    search, an order enters a site only if no way of the site has that order yet. If a tensor lacks tokens,
    each order would bring new places for them, and their number would grow with every site on the path. A
    sparing search truncates the candidates at a cap; another one raises `TooManyCandidates`.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        buffers: Sequence[BufferInfo],
        seeds: Mapping[int, AxisOrder],
        sparing: bool,
    ) -> None:
        self.sparing = sparing
        self.sites, self.buffers, self.seeds = sites, buffers, seeds
        self.candidates: list[dict[AxisOrder, None]] = [{} for _ in buffers]
        self.per_site = [Proposal(absorbed=[{} for _ in site.views]) for site in sites]
        self.defaults = [default_tokens(site) for site in sites]
        # Per site, the orders of each tensor's tokens, in each form in which some way has them.
        self.seen: list[set[tuple[int, int, tuple[Token, ...]]]] = [set() for _ in sites]
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
            if not self.sparing:
                raise TooManyCandidates
            self.truncated = True
            return
        self.candidates[buffer][order] = None
        self.queue.append((buffer, order))

    def _propose(self, index: int, position: int, order: AxisOrder) -> None:
        """Carry a tensor's order into a site, sorted into each form of the site.

        The tensor's tokens get that order. The other tokens stay where they were, or go beside their
        neighbour in logical order.
        """
        site, proposal = self.sites[index], self.per_site[index]
        rank = {axis: i for i, axis in enumerate(order)}
        held = site.tokens[position]
        mine = sorted(held, key=lambda token: rank[held[token][0]])
        slots = iter(mine)
        in_place = tuple(next(slots) if token in held else token for token in self.defaults[index])
        beside = _insert_before_successors(mine, self.defaults[index])
        ways = dict.fromkeys(
            (number, formed(tokens, form))
            for number, form in enumerate(site.forms)
            for tokens in ((beside,) if self.sparing else (in_place, beside))
        )
        if self.sparing:
            new = [way for way in ways if (position, *_seen_by(held, way)) not in self.seen[index]]
        else:
            new = [way for way in ways if way not in proposal.tokens]
        absorbed = self._absorbed(site, position, rank)
        is_known = absorbed in proposal.absorbed[position]
        if new or not is_known:
            self._offer(index, new)
            proposal.absorbed[position][absorbed] = None
            self._expand(index, {tokens for _, tokens in new}, None if is_known else (position, absorbed))

    def _offer(self, index: int, ways: Iterable[tuple[int, tuple[Token, ...]]]) -> None:
        self.per_site[index].tokens.update(dict.fromkeys(ways))
        if not self.sparing:
            return
        self.seen[index].update(
            (position, *_seen_by(held, way))
            for way in ways
            for position, held in enumerate(self.sites[index].tokens)
        )

    def _absorbed(self, site: Site, position: int, rank: Mapping[int, int] | None) -> _Absorbed:
        held = site.tokens[position]
        return tuple(
            (token, tuple(sorted(axes, key=lambda a: rank[a])) if rank else axes)
            for token, axes in held.items()
            if token[0] in site.absorbed
        )

    def _expand(
        self,
        index: int,
        new: Collection[tuple[Token, ...]] | None = None,
        new_absorbed: tuple[int, _Absorbed] | None = None,
        *,
        seed: bool = False,
    ) -> None:
        """Add every order that the site's arrangements give to its tensors as a candidate of their buffers.

        Arrangements without `new` tokens, and without the new order of what a tensor absorbs, are known
        already. By default all are new.
        """
        site, proposal = self.sites[index], self.per_site[index]
        at, order = new_absorbed or (None, ())
        for position, view in enumerate(site.views):
            for tokens in dict.fromkeys(tokens for _, tokens in proposal.tokens):
                is_new = new is None or tokens in new
                if not is_new and position != at:
                    continue
                for absorbed in list(proposal.absorbed[position]) if is_new else [order]:
                    choice = ((),) * position + (absorbed,)
                    self._add(view.buffer, layout_of(position, site, Arrangement(tokens, choice)), seed=seed)


def default_tokens(site: Site) -> tuple[Token, ...]:
    """Return all tokens of a site in one order.

    The tensor with most tokens is in logical order. The tokens of the others are inserted after their
    predecessors.
    """
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
    """Return a form and those of its tokens that one tensor has."""
    number, tokens = way
    return number, tuple(token for token in tokens if token in held)


def _insert_before_successors(tokens: Sequence[Token], default: Sequence[Token]) -> tuple[Token, ...]:
    """Return some tokens of a site in their own order, with the missing tokens inserted.

    Each missing token goes right before the token that it precedes by default.
    """
    order = list(tokens)
    for i in reversed(range(len(default))):
        if default[i] not in order:
            order.insert(order.index(default[i + 1]) if i + 1 < len(default) else len(order), default[i])
    return tuple(order)


def formed(tokens: Iterable[Token], form: str) -> tuple[Token, ...]:
    """Return tokens stable-sorted into a form."""
    names = form.split()

    def group(token: Token) -> int:
        label = token[0]
        return next(
            (i for i, name in enumerate(names) if label == name or label.startswith(f"{name}.")),
            names.index("*") if "*" in names else -1,
        )

    return tuple(sorted(tokens, key=group))
