"""Let a network select what its program selected: the best of a row, in a sequence, or the place of the best.

A rounding may exchange two places whose scores are nearly equal, and with them all that is computed from
these places. So the network's results are computed with the program's places. The scores at these places must
be the best ones, within the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

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


@dataclass
class Selections:
    """A physical program that also returns the places that it selects.

    Attributes:
        program: The physical program.
        contract: Its contract.
        sources: For each further output the name of the exported program's call that selects, the buffer,
            and the order of the buffer's axes.
        places: The places of the last run, by the names of these calls.
    """

    program: ExportedProgram
    contract: Contract
    sources: Sequence[tuple[str, BufferInfo, Sequence[int]]]
    places: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(
        physical: ExportedProgram,
        contract: Contract,
        buffers: Sequence[BufferInfo],
        exported: ExportedProgram,
    ) -> Selections | None:
        """Return the selections of a physical program without state, by its buffers; None without any."""
        places = {(node.name, _PLACES[node.target]) for node in _selecting_calls(exported)}
        found: dict[int, tuple[Node, str]] = {}
        for node in physical.graph.nodes:
            origin = origin_of(node)
            result = buffers[origin["buffer"]].root.meta.get(RESULT) if "buffer" in origin else None
            if result in places:
                found.setdefault(origin["buffer"], (node, result[0]))
        if not found or contract.state:
            return None
        nodes = [node for node, _ in found.values()]
        specs = [TensorSpec.row_major(f"places_of_{name}", node.meta["val"]) for node, name in found.values()]
        sources = [(name, buffers[i], origin_of(node)["order"]) for i, (node, name) in found.items()]
        more = replace(contract, outputs=(*contract.outputs, *specs))
        return Selections(add_outputs(physical, nodes), more, sources)

    def record(self, run: Compute) -> Compute:
        """Return a run of the program as a run that returns the network's outputs, and keeps the places."""

        def recorded(inputs: Sequence[Tensor]) -> list[Tensor]:
            results = run(inputs)
            count = len(results) - len(self.sources)
            for (name, buffer, order), places in zip(self.sources, results[count:], strict=True):
                self.places[name] = buffer.logical(places, order).to(torch.int64)
            return results[:count]

        return recorded

    def follow(self, numerics: Numerics, tolerance: float | None = None) -> Numerics:
        """Return numerics in which the network selects the places of the last run.

        With a `tolerance` the scores at these places must be the best ones, relative to the largest score.
        """
        return lambda module: _FollowingRun(numerics(module), dict(self.places), tolerance)


def selects(program: ExportedProgram) -> bool:
    """Return whether an exported program selects places that another program may select otherwise."""
    return next(_selecting_calls(program), None) is not None


def _selecting_calls(exported: ExportedProgram) -> Iterator[Node]:
    """Yield the calls that select by floats, or among equal integers in any sequence."""
    for node in exported.graph.nodes:
        if node.target in _PLACES:
            is_float = node.all_input_nodes[0].meta["val"].is_floating_point()
            if is_float or node.target in (aten.topk.default, aten.sort.default, aten.argsort.default):
                yield node


class _FollowingRun(GraphRun):
    """Another run, in which some calls select given places."""

    def __init__(self, inner: GraphRun, places: Mapping[str, Tensor], tolerance: float | None) -> None:
        super().__init__(inner.module)
        self.inner, self.places, self.tolerance = inner, places, tolerance

    def constant(self, value: Any, readers: Iterable[Any] = ()) -> Any:
        return self.inner.constant(value, readers)

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.inner.call(target, args, kwargs)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        result = self.inner.result(node, operands, result)
        places = self.places.get(node.name)
        if places is None or node.target not in _PLACES:
            return result
        own = result if _PLACES[node.target] is None else result[1]
        if places.shape != own.shape:  # the program selects along another dimension
            return result
        given = bound(node.target, *arguments(node, operands))
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
