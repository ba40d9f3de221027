"""Random networks, lowered: eager's numbers, a proven plan, and no conversion that the plan lacks."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests import fuzz
from tests.fuzz import record
from tests.fuzz.constants import reads_packed_bytes
from tests.fuzz.description import STANDS_FOR
from tests.fuzz.operators import OPERATORS, Draw
from tests.marks import require_runtime, slow_but

FAST = {"physical": 10, "torch": 3, "xnnpack": 6, "tosa": 8, "litert": 8, "constants": 1}
FULL = {"physical": 1200, "torch": 100, "xnnpack": 350, "tosa": 350, "litert": 350, "constants": 400}
PACKS = ("FullyConnected", "Conv2d", "DepthwiseConv2d", "ConvTranspose2d")  # what XNNPACK packs weights of
AT_ONCE = 50  # networks per slow test


def _all_are_right(target: str, seeds: range) -> list[fuzz.Case]:
    """Return the networks that were lowered and examined, a third at least."""
    lowered_for = STANDS_FOR.get(target, target)
    require_runtime(lowered_for)
    counts: Counter[str] = Counter()
    right = []
    for seed in seeds:
        case = fuzz.generate(seed, target)
        outcome = fuzz.examine(case, target)
        if outcome.is_fault:
            small = fuzz.shrink(case, lambda c, kind=outcome.kind: fuzz.examine(c, target).kind == kind)
            pytest.fail(fuzz.script(small, target, fuzz.examine(small, target), seed), pytrace=False)
        counts[outcome.kind] += 1
        right += [case] * (outcome.kind == "right")
    assert len(right) >= len(seeds) / 3, f"few networks are lowered, which shows little: {counts}"
    return right


@pytest.mark.parametrize("target", FAST)
def test_random_networks_are_lowered_right(target):
    _all_are_right(target, range(FAST[target]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "first"),
    [(target, first) for target, count in FULL.items() for first in range(FAST[target], count, AT_ONCE)],
)
def test_two_thousand_random_networks_are_lowered_right(target, first):
    _all_are_right(target, range(first, min(first + AT_ONCE, FULL[target])))


# -- the fuzzer itself


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_a_network_and_its_module_computes_what_its_steps_do(seed):
    case = fuzz.generate(seed)
    assert case == fuzz.generate(seed)
    values = fuzz.run(case)
    with torch.no_grad():
        results = case.module()(*case.args)
    for (name, _), result in zip(case.outputs, results, strict=True):
        assert fuzz.relative_error(result, values[name]) < fuzz.TOLERANCE


def alone(operator: str, seed: int) -> fuzz.Case | None:
    """One operator on random inputs."""
    rng, row, constants = random.Random(seed), OPERATORS[operator], {}
    rank = rng.choice([rank for rank in (2, 3, 4, 5) if rank in row.ranks])
    shape = fuzz._shape(rng, rank)
    inputs = {name: fuzz.Given(shape, seed=i) for i, name in enumerate(("x0", "x1"))}

    def constant(shape, kind="normal", high=0):
        name = f"self.c{len(constants)}"
        constants[name] = fuzz.Given(tuple(shape), kind, high, seed=len(constants) + 9)
        return name

    drawn = row.draw(Draw(rng, "x0", dict.fromkeys(inputs, shape), constant))
    if drawn is None:
        return None
    steps = (fuzz.Step("v0", operator, tuple(drawn[0]), dict(drawn[1])),)
    case = fuzz.Case(inputs, constants, steps, ())
    try:
        outputs = [name for name in fuzz.run(case) if name.startswith("v0")]
    except fuzz._MISFIT:
        return None
    return fuzz.pruned(replace(case, outputs=tuple((name, "contiguous") for name in outputs)))


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_fits_now_and_then(operator):
    cases = [case for seed in range(30) if (case := alone(operator, seed))]
    assert any(map(fuzz.is_sound, cases))


def test_a_wrong_program_is_found_and_made_small(monkeypatch):
    right = fuzz.Physical.run
    monkeypatch.setattr(fuzz.Physical, "run", lambda self, inputs: [y * 1.01 for y in right(self, inputs)])
    case = fuzz.generate(4)
    assert fuzz.examine(case, "physical").kind == "wrong numbers: unnoticed"
    small = fuzz.shrink(case, lambda c: fuzz.examine(c, "physical").kind == "wrong numbers: unnoticed")
    assert len(small.steps) < len(case.steps) and len(small.outputs) == 1


def test_what_fails_is_made_small():
    case = next(c for c in map(fuzz.generate, range(100)) if "conv2d" in [s.operator for s in c.steps])

    def has_wide_kernel(c):
        return any(s.operator == "conv2d" and max(c.constants[s.reads[1]].shape[2:]) > 1 for s in c.steps)

    case = case if has_wide_kernel(case) else pytest.skip("another seed")
    small = fuzz.shrink(case, has_wide_kernel)
    assert [step.operator for step in small.steps] == ["conv2d"]
    assert small.outputs == ((small.steps[0].name, "contiguous"),)
    assert sum(torch.Size(each.shape).numel() for each in small.inputs.values()) <= 2**4


def test_the_script_of_a_case_runs(capsys):
    case = replace(fuzz.generate(6), refused=("add", "convolution"))
    exec(fuzz.script(case, "torch", fuzz.Outcome("right", "as it is"), 6), {})
    printed = capsys.readouterr().out
    assert printed.count("error") == len(case.outputs)
    assert max(float(line.split()[1]) for line in printed.splitlines() if line.startswith("error")) < 1e-4


def test_a_record_is_added_to_and_a_seed_counts_as_its_last_outcome(tmp_path):
    path = tmp_path / "fuzz.json"
    record.add(path, "tosa", {7: ("right", ""), 8: ("fault", "index fault"), 10: ("refused", "rank n")})
    record.add(path, "torch", {3: ("right", "")})
    record.add(path, "tosa", {8: ("right", "")})
    wanted = {
        "tosa": {7: ("right", ""), 8: ("right", ""), 10: ("refused", "rank n")},
        "torch": {3: ("right", "")},
    }
    assert record.read(path) == wanted
    entry = json.loads(path.read_text())["targets"]["tosa"]
    assert (entry["seeds"], entry["networks"], entry["right"], entry["faults"]) == ("7-8, 10", 3, 2, 0)


# -- constants that are zeros, ones, or equal to one another


@pytest.mark.slow
def test_most_networks_of_alike_constants_read_by_pointer_the_bytes_that_a_step_packs():
    cases = [fuzz.generate(seed, "constants") for seed in range(30)]
    assert sum(map(reads_packed_bytes, cases)) >= 20
    kinds = {each.kind for case in cases for each in case.constants.values()}
    assert kinds >= {"zeros", "ones", "shared", "normal"}


@pytest.mark.parametrize("count", slow_but((4, 8), (4,)))
def test_alike_constants_become_one_value_that_is_packed_and_read(monkeypatch, count):
    pytest.importorskip("executorch")
    from dimorder.targets.xnnpack import graph, passes

    both, separate = [], passes.separate_constants

    def counted(made):
        packed, read = set(), set()
        for node in made.nodes:
            union = node.xnode_union
            own = {union.filter_id, union.bias_id} if graph.kind_of(node) in PACKS else set()
            packed |= own
            read |= set(graph.reads_of(union)) - own
        both.append(bool(packed & read & set(graph.constants_of(made.values))))
        separate(made)

    monkeypatch.setattr(passes, "separate_constants", counted)
    for seed in range(count):
        fuzz.examine(fuzz.generate(seed, "constants"), "constants")
    assert sum(both) >= 2


def test_constants_of_one_kind_and_seed_have_the_same_bytes_whatever_their_shapes():
    for kind in ("zeros", "ones", "shared"):
        column, row = fuzz.given((6, 1, 1), kind, seed=3), fuzz.given((2, 3), kind, seed=3)
        assert torch.equal(column.flatten(), row.flatten())
    assert not torch.equal(fuzz.given((6,), "shared", seed=3), fuzz.given((6,), "shared", seed=4))


@pytest.mark.parametrize("name", ["softmax", "convolution"])
def test_a_target_refuses_what_it_is_told_to(name):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return self.conv(x).softmax(1)

    import dimorder

    target = fuzz.refusing("physical", (name,))
    lowered = dimorder.lower(Net().eval(), (torch.randn(2, 3, 5, 7),), target=target)
    assert any("is refused by the fuzzer" in reason for _, reason in lowered.plan.outside)
