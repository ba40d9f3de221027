"""Show a plan to people and machines: conversions with their operators, source lines, reasons and costs.

Everything here is derived from the solver's plan.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

from dimorder.contract import Contract
from dimorder.errors import UsageError, as_int
from dimorder.layout.problem import Extracted
from dimorder.ops.problem_map import transposes
from dimorder.planning.plan import Certificate, LayoutPlan
from dimorder.planning.problem import Conversion
from dimorder.planning.solve import best_cost, forbid
from dimorder.plans.explanation import Explanation, Place, PlannedConversion
from dimorder.plans.order_names import order_name
from dimorder.sizes.ranges import RangeProof
from dimorder.sizes.symbolic_program import format_point
from dimorder.text import counted, notebook_html


@dataclass(frozen=True)
class NetworkPlan:
    """A proven plan for one network, target and contract.

    `print(plan)` shows it, and `plan.explain(i)` gives the reason for conversion `i`.

    Attributes:
        target: The target's name.
        contract: The promised inputs and outputs.
        layout_plan: The solver's plan, with its certificate.
        extracted: The layout problem, and the program that it belongs to.
        float_islands: The operators of a quantised network that are computed in float32, each with the
            reason. They are known once the program is emitted.
        ranges: The proof for dynamic sizes, if any. Sizes and costs are then those at `ranges.cost_at`.

    >>> import torch
    >>> from dimorder.api import plan
    >>> found = plan(torch.nn.Conv2d(3, 8, 3), (torch.ones(2, 3, 5, 7),), input_orders="NHWC")
    >>> found.cost, found.units, found.certificate.optimal, found.check()
    ((960, 1), ('bytes', 'conversions'), True, ())
    >>> found.opaque, found.outside, found.blocks  # no operator is in anyone's way
    ((), (), ())
    >>> [conversion.to_order for conversion in found.conversions]
    ['NCHW (0, 1, 2, 3)']
    >>> print(found.explain(0).advice)
    take this output in NHWC (0, 2, 3, 1), which the program can give for free
    >>> found.to_dict()["lower_bound"]
    960
    """

    target: str
    contract: Contract
    layout_plan: LayoutPlan
    extracted: Extracted
    float_islands: tuple[tuple[Place, str], ...] = ()
    ranges: RangeProof | None = None

    @property
    def certificate(self) -> Certificate:
        """Return the cost, the proven lower bound, whether they meet, the candidates, and the proof."""
        return self.layout_plan.certificate

    @property
    def cost(self) -> tuple[int, ...]:
        """Return the cost in `units`, the objective first."""
        return self.layout_plan.cost

    @property
    def units(self) -> tuple[str, ...]:
        """Return the units of `cost`, such as bytes and conversions."""
        return self.layout_plan.units

    @property
    def conversions(self) -> tuple[PlannedConversion, ...]:
        """Return the conversions, in the sequence in which `explain` numbers them."""
        return tuple(self._plan_conversion(conversion) for conversion in self.layout_plan.conversions)

    @property
    def opaque(self) -> tuple[tuple[Place, str], ...]:
        """Return the operators that run row-major, having no rule or no kernel, each with the reason."""
        relations, outside = self.extracted.annotated.relations, self.extracted.outside
        return tuple(
            (Place.of(node), outside.get(node, relation.reason))
            for node, relation in relations.items()
            if relation.kind == "opaque"
        )

    @property
    def outside(self) -> tuple[tuple[Place, str], ...]:
        """Return the operators that run outside what the target computes, each with the reason."""
        return tuple((Place.of(node), reason) for node, reason in self.extracted.outside.items())

    @property
    def blocks(self) -> tuple[Place, ...]:
        """Return the operators that keep dimensions together because their cuts conflict."""
        return tuple(Place.of(node) for node in self.extracted.annotated.blocked)

    def check(self) -> tuple[str, ...]:
        """Return the faults of the plan, none if it is right, recomputed without the solver."""
        return self.layout_plan.check(self.extracted.problem)

    def explain(self, index: int) -> Explanation:
        """Return why a conversion is in the plan, and what the user could change.

        Args:
            index: the number of the conversion, from 0.

        Returns:
            The conversion, the cost of the best plan without it, and advice.

        Raises:
            UsageError: if there is no such conversion.
        """
        index = as_int(index, "explain", "give the number of a conversion, such as 0")
        if not 0 <= index < len(self.layout_plan.conversions):
            last = len(self.layout_plan.conversions) - 1
            fix = f"give 0 to {last}" if last > 0 else "give 0" if last == 0 else "the plan has no conversion"
            raise UsageError("explain", f"no conversion number {index}", fix)
        conversion, conversions = self.layout_plan.conversions[index], self.conversions
        planned = conversions[index]
        return Explanation(
            planned,
            planned.bytes / sum(each.bytes for each in conversions),
            self.cost[0],
            best_cost(forbid(self.extracted.problem, conversion)),
            self.units[0],
            self._advice(conversion, planned),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data; the keys are stable."""
        certificate = self.certificate
        contract = self.contract.to_dict()
        return {
            "target": self.target,
            "inputs": contract["inputs"],
            "outputs": contract["outputs"],
            **({"state": contract["state"]} if "state" in contract else {}),
            "conversions": [conversion.to_dict() for conversion in self.conversions],
            "conversion_count": len(self.layout_plan.conversions),
            "cost": self.cost[0],
            "cost_unit": self.units[0],
            "lower_bound": certificate.lower_bound,
            "optimal": certificate.optimal,
            "candidates": certificate.candidates,
            "solver": certificate.solver,
            "opaque": [{**asdict(place), "reason": reason} for place, reason in self.opaque],
            "outside_calls": [{**asdict(place), "reason": reason} for place, reason in self.outside],
            "float_islands": [{**asdict(place), "reason": reason} for place, reason in self.float_islands],
            "blocks": [asdict(place) for place in self.blocks],
            "ranges": None if self.ranges is None else self.ranges.to_dict(),
        }

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the contract, the cost and its proof, and a table of conversions."""
        facts = [conversion.facts for conversion in self.conversions]
        rows = [(str(number), *each.values()) for number, each in enumerate(facts)]
        *summary, count = self._summary()
        return notebook_html(
            "\n".join([*summary, *self._notes(), count]), rows, ("", *(facts[0] if facts else ()))
        )

    def __str__(self) -> str:
        lines = self._summary()
        for number, conversion in enumerate(self.conversions):
            lines += [f"  {number}  {conversion}".replace("\n", "\n   ")]
        return "\n".join([*lines, *self._notes()])

    # -- printing

    def _summary(self) -> list[str]:
        certificate, problem = self.certificate, self.extracted.problem
        steps, configs = problem.size
        cost = ", ".join(map(counted, self.cost, self.units))
        verdict = "optimal" if certificate.optimal else "not proven optimal"
        bound = counted(certificate.lower_bound, self.units[0])
        return [
            *str(self.contract).splitlines(),
            f"target  {self.target}: {steps} steps, {configs} configurations",
            *([] if self.ranges is None else [f"sizes   {self.ranges.ranges}"]),
            f"cost    {cost}{'' if self.ranges is None else f' at {format_point(self.ranges.cost_at)}'}",
            f"proof   no plan costs less than {bound}: {verdict} over {certificate.candidates} candidates "
            f"({certificate.solver})",
            *([] if self.ranges is None else [f"        {self.ranges}"]),
            f"conversions  {len(self.layout_plan.conversions) or 'none'}",
        ]

    def _notes(self) -> list[str]:
        opaque, outside = self.opaque, self.outside
        notes = {
            "row-major, having no rule or kernel for another order": [
                f"{place}: {why}" for place, why in opaque if (place, why) not in outside
            ],
            f"outside of what {self.target} computes": [
                f"{place}{', in row-major' if (place, why) in opaque else ''}: {why}"
                for place, why in outside
            ],
            "in float32, not in integers": [f"{place}: {why}" for place, why in self.float_islands],
            "reshapes that cut a dimension at different places, so its parts stay together": self.blocks,
        }
        titled = [(title, *(f"  {place}" for place in places)) for title, places in notes.items() if places]
        return [*itertools.chain(*titled)]

    def _plan_conversion(self, conversion: Conversion) -> PlannedConversion:
        info = self.extracted.buffers[conversion.buffer]
        source: Any = conversion.from_order
        target: Any = conversion.to_order
        count = len(transposes(source, target, self.extracted.max_rank) or ())
        consumers = dict.fromkeys(self._site_place(i) for i in conversion.consumers)
        return PlannedConversion(
            info.root.name,
            info.shape,
            order_name(info, source),
            order_name(info, target),
            count * info.nbytes,
            self._site_place(conversion.producer),
            tuple(consumers),
            count,
        )

    def _site_place(self, index: int) -> Place:
        site = self.extracted.sites[index]
        name = site.node.name
        if site.kind == "state":  # these sites come first, in the program's own sequence
            return Place("state", self.extracted.annotated.program.state[index].name)
        ends = {"input": Place("contract", name), "output": Place("contract", f"output {name}")}
        return ends.get(site.kind) or Place.of(site.node)

    def _advice(self, conversion: Conversion, planned: PlannedConversion) -> str:
        """Return what forces the conversion: the nearest operators that do not accept any order."""
        sites = self.extracted.sites
        if sites[conversion.producer].kind == "input":
            order = f"{planned.to_order} (input_orders=)"
            return f"promise input {planned.value} in {order}, if the caller has it so"
        if "output" in [sites[i].kind for i in conversion.consumers]:
            return f"take this output in {planned.from_order}, which the program can give for free"
        makers, takers = (
            list(dict.fromkeys(self._pinned(index, forward) for index in indices))
            for indices, forward in (((conversion.producer,), False), (conversion.consumers, True))
        )
        for index in (*makers, *takers):
            node = sites[index].node
            if node in self.extracted.outside:
                how = "row-major, outside" if sites[index].kind == "opaque" else "outside"
                return f"{self._site_place(index)} runs {how}: {self.extracted.outside[node]}"
            if sites[index].kind == "opaque":
                reason = self.extracted.annotated.relations[node].reason
                return f"{self._site_place(index)} runs row-major: {reason}"
        for index in (*makers, *takers):
            if sites[index].node in self.extracted.annotated.blocked:
                place = self._site_place(index)
                how = "cuts a dimension at another place than another operator does"
                return f"{place} {how}: channel counts with more factors of 2 would avoid it"
        giver, taker = planned.producer.operator, planned.consumers[0].operator
        before = f" (its operand comes from {self._site_place(makers[0])})" * (
            makers != [conversion.producer]
        )
        behind = f" for {self._site_place(takers[0])}" * (takers[0] not in conversion.consumers)
        return (
            f"{giver} gives {planned.from_order} at no cost{before}, {taker} takes {planned.to_order}{behind}"
        )

    def _pinned(self, index: int, forward: bool) -> int:
        """Return the nearest site before a conversion that does not accept every order, else `index`."""
        sites, seen = self.extracted.sites, [index]
        for at in seen:
            site = sites[at]
            if site.kind not in _FREE or site.forms != ("*",):
                return at
            linked = {view.buffer for view in (site.writes if forward else site.reads)}
            converted = {i for c in self.layout_plan.conversions if c.buffer in linked for i in c.consumers}
            for other, neighbour in enumerate(sites):
                touches = neighbour.reads if forward else neighbour.writes
                apart = (other if forward else at) in converted
                if other not in seen and not apart and any(view.buffer in linked for view in touches):
                    seen.append(other)
        return index


# Kinds of sites that accept any order, if their forms allow it.
_FREE = ("agnostic", "expand", "reduce", "state")
