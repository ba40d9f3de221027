"""Give the lowering of an operator access to its operands, sizes, orders and results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.tracing import shape_of
from dimorder.ops.builder import AxisGroup, Builder
from dimorder.ops.problem_map import Arrangement, Site, dimension_axes, layouts_of
from dimorder.ops.relation import AxedTensor, Token, is_named, token_axes

aten = torch.ops.aten

_MAX_RANK = 6  # above this rank, dimensions that nothing needs apart are merged


class Call:
    """One operator during its lowering: its operands in the planned orders, its tokens and its results."""

    def __init__(self, builder: Builder, site: Site, arrangement: Arrangement) -> None:
        self.b, self.site, self.arrangement, self.node = builder, site, arrangement, site.node
        self.target: Any = site.node.target
        self.orders = layouts_of(site, arrangement)
        self.dynamic = [
            builder.fetch(view.buffer, order) for view, order in zip(site.reads, self.orders, strict=False)
        ]
        assert site.relation is not None
        self.relation = site.relation
        self.tensors: list[AxedTensor] = list(site.operands)
        self.widens = False

    def compute_in_float32(self) -> None:
        """Read half-precision operands as float32 from now on, and round the results: not each operator's."""
        self.widens = True

    # -- tokens

    def has(self, token: Token, i: int) -> bool:
        return token in self.site.tokens[i]

    def axes(self, i: int, tokens: Iterable[Token]) -> AxisGroup:
        """Return the buffer axes of some tokens on tensor `i`, in its planned order."""
        wanted = {axis for token in tokens for axis in self.site.tokens[i].get(token, ())}
        return tuple(axis for axis in self.orders[i] if axis in wanted)

    def labelled(self, *names: str) -> list[Token]:
        return [token for token in self.arrangement.tokens if any(is_named(token, name) for name in names)]

    def permutation(self, i: int, *names: str) -> torch.Tensor:
        """Return which logical index of the labels `names` lies at each physical position on tensor `i`."""
        axes, view = self.axes(i, self.labelled(*names)), self.site.views[i]
        logical = [axis for axis in view.axes if axis in axes]
        indices = torch.arange(self.b.extent(view.buffer, axes))
        indices = indices.reshape([self.b.extent(view.buffer, [axis]) for axis in logical])
        return indices.permute([logical.index(axis) for axis in axes]).reshape(-1)

    # -- physical dimensions

    def split(
        self,
        leads: Iterable[Token] = (),
        alone: Iterable[Token] = (),
        together: Iterable[Token] = (),
        room: int = 0,
        merged: bool = False,
    ) -> list[list[Token]]:
        """Group the tokens into physical dimensions.

        The groups are those of the largest operand, cut further if operands or the call differ. If that
        operand has other dimensions, no two dynamic sizes share one along which the call acts: a view could
        not part them.

        Args:
            leads: A dimension starts at each of these tokens.
            alone: These tokens share no dimension with others.
            together: These tokens form one dimension.
            room: How many dimensions of size 1 the caller can add.
            merged: Whether there are as few dimensions as possible, whatever the largest operand has, but
                with dynamic sizes apart. A target is asked about such calls.
        """
        order = list(self.arrangement.tokens)
        leads, alone, together = set(leads), set(alone), set(together)
        cuts = {0}
        operands = [token_axes(tensor, self.relation) for tensor in self.tensors]
        for p in range(1, len(order)):
            before, after = order[p - 1], order[p]
            if (
                after in leads
                or (before in alone) != (after in alone)
                or (before in together) != (after in together)
            ) or (before not in leads and any((before in own) != (after in own) for own in operands)):
                cuts.add(p)
        groups = None if merged else self._as_they_are(order, cuts, together)
        if groups is None or max(len(groups), sum(map(bool, groups)) + room) > _MAX_RANK:
            acts = bool(leads or alone or together) and (merged or self.b.writes)
            dims = [self.dynamic_sizes.get(token) for token in order] if acts else []
            cuts.update(p for p, dim in enumerate(dims) if dim is not None and dim not in dims[p - 1 : p])
            ends = [*sorted(cuts)[1:], len(order)]
            groups = [order[a:b] for a, b in zip(sorted(cuts), ends, strict=True)] if order else []
        return groups

    @cached_property
    def dynamic_sizes(self) -> Mapping[Token, int]:
        """The tokens of dynamic sizes in the first operand that is not constant, with the dimension of each.

        Nothing if it has only one dynamic size.
        """
        source = next((each for each in self.site.sources if each.op != "get_attr"), None)
        if source is None or len(dynamic_dims(source)) < 2:
            return {}
        axes = dimension_axes(self.site.reads[0], shape_of(source), self.b.buffers)
        homes = {axis: dim for dim in dynamic_dims(source) for axis in axes[dim]}
        found = ((token, homes.keys() & own) for token, own in self.site.tokens[0].items())
        return {token: homes[min(own)] for token, own in found if own}

    def _as_they_are(
        self, tokens: list[Token], cuts: set[int], together: set[Token]
    ) -> list[list[Token]] | None:
        """Return the physical dimensions of the largest operand, those of size 1 included, cut at `cuts`.

        The result is None if the tokens do not fit these dimensions in their order.
        """
        if not self.dynamic:
            return None
        largest = max(
            range(len(self.dynamic)),
            key=lambda i: (len(self.site.tokens[i]), len(self.dynamic[i].runs or ())),
        )
        runs = self.dynamic[largest].runs
        if not runs:  # no known dimensions, or a scalar beside a larger constant
            return None
        dimension = {axis: d for d, run in enumerate(runs) for axis in run}
        homes: list[int] = []
        for token in reversed(tokens):  # a token that the largest operand lacks joins its successor
            axes = self.site.tokens[largest].get(token)
            follows = homes[-1] if homes else len(runs) - 1
            homes.append(min(dimension[axis] for axis in axes) if axes else follows)
        homes.reverse()
        joint = [home for home, token in zip(homes, tokens, strict=True) if token in together]
        homes = [min(joint) if token in together else home for home, token in zip(homes, tokens, strict=True)]
        if homes != sorted(homes):
            return None
        groups: list[list[Token]] = []
        for d, run in enumerate(runs):
            if not run:
                groups.append([])
            for p, token in enumerate(tokens):
                if homes[p] == d:
                    if p in cuts or p == 0 or homes[p - 1] != d:
                        groups.append([])
                    groups[-1].append(token)
        return groups

    def apart(
        self, name: str, *, together: bool = False, leads: Iterable[Token] = (), merged: bool = False
    ) -> tuple[list[list[Token]], list[int]]:
        """Return physical dimensions in which the label `name` is apart, and the positions of its dimensions.

        It has one dimension if it is `together`, or if it has no axes: then the last one, of size 1. A
        dimension starts at each of `leads`. They are `merged` as in `split`.
        """
        tokens = self.labelled(name)
        if tokens:
            groups = self.split(leads, alone=tokens, together=tokens if together else (), merged=merged)
            return groups, self.positions(groups, tokens)
        groups = self.split(room=1, merged=merged)
        units = [i for i, group in enumerate(groups) if not group]
        groups = [*(group for i, group in enumerate(groups) if i not in units[-1:]), []]
        return groups, [len(groups) - 1]

    def ending_in(self, name: str) -> list[list[Token]]:
        """Return physical dimensions that end in the whole label `name`; its size is 1 if it has no axes."""
        groups, own = self.apart(name, together=True)
        return [*(group for d, group in enumerate(groups) if d not in own), self.labelled(name)]

    def runs(self, i: int, groups: Sequence[Sequence[Token]]) -> tuple[AxisGroup, ...]:
        return tuple(self.axes(i, group) for group in groups)

    def by_label(self, *labels: str) -> list[list[Token]]:
        """Return one physical dimension for each label, or for several labels in one text."""
        return [self.labelled(*names.split()) for names in labels]

    @staticmethod
    def positions(groups: Sequence[Sequence[Token]], tokens: Collection[Token]) -> list[int]:
        """Return the physical dimensions that begin with one of these tokens."""
        return [d for d, group in enumerate(groups) if group and group[0] in tokens]

    # -- operands and results

    def take(self, i: int, groups: Sequence[Sequence[Token]]) -> torch.fx.Node:
        """Return dynamic operand `i` with one physical dimension per group."""
        buffer = self.site.views[i].buffer
        taken = self.b.shaped(buffer, self.dynamic[i], self.runs(i, groups))
        is_half = self.widens and self.b.buffers[buffer].value.dtype in HALVES
        return self.b.call(aten._to_copy.default, taken, dtype=torch.float32) if is_half else taken

    def take_constant(self, position: int, groups: Sequence[Sequence[Token]]) -> torch.fx.Node:
        """Return the constant at `position` of the operands, re-laid, with one dimension per group."""
        source, tensor = self.site.sources[position], self.tensors[position]
        axes = token_axes(tensor, self.relation)
        order = [axis for group in groups for token in group for axis in axes.get(token, ())]
        relaid = self.b.value_of(source).reshape(tensor.sizes).permute(order)
        shape = [math.prod(tensor.sizes[a] for t in group for a in axes.get(t, ())) for group in groups]
        return self.b.constant(str(source.target), relaid.reshape(shape))

    def all_operands(self, groups: Sequence[Sequence[Token]]) -> list[torch.fx.Node]:
        """Return every operand in argument order, constants included, aligned to the groups.

        A scalar beside tensors keeps rank 0, because the tensors decide the type of the result.
        """
        all_scalars = not any(shape_of(source) for source in self.site.sources)
        shaped = [groups if shape_of(source) or all_scalars else [] for source in self.site.sources]
        return self.operands_in(shaped)

    def operands_in(self, shaped: Sequence[Sequence[Sequence[Token]]]) -> list[torch.fx.Node]:
        """Return every operand in argument order, constants included, each with its physical dimensions."""
        dynamic = itertools.count()
        return [
            self.take_constant(position, groups)
            if source.op == "get_attr"
            else self.take(next(dynamic), groups)
            for position, (source, groups) in enumerate(zip(self.site.sources, shaped, strict=True))
        ]

    def give(self, node: torch.fx.Node, groups: Sequence[Sequence[Token]]) -> None:
        """Store the result, which has one physical dimension per group."""
        buffer = self.site.views[self.result].buffer
        dtype = self.b.buffers[buffer].value.dtype
        if self.widens and dtype in HALVES:
            node = self.b.call(aten._to_copy.default, node, dtype=dtype)
        self.b.store(buffer, self.orders[self.result], node, self.runs(self.result, groups))

    def give_reduced(
        self, node: torch.fx.Node, groups: Sequence[Sequence[Token]], dims: Sequence[int]
    ) -> None:
        """Do the same as `give`, for a result whose size is 1 in the physical dimensions `dims`."""
        self.give(node, [[] if d in dims else group for d, group in enumerate(groups)])

    def size(self, i: int, group: Iterable[Token]) -> int:
        return self.b.extent(self.site.views[i].buffer, self.axes(i, group))

    @property
    def result(self) -> int:
        return len(self.site.reads)

    def weight(self, argument: int) -> torch.Tensor | None:
        source = args_of(self.node)[argument] if len(args_of(self.node)) > argument else None
        if source is None:
            return None
        value = self.b.value_of(source)
        return value.float() if self.widens and value.dtype in HALVES else value

    def constant(self, tensor: torch.Tensor | None, argument: int) -> torch.fx.Node | None:
        return None if tensor is None else self.b.constant(str(args_of(self.node)[argument].target), tensor)
