"""Take a small network through the pipeline without exporting it again, which takes longest.

Each network is captured and annotated once, then planned, rewritten and run under many contracts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.capture.captured import Captured, capture
from dimorder.capture.check_captured import captured_faults
from dimorder.contract import Contract, TensorSpec
from dimorder.graph.passes import require
from dimorder.layout import check_program
from dimorder.layout.annotate import Annotated, annotate
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import counted
from dimorder.layout.problem import Extracted, extract
from dimorder.layout.rewrite import at_boundary, build
from dimorder.ops.table import IMPLEMENTATIONS
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.solve import solve
from dimorder.runtime.guard import restore
from dimorder.verification.random_inputs import random_like
from dimorder.verification.relative_error import relative_error
from tests.layout.index_checker import check

TOLERANCE = 2e-5

# What is left out where not every implementation is offered.
RICHER = frozenset(
    {
        "aten.linear/features first",
        "aten.matmul/transposed",
        "aten.softmax.int/any",
        "aten.log_softmax.int/any",
        "aten.layer_norm/any",
    }
)


@dataclass(frozen=True)
class Lowering:
    """A captured network, ready to be lowered under any contract, and what it gives on random inputs."""

    program: Captured
    annotated: Annotated
    inputs: tuple[Tensor, ...]
    wanted: tuple[Tensor, ...]

    def plan(
        self, contract: Contract, objective: str = "bytes", *, rich: bool = False
    ) -> tuple[Extracted, LayoutPlan]:
        orders = ([spec.dim_order for spec in side] for side in (contract.inputs, contract.outputs))
        fewer = IMPLEMENTATIONS - RICHER
        capabilities = Capabilities(implementations=(IMPLEMENTATIONS, fewer) if rich else (fewer,))
        (extracted,) = extract([self.annotated], *orders, counted(min_run=8)[objective], capabilities)
        require("the layout problem", check_program.problem_faults(extracted, contract, capabilities))
        return extracted, solve(extracted.problem)

    def faults(self, contract: Contract, objective: str = "bytes", *, rich: bool = False) -> list[str]:
        """Return the faults of the plan and of the physical program under a contract; none if right."""
        extracted, plan = self.plan(contract, objective, rich=rich)
        found = [*plan.check(extracted.problem), *check(extracted, plan, contract)]
        module = build(extracted, plan, contract)
        held = [at_boundary(x, spec) for x, spec in zip(self.inputs, contract.inputs, strict=True)]
        found += check_program.made_faults(module.graph.nodes, extracted, plan)
        results, dense_faults = check_program.run_densely(module, held)
        got = restore(contract, results, "error").tensors
        found += dense_faults
        for i, (value, wanted) in enumerate(zip(got, self.wanted, strict=True)):
            if value.dtype != wanted.dtype:
                found.append(f"output {i} is {value.dtype}, not {wanted.dtype}")
            error = relative_error(value, wanted)
            if error > TOLERANCE:
                found.append(f"output {i} of shape {tuple(wanted.shape)} differs by {error:.1e}")
        return found


def lowering(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    fused: Collection[Any] = (),
) -> Lowering:
    program = capture(model, args, kwargs, fused=fused)
    inputs = random_like(program.example_inputs, seed=1)
    feed = iter(inputs)
    again, named = pytree.tree_map_only(Tensor, lambda _: next(feed), (tuple(args), dict(kwargs or {})))
    with torch.no_grad():
        wanted = tuple(
            leaf for leaf in pytree.tree_leaves(model.eval()(*again, **named)) if isinstance(leaf, Tensor)
        )
    annotated = annotate(program)
    require("the captured form", captured_faults(program))
    require("the axes of values", check_program.annotated_faults(annotated))
    return Lowering(program, annotated, inputs, wanted)


def contract_of(program: Captured, order: Callable[[int], DimOrder]) -> Contract:
    """The contract whose tensors lie in `order(rank)`, asked for each anew."""

    def specs(kind: str, nodes: Sequence[torch.fx.Node]) -> tuple[TensorSpec, ...]:
        values = [node.meta["val"] for node in nodes]
        return tuple(
            TensorSpec(f"{kind}{i}", tuple(v.shape), str(v.dtype), order(v.dim()))
            for i, v in enumerate(values)
        )

    return Contract(specs("input", program.inputs), specs("output", program.outputs))


def contracts(program: Captured, count: int, seed: int = 0) -> list[Contract]:
    """Contiguous, channels-last, then `count` contracts of random orders."""
    rng = random.Random(seed)
    shuffled = [
        contract_of(program, lambda rank: DimOrder(*rng.sample(range(rank), rank))) for _ in range(count)
    ]
    return [
        contract_of(program, DimOrder.contiguous),
        contract_of(program, DimOrder.channels_last),
        *shuffled,
    ]


def lower_everywhere(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    count: int = 4,
    seed: int = 0,
    fused: Collection[Any] = (),
) -> Lowering:
    """Lower under contiguous, channels-last and random contracts; fail where any program is wrong."""
    lowered = lowering(model, args, kwargs, fused)
    for number, contract in enumerate(contracts(lowered.program, count, seed)):
        faults = lowered.faults(contract, "count" if number % 3 == 1 else "bytes", rich=number % 2 == 1)
        assert not faults, "\n".join([str(contract), *faults, str(lowered.program.module.graph)])
    return lowered
