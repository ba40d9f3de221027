"""Test that the emitted program is the verified one, and that the plan has outside what runs outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import Node

import dimorder
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, UsageError, VerificationError
from dimorder.graph.elements import Elements
from dimorder.graph.nodes import origin_of
from dimorder.lowered import Lowered
from dimorder.ops.table import elements_of
from dimorder.pipeline.checking import Checks
from tests import fuzz
from tests.marks import slow_but

pytest.importorskip("executorch")

SLOW = range(1000, 3000)
# The last three were divided otherwise than planned: a sum over several dimensions, slices of merged ones.
RANGES = (*range(9), 1003, 1051, 1257)
QUICK_RANGES = (6, 8, 1257)


def batch_of(case: fuzz.Case) -> tuple[dict[int, Any], ...]:
    """A range for the first dimension of each input that is as long as that of the first input."""
    shapes = [each.shape for each in case.inputs.values()]
    batch = torch.export.Dim("N", min=2, max=40)
    return tuple({0: batch} if shape[:1] == shapes[0][:1] else {} for shape in shapes)


def takes_another_batch(case: fuzz.Case) -> bool:
    """Whether a network runs with a batch of 2 and a longer one; torch.export overlooks what does not fit.

    A recurrent operator does not check the batch of its state, and may read beyond it.
    """
    if any(f"torch.{name}(" in case.source for name in ("lstm", "gru", "rnn_tanh")):
        return False
    for rows in (slice(2), slice(None)):
        batches = (
            torch.cat([x] * 3)[rows] if dims else x for x, dims in zip(case.args, batch_of(case), strict=True)
        )
        try:
            case.module()(*batches)
        except (RuntimeError, IndexError, ValueError):
            return False
    return True


def lowered_as_verified(
    seed: int, monkeypatch: pytest.MonkeyPatch, *, ranges: bool = False
) -> Lowered | None:
    """A random network, some operators of which the target refuses; None if the network is refused."""
    case = fuzz.generate(seed, "xnnpack")
    if ranges and not takes_another_batch(case):
        return None
    target = fuzz.refusing("xnnpack", case.refused)
    verified, emitted = list[ExportedProgram](), list[ExportedProgram]()
    compare = Checks.compare_program

    def emit(program: ExportedProgram, contract: Contract) -> Any:
        emitted.append(program)
        return target.emit(program, contract)

    def compare_program(checks: Checks, physical: Any, planned: Any) -> float:
        verified.append(physical.program)
        return compare(checks, physical, planned)

    monkeypatch.setattr(Checks, "compare_program", compare_program)
    inputs, outputs = case.orders()
    options: dict[str, Any] = {"input_orders": inputs, "output_orders": outputs, "objective": case.objective}
    options["dynamic_shapes"] = batch_of(case) if ranges else None
    try:
        lowered = dimorder.lower(case.module(), case.args, target=replace(target, emit=emit), **options)
    except (UnsupportedError, UsageError, VerificationError):
        return None
    finally:
        monkeypatch.undo()
    assert verified[0] is emitted[0] is lowered.physical
    return lowered


def operators_outside(lowered: Lowered, nodes: Iterable[Node]) -> set[Node]:
    """The network's operators of which some call is among these nodes; views are of no operator's work."""
    sites = lowered.plan.extracted.sites
    computing = [node for node in nodes if elements_of(node.target) is not Elements.RELABELS]
    return {sites[origin_of(node)["site"]].node for node in computing if "site" in origin_of(node)}


def check(seed: int, monkeypatch: pytest.MonkeyPatch, *, ranges: bool = False) -> bool | None:
    """Whether anything is planned outside; None if the network is refused."""
    from dimorder.targets.xnnpack import emit
    from dimorder.targets.xnnpack.sketch import ON_EITHER_SIDE

    partitions, partition, partition_for_ranges = [], emit.partition, emit.partition_for_ranges

    def partitioned(*args: Any) -> Any:
        partitions.append(partition(*args))
        return partitions[-1]

    def partitioned_for_ranges(*args: Any) -> Any:
        found, table = partition_for_ranges(*args)
        partitions.append(found)
        return found, table

    with monkeypatch.context() as patch:
        patch.setattr(emit, "partition", partitioned)
        patch.setattr(emit, "partition_for_ranges", partitioned_for_ranges)
        lowered = lowered_as_verified(seed, patch, ranges=ranges)
    if lowered is None:
        return None
    plan = partitions[0]
    found, planned = operators_outside(lowered, plan.outside()), set(lowered.plan.extracted.outside)
    assert found <= planned, f"{found - planned} run outside, where the plan has them inside"
    computed = [node for node in plan.stage if plan.is_computed(node)]
    inside = operators_outside(lowered, [node for node in computed if node.target not in ON_EITHER_SIDE])
    assert not planned & (inside - found), f"{planned & inside} run inside, where the plan has them outside"
    assert bool(lowered.artifact.outside) >= bool(found)
    return bool(planned)


@pytest.mark.parametrize("seeds", slow_but([range(6), range(6, 16)], [range(6)]), ids=["few", "more"])
def test_random_networks_are_divided_as_the_plan_says(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check(seed, monkeypatch) for seed in seeds].count(True) >= len(seeds) // 3


@pytest.mark.parametrize("all_of_them", slow_but([False, True], [False]))
def test_random_networks_with_a_dynamic_batch_are_divided_as_the_plan_says(
    all_of_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = RANGES if all_of_them else QUICK_RANGES
    found = [check(seed, monkeypatch, ranges=True) for seed in seeds]
    assert found.count(True) >= 5 * len(seeds) // 12 and found.count(False) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW[::100])
def test_so_are_many_more(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check(seed, monkeypatch) for seed in range(first, first + 100)].count(True) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW[::100])
def test_so_are_many_more_with_a_dynamic_batch(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [check(seed, monkeypatch, ranges=True) for seed in range(first, first + 100)]
    assert found.count(True) >= 2 and found.count(False) >= 2
