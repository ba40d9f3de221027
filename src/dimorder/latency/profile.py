"""Time each operator of a program for XNNPACK, and compute its least possible time.

The runtime reports no times inside a delegate, so each operator becomes a program that repeats it.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from dimorder.clock import Progress, StepPart
from dimorder.errors import UnsupportedError
from dimorder.graph.branches import Branches
from dimorder.graph.nodes import is_getitem
from dimorder.latency.limit import Limit
from dimorder.latency.timing import AT_ONCE, interleaved
from dimorder.ops.dialect import decompose
from dimorder.ops.quantization import is_quantized
from dimorder.physical.wasted_levels import clamp_range
from dimorder.plans.explanation import Place
from dimorder.targets.program_io import read_signature
from dimorder.targets.table import is_permute

aten = torch.ops.aten

# A clamp after these is no node of its own.
_CLAMPED = ("conv2d", "linear", "conv_transpose2d", "add", "sub", "mul", "div", "max_pool2d", "avg_pool2d")
_TIMES = 8  # computations of the operator in a program: threads take time to start


@dataclass(frozen=True)
class OperatorTime:
    """An operator of a program, or several equal ones, with the place of the first and the time of all."""

    place: Place
    shape: tuple[int, ...]
    count: int
    ms: float
    limit_ms: float

    @property
    def above_ms(self) -> float:
        return self.ms - self.limit_ms

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder bench --json`; the keys are stable."""
        times = {"ms": round(self.ms, 5), "limit_ms": round(self.limit_ms, 5)}
        return {**asdict(self.place), "shape": list(self.shape), "count": self.count, **times}


def profile(
    physical: ExportedProgram, limit: Limit, rounds: int = 30, progress: Progress = lambda step: None
) -> list[OperatorTime]:
    """Return the operators of a physical program for XNNPACK, those farthest above their limit first.

    An operator counts with the clamp after it, which XNNPACK computes in passing.

    >>> from dimorder import lower
    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    >>> lowered = lower(conv, (torch.randn(1, 3, 9, 11),), target="xnnpack")
    >>> found = profile(lowered.physical, Limit(1, 1e9, ((100, 1e9),)), rounds=5)
    >>> sorted((each.place.operator, each.count, each.shape) for each in found)[:2]
    [('aten.clone', 1, (1, 8, 7, 9)), ('aten.clone', 1, (1, 9, 11, 3))]
    """
    if is_quantized(physical.graph_module):
        raise UnsupportedError("the profile", "a quantised network", "profile the float network")
    if any(isinstance(node.target, Branches) for node in physical.graph.nodes):
        raise UnsupportedError(
            "the profile", "a network with torch.cond", "profile the branches by themselves"
        )
    from dimorder.executorch import pte
    from dimorder.targets.xnnpack.emit import emit

    pte.set_threads(limit.threads)
    alike: dict[str, list[_SingleOperator]] = {}
    for each in _single_operators(physical):
        alike.setdefault(each.key, []).append(each)
    groups = list(alike.values())
    idle = _open_program(emit(torch.export.export(_Idle(), (torch.ones(1),))).data, [torch.ones(1)])
    medians: list[float] = []
    for first in range(0, len(groups), AT_ONCE):
        progress(StepPart("timing operators", first, len(groups)))
        calls = {"idle": idle}
        for i, (each, *_) in enumerate(groups[first : first + AT_ONCE]):
            calls[str(i)] = _open_program(emit(each.exported(times=_TIMES)).data, each.fed(_TIMES))
        times = {name: statistics.median(ms) for name, ms in interleaved(calls, rounds).items()}
        idle_ms = times.pop("idle")
        medians += [max(ms - idle_ms, 0.0) / _TIMES for ms in times.values()]
    found = []
    for group, ms in zip(groups, medians, strict=True):
        least = 1e3 * limit.seconds(decompose(group[0].exported()))
        shape, count = group[0].shape, len(group)
        found.append(OperatorTime(group[0].place, shape, count, count * ms, count * least))
    return sorted(found, key=lambda each: -each.above_ms)


class _Idle(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x


def _open_program(data: bytes, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    from dimorder.executorch import pte

    method = pte.method_of(data)
    return lambda: method(inputs)


@dataclass(frozen=True)
class _SingleOperator:
    """An operator as a program. Operators with one `key` take the same time."""

    place: Place
    shape: tuple[int, ...]
    key: str
    module: GraphModule
    inputs: tuple[Tensor, ...]

    def exported(self, times: int = 1) -> ExportedProgram:
        """Return a program that computes it `times` times."""
        return torch.export.export(RepeatedModule(self.module, times), self.fed(times))

    def fed(self, times: int) -> tuple[Tensor, ...]:
        """Return inputs for each computation, apart, for torch.export would merge equal ones."""
        return tuple(x.clone() for _ in range(times) for x in self.inputs)


class RepeatedModule(torch.nn.Module):
    """A module that is computed several times, each on inputs of its own."""

    def __init__(self, module: torch.nn.Module, times: int) -> None:
        super().__init__()
        self.module, self.times = module, times

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        count = len(inputs) // self.times
        calls = (self.module(*inputs[i * count : (i + 1) * count]) for i in range(self.times))
        return tuple(result for results in calls for result in results)


def _single_operators(physical: ExportedProgram) -> Iterator[_SingleOperator]:
    constants, passed = read_signature(physical).constants, set[Node]()
    for node in physical.graph.nodes:
        if node.op != "call_function" or node in constants or node in passed or _is_view(node):
            continue
        chain = [node]
        while _takes_clamps(node) and len(chain[-1].users) == 1:
            (user,) = chain[-1].users
            if clamp_range(user) is None:
                break
            chain.append(user)
        passed.update(chain)
        yield _program(chain, constants)


def _takes_clamps(node: Node) -> bool:
    return str(node.target).split(".")[1].removesuffix("_nhwc") in _CLAMPED


def _is_view(node: Node) -> bool:
    """Return whether a node takes no time; a clone of a dense tensor takes none."""
    if node.target is aten.clone.default:
        return not is_permute(node.all_input_nodes[0])
    return is_permute(node) or is_getitem(node) or node.target is aten.view.default


def _program(chain: Sequence[Node], constants: Mapping[Node, Tensor]) -> _SingleOperator:
    root, graph, calls, inputs = torch.nn.Module(), Graph(), dict[Node, Node](), list[Tensor]()

    def called(each: Node) -> Node:
        if each in calls:
            return calls[each]
        if each in constants:
            name = f"constant_{len(calls)}"
            root.register_buffer(name, constants[each].contiguous())
            calls[each] = graph.get_attr(name)
        elif each in chain or (_is_view(each) and not is_getitem(each)):
            for operand in each.all_input_nodes:
                called(operand)
            calls[each] = graph.node_copy(each, called)
        else:
            calls[each] = graph.placeholder(each.name)
            inputs.append(_random_like(each.meta["val"]))
        return calls[each]

    result, value = called(chain[-1]), chain[-1].meta["val"]
    if not isinstance(value, Tensor):
        value, result = value[0], graph.call_function(operator.getitem, (result, 0))
    graph.output((result,))
    places = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    calls_alike = [
        (str(n.target), torch.fx.map_arg((n.args, n.kwargs), places.get))
        for n in places
        if n.op == "call_function"
    ]
    tensors = [(x.shape, x.stride(), x.dtype) for x in (*inputs, *root.buffers())]
    module = GraphModule(root, graph)
    return _SingleOperator(
        Place.of(chain[0]), tuple(value.shape), str((calls_alike, tensors)), module, tuple(inputs)
    )


def _random_like(like: Any) -> Tensor:
    """Return a tensor with the same strides; integers are zeros, which may be read as indices."""
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return tensor.uniform_(0.1, 1.0) if like.is_floating_point() else tensor.zero_()
