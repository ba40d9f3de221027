"""In-place operators are replaced where nothing else sees the write; else torch decomposes the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.export import ExportedProgram
from torch.nn import functional as F

import dimorder
from dimorder.capture.functionalize import functionalize
from dimorder.ops.table import OPERATORS
from dimorder.verification.relative_error import relative_error

X = torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(3))
aten = torch.ops.aten
KNOWN = {
    name: OPERATORS[name]
    for name in (aten.batch_norm.default, aten.conv2d.default, aten.flatten.using_ints, aten.slice.Tensor)
}


class Net(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(6, 4, 3)
        self.norm = nn.BatchNorm2d(6)
        self.register_buffer("count", torch.ones(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def exported(function: Callable[[Any, Tensor], Tensor]) -> tuple[Net, ExportedProgram]:
    net = Net(function).eval()
    return net, torch.export.export(net, (X,))


def _view_written(m: Net, x: Tensor) -> Tensor:
    y = x + 1
    y[:, 1:3].mul_(2)
    return y


def _view_read(m: Net, x: Tensor) -> Tensor:
    y = x + 1
    part = y[:, 1:3]
    y.mul_(2)
    return part


def _read_before_and_after(m: Net, x: Tensor) -> Tensor:
    y = x + 1
    before = y.sin()
    y.mul_(2).add_(x)
    return y + before


def _mask(x: Tensor) -> Tensor:
    mask = x.new_zeros(5, 7)
    mask[1:3, 2:] = 4
    mask[3:, :5].add_(2)
    return mask


def _mask_written_after_it_was_read(m: Net, x: Tensor) -> Tensor:
    mask = x.new_zeros(5, 7)
    y = x + mask
    mask[1:3, 2:] = 4
    return y * mask


REPLACED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "after a convolution": lambda m, x: F.relu(m.conv(x), inplace=True),
    "a chain": lambda m, x: (x + 1).mul_(3).sub_(x).relu_(),
    "read before and after": _read_before_and_after,
    "the only view": lambda m, x: (x + 1).flatten(1).add_(2),
    "a mask computed ahead": lambda m, x: (x + _mask(x)).relu_() - _mask(x),
}
LEFT_TO_TORCH: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a view that is written": _view_written,
    "a view that is read after the write": _view_read,
    "a mask that is written after it was read": _mask_written_after_it_was_read,
    "an input that is written": lambda m, x: x.add_(1) * 2,
    "another type, which would be promoted": lambda m, x: (x + 1).add_(torch.ones(7, dtype=torch.float64)),
    "a composite operator that nothing spells": lambda m, x: (x + 1).unflatten(1, (2, 3)),
}


def operators(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def reads_input(node: torch.fx.Node) -> bool:
    """Whether a value depends on more than the shape of an input."""
    sources = [] if node.target is aten.new_zeros.default else node.all_input_nodes
    return node.op == "placeholder" or any(map(reads_input, sources))


@pytest.mark.parametrize("name", REPLACED)
def test_in_place_operators_are_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, program = exported(REPLACED[name])
    monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
    found = functionalize(program, KNOWN)
    _same_numbers(net, found)
    calls = [node for node in found.graph.nodes if node.op == "call_function"]
    written = [node.args[0] for node in calls if node.target._schema.is_mutable]
    assert not any(reads_input(node) for node in written)


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_others_are_decomposed_by_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, program = exported(LEFT_TO_TORCH[name])
    decompose, calls = ExportedProgram.run_decompositions, []
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", lambda self, table: calls.append(1) or decompose(self, table)
    )
    _same_numbers(net, functionalize(program, KNOWN))
    assert calls == [1]


def test_a_batch_norm_in_training_writes() -> None:
    net = Net(lambda m, x: m.norm(x)).train()
    program = functionalize(torch.export.export(net, (X,)), KNOWN)
    assert any("MUTATION" in spec.kind.name for spec in program.graph_signature.output_specs)


def test_the_program_it_is_given_stays_as_it_was() -> None:
    _, program = exported(REPLACED["a chain"])
    before = operators(program)
    functionalize(program, KNOWN)
    assert operators(program) == before


def _same_numbers(net: Net, program: ExportedProgram) -> None:
    with torch.no_grad():
        assert relative_error(program.module()(X.clone()), net(X.clone())) < 1e-6


class WrittenTwice(nn.Module):
    """Writes one value into two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(2, 1, 5))
        self.register_buffer("second", torch.zeros(2, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.cat([self.first, x.logsumexp(1, keepdim=True)], 1)[:, -1:]
        y = torch.maximum(self.second, kept)
        self.first.copy_(kept)
        self.second.copy_(kept)
        return y


def test_one_value_may_be_written_into_two_buffers() -> None:
    x = torch.randn(2, 3, 5)
    lowered, network = dimorder.lower(WrittenTwice(), (x,), target="torch"), WrittenTwice()
    for call in (x, x - 1):
        assert torch.allclose(lowered.run(call), network(call))


class WrittenFromAnother(nn.Module):
    """Writes one buffer to another, and then the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("new", torch.ones(2, 3))
        self.register_buffer("old", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.old
        self.old.copy_(self.new)
        self.new.add_(x)
        self.old.mul_(2)
        self.old.copy_(self.new)
        return y - self.new


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_buffer_may_be_written_to_another(target: str) -> None:
    x = torch.randn(2, 3)
    lowered, network = dimorder.lower(WrittenFromAnother(), (x,), target=target), WrittenFromAnother()
    for call in (x, x - 1, x * 3):
        assert torch.allclose(lowered.run(call), network(call), atol=1e-6)


class LastWrittenTwice(nn.Module):
    """Writes the last two steps of what it has seen into two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(3, 2))
        self.register_buffer("second", torch.zeros(3, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.cat([self.first, x.relu()], 1)[:, -2:]
        y = kept - self.second
        self.first.copy_(kept)
        self.second.copy_(kept)
        return x.sigmoid(), y


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_the_last_of_a_dynamic_size_may_be_written_into_two_buffers(target: str) -> None:
    dims = ({1: torch.export.Dim("T", min=3, max=17)},)
    lowered = dimorder.lower(LastWrittenTwice(), (torch.randn(3, 5),), target=target, dynamic_shapes=dims)
    network = LastWrittenTwice()
    for length in (5, 3, 17):
        x = torch.randn(3, length)
        for got, wanted in zip(lowered.run(x), network(x), strict=True):
            assert torch.allclose(got, wanted, atol=1e-6)


class WrittenInAnotherForm(nn.Module):
    """Writes values of other types and shapes than those of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("halves", torch.randn(3, 8).half())
        self.register_buffer("rows", torch.randn(3, 8))
        self.register_buffer("count", torch.tensor(3, dtype=torch.int32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        results = self.halves.float() * 2, self.rows + x, self.count * 2
        self.halves.copy_(x)
        self.rows.copy_(x[1].half())
        self.count.copy_(x.sum())
        return results


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_values_of_another_type_or_shape_may_be_written_into_a_buffer(target: str) -> None:
    network, x = WrittenInAnotherForm(), torch.randn(3, 8)
    lowered = dimorder.lower(network, (x,), target=target)
    for call in (x, x + 1, x * 3):
        for got, wanted in zip(lowered.run(call), network(call), strict=True):
            assert torch.allclose(got, wanted, atol=1e-6)


def test_a_function_that_torch_export_keeps_as_a_call_is_decomposed() -> None:
    """transformers' masks of several kinds of tokens are exported so."""

    class Indexes(nn.Module):
        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            with TransformGetItemToIndex():
                return x * x[place]

    x, place = torch.randn(5, 3), torch.tensor(2)
    lowered = dimorder.lower(Indexes(), (x, place), target="torch")
    assert torch.equal(lowered(x, place + 1), x * x[3])
