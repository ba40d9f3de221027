"""Recurrent networks are unrolled into few operators, and give the network's numbers."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dimorder
from dimorder.capture.captured import Captured, capture
from dimorder.errors import UnsupportedError
from tests.layout.lowering import lower_everywhere
from tests.marks import slow_but
from tests.small_networks import Net
from tests.zoo import perturb

STEPS, BATCH, INPUT, HIDDEN = 5, 2, 7, 3

# Name → the layer; all of them take (STEPS, BATCH, INPUT).
NETWORKS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, both ways": (nn.LSTM, {"bidirectional": True}),
    "lstm, stacked": (nn.LSTM, {"num_layers": 3, "dropout": 0.5}),
    "lstm, projected": (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
    "lstm without biases": (nn.LSTM, {"bias": False}),
    "gru": (nn.GRU, {}),
    "gru, both ways and stacked": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    "gru without biases": (nn.GRU, {"bias": False}),
    "rnn": (nn.RNN, {}),
    "rnn with relu, both ways": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
    "rnn without biases": (nn.RNN, {"bias": False, "num_layers": 2}),
}

CELLS: dict[str, tuple[type[nn.RNNCellBase], dict[str, Any]]] = {
    "lstm": (nn.LSTMCell, {}),
    "gru": (nn.GRUCell, {}),
    "gru without biases": (nn.GRUCell, {"bias": False}),
    "rnn": (nn.RNNCell, {}),
    "rnn with relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network(name: str, **options: Any) -> nn.RNNBase:
    kind, given = NETWORKS[name]
    torch.manual_seed(5)
    return perturb(kind(INPUT, HIDDEN, **given, **options)).eval()


def states(layer: nn.RNNBase, batch: int) -> Any:
    count = layer.num_layers * (1 + layer.bidirectional)
    h = random(count, batch, layer.proj_size or HIDDEN, seed=1)
    return (h, random(count, batch, HIDDEN, seed=2)) if layer.mode == "LSTM" else h


def operators(program: Captured) -> Counter[str]:
    return Counter(n.target._opname for n in program.nodes if n.op == "call_function")


# Each network is quick in one of these two tests.
FROM_ZEROS = ["lstm, stacked", "lstm without biases", "gru without biases", "rnn without biases"]
FROM_STATES = [
    (1, "lstm"),
    (2, "lstm, both ways"),
    (1, "lstm, projected"),
    (2, "gru"),
    (1, "gru, both ways and stacked"),
    (1, "rnn"),
    (2, "rnn with relu, both ways"),
]


@pytest.mark.parametrize("name", slow_but(NETWORKS, FROM_ZEROS))
def test_numbers_in_every_order_from_a_zero_state(name: str) -> None:
    lowered = lower_everywhere(network(name), [random(STEPS, BATCH, INPUT)], count=0)
    assert not any("lstm" in op or "gru" in op or "rnn" in op for op in operators(lowered.program))


@pytest.mark.parametrize(("batch", "name"), slow_but(product([1, 2], NETWORKS), FROM_STATES))
def test_numbers_from_a_given_state_batch_first(name: str, batch: int) -> None:
    layer = network(name, batch_first=True)
    lower_everywhere(layer, [random(batch, STEPS, INPUT), states(layer, batch)], count=2 - batch)


@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str) -> None:
    kind, options = CELLS[name]
    torch.manual_seed(6)
    cell = perturb(kind(INPUT, HIDDEN, **options))
    h = random(BATCH, HIDDEN, seed=1)
    given = (h, random(BATCH, HIDDEN, seed=2)) if kind is nn.LSTMCell else h
    lower_everywhere(cell, [random(BATCH, INPUT)], count=1)
    lower_everywhere(cell, [random(BATCH, INPUT), given], count=1)


def test_cells_in_a_loop_share_their_weights() -> None:
    cell = perturb(nn.LSTMCell(INPUT, HIDDEN))

    def loop(m: Any, x: Tensor) -> Tensor:
        state = None
        for step in x:
            state = m.cell(step, state)
        return state[0]

    lowered = lower_everywhere(Net(loop, cell=cell), [random(STEPS, BATCH, INPUT)], count=0)
    shapes = sorted(tuple(buffer.shape) for buffer in lowered.program.module.buffers())
    assert shapes == [(12,), (12, HIDDEN), (12, INPUT)]


def test_a_constant_state_and_one_step() -> None:
    layer, h = network("gru"), random(1, BATCH, HIDDEN, seed=3)
    model = Net(lambda m, x: m.layer(x, m.h)[1], layer=layer, h=h)
    lower_everywhere(model, [random(1, BATCH, INPUT)], count=1)


def test_without_a_batch() -> None:
    lower_everywhere(network("lstm, both ways"), [random(STEPS, INPUT)], count=1)


ONES = [(1, 1, 7, 3), (1, 2, 1, 1), (5, 1, 1, 3)]
KINDS = [nn.LSTM, nn.GRU, nn.RNN]


@pytest.mark.parametrize(("sizes", "kind"), slow_but(product(ONES, KINDS), zip(ONES, KINDS, strict=True)))
def test_sizes_of_one(kind: type[nn.RNNBase], sizes: tuple[int, int, int, int]) -> None:
    steps, batch, size, hidden = sizes
    layer = perturb(kind(size, hidden, bidirectional=True))
    lower_everywhere(layer, [random(steps, batch, size)], count=1)
    lower_everywhere(layer, [random(steps, size)], count=1)


def test_double_keeps_its_type() -> None:
    assert (
        capture(network("lstm").double(), (random(STEPS, BATCH, INPUT).double(),))
        .outputs[0]
        .meta["val"]
        .dtype
        == torch.float64
    )


# Operators of the first step from a zero state, of each further step, and of all steps together.
@pytest.mark.parametrize(
    ("name", "first", "further", "together"),
    [("lstm", 10, 15, 2), ("gru", 9, 14, 3), ("rnn", 2, 4, 2), ("lstm without biases", 10, 15, 2)],
)
@pytest.mark.parametrize("steps", [2, 9])
def test_operators_per_step(name: str, first: int, further: int, together: int, steps: int) -> None:
    model = Net(lambda m, x: m.layer(x)[0], layer=network(name))
    counts = operators(capture(model, (random(steps, BATCH, INPUT),)))
    assert counts.total() == first + (steps - 1) * further + together, counts
    linears = {"gru": 2}.get(name, 1)
    assert counts["linear"] == linears * steps


def test_an_in_place_operator_beside_it_does_not_unroll_it_otherwise() -> None:
    def function(m: Any, x: Tensor) -> Tensor:
        y = x * 2
        view = y[0]
        view.add_(1)  # seen through y: torch decomposes the program
        return m.layer(y)[0]

    model = Net(function, layer=network("lstm"))
    lowered = lower_everywhere(model, [random(STEPS, BATCH, INPUT)], count=0)
    assert operators(lowered.program)["sigmoid"] == STEPS


def test_weights_that_are_computed_stay_whole() -> None:
    def function(m: Any, x: Tensor, scale: Tensor) -> Tensor:
        h = x.new_zeros(BATCH, HIDDEN)
        return torch.gru_cell(x, h, m.cell.weight_ih * scale, m.cell.weight_hh)

    model = Net(function, cell=nn.GRUCell(INPUT, HIDDEN))
    lowered = lower_everywhere(model, [random(BATCH, INPUT), random(1)], count=0)
    assert operators(lowered.program)["gru_cell"] == 1


def test_packed_sequences_are_refused() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network("lstm")

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.tensor([STEPS, STEPS - 1])
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
            return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]

    with pytest.raises(UnsupportedError):
        capture(Packed(), (random(STEPS, BATCH, INPUT),))


class Tagger(nn.Module):
    """Convolutions, a recurrent network over their columns, a classifier: as for reading text."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.recur = nn.LSTM(6 * 4, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 11)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.conv(x)), 2)
        columns = y.flatten(1, 2).transpose(1, 2)
        hidden, _ = self.recur(columns)
        return self.head(hidden)


@pytest.mark.parametrize(
    ("order", "batch"), slow_but(product(["NCHW", "NHWC"], [1, 2]), [("NCHW", 1), ("NHWC", 2)])
)
def test_a_reader_of_text(batch: int, order: str) -> None:
    torch.manual_seed(7)
    model = perturb(Tagger())
    lowered = dimorder.lower(model, (random(batch, 3, 8, 14),), input_orders=order)
    assert lowered.max_rel_error < 2e-5
    lower_everywhere(model, [random(batch, 3, 8, 14)], count=1)


@pytest.mark.parametrize(
    "name", ["lstm, projected", "gru, both ways and stacked", "rnn with relu, both ways"]
)
def test_xnnpack_computes_it_whole(name: str) -> None:
    pytest.importorskip("executorch")
    layer = network(name, batch_first=True)
    lowered = dimorder.lower(layer, (random(BATCH, STEPS, INPUT),), target="xnnpack")
    assert (dict(lowered.artifact.outside), lowered.artifact.delegates) == ({}, 1)


def test_tosa_computes_it() -> None:
    pytest.importorskip("tosa_reference_model")
    layer = network("lstm, both ways")
    lowered = dimorder.lower(layer, (random(3, BATCH, INPUT),), target="tosa", run_artifact=True)
    assert lowered.max_rel_error < 1e-4
