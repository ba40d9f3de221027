"""Define a plan, the certificate of its cost, and the check that trusts neither.

A proof is shares of costs whose bound anyone can recompute in integers.

Shares prove a lower bound on the first unit. Let w[b,s,t] be the cost of converting buffer b from order s to
order t. It is 0 if s = t, and infinite if it is not offered. The reads of b share that cost: each read r that
may want t is charged a share λ[b,r,t] ≥ 0. Let Λ[b,t] be the sum of these shares over all r. Take any plan,
and let it produce b in s. Then for each t

    what it pays to convert b to t ≥ Σ_{reads r that want t} λ[b,r,t] − max(0, Λ[b,t] − w[b,s,t]).

If a read wants t, the plan pays w[b,s,t], and the right side is at most Λ − max(0, Λ − w) ≤ w. If no read
does, the right side is at most 0. Add up over b and t. Each term on the right belongs to one step's
configuration. The charges belong to the step that reads, the credit max(0, …) to the step that writes b in s.
So for every plan

    cost ≥ Σ_steps min_configurations ( own cost + Σ_reads λ[b,r,t] − Σ_writes Σ_t max(0, Λ[b,t] − w[b,s,t]) )

Any shares prove something. If a conversion is not offered, nothing is credited, so that high shares keep it
out of the minimum.

If shares cannot reach the cost, the least cost itself is computed by exact elimination (`Elimination`). If
that needs too large tables, the configurations of one step are split into parts, each with a proof of its own
(`Branch`). The bound is then the least of theirs. (Lagrangian duality; the shares are the dual values of the
relaxation in relaxation.py, but nothing here depends on where they come from.)

A proof about a large problem may be one about the reduced problem, which has the same least cost
(`ReducedProof`). The check then reduces the problem again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from dimorder.planning.elimination import MAX_ENTRIES, least_cost
from dimorder.planning.problem import (
    Conversion,
    Cost,
    InvalidChoice,
    LayoutProblem,
    Order,
    evaluate,
    unit_gcd,
)
from dimorder.planning.reduction import reduce


@dataclass(frozen=True)
class Price:
    """The charge to read `position` of step `step` if it wants `order`, in 1/denominator of a unit."""

    step: int
    position: int
    order: Order
    value: int


@dataclass(frozen=True)
class Prices:
    """A proof without case distinction: the shares λ, over one denominator; no shares prove a bound too."""

    denominator: int = 1
    shares: tuple[Price, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A proof by cases: `parts` pairs sets of configurations of one step with a proof for each."""

    step: int
    parts: tuple[tuple[tuple[int, ...], DirectProof], ...]


@dataclass(frozen=True)
class Elimination:
    """A proof by computation: `elimination.least_cost`, with tables of at most `max_entries`."""

    max_entries: int = MAX_ENTRIES


@dataclass(frozen=True)
class ReducedProof:
    """A proof about the problem that `reduction.reduce` makes of this one."""

    proof: DirectProof


DirectProof: TypeAlias = Prices | Branch | Elimination
Proof: TypeAlias = DirectProof | ReducedProof


class InvalidProof(ValueError):
    """A proof that proves nothing for its problem."""


@dataclass(frozen=True)
class Certificate:
    """The cost of a plan, and a proven lower bound on the cost of every plan.

    Attributes:
        cost: The plan's cost, one entry per unit.
        lower_bound: The proven bound: no plan costs less in the first unit.
        optimal: Whether the cost in the first unit equals the bound.
        candidates: "complete", or "truncated" if a cap cut the configurations.
        solver: The solver that found the plan.
        proof: The proof from which `LayoutPlan.check` recomputes the bound.
    """

    cost: Cost
    lower_bound: int
    optimal: bool
    candidates: str
    solver: str
    proof: Proof = field(default=Prices(), repr=False)


@dataclass(frozen=True)
class LayoutPlan:
    """A configuration per step, and the conversions that they need, by buffer, then first consumer."""

    choice: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: Cost
    units: tuple[str, ...]
    certificate: Certificate
    seconds: float = field(default=0.0, compare=False)

    def check(self, problem: LayoutProblem) -> tuple[str, ...]:
        """Return the faults of this plan, none if it is right; all that it states is recomputed."""
        return tuple(_faults(self, problem))


def make_plan(
    problem: LayoutProblem,
    choice: Sequence[int],
    *,
    solver: str,
    proof: Proof | None = None,
    bound: int | None = None,
    seconds: float = 0.0,
) -> LayoutPlan:
    """Return the plan of a choice, with its certificate; `bound` is what `proof` proves, if that is known.

    Raises `InvalidChoice` if the choice is not a plan, and `InvalidProof` if the proof proves nothing.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NHWC",), (), (0,)),))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> proof = Prices(shares=(Price(step=1, position=0, order="NHWC", value=8),))
    >>> plan = make_plan(problem, (0, 0), solver="by hand", proof=proof)
    >>> plan.cost, plan.certificate.optimal, [conversion.name for conversion in plan.conversions]
    ((8,), True, ['x'])
    >>> plan.check(problem)
    ()
    """
    evaluation = evaluate(problem, choice)
    proof = Prices() if proof is None else proof
    bound = lower_bound(problem, proof) if bound is None else bound
    certificate = Certificate(
        evaluation.cost, bound, bound == evaluation.cost[0], problem.candidates, solver, proof
    )
    return LayoutPlan(
        tuple(choice), evaluation.conversions, evaluation.cost, problem.units, certificate, seconds
    )


def lower_bound(problem: LayoutProblem, proof: Proof) -> int:
    """Return what the proof proves: no plan costs less, rounded up to the divisor of all costs."""
    if isinstance(proof, ReducedProof):
        reduced = reduce(problem)
        if reduced is None:
            raise InvalidProof(
                "a proof about the reduced problem, but this problem has too large costs for one"
            )
        return lower_bound(reduced.problem, proof.proof)
    divisor = unit_gcd(problem, 0)
    if isinstance(proof, Elimination):
        least = least_cost(problem, proof.max_entries)
        if least is None:
            raise InvalidProof(f"an elimination that takes tables of more than {proof.max_entries} entries")
        return least
    return min(-(-leaf // divisor) * divisor for leaf in _leaf_bounds(problem, proof))


def _leaf_bounds(problem: LayoutProblem, proof: DirectProof) -> Iterator[Fraction]:
    """Yield the bound of every leaf of a proof, over the configurations that its branches leave."""
    pending: list[tuple[DirectProof, dict[int, frozenset[int]]]] = [(proof, {})]
    while pending:
        node, allowed = pending.pop()
        if isinstance(node, Prices):
            yield PricedSteps(problem, node).bound(allowed)
            continue
        if not isinstance(node, Branch):
            raise InvalidProof("a proof about the whole problem inside a branch")
        if not 0 <= node.step < len(problem.steps):
            raise InvalidProof(f"a branch on step {node.step}, which does not exist")
        step = problem.steps[node.step]
        left = allowed.get(node.step, frozenset(range(len(step.configs))))
        missing = left.difference(*(part for part, _ in node.parts))
        if missing:
            raise InvalidProof(f"the branch on {step.name!r} leaves out configuration {min(missing)}")
        for part, child in node.parts:
            if left.intersection(part):
                pending.append((child, {**allowed, node.step: left.intersection(part)}))


class PricedSteps:
    """The steps of a problem under prices: what each configuration costs with them, computed once.

    Raises `InvalidProof` for prices that are none.
    """

    def __init__(self, problem: LayoutProblem, prices: Prices) -> None:
        if prices.denominator < 1:
            raise InvalidProof(f"denominator {prices.denominator}")
        self.problem, self.prices = problem, prices
        self.charged: dict[tuple[int, int, Order], int] = defaultdict(int)  # to a read
        self.shared: dict[int, dict[Order, int]] = defaultdict(lambda: defaultdict(int))  # Λ: buffer, order
        for price in prices.shares:
            self.charged[price.step, price.position, price.order] += price.value
            self.shared[_buffer_of(problem, price)][price.order] += price.value
        self.credits: dict[tuple[int, Order], int] = {}
        self.costs: dict[tuple[int, int], int] = {}  # by step and configuration
        self.least = [
            self._least(index, range(len(step.configs))) for index, step in enumerate(problem.steps)
        ]
        self.total = sum(self.least)

    def bound(self, allowed: Mapping[int, Collection[int]]) -> Fraction:
        """Return the bound that the prices prove if some steps have only these configurations left."""
        more = sum(self._least(index, configs) - self.least[index] for index, configs in allowed.items())
        return Fraction(self.total + more, self.prices.denominator)

    def _least(self, index: int, configs: Collection[int]) -> int:
        return min(self._cost(index, config) for config in configs)

    def _cost(self, index: int, config: int) -> int:
        if (index, config) not in self.costs:
            step = self.problem.steps[index]
            own = step.configs[config]
            charged = sum(self.charged.get((index, *read), 0) for read in enumerate(own.reads))
            credit = sum(map(self._credit, step.writes, own.writes))
            self.costs[index, config] = own.cost[0] * self.prices.denominator + charged - credit
        return self.costs[index, config]

    def _credit(self, buffer: int, produced: Order) -> int:
        key = buffer, produced
        if key not in self.credits:
            shares = self.shared[buffer].items() if buffer in self.shared else ()
            costs = [(share, self.problem.buffers[buffer].cost(produced, order)) for order, share in shares]
            self.credits[key] = sum(
                max(0, share - cost[0] * self.prices.denominator) for share, cost in costs if cost is not None
            )
        return self.credits[key]


def _buffer_of(problem: LayoutProblem, price: Price) -> int:
    """Return the buffer of a price; InvalidProof if there is none or the price is negative."""
    if price.value < 0:
        raise InvalidProof(f"a negative price: {price}")
    if not 0 <= price.step < len(problem.steps):
        raise InvalidProof(f"a price for step {price.step}, which does not exist")
    step = problem.steps[price.step]
    if not 0 <= price.position < len(step.reads):
        raise InvalidProof(f"a price for read {price.position} of {step.name!r}, which does not exist")
    return step.reads[price.position]


def _faults(plan: LayoutPlan, problem: LayoutProblem) -> Iterator[str]:
    certificate = plan.certificate
    if plan.units != problem.units:
        yield f"the units are {problem.units}, the plan says {plan.units}"
    if certificate.candidates != problem.candidates:
        yield f"the candidates are {problem.candidates!r}, the certificate says {certificate.candidates!r}"
    try:
        evaluation = evaluate(problem, plan.choice)
    except InvalidChoice as error:
        yield str(error)
        return
    if plan.conversions != evaluation.conversions:
        yield f"the choice needs {len(evaluation.conversions)} conversions, not those of the plan"
    if plan.cost != evaluation.cost:
        yield f"the choice costs {evaluation.cost}, the plan says {plan.cost}"
    if certificate.cost != evaluation.cost:
        yield f"the choice costs {evaluation.cost}, the certificate says {certificate.cost}"
    try:
        proven = lower_bound(problem, certificate.proof)
    except InvalidProof as error:
        yield f"the proof is none: {error}"
        return
    if certificate.lower_bound != proven:
        yield f"the proof proves a bound of {proven}, the certificate says {certificate.lower_bound}"
    if certificate.optimal != (proven == evaluation.cost[0]):
        yield f"optimal={certificate.optimal}, with cost {evaluation.cost[0]} and proven bound {proven}"
