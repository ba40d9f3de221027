"""Define target tosa: TOSA 1.0 of profile FP, and of profile INT for quantised networks.

Its import needs no tosa-tools; emitting and running do.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from dimorder.capture.rewrite_linears import LinearLimits
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UnsupportedError, UsageError, installed
from dimorder.graph.exported import graph_with_tensors
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import counted
from dimorder.ops.parts import PARTS
from dimorder.ops.parts_elementary import ELEMENTARY, places_of
from dimorder.ops.parts_pairs import PAIRS
from dimorder.ops.table import IN_SIMPLER, PLAIN
from dimorder.targets.base import (
    Artifact,
    FileSummary,
    Target,
    TargetFiles,
    TargetRuntime,
    UnpredictableError,
)
from dimorder.targets.program_io import as_called, as_promised, physical_shape
from dimorder.targets.table import Table
from dimorder.targets.tosa import INFO, sidecar
from dimorder.targets.tosa.emit import read_program, write
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.integers.forms import Forms
from dimorder.targets.tosa.integers.model import TosaModel
from dimorder.targets.tosa.integers.numbers import PLAIN as PLAIN_FORMS
from dimorder.targets.tosa.integers.numbers import IntegerWriter
from dimorder.targets.tosa.integers.ops import OPERATORS as INTEGERS
from dimorder.targets.tosa.ops import OPERATORS, unfit_input
from dimorder.targets.tosa.recipes import RECIPES
from dimorder.targets.tosa.writer import MAX_RANK
from dimorder.verification.network_calls import Run
from dimorder.verification.numerics import RoundingsRun

_STDOUT = 1  # the descriptor
_ONE_AT_A_TIME = threading.Lock()  # the descriptor is that of all threads


@dataclass(frozen=True)
class TosaArtifact(Artifact):
    """A TOSA flatbuffer with a companion file for its contract: `model.tosa` and `model.tosa.json`.

    `model` computes what a graph of integers gives, and `reference_run` runs `model` as a program.
    """

    data: bytes = field(repr=False)
    contract: Contract
    reference_run: Run | None = None
    model: TosaModel | None = None
    delegates: int = 1

    @cached_property
    def companions(self) -> Mapping[str, bytes]:
        return {sidecar.SUFFIX: sidecar.encode(self.data, self.contract)}

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return run(self.data, self.contract, inputs)


def run(data: bytes, contract: Contract, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a TOSA flatbuffer on the reference model, for inputs in the signature's shapes.

    Raises `UnsupportedError` if tosa-tools is not installed, or the reference model refuses the graph.
    """
    with installed("target tosa", INFO.install):
        import tosa_reference_model as reference
    arrays = [_physical(x, spec) for x, spec in zip(inputs, contract.inputs, strict=True)]
    with _without_output():
        results, status = reference.run(data, arrays)
    where = "the TOSA reference model"
    if status == reference.GraphStatus.TOSA_UNPREDICTABLE:  # such as a power of a number below 0
        found = "an input for which TOSA defines no result"
        raise UnpredictableError(where, found, "give the numbers that the network is for")
    if status != reference.GraphStatus.TOSA_VALID:
        raise UnsupportedError(where, f"status {status.name}", "report the network that was lowered")
    return [_logical(result, spec) for result, spec in zip(results, contract.outputs, strict=True)]


@contextmanager
def _without_output() -> Iterator[None]:
    """Hide what the reference model prints: a warning with each graph, that it also reads TOSA 1.1."""
    if os.name != "posix" or sys.stdout is None:  # closed by the process that started us
        yield
        return
    flush = ctypes.CDLL(None).fflush  # the model writes to C's buffer, not to Python's
    with _ONE_AT_A_TIME, open(os.devnull, "wb") as nothing:
        flush(None)
        kept = os.dup(_STDOUT)
        os.dup2(nothing.fileno(), _STDOUT)
        try:
            yield
        finally:
            flush(None)
            os.dup2(kept, _STDOUT)
            os.close(kept)


def _physical(tensor: torch.Tensor, spec: TensorSpec) -> Any:
    """Return a tensor as the graph reads it: a dense array in the contract's order."""
    held = as_promised(tensor, spec).detach().cpu().contiguous()
    # numpy has no bfloat16
    array = (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()
    if array.dtype == np.uint8:  # TOSA has these bits as INT8
        return array.view(np.int8)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype != np.int64:
        return array
    if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise UsageError(f"input {spec.name!r}", "values beyond 32 bits", "TOSA 1.0 has no wider integers")
    return array.astype(np.int32)


def _logical(array: Any, spec: TensorSpec) -> torch.Tensor:
    """Return a result in the shape of the program's signature."""
    dtype = getattr(torch, spec.dtype)
    held = torch.from_numpy(array.view(np.int16) if dtype == torch.bfloat16 else array)
    dense = held.view(dtype) if dtype in (torch.uint8, torch.bfloat16) else held.to(dtype)
    return as_called(dense.reshape([int(size) for size in physical_shape(spec)]), spec)


def emit(program: ExportedProgram, contract: Contract, operators: Table = OPERATORS) -> TosaArtifact:
    """Emit a float program. Raises `UnsupportedError` for an operator that TOSA lacks."""
    return TosaArtifact(write(program, contract, operators)[0], contract)


def emit_integers(
    program: ExportedProgram,
    contract: Contract,
    operators: Table = INTEGERS,
    *,
    forms: Forms = PLAIN_FORMS,
) -> TosaArtifact:
    """Emit a quantised network, in these forms.

    Raises `UnsupportedError` for an operator that has no form in integers.
    """
    writer = IntegerWriter(forms)
    data, model_of = write(program, contract, operators, writer)
    model = replace(model_of(), errors=writer.errors)
    module = graph_with_tensors(program)

    def run_model(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the graph's outputs, after comparing its integers with the program's roundings."""
        held = [torch.from_numpy(_physical(x, spec)) for x, spec in zip(inputs, contract.inputs, strict=True)]
        program = RoundingsRun(module)
        program.run(*inputs)
        model.run(held, program.roundings)
        return [_logical(y.numpy(), spec) for y, spec in zip(model.run(held), contract.outputs, strict=True)]

    return TosaArtifact(data, contract, run_model, model)


def load(file: Path) -> tuple[Contract, Run]:
    """Return the contract of a saved graph, and the graph as a function.

    Raises the errors of `sidecar.read`.
    """
    artifact = TosaArtifact(*sidecar.read(file))
    return artifact.contract, artifact.run


def check(path: str, data: bytes) -> FileSummary:
    """Return the content of a TOSA graph from any tool.

    Raises the errors of `sidecar.read` if the graph has a companion file, which is then read as `load` does.
    """
    companion = sidecar.companion_of(Path(path))
    if companion.exists() and b"dimorder.contract" in companion.read_bytes():  # no other tool's JSON
        sidecar.read(Path(path))
    return inspect_tosa(data)


LINEARS = LinearLimits(split_channels=16)  # as for XNNPACK
MIN_RUN = 8  # as for XNNPACK: an NPU's compiler writes shorter runs element by element too

# Operators built from reductions take any order, and a constant weight multiplies from either side. If that
# makes too many candidate orders, fewer of these are offered: swin_t takes the second.
_FROM_PARTS = frozenset(
    {
        "aten.softmax.int/any",
        "aten.log_softmax.int/any",
        "aten.log_softmax.int/by halves",
        "aten.layer_norm/any",
    }
)
_FIRST = frozenset({"aten.linear/features first"})


_IMPLEMENTATIONS = (
    PLAIN
    | IN_SIMPLER
    | {
        "aten.linear/as a convolution",
        "aten.linear/as a matmul",
        "aten.amax/by halves",
        "aten.amin/by halves",
        "aten.prod.dim_int/by halves",
        "aten.cumsum/by doubling",
    }
)
_OF_FLOATS = (_IMPLEMENTATIONS, _IMPLEMENTATIONS - _FIRST, _IMPLEMENTATIONS - _FIRST - _FROM_PARTS)
# A function of a sum, into which operators from parts decompose, has no form in integers.
_OF_INTEGERS = (_IMPLEMENTATIONS - _FROM_PARTS, _IMPLEMENTATIONS - _FROM_PARTS - _FIRST)
_WITHOUT_ARGMAX = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def target(operators: Table = OPERATORS, integers: Table = INTEGERS) -> Target:
    """Return the target whose graphs have these operators: all that TOSA has, or fewer."""
    quantised = replace(
        _target(integers, partial(emit_integers, operators=integers), _OF_INTEGERS),
        fused=lambda program, contract: read_program(program, integers)[1],
    )
    made = _target(operators, partial(emit, operators=operators), _OF_FLOATS)
    return replace(made, quantized=quantised, recipes=RECIPES)


def _target(
    operators: Table,
    emit: Callable[[ExportedProgram, Contract], TosaArtifact],
    implementations: tuple[frozenset[str], ...],
) -> Target:
    return Target(
        "tosa",
        INFO,
        emit,
        Capabilities(
            operators.supports,
            implementations=implementations,
            max_rank=MAX_RANK,
            takes=partial(unfit_input, operators),
            linears=LINEARS,
            in_parts={**PARTS, **PAIRS, **ELEMENTARY, **places_of(_WITHOUT_ARGMAX)},
            in_pairs=True,
            casts_truths=True,
            in_float32=frozenset({torch.float64}),
        ),
        counted(min_run=MIN_RUN, short_runs=0),  # by count, no graph has fewer TRANSPOSEs
        files=TargetFiles(load, check, (sidecar.SUFFIX,)),
        # The reference model computes one element after the other: these take it four seconds.
        runtime=TargetRuntime(most_operations=1e9),
    )


TARGET = target()
