"""Let a network select what its program selected: the best places of a row, or a side of a step.

A rounding may exchange two places whose scores are nearly equal, and with them all that is computed from
these places. So the network's results are computed with the program's places. The scores at these places must
be the best ones, within the tolerance.

A rounding may also move an element across a step, such as 0.5 for `round` and 0 for `x > 0`. The network then
takes the program's side. This must be exactly the side of the program's own operand, and that operand must be
the network's within the tolerance. If the program has no such operand, the network's must be as near to the
step as the tolerance.
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
from dimorder.graph.elements import CASTS
from dimorder.graph.exported import add_outputs
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.interpreter import GraphRun, arguments
from dimorder.graph.nodes import RESULT, bound, equal_calls, is_getitem, operator_at, origin_of
from dimorder.ops.problem_map import BufferInfo
from dimorder.verification.relative_error import relative_error

aten = torch.ops.aten

Numerics: TypeAlias = "Callable[[GraphModule], GraphRun]"
Compute: TypeAlias = "Callable[[Sequence[Tensor]], list[Tensor]]"

# Pools that return the largest element of each window first, then its place in its plane; by rank of a plane.
_POOLS: Mapping[Any, int] = MappingProxyType(
    {
        aten.max_pool2d_with_indices.default: 2,
        aten.max_pool3d_with_indices.default: 3,
        aten.adaptive_max_pool2d.default: 2,
        aten.adaptive_max_pool3d.default: 3,
    }
)
# Operators that return places of a dimension, and which of their results the places are. None is the result
# itself; the others return the scores first.
_PLACES: Mapping[Any, int | None] = MappingProxyType(
    {
        **dict.fromkeys(_POOLS, 1),
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
Result: TypeAlias = "tuple[str, int | None]"  # a call, and which of its results; None is the only one
_ULPS = 1e-6
_COMPARISONS = (aten.gt, aten.ge, aten.lt, aten.le)
# Operators that rise or fall in steps along their first operand.
_STEPS = frozenset(
    {
        *(aten.round.default, aten.round.decimals, aten.floor.default, aten.ceil.default, aten.trunc.default),
        *(aten.sign.default, *CASTS),
        *(overload for each in _COMPARISONS for overload in (each.Tensor, each.Scalar)),
    }
)


@dataclass
class Selections:
    """A physical program that also returns what it selects: places, and the results of steps.

    Attributes:
        program: The physical program.
        contract: Its contract.
        sources: For each further output the result that it is: of a call that selects, or the operand of a
            step. Then the buffer, and the order of the buffer's axes.
        equal: For each call the first one that computes the same.
        selected: The further outputs of the last run, as they lie in memory.
    """

    program: ExportedProgram
    contract: Contract
    sources: Sequence[tuple[Result, BufferInfo, Sequence[int]]]
    equal: Mapping[str, str]
    selected: dict[Result, Tensor] = field(default_factory=dict)

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
        calls, equal = list(_selecting_calls(network)), equal_calls(network)
        selecting = {(equal[node.name], _PLACES.get(node.target)) for node in calls}
        steps = [node for node in calls if node.target in _STEPS]
        operands = {_result(each, equal) for node in steps for each in node.all_input_nodes}
        found: dict[Result, Node] = {}
        for node in physical.graph.nodes:
            origin = origin_of(node)
            meta = buffers[origin["buffer"]].root.meta if "buffer" in origin else {}
            name, index = meta.get(RESULT) or ("", None)
            result = (equal.get(name, ""), index)
            if result in selecting or result in operands:
                found.setdefault(result, node)
        if not selecting.intersection(found) or contract.state:
            return None
        specs = [
            TensorSpec.row_major(f"selected_{i}", node.meta["val"]) for i, node in enumerate(found.values())
        ]
        sources = [
            (result, buffers[origin_of(node)["buffer"]], origin_of(node)["order"])
            for result, node in found.items()
        ]
        more = replace(contract, outputs=(*contract.outputs, *specs))
        return Selections(add_outputs(physical, list(found.values())), more, sources, equal)

    def record(self, run: Compute) -> Compute:
        """Return a run of the program as a run that returns the network's outputs, and keeps the others."""

        def recorded(inputs: Sequence[Tensor]) -> list[Tensor]:
            results = run(inputs)
            count = len(results) - len(self.sources)
            found = (result for result, _, _ in self.sources)
            self.selected.update(zip(found, results[count:], strict=True))
            return results[:count]

        return recorded

    def follow(self, numerics: Numerics, tolerance: float | None = None) -> Numerics:
        """Return numerics in which the network selects what the last run selected.

        With a `tolerance`, the scores at these places must be the best ones, and the elements must be at
        these steps. It is relative to the largest of these.
        """
        selected = {
            result: partial(buffer.logical, self.selected[result], order)
            for result, buffer, order in self.sources
        }
        return lambda module: _FollowingRun(numerics(module), selected, self.equal, tolerance)


def selects(network: Graph) -> bool:
    """Return whether a network selects what another program may select otherwise."""
    return next(_selecting_calls(network), None) is not None


def _selecting_calls(network: Graph) -> Iterator[Node]:
    """Yield the calls that select by floats, or among equal integers in any sequence."""
    for node in network.nodes:
        if node.target in _PLACES or node.target in _STEPS:
            is_float = node.all_input_nodes[0].meta["val"].is_floating_point()
            is_cast = node.target in CASTS and node.meta["val"].is_floating_point()
            of_equal = node.target in (aten.topk.default, aten.sort.default, aten.argsort.default)
            of_equal |= node.target is aten.sort.stable and not node.kwargs["stable"]
            if (is_float and not is_cast) or of_equal:
                yield node


def _result(node: Node, equal: Mapping[str, str]) -> Result:
    """Return of which call a node is a result, and which result."""
    name, index = (str(node.args[0]), node.args[1]) if is_getitem(node) else (node.name, None)
    return equal[name], index  # type: ignore[return-value]


class _FollowingRun(GraphRun):
    """Another run, in which some calls select what is given: for each a function of the result's shape."""

    def __init__(
        self,
        inner: GraphRun,
        selected: Mapping[Result, Callable[..., Tensor | None]],
        equal: Mapping[str, str],
        tolerance: float | None,
    ) -> None:
        super().__init__(inner.module)
        self.inner, self.selected, self.equal, self.tolerance = inner, selected, equal, tolerance

    def constant(self, value: Any, readers: Iterable[Any] = ()) -> Any:
        return self.inner.constant(value, readers)

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.inner.call(target, args, kwargs)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        result = self.inner.result(node, operands, result)
        if node.target not in _PLACES and node.target not in _STEPS:
            return result
        given = self.selected.get((self.equal[node.name], _PLACES.get(node.target)))
        own = result if _PLACES.get(node.target) is None else result[1]
        selected = None if given is None else given(own.shape)
        if selected is None:  # the program selects nothing here, or along another dimension
            return result
        args, kwargs = arguments(node, operands)
        if node.target in _STEPS:
            if self.tolerance is not None:
                self._require_side(node, operands, selected, own, self.tolerance)
            return selected.to(own.dtype)
        return self._with_places(node, bound(node.target, args, kwargs), own, selected.to(torch.int64))

    def _require_side(
        self, node: Node, operands: Mapping[Node, Any], selected: Tensor, own: Tensor, tolerance: float
    ) -> None:
        """Check the program's results of a step by its own operands, or by the network's if it has none."""
        args, kwargs = arguments(node, operands)
        theirs = self._programs_operands(operands)
        if theirs is None:
            _require_steps(node, args, kwargs, selected, own, tolerance)
            return
        their_args, _ = arguments(node, theirs)
        _require_own_steps(node, args, their_args, kwargs, selected, own)
        _require_operands(node, args, their_args, tolerance)

    def _programs_operands(self, operands: Mapping[Node, Any]) -> Mapping[Node, Any] | None:
        """Return the operands that the program has, with constants and inputs; None if one is missing."""
        found = dict(operands)
        for node, value in operands.items():
            if node.op == "call_function":
                given = self.selected.get(_result(node, self.equal))
                theirs = None if given is None else given(value.shape)
                if theirs is None:
                    return None
                found[node] = theirs
        return found

    def _with_places(self, node: Node, given: Mapping[str, Any], own: Tensor, places: Tensor) -> Any:
        """Return the result of a call with the places that the program selects, if these are the best."""
        scores, dim = given["self"], given.get("dim")
        if node.target in _POOLS:
            rank = _POOLS[node.target]
            _require_in_windows(node, given, places, scores.shape[-rank:])
            scores, dim, rows = scores.flatten(-rank), -1, places.flatten(-rank)
        else:
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


def _require_in_windows(node: Node, given: Mapping[str, Any], places: Tensor, plane: Sequence[int]) -> None:
    """Check that each place of a pool's result lies in its window."""
    rank, rest = len(plane), places
    for dim in reversed(range(rank)):
        at, rest = rest % plane[dim], rest // plane[dim]
        old, new = plane[dim], places.shape[dim - rank]
        number = torch.arange(new).reshape(-1, *[1] * (rank - 1 - dim))
        if "output_size" in given:
            begin, end, apart = number * old // new, -(-(number + 1) * old // new), 1
        else:
            taps, padding, apart = (
                _along(given[name], dim) for name in ("kernel_size", "padding", "dilation")
            )
            begin = number * _along(given["stride"] or given["kernel_size"], dim) - padding
            end = begin + (taps - 1) * apart + 1
        if not bool(((begin <= at) & (at < end) & ((at - begin) % apart == 0)).all()):
            raise _wrong(node, "it selects a place outside of the window")
    if bool((rest != 0).any()):
        raise _wrong(node, "it selects a place outside of the plane")


def _along(sizes: Any, dim: int) -> int:
    """Return the size of a pool in one dimension, of those that are given."""
    return int(sizes if isinstance(sizes, int) else sizes[dim % len(sizes)])


def _require_steps(
    node: Node, args: Sequence[Any], kwargs: Any, selected: Tensor, own: Tensor, tolerance: float
) -> None:
    """Check that results of steps are those of elements that differ by the tolerance at most."""
    reach = torch.tensor(tolerance * max(map(_largest, args), default=0.0))
    if not bool((_is_between(node.target, args, kwargs, selected, reach) | _are_same(selected, own)).all()):
        raise _wrong(node, "its result differs, and its operand is not near a step")


def _require_own_steps(
    node: Node, args: Sequence[Any], theirs: Sequence[Any], kwargs: Any, selected: Tensor, own: Tensor
) -> None:
    """Check that results of steps are exactly those of the program's operands, `theirs`.

    A program may compute a step from a wider number than the one that it stores, of half precision.
    """
    wanted = node.target(*theirs, **kwargs)  # type: ignore[operator]
    off = (selected.double() - wanted.double()).abs()
    is_right = _are_same(selected, wanted) | _are_same(selected, own) | (off <= _ULPS * wanted.double().abs())
    x, stored = args[0], theirs[0]
    if stored.dtype in HALVES or stored.dtype != x.dtype:
        reach = torch.finfo(stored.dtype).eps * stored.abs()
        is_right = is_right | _is_between(node.target, theirs, kwargs, selected, reach)
    if not bool(is_right.all()):
        raise _wrong(node, "its result is not that of its operand")


def _require_operands(node: Node, args: Sequence[Any], theirs: Sequence[Any], tolerance: float) -> None:
    """Check that the program's operands are those of the network, within the tolerance."""
    for x, y in zip(args, theirs, strict=True):
        if isinstance(x, Tensor) and x.is_floating_point():
            error = relative_error(y.to(x.dtype), x)
            if not error <= tolerance:
                raise _wrong(node, f"its operand is off by {error:.2e}")


def _is_between(target: Any, args: Sequence[Any], kwargs: Any, selected: Tensor, reach: Tensor) -> Tensor:
    """Return where results of steps lie between those of operands that are lower and higher by `reach`."""
    x, *others = args
    below, above = (target(x + shift, *others, **kwargs).double() for shift in (-reach, reach))
    given, slack = selected.double(), _ULPS * below.abs()  # of tenths, which are rounded themselves
    low, high = torch.minimum(below, above) - slack, torch.maximum(below, above) + slack
    is_between: Tensor = (low <= given) & (given <= high)
    return is_between


def _are_same(x: Tensor, y: Tensor) -> Tensor:
    same: Tensor = (x == y) | (x.isnan() & y.isnan())
    return same


def _largest(operand: Any) -> float:
    """Return the largest finite magnitude of an operand of floats, or 0."""
    if not isinstance(operand, Tensor) or not operand.is_floating_point():
        return 0.0
    finite = operand[operand.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _require_best(node: Node, chosen: Tensor, best: Tensor, scores: Tensor, tolerance: float) -> None:
    """Check that selected scores are the best ones, one after another."""
    if not scores.is_floating_point():
        if not torch.equal(chosen, best):
            raise _wrong(node, "it selects integers that are not the best ones")
        return
    equal, scale = _are_same(chosen, best), _largest(scores)
    off = float((chosen - best)[~equal].abs().max()) if not equal.all() else 0.0
    if not off <= tolerance * scale:
        raise _wrong(node, f"it selects scores that are off from the best ones by {off / (scale or 1):.2e}")


def _wrong(node: Node, found: str) -> VerificationError:
    return VerificationError(operator_at(node), found, "report this network: a rule, or the target, is wrong")
