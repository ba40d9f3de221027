"""Collect the cases.

ExecuTorch's backend suite runs its own functions with a runner. The runner here keeps what it is given.
PyTorch has samples of its operators.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import unittest
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

SAMPLES = 2  # of each operator of PyTorch's: spread over those that it has


@dataclass(frozen=True)
class Case:
    """One call that a lowering is tried on: `make` gives the module and its inputs, the same each time."""

    source: str  # "executorch" or "torch"
    group: str  # the operator
    name: str
    make: Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]

    def __str__(self) -> str:
        return f"{self.source}:{self.group}/{self.name}"

    def exported(self) -> list[str]:
        """The operators that export makes of it; none where it makes no program."""
        try:
            return list(dict.fromkeys(map(str, called(*self.make()))))
        except Exception:  # whatever export says of it
            return []


def called(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch._ops.OpOverload]:
    """The operators that are called in the program that export makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, inputs)
    found = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return [target for target in found if isinstance(target, torch._ops.OpOverload)]


def collect(source: str, pattern: str = "") -> Iterator[Case]:
    """The cases of a source in which `pattern` occurs."""
    found = {"executorch": _of_executorch, "torch": _of_torch}[source]
    yield from (case for case in found(pattern) if pattern in str(case))


def named(source: str, name: str) -> Case:
    """The case of that name."""
    return next(case for case in collect(source, name) if str(case) == name)


# -- ExecuTorch's backend suite


class _Flow:
    """As the suite asks for it: a float32 flow."""

    quantize = False


class _Recorder:
    """The runner that a test of the suite gets: it keeps what is to be lowered."""

    _flow = _Flow()

    def __init__(self) -> None:
        self.given: list[tuple[torch.nn.Module, tuple[Any, ...]]] = []

    def lower_and_run_model(self, model: torch.nn.Module, inputs: Any, **_: Any) -> None:
        """Shapes are static here: what a test says of dynamic ones is left out."""
        self.given.append((model.eval(), tuple(inputs)))


def _of_executorch(pattern: str) -> Iterator[Case]:
    import executorch.backends.test.suite.operators as suite

    for module in pkgutil.iter_modules(suite.__path__, f"{suite.__name__}."):
        group = module.name.rpartition(".test_")[2]
        elsewhere = "/" in pattern and not f"executorch:{group}/".endswith(pattern.partition("/")[0] + "/")
        if module.name.rpartition(".")[2] != f"test_{group}" or elsewhere:
            continue
        tests = vars(importlib.import_module(module.name))
        for name in sorted(name for name in tests if name.startswith("test_") and callable(tests[name])):
            yield from _recorded(group, name, tests[name])


def _recorded(group: str, name: str, test: Callable[..., None]) -> Iterator[Case]:
    def record() -> list[tuple[torch.nn.Module, tuple[Any, ...]]]:
        torch.manual_seed(zlib.crc32(name.encode()))
        recorder = _Recorder()
        takes = test.__code__.co_varnames[: test.__code__.co_argcount]
        with contextlib.suppress(unittest.SkipTest):  # what the suite itself leaves out
            test(recorder, **({"dtype": torch.float32} if "dtype" in takes else {}))
        return recorder.given

    given = record()
    for i in range(len(given)):
        case = name.removeprefix("test_") + (f"[{i}]" if len(given) > 1 else "")
        yield Case("executorch", group, case, lambda i=i: record()[i])


# -- PyTorch's samples


class Sampled(torch.nn.Module):
    """An operator of `op_db` on a sample: its tensors are inputs, everything else is constant."""

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], spec: Any) -> None:
        super().__init__()
        self.function, self.spec = function, spec
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def _of_torch(pattern: str) -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        group = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if pattern and pattern.split("/")[0] not in f"torch:{group}":
            continue
        if torch.float32 not in op.dtypes or not isinstance(_packet(op), torch._ops.OpOverloadPacket):
            continue
        yield from _samples(op, group)


def _packet(op: Any) -> Any:
    return getattr(torch.ops.aten, op.aten_name, None) if op.aten_name else None


def _samples(op: Any, group: str) -> Iterator[Case]:
    """Some samples of an operator: those that export keeps as one call, or whose operator is core."""

    @functools.cache
    def sampled() -> list[Any]:
        """Those with elements: a program has no input without."""
        torch.manual_seed(zlib.crc32(group.encode()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = op.sample_inputs("cpu", torch.float32, requires_grad=False)
            return [sample for sample in found if all(x.numel() for x in _tensors(sample))]

    def make(index: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
        sample = sampled()[index]
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return Sampled(op.op, leaves, spec), tensors

    try:
        count = len(sampled())
    except Exception:  # its samples need what is not installed
        return
    for index in sorted({i * (count - 1) // max(SAMPLES - 1, 1) for i in range(SAMPLES)} if count else ()):
        if _belongs(op, *make(index)):
            yield Case("torch", group, str(index), lambda index=index: make(index))


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _belongs(op: Any, module: torch.nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Whether a sample can be exported, is not random, writes to nothing, and is core or kept by export."""
    if not inputs or any(x.is_sparse or x.layout != torch.strided or x.is_complex() for x in inputs):
        return False
    try:
        overloads = called(module, inputs)
    except Exception:  # whatever export says of it
        return False
    if (
        not overloads
        or "empty" in op.name
        or any(  # what lies in memory is no result
            torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
            for target in overloads
        )
    ):
        return False
    packet = _packet(op)
    core = any(torch.Tag.core in getattr(packet, name).tags for name in packet.overloads())
    return core or packet in [target.overloadpacket for target in overloads]
