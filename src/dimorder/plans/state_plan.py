"""Show and explain the order of a program's state, which the plan chose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dimorder.contract import StateSpec
from dimorder.layout.problem import Extracted
from dimorder.layout.rewrite import carried_by
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.solve import best_cost
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.order_names import order_name


@dataclass(frozen=True)
class StateExplanation:
    """Why a buffer of the state has its order: the cost of the best plan in any other, None without one."""

    state: StateSpec
    cost: int
    cost_otherwise: int | None
    unit: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.to_dict(),
            "cost": self.cost,
            "cost_otherwise": self.cost_otherwise,
            "cost_unit": self.unit,
        }

    def __str__(self) -> str:
        if self.cost_otherwise is None:
            reason = "no plan has it in another order"
        elif self.cost_otherwise == self.cost:
            reason = f"in another order the best plan costs the same {self.cost:,} {self.unit}"
        else:
            reason = (
                f"in another order the best plan costs {self.cost_otherwise:,} {self.unit} "
                f"instead of {self.cost:,}"
            )
        return f"state {self.state.name}: {self.state.order} at entry and exit\n    {reason}"


def state_specs(extracted: Extracted, plan: LayoutPlan) -> tuple[StateSpec, ...]:
    """Return the state of a program in the orders of a plan."""
    specs = []
    for buffer, carried in zip(extracted.annotated.program.state, carried_by(extracted, plan), strict=True):
        info = extracted.buffers[carried.found.buffer]
        dtype = str(buffer.initial.dtype).removeprefix("torch.")
        order = order_name(info, carried.order, is_image=True)  # as the contract names all orders
        specs.append(StateSpec(buffer.name, info.shape, dtype, order))
    return tuple(specs)


def explain_state(plan: NetworkPlan) -> list[StateExplanation]:
    """Return for each buffer of the state what the plan would cost if the buffer had another order."""
    problem = plan.extracted.problem
    carrying = [index for index, step in enumerate(problem.steps) if step.carries]
    found = []
    for index, spec in zip(carrying, plan.contract.state, strict=True):
        step, chosen = problem.steps[index], plan.layout_plan.choice[index]
        others = tuple(config for i, config in enumerate(step.configs) if i != chosen)
        steps = (*problem.steps[:index], replace(step, configs=others), *problem.steps[index + 1 :])
        cost = best_cost(replace(problem, steps=steps)) if others else None
        found.append(StateExplanation(spec, plan.cost[0], cost, plan.units[0]))
    return found
