"""Unroll recurrent networks over time: one linear of the input for all steps, one of the state for each.

Constants are free: the two biases become one, and gates with a sigmoid lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.operator import spelling

aten = torch.ops.aten

Affine = tuple[Tensor, "Tensor | None"]  # a weight and a bias
State = tuple[Value, ...]  # the hidden state, and the cell state of an LSTM; None if zero


@dataclass(frozen=True)
class Recurrence:
    """The constants of one layer in one direction."""

    of_input: tuple[Affine, ...]  # applied to the input, to all steps at once
    of_state: tuple[Affine, ...]  # applied to the hidden state, step by step
    project: Tensor | None = None  # the weight of an LSTM's projection


@dataclass(frozen=True)
class CellKind:
    """One kind of recurrent network: `arrange` takes its weights, and `step` computes one step."""

    arrange: Callable[..., Recurrence]
    step: Callable[[Tracer, Recurrence, Sequence[Value], State], State]


def _cut(n: Tracer, x: Value, dim: int, start: int, size: int) -> Value:
    return n.write(aten.slice.Tensor, x, dim, start, start + size)


def _plus_state(n: Tracer, given: Value, affine: Affine, h: Value) -> Value:
    """Add the linear of the hidden state to a step's part of the input."""
    return given if h is None else n.write(aten.add.Tensor, given, n.write(aten.linear.default, h, *affine))


# LSTM: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'). The gates i, f, g, o lie as i, f, o, g.


def _arrange_lstm(
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    project: Tensor | None = None,
) -> Recurrence:
    def sort(value: Tensor) -> Tensor:
        i, f, g, o = value.chunk(4)
        return torch.cat([i, f, o, g])

    bias = None if b_ih is None or b_hh is None else sort(b_ih + b_hh)
    return Recurrence(((sort(w_ih), bias),), ((sort(w_hh), None),), project)


def _step_lstm(n: Tracer, layer: Recurrence, given: Sequence[Value], state: State) -> State:
    h, c = state
    gates = _plus_state(n, given[0], layer.of_state[0], h)
    size = shape_of(gates)[-1] // 4
    opened = n.write(aten.sigmoid.default, _cut(n, gates, -1, 0, 3 * size))
    i, f, o = (_cut(n, opened, -1, k * size, size) for k in range(3))
    written = n.write(aten.mul.Tensor, i, n.write(aten.tanh.default, _cut(n, gates, -1, 3 * size, size)))
    c = written if c is None else n.write(aten.add.Tensor, n.write(aten.mul.Tensor, f, c), written)
    h = n.write(aten.mul.Tensor, o, n.write(aten.tanh.default, c))
    return (h if layer.project is None else n.write(aten.linear.default, h, layer.project)), c


# GRU: n = tanh(x_n + σ(r) (W h + b)_n), h' = σ(z) h + (1 - σ(z)) n = h + σ(-z) (n - h). If h = 0, that is one
# multiplication. Two linears of the state are one operator fewer than one linear and two slices of it.


def _arrange_gru(
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Recurrence:
    def negated_z(value: Tensor) -> tuple[Tensor, Tensor]:
        r, z, new = value.chunk(3)
        return torch.cat([r, -z]), new.clone()

    gates_ih, new_ih = negated_z(w_ih)
    gates_hh, new_hh = negated_z(w_hh)
    if b_ih is None or b_hh is None:
        return Recurrence(((gates_ih, None), (new_ih, None)), ((gates_hh, None), (new_hh, None)))
    bias = negated_z(b_ih + b_hh)[0]
    of_input = ((gates_ih, bias), (new_ih, negated_z(b_ih)[1]))
    return Recurrence(of_input, ((gates_hh, None), (new_hh, negated_z(b_hh)[1])))


def _step_gru(n: Tracer, layer: Recurrence, given: Sequence[Value], state: State) -> State:
    (h,) = state
    opened = n.write(aten.sigmoid.default, _plus_state(n, given[0], layer.of_state[0], h))
    size = shape_of(opened)[-1] // 2
    r, z = _cut(n, opened, -1, 0, size), _cut(n, opened, -1, size, size)
    weight, bias = layer.of_state[1]
    kept = bias if h is None else n.write(aten.linear.default, h, weight, bias)
    new = given[1] if kept is None else n.write(aten.add.Tensor, given[1], n.write(aten.mul.Tensor, r, kept))
    new = n.write(aten.tanh.default, new)
    if h is None:
        return (n.write(aten.mul.Tensor, z, new),)
    moved = n.write(aten.mul.Tensor, z, n.write(aten.sub.Tensor, new, h))
    return (n.write(aten.add.Tensor, h, moved),)


# Elman: h' = tanh(x + W h), or relu.


def _arrange_elman(
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Recurrence:
    bias = None if b_ih is None or b_hh is None else b_ih + b_hh
    return Recurrence(((w_ih, bias),), ((w_hh, None),))


def _step_elman(activation: Any) -> Callable[..., State]:
    def step(n: Tracer, layer: Recurrence, given: Sequence[Value], state: State) -> State:
        return (n.write(activation, _plus_state(n, given[0], layer.of_state[0], state[0])),)

    return step


LSTM = CellKind(_arrange_lstm, _step_lstm)
GRU = CellKind(_arrange_gru, _step_gru)
RNN_TANH = CellKind(_arrange_elman, _step_elman(aten.tanh.default))
RNN_RELU = CellKind(_arrange_elman, _step_elman(aten.relu.default))


# Layers, directions and steps


def _network(target: Any, kind: CellKind) -> Callable[..., Value]:
    def spell(n: Tracer, x: Value, states: Value, params: Sequence[Value], *options: Any) -> Value:
        _, num_layers, dropout, train, bidirectional, batch_first = options
        if (train and dropout) or any(isinstance(value, Node) for value in params):
            return n.emit(target, x, states, params, *options)
        time, directions = int(batch_first), 1 + bidirectional
        given = states if isinstance(states, (list, tuple)) else [states]
        count = len(params) // (num_layers * directions)
        ends: list[State] = []
        for first in range(0, num_layers * directions, directions):
            outputs = []
            for k in range(first, first + directions):
                own = list(params[k * count : (k + 1) * count])
                if count == 3:  # a projection without biases
                    own[2:2] = [None, None]
                layer = _arranged(n, kind, own)
                start = tuple(_start(n, value, k, time) for value in given)
                steps = list(_steps(n, kind, layer, x, start, time, reverse=k > first))
                ends.append(steps[-1])
                hidden = [step[0] for step in (reversed(steps) if k > first else steps)]
                outputs.append(n.write(aten.cat.default, hidden, time))
            x = n.write(aten.cat.default, outputs, -1)
        return [x, *(_ends(n, column) for column in zip(*ends, strict=True))]

    return spell


def _cell(target: Any, kind: CellKind) -> Callable[..., Value]:
    def spell(n: Tracer, x: Value, states: Value, *params: Value) -> Value:
        if any(isinstance(value, Node) for value in params):
            return n.emit(target, x, states, *params)
        layer = _arranged(n, kind, params)
        several = isinstance(states, (list, tuple))
        start = tuple(None if _is_zero(value) else value for value in (states if several else [states]))
        given = [n.write(aten.linear.default, x, *affine) for affine in layer.of_input]
        after = kind.step(n, layer, given, start)
        return list(after) if several else after[0]

    return spell


def _arranged(n: Tracer, kind: CellKind, params: Sequence[Value]) -> Recurrence:
    """Return the constants for these weights, computed once and named after them.

    XNNPACK packs a static weight once. It would pack a computed one in each step of each call: 10.6 instead
    of 6.3 ms for 50 steps of 256 to 1024.
    """
    key = (kind, *map(id, params))
    if key not in n.remembered:
        layer = kind.arrange(*params)
        for affines, source in ((layer.of_input, params[0]), (layer.of_state, params[1])):
            name = n.names.get(id(source), "weight")
            for weight, bias in affines:
                n.named(name, weight)
                if bias is not None:
                    n.named(f"{name}_bias", bias)
        n.remembered[key] = params, layer  # keeps the weights alive, so that their ids stay unique
    return n.remembered[key][1]  # type: ignore[no-any-return]


def _steps(
    n: Tracer, kind: CellKind, layer: Recurrence, x: Value, state: State, time: int, *, reverse: bool
) -> Iterator[State]:
    """Yield the state after each step, in the sequence of the steps."""
    parts = [n.write(aten.linear.default, x, *affine) for affine in layer.of_input]
    length = shape_of(x)[time]
    for t in reversed(range(length)) if reverse else range(length):
        state = kind.step(n, layer, [_cut(n, part, time, t, 1) for part in parts], state)
        yield state


def _start(n: Tracer, value: Value, k: int, time: int) -> Value:
    """Return the initial state of layer and direction k, with size 1 along time, or None if it is zero."""
    if _is_zero(value):
        return None
    _, batch, size = shape_of(value)
    shape = [batch, 1, size] if time else [1, batch, size]
    return n.write(aten.reshape.default, _cut(n, value, 0, k, 1), shape)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Tensor) and not value.any()


def _ends(n: Tracer, states: Sequence[Value]) -> Value:
    """Concatenate the last states of every layer and direction."""
    shape = [1, -1, shape_of(states[0])[-1]]
    return n.write(aten.cat.default, [n.write(aten.reshape.default, value, shape) for value in states], 0)


_KINDS = (("lstm", LSTM), ("gru", GRU), ("rnn_tanh", RNN_TANH), ("rnn_relu", RNN_RELU))
OPERATORS = (
    *(
        spelling(_network(getattr(aten, name).input, kind), getattr(aten, name).input)
        for name, kind in _KINDS
    ),
    *(
        spelling(_cell(cell.default, kind), cell.default)
        for cell, kind in ((getattr(aten, f"{name}_cell"), kind) for name, kind in _KINDS)
    ),
)
