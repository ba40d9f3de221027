"""Test networks that write buffers: ten calls of a loaded file give what ten calls of the network give, on
every target that has state.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dimorder
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.report.plan_page import plan_page
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but
from tests.small_networks import OneInput
from tests.zoo import perturb, stateful

CALLS = 10
SUFFIX = {"torch": ".pt2", "xnnpack": ".pte", "litert": ".tflite"}
Calls = list[dict[str, Tensor]]


def drawn(*shape: int, name: str = "x") -> Calls:
    generator = torch.Generator().manual_seed(1)
    return [{name: torch.randn(shape, generator=generator)} for _ in range(CALLS)]


def tokens() -> Calls:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, stateful.VOCABULARY, (CALLS, 1, 1), generator=generator)
    return [{"input_ids": each, "cache_position": torch.tensor([i])} for i, each in enumerate(ids)]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Calls]] = {
    "counter": (stateful.Counter, drawn(5, 7)),
    "streaming conv 1-d": (lambda: perturb(stateful.StreamingConv1d(3, 8, 5)).eval(), drawn(2, 3, 4)),
    "streaming conv 2-d": (lambda: perturb(stateful.StreamingConv2d()).eval(), drawn(1, 3, 2, 9)),
    "tcn": (stateful.tcn, drawn(2, 5, 6, name="input")),
    "gpt2": (stateful.gpt2, tokens()),
    "llama": (stateful.llama, tokens()),
}


def results(network: nn.Module, calls: Calls) -> Iterator[list[Tensor]]:
    """Yield the results of each call; a network may return a buffer itself."""
    for call in calls:
        with torch.no_grad():
            leaves = pytree.tree_leaves(network(**call))
        yield [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)]


def require_same(program: dimorder.Program, wanted: list[list[Tensor]], calls: Calls) -> None:
    for number, (call, tensors) in enumerate(zip(calls, wanted, strict=True)):
        got = program.run(**call)
        errors = [relative_error(*pair) for pair in zip(got, tensors, strict=True)]
        assert max(errors) <= 1e-5, f"call {number}: {errors}"


@pytest.mark.parametrize(
    ("name", "target"),
    slow_but(
        product(NETWORKS, SUFFIX),
        [
            *(("counter", target) for target in SUFFIX),
            ("streaming conv 1-d", "torch"),
            ("streaming conv 2-d", "xnnpack"),
            ("tcn", "litert"),
            ("gpt2", "xnnpack"),
            ("llama", "litert"),
        ],
    ),
)
def test_ten_calls_equal_eager(name: str, target: str, tmp_path: Path) -> None:
    make, calls = NETWORKS[name]
    network = make()
    before = copy.deepcopy(dict(network.named_buffers()))
    wanted = list(results(copy.deepcopy(network), calls))
    lowered = dimorder.lower(network, (), calls[0], target=target)
    for buffer, held in network.named_buffers():
        torch.testing.assert_close(held, before[buffer], rtol=0, atol=0)
    path = lowered.save(tmp_path / f"net{SUFFIX[target]}")
    program, other = dimorder.load(path), dimorder.load(path)
    require_same(program, wanted, calls)
    require_same(other, wanted, calls)  # which has seen nothing of the first one's calls
    program.reset()
    require_same(program, wanted, calls)
    assert lowered.plan.certificate.optimal
    assert {spec.name for spec in program.contract.state} == {b.name for b in lowered.program.state}


@pytest.mark.parametrize("target", SUFFIX)
def test_a_lowered_network_keeps_its_state_until_it_is_reset(target: str) -> None:
    network, calls = stateful.Counter(), drawn(5, 7)
    wanted = list(results(copy.deepcopy(network), calls))
    lowered = dimorder.lower(network, (), calls[0], target=target)
    for _ in range(2):
        for call, tensors in zip(calls, wanted, strict=True):
            got = pytree.tree_leaves(lowered.run(**call))
            assert max(relative_error(*pair) for pair in zip(got, tensors, strict=True)) <= 1e-5
        lowered.reset()


def swap(m: Any, x: Tensor) -> Tensor:
    a = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(a)
    return x + m.a


def forget(m: Any, x: Tensor) -> Tensor:
    y = x + m.a
    m.a.zero_()
    return y


def last(m: Any, x: Tensor) -> Tensor:
    y = m.a - x
    m.a.copy_(x)
    return y


def before(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a view of the buffer's value before the call, and the buffer."""
    found = m.a.clone().reshape(3, 2)
    m.a.add_(x)
    return found.t(), m.a


def ring(m: Any, x: Tensor) -> Tensor:
    m.a[:, 0] = x.sum(1)
    m.a.copy_(m.a.roll(-1, 1))
    return m.a * x


def nothing(m: Any, x: Tensor) -> Tensor:
    m.a.copy_(m.a + 0)
    return x * m.a


ODD: dict[str, Callable[..., Any]] = {
    "swapped": swap, "set to a constant": forget, "set to the input": last, "returned as it was": before,
    "written through a view": ring, "left alone": nothing,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    slow_but(
        product(ODD, [torch.float32, torch.int64], SUFFIX),
        [
            ("swapped", torch.float32, "xnnpack"),
            ("set to a constant", torch.float32, "litert"),
            ("set to the input", torch.int64, "litert"),
            ("returned as it was", torch.float32, "xnnpack"),
            ("written through a view", torch.int64, "xnnpack"),
            ("left alone", torch.float32, "torch"),
        ],
    ),
)
def test_odd_ways_to_write(name: str, kind: torch.dtype, target: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return (10 * torch.randn(2, 3, generator=generator)).to(kind)

    network = OneInput(ODD[name], a=draw(), b=draw())
    calls = [{"x": draw()} for _ in range(CALLS)]
    wanted = list(results(copy.deepcopy(network), calls))
    lowered = dimorder.lower(network, (), calls[0], target=target)
    require_same(dimorder.load(lowered.save(tmp_path / f"net{SUFFIX[target]}")), wanted, calls)


@pytest.mark.parametrize("kind", [torch.float16, torch.bool, torch.int32])
def test_litert_keeps_other_types(kind: torch.dtype, tmp_path: Path) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", (torch.arange(21).view(3, 7) % 5).to(kind))

        def forward(self, x: Tensor) -> Tensor:
            before = self.held.clone()
            self.held.copy_(torch.where(x > 0, x.to(kind), before))
            return before.float() + x

    network, x = Kept(), torch.randn(3, 7)
    wanted = [copy.deepcopy(network)(x)]
    path = dimorder.lower(network, (x,), target="litert").save(tmp_path / "net.tflite")
    program = dimorder.load(path)
    wanted.append(torch.where(x > 0, x.to(kind), network.held).float() + x)
    for each in wanted:
        torch.testing.assert_close(program(x), each)


def test_xnnpack_of_litert_reads_and_assigns_variables_itself() -> None:
    make, calls = NETWORKS["streaming conv 2-d"]
    artifact = dimorder.lower(make(), (), calls[0], target="litert").artifact
    assert artifact.delegates == 1 and artifact.outside == {"CALL_ONCE": 1}


def test_the_plan_chooses_one_order_for_entry_and_exit() -> None:
    network = perturb(stateful.StreamingConv2d()).eval()
    plan = dimorder.plan(network, (torch.randn(1, 3, 2, 9),), target="xnnpack", input_orders="NHWC")
    assert [(spec.name, spec.order) for spec in plan.contract.state] == [
        ("rows", "NHWC (0, 2, 3, 1)"),
        ("features", "NHWC (0, 2, 3, 1)"),
    ]
    assert "state   features  1 x 10 x 3 x 9  float32  NHWC (0, 2, 3, 1)" in str(plan)
    assert plan.check() == ()


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
def test_targets_without_state_refuse_it(target: str) -> None:
    lines, first = inspect.getsourcelines(stateful.StreamingConv1d)
    line = first + next(i for i, text in enumerate(lines) if "self.last.copy_" in text)
    with pytest.raises(UnsupportedError) as caught:
        dimorder.plan(stateful.StreamingConv1d(3, 8, 5), (torch.randn(2, 3, 4),), target=target)
    assert str(caught.value) == (
        f"buffer last (stateful.py:{line})\n"
        f"  found: the network writes to it, and programs for {target} have no state\n"
        "  fix: make it an input and an output, or choose a target that has state, such as xnnpack or torch"
    )


def test_a_buffer_that_shares_its_memory_is_refused() -> None:
    memory = torch.randn(2, 3)
    network = OneInput(lambda m, x: m.a.add_(x) + m.b, a=memory, b=memory[0])
    with pytest.raises(UnsupportedError) as caught:
        dimorder.plan(network, (torch.randn(2, 3),))
    assert str(caught.value) == (
        "buffer a, which the network writes\n  found: it shares its memory with b\n"
        "  fix: register one of the two, and view it in forward"
    )


def test_the_decomposed_program_keeps_its_state_too() -> None:
    network, calls = perturb(stateful.StreamingConv2d()).eval(), drawn(1, 3, 2, 9)
    lowered = dimorder.lower(network, (calls[0]["x"],))
    for _ in range(2):  # each module begins anew
        module = copy.deepcopy(lowered.decomposed()).module()
        for call, (wanted,) in zip(calls, results(copy.deepcopy(network), calls), strict=True):
            torch.testing.assert_close(module(call["x"])[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("decomposed", [False, True])
def test_an_exported_program_keeps_its_state_and_is_left_as_it_was(decomposed: bool) -> None:
    network, calls = stateful.Counter(), drawn(5, 7)
    exported = torch.export.export(network, (calls[0]["x"],))
    exported = exported.run_decompositions({}) if decomposed else exported
    lowered = dimorder.lower(exported)
    assert (int(exported.state_dict["calls"]), int(network.calls)) == (3, 3)
    for call, tensors in zip(calls, results(network, calls), strict=True):
        got = pytree.tree_leaves(lowered.run(call["x"]))
        assert max(relative_error(*pair) for pair in zip(got, tensors, strict=True)) <= 1e-5


def test_a_wrong_order_of_calls_is_no_lowered_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is compared, not only the first: a state that is not carried on is found."""
    from dimorder.graph import exported

    monkeypatch.setattr(exported.ProgramRun, "__call__", forgetful(exported.ProgramRun.__call__))
    with pytest.raises(VerificationError, match="output 0 of call 1 differs"):
        dimorder.lower(perturb(stateful.StreamingConv1d(3, 8, 5)).eval(), (torch.randn(2, 3, 4),))


def forgetful(call: Callable[..., Any]) -> Callable[..., Any]:
    def forget_and_call(run: Any, inputs: Any) -> Any:
        run.reset()
        return call(run, inputs)

    return forget_and_call


def test_the_page_shows_the_state() -> None:
    plan = dimorder.plan(perturb(stateful.StreamingConv2d()).eval(), (torch.randn(1, 3, 2, 9),))
    page = plan_page(plan)
    assert page.count("<td>state</td>") == 2
    assert "the last call" in page


def test_a_pt2_remembers_without_dimorder(tmp_path: Path) -> None:
    network, calls = perturb(stateful.StreamingConv2d()).eval(), drawn(1, 3, 2, 9)
    path = dimorder.lower(network, (calls[0]["x"],)).save(tmp_path / "net.pt2")
    module = torch.export.load(path).module()
    for call, (wanted,) in zip(calls, results(copy.deepcopy(network), calls), strict=True):
        torch.testing.assert_close(module(call["x"])[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ["torch", "litert"])
def test_a_buffer_that_is_set_to_an_input_has_the_axes_of_its_readers(target: str) -> None:
    """Nothing else reads the input, and the reader of the buffer cuts a dimension."""

    def pairs(m: Any, x: Tensor) -> Tensor:
        y = m.a.unflatten(1, (2, 3)).transpose(0, 1).relu()
        m.a.copy_(x)
        return y

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    lowered = dimorder.lower(OneInput(pairs, a=2 * x), (x,), target=target)
    for wanted in (2 * x, x):
        (y,) = pytree.tree_leaves(lowered.run(x))
        assert torch.equal(y, wanted.unflatten(1, (2, 3)).transpose(0, 1).relu())
