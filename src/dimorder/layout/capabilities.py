"""Decides what the planner may know of a target's ability, and how it is asked: by what an operator would be
made of, before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dimorder.capture.captured import Captured
from dimorder.layout.costs import Costs
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.physical.dry_run import physical_calls
from dimorder.planning.problem import Cost


@dataclass(frozen=True)
class Ability:
    """What a target can do, as the planner needs it.

    `computes(call, constants)` is None for a call of a physical program that the target computes, else why it
    does not; `constants` are the nodes whose values are known. `leaves(call)` is None for a call that may run
    outside of what the target computes, on dense tensors, else why it may not. `declines` names the
    implementations that are not offered, as `operator/implementation`: the fewest first; the next set is
    taken where the candidate orders are too many. `max_rank` is the highest rank of a transpose, once
    dimensions that stay together count as one. `takes(value)` is None for what may be an input, else why not.
    `slices_copy` says that a slice takes time and memory: a product whose result is only cut is better
    several. `by_heads` says that a product with a constant matrix for each head takes no longer than one of
    all features. `fixed_resizes` says that a resize has numbers for sizes: one to symbols is better products.
    """

    computes: Callable[[torch.fx.Node, Collection[torch.fx.Node]], str | None] | None = None
    leaves: Callable[[torch.fx.Node], str | None] | None = None
    declines: tuple[frozenset[str], ...] = (frozenset(),)
    max_rank: int | None = None
    takes: Callable[[torch.Tensor], str | None] = lambda value: None
    slices_copy: bool = False
    by_heads: bool = False
    fixed_resizes: bool = False


class Verdicts:
    """What the target says of the ways to run an operator, and what they cost; like calls are asked about
    once."""

    def __init__(self, ability: Ability) -> None:
        self.ability = ability
        self.known: dict[object, tuple[str | None, str | None]] = {}
        self.costs: dict[object, Cost] = {}
        self.described: dict[torch.fx.Node, object] = {}

    def of(
        self, site: Site, arrangement: Arrangement, program: Captured, buffers: Sequence[BufferInfo]
    ) -> tuple[str | None, str | None]:
        """Why an arrangement cannot be computed by the target, and why it can neither run outside."""
        if self.ability.computes is None:
            return None, None
        key = self._key(site, arrangement, buffers)
        if key not in self.known:
            self.known[key] = self._asked(physical_calls(site, arrangement, program, buffers))
        return self.known[key]

    def cost(
        self,
        site: Site,
        arrangement: Arrangement,
        program: Captured,
        buffers: Sequence[BufferInfo],
        costs: Costs,
    ) -> Cost:
        """What it costs to run an operator so. All that are asked for are asked for of the same `costs`."""
        if costs.configuration is not None:
            return costs.configuration(site, arrangement, buffers)
        assert costs.calls is not None
        if not site.implementations:  # the contract's side
            return (0,) * len(costs.units)
        key = self._key(site, arrangement, buffers)
        if key not in self.costs:
            self.costs[key] = costs.calls(physical_calls(site, arrangement, program, buffers))
        return self.costs[key]

    def _key(self, site: Site, arrangement: Arrangement, buffers: Sequence[BufferInfo]) -> object:
        """What two ways have in common that are made of the same calls."""
        implementation = site.implementations[arrangement.implementation]
        sizes = [
            tuple(
                (token, tuple(buffers[view.buffer].tensor.sizes[a] for a in axes))
                for token, axes in held.items()
            )
            for view, held in zip(site.views, site.tokens, strict=True)
        ]
        if site.node not in self.described:
            self.described[site.node] = _described(site.node)
        return self.described[site.node], site.kind, implementation.name, arrangement.tokens, *sizes

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
