"""Test that a module which was run is left as it was: modes, buffers, and the tensors of the call."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.eager.inspection.compare import compare
from dimorder.modules import left_as_it_was, unchanged


class Writes(nn.Module):
    """Writes one buffer in place, puts another in a buffer's place, and writes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)
        self.register_buffer("calls", torch.full((1,), 5.0))
        self.register_buffer("last", torch.full((2,), 3.0))
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.last * 2
        self.cache = x.clone()
        return self.conv(x.mul_(2)) + self.calls


def _assert_left(model: Writes, buffers: list[Tensor], x: Tensor, given: Tensor) -> None:
    assert model.calls is buffers[0] and model.last is buffers[1] and model.cache is None
    assert model.calls.item() == 5 and model.last.tolist() == [3, 3]
    assert torch.equal(x, given)


@pytest.mark.parametrize("order", ["channels_last", "contiguous", None])
def test_an_inspected_network_keeps_its_buffers_and_the_caller_the_input(order: str | None) -> None:
    model, x = Writes(), torch.randn(2, 3, 5, 7)
    buffers, given = [model.calls, model.last], x.clone()
    dimorder.inspect(model, x, order=order)
    _assert_left(model, buffers, x, given)


@pytest.mark.parametrize("order", ["channels_last", "contiguous", None])
def test_an_inspected_network_keeps_the_values_of_its_weights(order: str | None) -> None:
    embedding = nn.Embedding(11, 6, max_norm=0.1)  # a call scales the rows that it reads, in place
    before = embedding.weight.detach().clone()
    found = dimorder.inspect(embedding, torch.tensor([[2, 3, 5]]), order=order)
    assert any(call.operator == "aten.embedding_renorm_" for call in found.calls)
    assert torch.equal(embedding.weight, before)


def test_a_compared_network_does_so_too() -> None:
    model, x = Writes(), torch.randn(2, 3, 5, 7)
    buffers, given = [model.calls, model.last], x.clone()
    compare(model, x, rounds=3)
    _assert_left(model, buffers, x, given)


def test_a_network_that_fails_does_so_too() -> None:
    model, x = Writes(), torch.randn(2, 3, 5, 7)
    buffers, given = [model.calls, model.last], x.clone()
    with pytest.raises(ZeroDivisionError), left_as_it_was(model, {"x": [x]}):
        model(x)
        raise ZeroDivisionError
    _assert_left(model, buffers, x, given)


def test_of_the_buffers_only_those_named_are_restored() -> None:
    model = nn.Sequential(Writes())
    with unchanged(model, ["0.calls"]):
        model(torch.randn(2, 3, 5, 7))
    assert model[0].calls.item() == 5 and model[0].last.tolist() == [6, 6]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_part_that_was_called_is_lazy_no_more() -> None:
    for model in (nn.LazyLinear(4), nn.Sequential(nn.Conv2d(3, 4, 2), nn.LazyLinear(5))):
        dimorder.inspect(model, torch.randn(2, 3, 5, 7))
        assert type([*model.modules()][-1]) is nn.Linear


class Keeps(nn.Module):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("kept", buffer)
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize("kind", ["sparse", "expanded"])
def test_a_buffer_that_cannot_be_compared_or_written_stops_no_network(kind: str) -> None:
    sparse = torch.diag(torch.tensor([2.0, 3.0])).to_sparse()
    model = Keeps(sparse if kind == "sparse" else torch.tensor([[torch.nan], [2.0]]).expand(2, 5))
    buffer, x = model.kept, torch.randn(2, 3)
    torch.testing.assert_close(dimorder.lower(model, (x,))(x), model(x))
    assert dimorder.inspect(model, x).keeps and model.kept is buffer


class Installs(nn.Module):
    """Has a hook that its first call installs, and notes that it did so."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not getattr(self, "is_installed", False):
            self.conv.register_forward_hook(lambda part, inputs, output: output + 1)
            self.is_installed = True
        return self.conv(x)


class KeepsTable(nn.Module):
    """Keeps a table of its first call in an attribute that is None before."""

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = {"rows": torch.arange(1.0, 1 + x.shape[-1])}
        return x * self.table["rows"]


class KeepsState(nn.Module):
    """Keeps a table in an object, which it makes anew for another size."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "state") or self.state.table.shape[0] != x.shape[-1]:
            self.state = SimpleNamespace(table=torch.arange(1.0, 1 + x.shape[-1]))
        return x * self.state.table


class KeepsTableOfAShape(nn.Module):
    """Keeps a table of its last call, and the shape for which it is, as the heads of YOLO do."""

    shape: torch.Size | None = None
    table = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.shape != x.shape:
            self.table, self.shape = torch.arange(1.0, 1 + x.shape[-1]), x.shape
        return x * self.table


@pytest.mark.parametrize(
    "model",
    [Installs(), KeepsTable(), KeepsState(), KeepsTableOfAShape()],
    ids=["installs", "keeps", "in an object", "of a shape"],
)
def test_a_network_that_was_never_called_is_lowered_as_often_as_one_likes(model: nn.Module) -> None:
    x = torch.randn(2, 3, 5, 7)
    expected = copy.deepcopy(model)(x)
    for _ in range(2):
        assert torch.allclose(dimorder.lower(model, (x,))(x), expected, atol=1e-5)
        assert torch.equal(model(x), expected)
