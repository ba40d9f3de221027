"""Lower a program to a .pte and run it: in ExecuTorch's own way, or in the way that this package advises."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.executorch import pte
from dimorder.runtime.kernels import KernelCall, kernel_calls
from dimorder.runtime.program import Program

BACKENDS = ("portable", "xnnpack")

Lower = Callable[[ExportedProgram], bytes]
PteRun = Callable[[bytes, Sequence[torch.Tensor]], Any]


def stock(backend: str) -> Lower:
    """Return the lowering as ExecuTorch does it, for a backend of `BACKENDS`."""
    return lambda exported: lower_quickly(exported, _partitioners(backend))


def legal(backend: str) -> Lower:
    """Return the lowering that this package advises, for a backend of `BACKENDS`."""
    from dimorder.executorch.guard import guarded
    from dimorder.executorch.layout import XNNPACK

    partitioner = next((guarded(own, XNNPACK) for own in _partitioners(backend)), None)
    return lambda exported: lower_legally(exported, partitioner)


def lower_legally(exported: ExportedProgram, partitioner: Any = None) -> bytes:
    """Return the .pte of a canonicalised program; legalize it too, unless a guarded partitioner does that."""
    from dimorder.executorch.legalization import legalize
    from dimorder.executorch.passes import canonicalize

    program = canonicalize(exported)
    return lower_quickly(program, [partitioner] if partitioner else [], [] if partitioner else [legalize])


def run_bare(data: bytes, inputs: Sequence[torch.Tensor]) -> Any:
    """Run a program in ExecuTorch's Python runtime, without any guard."""
    from executorch.extension.pybindings import _C

    program = _C._load_program_from_buffer(data)
    return program.load_method("forward")([x.detach() for x in inputs])


def run_guarded(data: bytes, inputs: Sequence[torch.Tensor]) -> Any:
    """Run a program as `dimorder.load` runs it."""
    with tempfile.NamedTemporaryFile(suffix=".pte") as file:
        file.write(data)
        file.flush()
        program = Program(Path(file.name), *pte.load(file.name), "adapt", "ExecuTorch")
        return program.run(*inputs)


def read_calls(data: bytes) -> list[KernelCall]:
    return kernel_calls(pte.forward_plan(pte.read_tables(data, "a .pte file"), "a .pte file"))


def lower_quickly(
    exported: ExportedProgram, partitioners: Sequence[Any] = (), passes: Sequence[Any] = ()
) -> bytes:
    """Lower to a .pte without decompositions that change nothing: nine tenths of the time of an operator."""
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
    from executorch.exir.program._program import _generate_edge_program

    config = EdgeCompileConfig(_check_ir_validity=False)
    operators = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    final = all(
        isinstance(operator, torch._ops.OpOverload)
        and operator not in _decomposed()
        and not operator._schema.is_mutable
        and not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        for operator in operators
        if operator.__module__ != "_operator"
    )
    if not final:
        edge = to_edge_transform_and_lower(
            exported, partitioner=list(partitioners), transform_passes=list(passes), compile_config=config
        )
        return bytes(edge.to_executorch().buffer)
    for partitioner in partitioners:
        exported = partitioner.transform_for_pre_decomposition(exported)
    edge = EdgeProgramManager({"forward": _generate_edge_program(config, exported)}, None, config)
    if passes:
        edge = edge.transform(list(passes))
    for partitioner in partitioners:
        edge = edge.to_backend({"forward": partitioner})
    return bytes(edge.to_executorch().buffer)


@functools.cache
def _decomposed() -> frozenset[Any]:
    """Return the operators that ExecuTorch decomposes."""
    from executorch.exir.program._program import _default_decomposition_table

    return frozenset(_default_decomposition_table())


def _partitioners(backend: str) -> list[Any]:
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]
