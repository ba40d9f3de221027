"""Ask a target whether it computes the physical calls of each implementation, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from dimorder.capture.decompose_dynamic_resize import ResizeLimits
from dimorder.capture.rewrite_linears import LinearLimits
from dimorder.graph.dynamic_sizes import DynamicCall, DynamicSizeError, dynamic_calls, is_dynamic
from dimorder.layout.costs import Costs
from dimorder.layout.site_map import SiteMap
from dimorder.ops.operator import Implementation
from dimorder.ops.problem_map import Arrangement
from dimorder.ops.table import IMPLEMENTATIONS, PLAIN
from dimorder.physical.dry_run import physical_calls
from dimorder.planning.problem import Cost

AtAllSizes: TypeAlias = Callable[
    [torch.fx.Node, Collection[torch.fx.Node], Mapping[torch.fx.Node, DynamicCall]], "str | None"
]


@dataclass(frozen=True)
class Capabilities:
    """The abilities and limits of a target that the planner asks for.

    Attributes:
        computes: `computes(call, constants)` is None if the target computes a call of a physical program,
            else the reason why not. `constants` are the nodes whose values are known.
        leaves: `leaves(call)` is None if a call may run outside the target, on dense tensors, else the reason
            why not.
        implementations: The implementations that run on the target, as `operator/implementation`, of the
            operators that have several. The largest set comes first; the next set is used if there are too
            many candidate orders. Attention is one operator for a target that lists `FUSED_ATTENTION`.
        max_rank: The highest rank of a transpose, with dimensions that stay together counted as one. A
            conversion of a higher rank is several transposes. None is unlimited.
        at_all_sizes: `at_all_sizes(call, constants, numbers)` is None if the target, which computes a call at
            some sizes, does so at all of them, else the reason why not. `numbers` are the numbers of the call
            and of its operands.
        takes: `takes(value)` is None if a value may be an input, else the reason why not.
        own_implementations: Implementations that only this target has, by the operator. Each takes
            an order of the other implementations, and comes before those of that order.
        linears: The linears for which the target is faster with several operators than with one.
        fixed_resizes: The resizes that need constant sizes. A resize to dynamic sizes is then written as
            matmuls. None means that the target resizes to any sizes.
        in_parts: Functions in plain torch, by the operators that the target lacks, which are written so. Many
            are in `ops.parts`.
        in_float32: Wider types that the target computes in float32. Verification shows whether that is
            enough for a network.
        in_pairs: Whether the target has no complex numbers, which are then written as pairs of real ones.
        casts_truths: Whether the target casts truth values that a network computes. Else their numbers, 1 and
            0, are computed from those of the caller's values.
    """

    computes: Callable[[torch.fx.Node, Collection[torch.fx.Node]], str | None] | None = None
    leaves: Callable[[torch.fx.Node], str | None] | None = None
    implementations: tuple[frozenset[str], ...] = (PLAIN,)
    max_rank: int | None = None
    at_all_sizes: AtAllSizes | None = None
    takes: Callable[[torch.Tensor], str | None] = lambda value: None
    own_implementations: Mapping[str, tuple[Implementation, ...]] = field(default_factory=dict)
    linears: LinearLimits = field(default_factory=LinearLimits)
    fixed_resizes: ResizeLimits | None = None
    in_parts: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    in_float32: frozenset[torch.dtype] = frozenset()
    in_pairs: bool = False
    casts_truths: bool = False

    def __post_init__(self) -> None:
        unknown = frozenset().union(*self.implementations) - IMPLEMENTATIONS
        if unknown:
            raise ValueError(f"no implementation {', '.join(sorted(unknown))}")


class Verdicts:
    """The target's verdict on each way to run an operator, and its cost; equal calls are asked once."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.known: dict[object, tuple[str | None, str | None]] = {}
        self.costs: dict[object, Cost] = {}
        self.described: dict[torch.fx.Node, object] = {}

    def of(
        self, index: int, arrangement: Arrangement, maps: Sequence[SiteMap]
    ) -> tuple[str | None, str | None]:
        """Return why the target cannot compute an arrangement, and why it cannot run outside either.

        Each reason is None if there is none.

        Args:
            index: the place of the site.
            arrangement: the way to run it.
            maps: the sites of the network, at each point of its sizes.
        """
        if self.capabilities.computes is None:
            return None, None
        key = tuple(self._key(index, arrangement, each) for each in maps)
        if key not in self.known:
            self.known[key] = self._ask([_calls(index, arrangement, each) for each in maps])
        return self.known[key]

    def cost(self, index: int, arrangement: Arrangement, found: SiteMap, costs: Costs) -> Cost:
        """Return what it costs to run a site in an arrangement; all calls must use the same `costs`."""
        site = found.sites[index]
        if costs.configuration is not None:
            return costs.configuration(site, arrangement, found.buffers)
        assert costs.calls is not None
        if not site.implementations:  # the contract's side
            return (0,) * len(costs.units)
        key = self._key(index, arrangement, found)
        if key not in self.costs:
            self.costs[key] = costs.calls(_calls(index, arrangement, found))
        return self.costs[key]

    def _key(self, index: int, arrangement: Arrangement, found: SiteMap) -> object:
        """Return a key that two arrangements share if they are made of the same calls."""
        site = found.sites[index]
        implementation = site.implementations[arrangement.implementation]
        sizes = [
            tuple(
                (token, tuple(found.buffers[view.buffer].tensor.sizes[a] for a in axes))
                for token, axes in held.items()
            )
            for view, held in zip(site.views, site.tokens, strict=True)
        ]
        if site.node not in self.described:
            self.described[site.node] = _call_key(site.node)
        return self.described[site.node], site.kind, implementation.name, arrangement.tokens, *sizes

    def _ask(self, points: Sequence[Sequence[torch.fx.Node]]) -> tuple[str | None, str | None]:
        """Return the verdict on calls, given at each point."""
        numbers: Mapping[torch.fx.Node, DynamicCall] = {}
        if len(points) > 1:
            try:
                numbers = dynamic_calls([calls[0].graph for calls in points if calls])
            except DynamicSizeError as error:
                return (f"{error}, which depends on a dynamic size",) * 2
        inside, outside = None, None
        for row in zip(*points, strict=True):
            reason = self._refusal(row, numbers)
            if reason is None:
                continue
            inside = inside or reason
            outside = outside or (
                reason if self.capabilities.leaves is None else self.capabilities.leaves(row[0])
            )
        return inside, outside

    def _refusal(
        self, row: Sequence[torch.fx.Node], numbers: Mapping[torch.fx.Node, DynamicCall]
    ) -> str | None:
        """Return why the target does not compute a call, given at each point."""
        computes, at_all_sizes = self.capabilities.computes, self.capabilities.at_all_sizes
        assert computes is not None
        varies = is_dynamic(row[0], numbers)
        for call in row if varies else row[:1]:
            reason = computes(call, _constants(call))
            if reason is not None:
                return reason
        if not varies or at_all_sizes is None:
            return None
        return at_all_sizes(row[0], _constants(row[0]), numbers)


def _constants(call: torch.fx.Node) -> list[torch.fx.Node]:
    return [node for node in call.all_input_nodes if node.op == "get_attr"]


def _calls(index: int, arrangement: Arrangement, found: SiteMap) -> list[torch.fx.Node]:
    """Return the physical calls that an arrangement of a site would write."""
    return physical_calls(found.sites[index], arrangement, found.buffers)


def _call_key(node: torch.fx.Node) -> object:
    """Return a key of a call's own arguments: calls with equal keys are computed in the same way."""

    def operand_key(operand: torch.fx.Node) -> Any:
        value = operand.meta["val"]
        return (operand.op == "get_attr", tuple(value.shape), str(value.dtype))

    return node.target, repr(torch.fx.map_arg((node.args, node.kwargs), operand_key))
