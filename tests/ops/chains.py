"""Draw random networks to test the rules on together: chains of operators with residuals.

A chain is data (`Step`s), drawn so that every step fits the shapes before it; `Chain` runs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

MAX_ELEMENTS = 3000
MAX_RANK = 6


@dataclass(frozen=True)
class Step:
    """One operator: its name, the values it reads, its parameters, the shapes of its constants."""

    name: str
    reads: tuple[int, ...]
    parameters: tuple[Any, ...] = ()
    constants: tuple[tuple[int, ...], ...] = ()

    def run(self, values: list[Tensor], constants: list[Tensor]) -> Tensor:
        return _OPERATORS[self.name](*(values[i] for i in self.reads), *constants, *self.parameters)


class Chain(nn.Module):
    """Runs the steps on one input and returns the last value, and every value that nothing read."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__()
        self.steps = steps
        generator = torch.Generator().manual_seed(5)
        for i, step in enumerate(steps):
            for j, shape in enumerate(step.constants):
                constant = torch.randn(shape, generator=generator, dtype=torch.float64)
                self.register_buffer(f"constant_{i}_{j}", constant)

    def forward(self, x: Tensor) -> list[Tensor]:
        values = [x]
        for i, step in enumerate(self.steps):
            constants = [getattr(self, f"constant_{i}_{j}") for j in range(len(step.constants))]
            values.append(step.run(values, constants))
        read = {i for step in self.steps for i in step.reads}
        return [value for i, value in enumerate(values) if i not in read]


def _gate(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x * torch.sigmoid(x.mean(dims, keepdim=True))


def _shuffle(x: Tensor, dim: int, groups: int) -> Tensor:
    return x.unflatten(dim, (groups, -1)).transpose(dim, dim + 1).flatten(dim, dim + 1)


def _windows(x: Tensor, dim: int, size: int, order: tuple[int, ...]) -> Tensor:
    return x.unflatten(dim, (-1, size)).permute(order)


def _halves(x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.tanh(b)


_OPERATORS: dict[str, Any] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "permute": lambda x, order: x.permute(order),
    "reshape": lambda x, shape: x.reshape(shape),
    "windows": _windows,
    "shuffle": _shuffle,
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * torch.sigmoid(y),
    "gate": _gate,
    "halves": _halves,
    "prelu": F.prelu,
    "cat": lambda x, y, dim: torch.cat([x, y], dim),
    "cat_self": lambda x, dim: torch.cat([x, x * 2, x], dim),
    "slice": lambda x, dim, start, end, step: torch.ops.aten.slice.Tensor(x, dim, start, end, step),
    "flip": lambda x, dims: x.flip(dims),
    "roll": lambda x, shift, dim: x.roll(shift, dim),
    "pad": lambda x, pads: F.pad(x, pads, value=0.5),
    "expand": lambda x, dim, size: x.unsqueeze(dim).expand(*x.shape[:dim], size, *x.shape[dim:]),
    "repeat": lambda x, times: x.repeat(times),
    "mean": lambda x, dims, keep: x.mean(dims, keep),
    "amax": lambda x, dims, keep: x.amax(dims, keep),
    "softmax": lambda x, dim: x.softmax(dim),
    "cumsum": lambda x, dim: x.cumsum(dim) / x.shape[dim],
    "argmax": lambda x, dim, keep: x.argmax(dim, keep).to(torch.float64),
    "layer_norm": lambda x, w, b, shape: F.layer_norm(x, shape, w, b),
    "linear": F.linear,
    "matmul": lambda x, w: x @ w / w.shape[-2],
    "matmul_left": lambda x, w: w @ x / w.shape[-1],
    "self_attention": lambda x: (x @ x.transpose(-1, -2) / x.shape[-1]).softmax(-1) @ x,
    "conv1d": lambda x, w, b, stride, padding, groups: F.conv1d(x, w, b, stride, padding, 1, groups),
    "conv2d": lambda x, w, b, stride, padding, groups: F.conv2d(x, w, b, stride, padding, 1, groups),
    "conv_transpose2d": lambda x, w, b, stride, groups: F.conv_transpose2d(x, w, b, stride, 0, 0, groups),
    "max_pool2d": lambda x, size, stride: F.max_pool2d(x, size, stride),
    "avg_pool2d": lambda x, size, padding: F.avg_pool2d(x, size, 2, padding),
    "upsample": lambda x, mode: F.interpolate(x, scale_factor=2, mode=mode),
    "group_norm": lambda x, groups: F.group_norm(x, groups),
}


def _divisors(size: int) -> list[int]:
    return [d for d in range(1, size + 1) if size % d == 0]


@st.composite
def chains(draw: st.DrawFn, least: int = 3, most: int = 8) -> tuple[tuple[int, ...], tuple[Step, ...]]:
    """An input shape and steps that fit it and one another."""
    rank = draw(st.sampled_from([4, 4, 4, 3, 2, 5]))
    sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12])
    shape = tuple(draw(sizes) for _ in range(rank))
    while math.prod(shape) > MAX_ELEMENTS // 4:
        shape = tuple(max(1, size // 2) for size in shape)
    values = [torch.empty(shape, device="meta", dtype=torch.float64)]
    steps: list[Step] = []
    wanted = draw(st.integers(least, most))
    for _ in range(4 * wanted):
        if len(steps) == wanted:
            break
        last = len(values) - 1
        read = last if draw(st.integers(0, 4)) else draw(st.integers(0, last))
        step = draw(_step(read, tuple(values[read].shape), [tuple(v.shape) for v in values]))
        if step is None:
            continue
        value = step.run(values, [torch.empty(s, device="meta", dtype=torch.float64) for s in step.constants])
        if not 0 < value.numel() <= MAX_ELEMENTS or value.dim() > MAX_RANK:
            continue
        steps.append(step)
        values.append(value)
    return shape, tuple(steps)


@st.composite
def _step(draw: st.DrawFn, i: int, s: tuple[int, ...], shapes: list[tuple[int, ...]]) -> Step | None:
    """A step that reads value `i` of shape `s`, or None where the drawn operator does not fit."""
    rank = len(s)
    name = draw(st.sampled_from(list(_OPERATORS)))
    dim = draw(st.integers(0, max(rank - 1, 0)))
    some = tuple(d for d in range(rank) if draw(st.booleans()))
    if rank == 0 and name not in ("relu", "tanh", "add", "expand"):
        return None
    match name:
        case "relu" | "tanh":
            return Step(name, (i,))
        case "permute":
            return Step(name, (i,), (tuple(draw(st.permutations(range(rank)))),))
        case "reshape":
            return Step(name, (i,), (_regrouped(draw, s),))
        case "windows":
            size = draw(st.sampled_from(_divisors(s[dim])))
            return Step(name, (i,), (dim, size, tuple(draw(st.permutations(range(rank + 1))))))
        case "shuffle":
            return Step(name, (i,), (dim, draw(st.sampled_from(_divisors(s[dim])))))
        case "add" | "multiply":
            fitting = [j for j, other in enumerate(shapes) if _broadcast(s, other) == s]
            if draw(st.booleans()):
                return Step(name, (i, draw(st.sampled_from(fitting))))
            shape = tuple(1 if d in some else size for d, size in enumerate(s))
            return Step(name, (i,), (), (shape[draw(st.integers(0, rank)) :],))
        case "gate":
            return Step(name, (i,), (some,)) if some else None
        case "halves":
            return Step(name, (i,), (dim,)) if s[dim] % 2 == 0 else None
        case "prelu":
            return Step(name, (i,), (), ((s[1],),)) if rank > 1 else None
        case "cat":
            fitting = [
                j for j, o in enumerate(shapes) if len(o) == rank and _without(o, dim) == _without(s, dim)
            ]
            if draw(st.booleans()):
                return Step(name, (i, draw(st.sampled_from(fitting))), (dim,))
            return Step(name, (i,), (dim,), ((*s[:dim], draw(st.integers(1, 6)), *s[dim + 1 :]),))
        case "cat_self":
            return Step(name, (i,), (dim,))
        case "slice":
            start = draw(st.integers(0, s[dim] - 1))
            return Step(
                name, (i,), (dim, start, draw(st.integers(start + 1, s[dim])), draw(st.integers(1, 3)))
            )
        case "flip":
            return Step(name, (i,), (some,))
        case "roll":
            return Step(name, (i,), (draw(st.integers(-3, 3)), dim))
        case "pad":
            count = draw(st.integers(1, rank))
            pads = tuple(draw(st.integers(-1, 3)) for _ in range(2 * count))
            lost = any(a + b + size < 1 for a, b, size in zip(pads[::2], pads[1::2], s[::-1], strict=False))
            return None if lost else Step(name, (i,), (pads,))
        case "expand":
            return Step(name, (i,), (draw(st.integers(0, rank)), draw(st.integers(1, 4))))
        case "repeat":
            return Step(name, (i,), (tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in s),))
        case "mean" | "amax":
            return Step(name, (i,), (some, draw(st.booleans()))) if some else None
        case "softmax" | "cumsum":
            return Step(name, (i,), (dim,))
        case "argmax":
            return Step(name, (i,), (dim, draw(st.booleans())))
        case "layer_norm":
            shape = s[dim:]
            return Step(name, (i,), (shape,), (shape, shape)) if math.prod(shape) > 1 else None
        case "linear":
            out = draw(st.integers(1, 7))
            return Step(name, (i,), (), ((out, s[-1]), (out,)))
        case "matmul":
            return Step(name, (i,), (), ((s[-1], draw(st.integers(1, 6))),)) if rank > 1 else None
        case "matmul_left":
            batch = s[:-2] if draw(st.booleans()) else ()
            return Step(name, (i,), (), ((*batch, draw(st.integers(1, 6)), s[-2]),)) if rank > 1 else None
        case "self_attention":
            return Step(name, (i,)) if rank > 1 else None
        case "conv1d" | "conv2d" | "conv_transpose2d":
            return _convolved(draw, name, i, s)
        case "max_pool2d" if rank == 4 and min(s[2:]) >= 2:
            return Step(name, (i,), (2, draw(st.integers(1, 2))))
        case "avg_pool2d" if rank == 4 and min(s[2:]) >= 2:
            return Step(name, (i,), (2, draw(st.integers(0, 1))))
        case "upsample" if rank == 4:
            return Step(name, (i,), (draw(st.sampled_from(["nearest", "bilinear"])),))
        case "group_norm" if rank > 2 and math.prod(s[2:]) > 1:
            return Step(name, (i,), (draw(st.sampled_from(_divisors(s[1]))),))
    return None


def _convolved(draw: st.DrawFn, name: str, i: int, s: tuple[int, ...]) -> Step | None:
    space = 1 if name == "conv1d" else 2
    if len(s) != space + 2:
        return None
    groups = draw(st.sampled_from(_divisors(s[1])))
    outputs = groups * draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, min(3, size))) for size in s[2:])
    stride = draw(st.integers(1, 2))
    if name == "conv_transpose2d":
        return Step(name, (i,), (stride, groups), ((s[1], outputs // groups, *kernel), (outputs,)))
    weight = (outputs, s[1] // groups, *kernel)
    return Step(name, (i,), (stride, draw(st.integers(0, 1)), groups), (weight, (outputs,)))


def _regrouped(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape with as many elements: some dimensions merged, then one split, or a size of 1 put in."""
    sizes = list(shape)
    kind = draw(st.sampled_from(["merge", "split", "regroup", "squeeze", "unsqueeze"]))
    if kind == "squeeze":
        return tuple(size for size in sizes if size != 1)
    if kind == "unsqueeze":
        sizes.insert(draw(st.integers(0, len(sizes))), 1)
        return tuple(sizes)
    if kind != "split":
        first = draw(st.integers(0, len(sizes) - 1))
        end = draw(st.integers(first + 1, len(sizes)))
        sizes[first:end] = [math.prod(sizes[first:end])]
    if kind != "merge":
        place = first if kind == "regroup" else draw(st.integers(0, len(sizes) - 1))
        outer = draw(st.sampled_from(_divisors(sizes[place])))
        sizes[place : place + 1] = [outer, sizes[place] // outer]
    return tuple(sizes)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        return None


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]
