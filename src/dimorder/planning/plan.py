"""A plan, the certificate that says how good it is, and the check that trusts neither.

This file decides what counts as a proof: prices whose bound anyone can recompute in integers.

The proof of a lower bound on the first unit. Let w[b] be what one conversion of buffer b costs. The reads of
b share that cost: each read r that may want layout t gets a share λ[b,r,t] ≥ 0, with Σ_r λ[b,r,t] ≤ w[b].
Take any plan. Where t is not the layout that b is produced in, the plan pays w[b] if anyone reads t, which is
at least Σ λ[b,r,t] over the reads r that want t. Where t is the produced layout, Σ_r λ[b,r,t] over the reads
that want t, less Σ_r λ[b,r,t] over all reads, is at most 0. So, adding up over b and t,

    conversions ≥ Σ_{reads r that want t} λ[b,r,t] − Σ_{b produced in t} Σ_r λ[b,r,t],

and each term on the right belongs to one operator's configuration. Therefore, whatever the plan,

    cost ≥ Σ_operators min_configurations ( own cost + Σ_reads λ − Σ_writes Σ_r λ ).

Where conversions from a set F of layouts to t are not offered, a read r of t and production in F exclude each
other: [b in F] + [r wants t] − 1 ≤ 0, which a multiplier μ[b,r,t] ≥ 0 adds to the bound. Where prices cannot
reach the cost, the least cost itself is computed by exact elimination (`Elimination`); where that takes too
large tables, the configurations of one operator are split into parts, each with a proof of its own
(`Branch`), and the bound is the least of theirs. (Lagrangian duality; the prices are the dual values of the
relaxation in milp.py, but nothing here depends on where they come from.)
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
    Layout,
    LayoutProblem,
    evaluate,
    unit_gcd,
)


@dataclass(frozen=True)
class Price:
    """What read number `position` of operator `operator` is charged if it wants `layout`.

    In 1/denominator of the first unit.
    """

    operator: int
    position: int
    layout: Layout
    value: int


@dataclass(frozen=True)
class Prices:
    """A proof without case distinction: shares λ and exclusions μ, all over one denominator.

    No prices at all prove that the cost is at least the sum of the cheapest configurations.
    """

    denominator: int = 1
    shares: tuple[Price, ...] = ()
    exclusions: tuple[Price, ...] = ()


@dataclass(frozen=True)
class Branch:
    """A proof by cases: `parts` pairs sets of configurations of one operator with a proof for each."""

    operator: int
    parts: tuple[tuple[tuple[int, ...], Proof], ...]


@dataclass(frozen=True)
class Elimination:
    """A proof by computation: `elimination.least_cost`, with tables of at most `max_entries`."""

    max_entries: int = MAX_ENTRIES


Proof: TypeAlias = Prices | Branch | Elimination


class InvalidProof(ValueError):
    """A proof that proves nothing for its problem."""


@dataclass(frozen=True)
class Certificate:
    """What is known about a plan's cost.

    `lower_bound` holds for the first unit; `optimal` says that `cost` reaches it. `solver` names who found
    the plan, `proof` is what `LayoutPlan.check` recomputes the bound from.
    """

    cost: Cost
    lower_bound: int
    optimal: bool
    candidates: str
    solver: str
    proof: Proof = field(default=Prices(), repr=False)


@dataclass(frozen=True)
class LayoutPlan:
    """A configuration per operator, and the conversions they need, by buffer, then first consumer.

    `seconds` is how long it took to find; two plans that differ in that alone are equal.
    """

    choice: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: Cost
    units: tuple[str, ...]
    certificate: Certificate
    seconds: float = field(default=0.0, compare=False)

    def check(self, problem: LayoutProblem) -> tuple[str, ...]:
        """The faults of this plan, none if it is right: validity, conversions, cost and bound, recomputed."""
        return tuple(_faults(self, problem))

    def __str__(self) -> str:
        certificate = self.certificate
        cost = ", ".join(f"{value:,} {unit}" for value, unit in zip(self.cost, self.units, strict=True))
        verdict = "optimal" if certificate.optimal else "not proven optimal"
        seconds = f"{self.seconds:.2f} s" if self.seconds >= 0.01 else f"{self.seconds * 1e3:.1f} ms"
        lines = [
            f"cost         {cost}",
            f"lower bound  {certificate.lower_bound:,} {self.units[0]}: {verdict} "
            f"over {certificate.candidates} candidates",
            f"solver       {certificate.solver}, {len(self.choice):,} operators, {seconds}",
            f"conversions  {len(self.conversions):,}",
        ]
        for conversion in self.conversions:
            price = ", ".join(
                f"{value:,} {unit}" for value, unit in zip(conversion.cost, self.units, strict=True)
            )
            lines.append(f"  {conversion.name}: {conversion.from_layout} -> {conversion.to_layout}  {price}")
        return "\n".join(lines)


def make_plan(
    problem: LayoutProblem,
    choice: Sequence[int],
    *,
    solver: str,
    proof: Proof | None = None,
    bound: int | None = None,
    seconds: float = 0.0,
) -> LayoutPlan:
    """The plan of a choice, with its certificate; InvalidChoice or InvalidProof.

    `bound` is what the proof proves, where the caller has just computed it.

    >>> from dimorder.planning.problem import Buffer, Config, Operator
    >>> source = Operator("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Operator("output", (0,), (), (Config(("NHWC",), (), (0,)),))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> proof = Prices(shares=(Price(operator=1, position=0, layout="NHWC", value=8),))
    >>> plan = make_plan(problem, (0, 0), solver="by hand", proof=proof)
    >>> print(plan)
    cost         8 bytes
    lower bound  8 bytes: optimal over complete candidates
    solver       by hand, 2 operators, 0.0 ms
    conversions  1
      x: NCHW -> NHWC  8 bytes
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
    """What the proof proves: no plan costs less of the first unit. InvalidProof if it proves nothing.

    Costs being multiples of their greatest common divisor, the bound is rounded up to one.
    """
    step = unit_gcd(problem, 0)
    if isinstance(proof, Elimination):
        least = least_cost(problem, proof.max_entries)
        if least is None:
            raise InvalidProof(f"an elimination that takes tables of more than {proof.max_entries} entries")
        return least
    return min(-(-leaf // step) * step for leaf in _leaf_bounds(problem, proof))


def _leaf_bounds(problem: LayoutProblem, proof: Proof) -> Iterator[Fraction]:
    """The bound of every leaf of a proof, over the configurations that its branches leave."""
    pending: list[tuple[Proof, dict[int, frozenset[int]]]] = [(proof, {})]
    while pending:
        node, allowed = pending.pop()
        if isinstance(node, Prices):
            yield bound_of_prices(problem, node, allowed)
            continue
        if isinstance(node, Elimination):
            raise InvalidProof("an elimination inside a branch")
        if not 0 <= node.operator < len(problem.operators):
            raise InvalidProof(f"a branch on operator {node.operator}, which does not exist")
        operator = problem.operators[node.operator]
        left = allowed.get(node.operator, frozenset(range(len(operator.configs))))
        missing = left.difference(*(part for part, _ in node.parts))
        if missing:
            raise InvalidProof(f"the branch on {operator.name!r} leaves out configuration {min(missing)}")
        for part, child in node.parts:
            if left.intersection(part):
                pending.append((child, {**allowed, node.operator: left.intersection(part)}))


def bound_of_prices(
    problem: LayoutProblem, prices: Prices, allowed: Mapping[int, Collection[int]]
) -> Fraction:
    """The bound that prices prove, in the first unit, over the allowed configurations of some operators."""
    if prices.denominator < 1:
        raise InvalidProof(f"denominator {prices.denominator}")
    charged: dict[tuple[int, int, Layout], int] = defaultdict(
        int
    )  # to a read, by (operator, position, layout)
    credited: dict[tuple[int, Layout], int] = defaultdict(int)  # to the producer, by (buffer, layout)
    for price in prices.shares:
        buffer = _buffer_of(problem, price)
        charged[price.operator, price.position, price.layout] += price.value
        credited[buffer, price.layout] += price.value
    for (buffer, layout), total in credited.items():
        name, cost = problem.buffers[buffer].name, problem.buffers[buffer].conversion_cost[0]
        if total > cost * prices.denominator:
            raise InvalidProof(f"the shares for {name!r} as {layout} exceed its conversion cost {cost}")
    excluded = 0
    for price in prices.exclusions:
        buffer = _buffer_of(problem, price)
        excluded += price.value
        charged[price.operator, price.position, price.layout] += price.value
        for source, target in problem.buffers[buffer].unreachable:
            if target == price.layout and source != target:
                credited[buffer, source] -= price.value
    total = -excluded
    for index, operator in enumerate(problem.operators):
        configs = range(len(operator.configs)) if index not in allowed else allowed[index]
        total += min(
            operator.configs[config].cost[0] * prices.denominator
            + sum(
                charged.get((index, position, layout), 0)
                for position, layout in enumerate(operator.configs[config].reads)
            )
            - sum(
                credited.get((buffer, layout), 0)
                for buffer, layout in zip(operator.writes, operator.configs[config].writes, strict=True)
            )
            for config in configs
        )
    return Fraction(total, prices.denominator)


def _buffer_of(problem: LayoutProblem, price: Price) -> int:
    """The buffer that a price is about; InvalidProof if there is none or the price is negative."""
    if price.value < 0:
        raise InvalidProof(f"a negative price: {price}")
    if not 0 <= price.operator < len(problem.operators):
        raise InvalidProof(f"a price for operator {price.operator}, which does not exist")
    operator = problem.operators[price.operator]
    if not 0 <= price.position < len(operator.reads):
        raise InvalidProof(f"a price for read {price.position} of {operator.name!r}, which does not exist")
    return operator.reads[price.position]


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
