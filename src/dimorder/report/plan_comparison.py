"""Compare the conversions of two plans of a network, or of a plan and a file of another lowering."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from dimorder.errors import UsageError
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report.drawing import Drawing, explain_largest, file_drawing, plan_drawing
from dimorder.text import columns, counted, notebook_html

if TYPE_CHECKING:
    from dimorder.executorch.file_graph import FileNode


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, its operators and conversions, and its cost and proof in words."""

    name: str
    drawing: Drawing
    cost: str
    proof: str


@dataclass(frozen=True)
class PlanComparison:
    """Two plans of one network, or a plan and a file; `print` shows the totals.

    Attributes:
        sides: The sides.
        slots: The position of each operator of each side. An operator that both have has one position.
        shared: The conversions of each side, by their numbers, that are between the same two operators as a
            conversion of the other side.

    >>> import torch, dimorder
    >>> x, net = torch.randn(2, 3, 5, 7), torch.nn.Conv2d(3, 8, 3)
    >>> plans = {f"by {by}": dimorder.plan(net, (x,), objective=by) for by in ("bytes", "count")}
    >>> print(compare_plans(plans))
                                                       by bytes                               by count
    conversions                                               2                                      2
    bytes that they move                                  1,800                                  1,800
    conversions only here                                     0                                      0
    bytes moved only here                                     0                                      0
    cost by its objective                           1,800 bytes                          2 conversions
    proof                  no plan costs less than 1,800 bytes  no plan costs less than 2 conversions
    """

    sides: tuple[Side, Side]
    slots: tuple[tuple[int, ...], tuple[int, ...]]
    shared: tuple[frozenset[int], frozenset[int]]

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Return the totals as rows: a title, and the text of each side."""
        for title, key in _TOTALS.items():
            first, second = (f"{totals[key]:,}" for totals in map(self.totals, (0, 1)))
            yield title, first, second
        yield "cost by its objective", self.sides[0].cost, self.sides[1].cost
        yield "proof", self.sides[0].proof, self.sides[1].proof

    def totals(self, number: int) -> dict[str, int]:
        """Return how many conversions a side has and what they move: all, and those of that side alone."""
        drawing, shared = self.sides[number].drawing, self.shared[number]
        common = sum(drawing.marks[each].bytes for each in shared)
        count, moved = drawing.conversion_count, drawing.converted_bytes
        numbers = (count, moved, count - len(shared), moved - common)
        return dict(zip(_TOTALS.values(), numbers, strict=True))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the totals as JSON-ready data; the keys are stable."""
        return [{"name": side.name, **self.totals(number)} for number, side in enumerate(self.sides)]

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the totals."""
        names = [side.name for side in self.sides]
        return notebook_html(" beside ".join(names), [*self.rows()], ("", *names))

    def __str__(self) -> str:
        head = ("", *(side.name for side in self.sides))
        return "\n".join(columns([head, *self.rows()], numbers=True))


_TOTALS = {
    "conversions": "conversion_count",
    "bytes that they move": "converted_bytes",
    "conversions only here": "conversion_count_here_alone",
    "bytes moved only here": "converted_bytes_here_alone",
}


def compare_plans(
    sides: Mapping[str, NetworkPlan | Sequence[FileNode]],
    *,
    explained: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> PlanComparison:
    """Compare two plans of a network, or a plan with the file of another lowering.

    Args:
        sides: two sides by their names: plans, or the operators of a file from `executorch.file_graph`.
        explained: whether the largest conversions of each plan get their reasons, each of which solves a
            plan anew.
        progress: called with the name of each step as the step begins.

    Returns:
        The comparison, for `print` or `comparison_page`.

    Raises:
        UsageError: if there are not two sides.
    """
    if len(sides) != 2:
        raise UsageError("comparing plans", f"{len(sides)} sides", "give two, by their names")

    def side(name: str, given: NetworkPlan | Sequence[FileNode]) -> Side:
        if not isinstance(given, NetworkPlan):
            return Side(name, file_drawing(given), "no objective", "none")
        reasons = explain_largest(given, progress) if explained else {}
        bound = f"no plan costs less than {counted(given.certificate.lower_bound, given.units[0])}"
        proof = bound if given.certificate.optimal else f"not proven: {bound}"
        return Side(name, plan_drawing(given, reasons), counted(given.cost[0], given.units[0]), proof)

    first, second = (side(*each) for each in sides.items())
    return align_sides(first, second)


def align_sides(*sides: Side) -> PlanComparison:
    assert len(sides) == 2
    slots = _merge(*([box.place for box in side.drawing.boxes] for side in sides))
    between = [_edges_by_conversion(side.drawing, own) for side, own in zip(sides, slots, strict=True)]
    shared = (_shared(between[0], between[1]), _shared(between[1], between[0]))
    return PlanComparison(sides, slots, shared)


def _merge(first: Sequence[str], second: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of two sequences in one that keeps the order of both.

    >>> _merge(["input", "net.py:3", "net.py:4"], ["input", "", "net.py:4"])
    ((0, 1, 3), (0, 2, 3))
    """
    keys: list[list[Hashable]] = [
        [each or (side, index) for index, each in enumerate(own)] for side, own in enumerate((first, second))
    ]
    slots: tuple[list[int], list[int]] = ([], [])
    found = SequenceMatcher[Hashable](None, keys[0], keys[1], autojunk=False)
    count = 0
    for kind, start, end, other_start, other_end in found.get_opcodes():
        lengths = end - start, other_end - other_start
        slots[0].extend(range(count, count + lengths[0]))
        count += 0 if kind == "equal" else lengths[0]
        slots[1].extend(range(count, count + lengths[1]))
        count += lengths[1]
    return tuple(slots[0]), tuple(slots[1])


def _edges_by_conversion(drawing: Drawing, slots: Sequence[int]) -> dict[int, set[tuple[int, int]]]:
    """Return the edges between positions on which each conversion is."""
    found: dict[int, set[tuple[int, int]]] = {}
    for edge in drawing.edges:
        if edge.conversion is not None:
            found.setdefault(edge.conversion, set()).add((slots[edge.source], slots[edge.target]))
    return found


def _shared(
    own: Mapping[int, set[tuple[int, int]]], other: Mapping[int, set[tuple[int, int]]]
) -> frozenset[int]:
    elsewhere = set().union(*other.values())
    return frozenset(number for number, edges in own.items() if edges & elsewhere)
