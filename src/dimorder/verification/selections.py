"""Let a network select what its program selected: the best places of a row, or a side of a step.

A rounding may exchange two places whose scores are nearly equal, and with them all that is computed from
these places. So the network's results are computed with the program's places. The scores at these places must
be the best ones, within the tolerance.

A rounding may also move an element across a step, such as 0.5 for `round` and 0 for `x > 0`. The network then
takes the program's side, if the element is as near to the step as the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from dimorder.contract import Contract, TensorSpec
from dimorder.errors import VerificationError
from dimorder.graph.exported import add_outputs
from dimorder.graph.interpreter import GraphRun, arguments
from dimorder.graph.nodes import RESULT, bound, operator_at, origin_of
from dimorder.ops.problem_map import BufferInfo

aten = torch.ops.aten

Numerics: TypeAlias = "Callable[[GraphModule], GraphRun]"
Compute: TypeAlias = "Callable[[Sequence[Tensor]], list[Tensor]]"

# Operators that return places of a dimension, and which of their results the places are. None is the result
# itself; the others return the scores first.
_PLACES: Mapping[Any, int | None] = MappingProxyType(
    {
        aten.topk.default: 1,
        aten.sort.default: 1,
        aten.sort.stable: 1,
        aten.max.dim: 1,
        aten.min.dim: 1,
        aten.argsort.default: None,
        aten.argmax.default: None,
        aten.argmin.default: None,
    }
)
_ULPS = 1e-6
_CASTS = (aten._to_copy.default, aten.to.dtype)
_COMPARISONS = (aten.gt, aten.ge, aten.lt, aten.le)
# Operators that rise or fall in steps along their first operand.
_STEPS = frozenset(
    {
        *(aten.round.default, aten.round.decimals, aten.floor.default, aten.ceil.default, aten.trunc.default),
        *(aten.sign.default, *_CASTS),
        *(overload for each in _COMPARISONS for overload in (each.Tensor, each.Scalar)),
    }
)


@dataclass
class Selections:
    """A physical program that also returns what it selects: places, and the results of steps.

    Attributes:
        program: The physical program.
        contract: Its contract.
        sources: For each further output the name of the exported program's call that selects, the buffer,
            and the order of the buffer's axes.
        selected: The further outputs of the last run, by the names of these calls, as they lie in memory.
    """

    program: ExportedProgram
    contract: Contract
    sources: Sequence[tuple[str, BufferInfo, Sequence[int]]]
    selected: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(
        physical: ExportedProgram,
        contract: Contract,
        buffers: Sequence[BufferInfo],
        network: Graph,
    ) -> Selections | None:
        """Return the selections of a physical program without state; None without any.

        Args:
            physical: the physical program.
            contract: its contract.
            buffers: its buffers.
            network: the graph of the network, which writes to nothing.
        """
        results = {(node.name, _PLACES.get(node.target)) for node in _selecting_calls(network)}
        found: dict[int, tuple[Node, str]] = {}
        for node in physical.graph.nodes:
            origin = origin_of(node)
            result = buffers[origin["buffer"]].root.meta.get(RESULT) if "buffer" in origin else None
            if result in results:
                found.setdefault(origin["buffer"], (node, result[0]))
        if not found or contract.state:
            return None
        nodes = [node for node, _ in found.values()]
        specs = [
            TensorSpec.row_major(f"selected_by_{name}", node.meta["val"]) for node, name in found.values()
        ]
        sources = [(name, buffers[i], origin_of(node)["order"]) for i, (node, name) in found.items()]
        more = replace(contract, outputs=(*contract.outputs, *specs))
        return Selections(add_outputs(physical, nodes), more, sources)

    def record(self, run: Compute) -> Compute:
        """Return a run of the program as a run that returns the network's outputs, and keeps the others."""

        def recorded(inputs: Sequence[Tensor]) -> list[Tensor]:
            results = run(inputs)
            count = len(results) - len(self.sources)
            names = (name for name, _, _ in self.sources)
            self.selected.update(zip(names, results[count:], strict=True))
            return results[:count]

        return recorded

    def follow(self, numerics: Numerics, tolerance: float | None = None) -> Numerics:
        """Return numerics in which the network selects what the last run selected.

        With a `tolerance`, the scores at these places must be the best ones, and the elements must be at
        these steps. It is relative to the largest of these.
        """
        selected = {
            name: partial(buffer.logical, self.selected[name], order) for name, buffer, order in self.sources
        }
        return lambda module: _FollowingRun(numerics(module), selected, tolerance)


def selects(network: Graph) -> bool:
    """Return whether a network selects what another program may select otherwise."""
    return next(_selecting_calls(network), None) is not None


def _selecting_calls(network: Graph) -> Iterator[Node]:
    """Yield the calls that select by floats, or among equal integers in any sequence."""
    for node in network.nodes:
        if node.target in _PLACES or node.target in _STEPS:
            is_float = node.all_input_nodes[0].meta["val"].is_floating_point()
            is_cast = node.target in _CASTS and node.meta["val"].is_floating_point()
            of_equal = node.target in (aten.topk.default, aten.sort.default, aten.argsort.default)
            if (is_float and not is_cast) or of_equal:
                yield node


class _FollowingRun(GraphRun):
    """Another run, in which some calls select what is given: for each a function of the result's shape."""

    def __init__(
        self, inner: GraphRun, selected: Mapping[str, Callable[..., Tensor | None]], tolerance: float | None
    ) -> None:
        super().__init__(inner.module)
        self.inner, self.selected, self.tolerance = inner, selected, tolerance

    def constant(self, value: Any, readers: Iterable[Any] = ()) -> Any:
        return self.inner.constant(value, readers)

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.inner.call(target, args, kwargs)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        result = self.inner.result(node, operands, result)
        if node.name not in self.selected:
            return result
        own = result if _PLACES.get(node.target) is None else result[1]
        selected = self.selected[node.name](own.shape)
        if selected is None:  # the program selects along another dimension
            return result
        args, kwargs = arguments(node, operands)
        if node.target in _STEPS:
            if self.tolerance is not None:
                _require_steps(node, args, kwargs, selected, own, self.tolerance)
            return selected.to(own.dtype)
        return self._with_places(node, bound(node.target, args, kwargs), own, selected.to(torch.int64))

    def _with_places(self, node: Node, given: Mapping[str, Any], own: Tensor, places: Tensor) -> Any:
        """Return the result of a call with the places that the program selects, if these are the best."""
        scores, dim = given["self"], given["dim"]
        if dim is None:
            scores, dim, rows = scores.flatten(), 0, places.reshape(1)
        else:
            rows = places if given.get("keepdim", True) else places.unsqueeze(dim)
        _require_places(node, rows, dim, scores.shape[dim])
        chosen = scores.gather(dim, rows)
        if self.tolerance is not None:
            pair = chosen, scores.gather(dim, own.reshape(rows.shape))
            if not given.get("sorted", True):  # in any sequence
                pair = pair[0].sort(dim).values, pair[1].sort(dim).values
            _require_best(node, *pair, scores, self.tolerance)
        return places if _PLACES[node.target] is None else (chosen.reshape(places.shape), places)


def _require_places(node: Node, rows: Tensor, dim: int, size: int) -> None:
    """Check that each row has different places of a dimension."""
    ordered = rows.sort(dim).values
    if not bool(((rows >= 0) & (rows < size)).all()) or bool((ordered.diff(dim=dim) == 0).any()):
        raise _wrong(node, f"it selects a place twice, or none of the {size} places")


def _require_steps(
    node: Node, args: Sequence[Any], kwargs: Any, selected: Tensor, own: Tensor, tolerance: float
) -> None:
    """Check that results of steps are those of elements that differ by the tolerance at most."""
    target: Any = node.target
    x, *others = args
    sizes = [each[each.isfinite()].abs() for each in args if isinstance(each, Tensor)]
    reach = tolerance * max((float(size.max()) for size in sizes if size.numel()), default=0.0)
    below, above = (target(x + shift, *others, **kwargs).double() for shift in (-reach, reach))
    given, slack = selected.double(), _ULPS * below.abs()  # of tenths, which are rounded themselves
    is_between = (torch.minimum(below, above) - slack <= given) & (
        given <= torch.maximum(below, above) + slack
    )
    if not bool((is_between | (selected == own) | (selected.isnan() & own.isnan())).all()):
        raise _wrong(node, "its result differs, and its operand is not near a step")


def _require_best(node: Node, chosen: Tensor, best: Tensor, scores: Tensor, tolerance: float) -> None:
    """Check that selected scores are the best ones, one after another."""
    if not scores.is_floating_point():
        if not torch.equal(chosen, best):
            raise _wrong(node, "it selects integers that are not the best ones")
        return
    equal = (chosen == best) | (chosen.isnan() & best.isnan())
    finite = scores[scores.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    off = float((chosen - best)[~equal].abs().max()) if not equal.all() else 0.0
    if not off <= tolerance * scale:
        raise _wrong(node, f"it selects scores that are off from the best ones by {off / (scale or 1):.2e}")


def _wrong(node: Node, found: str) -> VerificationError:
    return VerificationError(operator_at(node), found, "report this network: a rule, or the target, is wrong")
