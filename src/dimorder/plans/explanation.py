"""Say of one conversion of a plan which operators it serves, what it moves, and what would avoid it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dimorder.graph.nodes import operator_name, where
from dimorder.text import shape_text


@dataclass(frozen=True)
class Place:
    """An operator and its source line; "contract" for the caller's side of an input or output."""

    operator: str
    source: str

    @staticmethod
    def of(node: Any) -> Place:
        """Return the place of an fx node."""
        return Place(operator_name(node), where(node))

    @property
    def is_contract(self) -> bool:
        return self.operator == "contract"

    def __str__(self) -> str:
        return f"{self.operator} ({self.source})"


@dataclass(frozen=True)
class PlannedConversion:
    """One conversion of the plan: its value, its orders, its bytes, and the operators before and after it.

    `transposes` is 1, or more if one would have more dimensions than the target has.
    """

    value: str
    shape: tuple[int, ...]
    from_order: str
    to_order: str
    bytes: int
    producer: Place
    consumers: tuple[Place, ...]
    transposes: int

    @property
    def moved(self) -> str:
        return f"{self.bytes:,} bytes" + (f" in {self.transposes} transposes" if self.transposes > 1 else "")

    @property
    def facts(self) -> dict[str, str]:
        """The facts that a page or a graph shows, by title."""
        return {
            "value": f"{self.value} {shape_text(self.shape, ' × ')}",
            "before": self.from_order,
            "after": self.to_order,
            "moves": self.moved,
            "from": str(self.producer),
            "for": "; ".join(map(str, self.consumers)),
        }

    def to_dict(self) -> dict[str, Any]:
        def place_dict(place: Place) -> Any:
            return "contract" if place.is_contract else asdict(place)

        return {
            "value": self.value,
            "shape": list(self.shape),
            "from": self.from_order,
            "to": self.to_order,
            "bytes": self.bytes,
            "producer": place_dict(self.producer),
            "consumers": [place_dict(place) for place in self.consumers],
        }

    def __str__(self) -> str:
        consumers = " and ".join(map(str, self.consumers[:2]))
        more = f" and {len(self.consumers) - 2} more" if len(self.consumers) > 2 else ""
        source, _, cuts = self.from_order.partition(", where")
        source = source if self.to_order.endswith(cuts) else self.from_order
        return (
            f"{self.value} {shape_text(self.shape)}: "
            f"{source} → {self.to_order}: {self.moved}\n"
            f"    from {self.producer}\n    for {consumers}{more}"
        )


@dataclass(frozen=True)
class Explanation:
    """Why a conversion is in the plan, and what the user could change.

    `share` is its share of the bytes that all conversions move. `cost_without` is the best plan's cost if the
    conversion were forbidden, None if there is no such plan.
    """

    conversion: PlannedConversion
    share: float
    cost: int
    cost_without: int | None
    unit: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "conversion": self.conversion.to_dict(),
            "share": self.share,
            "cost": self.cost,
            "cost_without": self.cost_without,
            "cost_unit": self.unit,
            "advice": self.advice,
        }

    @property
    def alternative(self) -> str:
        """The cost of a plan without the conversion, in words."""
        if self.cost_without is None:
            return "no plan does without it"
        if self.cost_without == self.cost:
            return f"a plan without it converts elsewhere and costs the same {self.cost:,} {self.unit}"
        return f"without it the best plan costs {self.cost_without:,} {self.unit} instead of {self.cost:,}"

    def __str__(self) -> str:
        reason = f"{self.share:.0%} of all bytes converted; {self.alternative}"
        return f"{self.conversion}\n    {reason}\n    {self.advice}"
