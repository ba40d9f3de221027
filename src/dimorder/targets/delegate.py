"""Decides what ExecuTorch sees of a delegate: its bytes, and a stand-in that gives tensors like its results.

A 4-D channels-last tensor keeps its logical shape there; to the delegate it is NHWC.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import Tensor
from torch.export import Dim, ExportedProgram

from dimorder.graph.exported import state_of

EDGE = EdgeCompileConfig(_check_ir_validity=False)
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
SizeFormula = Callable[[Sequence[Any]], Any]  # a size, by those of all operands in a row


def is_channels_last(value: Tensor) -> bool:
    """Whether a 4-D value is channels-last and its strides leave no doubt about it."""
    if value.ndim != 4:
        return False
    _, c, h, w = value.shape
    if c == 1 or h == w == 1:  # contiguous strides mean the same order
        return False
    return bool(value.is_contiguous(memory_format=torch.channels_last))


def empty(value: Tensor, channels_last: bool) -> Tensor:
    """A real tensor of the value's shape, in one of the two orders that a boundary has."""
    dense = torch.empty(tuple(value.shape), dtype=value.dtype)
    return dense.to(memory_format=torch.channels_last) if channels_last else dense


def lowered(
    backend: str,
    reads: Sequence[Tensor],
    gives: Sequence[Tensor],
    blob: bytes,
    constants: NamedDataStoreOutput | None = None,
    options: Sequence[CompileSpec] = (),
    shapes: Sequence[Sequence[int | SizeFormula]] | None = None,
    varying: Sequence[Collection[int]] = (),
) -> LoweredBackendModule:
    """The delegate with these bytes, for operands and results like these.

    `backend` is the name that the runtime registers, `options` are what it is told besides the bytes. Where
    sizes are symbols, `varying` are the dimensions of each operand that have one, and `shapes` the results',
    made of the operands' sizes, all in a row.
    """
    symbols = (tuple(dict.fromkeys(dims, Dim.AUTO) for dims in varying),) if varying else None
    stand_in = torch.export.export(_StandIn(gives, shapes), tuple(reads), dynamic_shapes=symbols)
    return LoweredBackendModule(stand_in, backend, blob, list(options), constants)


def written(program: ExportedProgram, texts: Mapping[str, str], *, keep_delegates: bool = False) -> bytes:
    """The .pte of a program in edge dialect; `texts` are methods that return them.

    Calls of delegates alone are edge dialect as they stand, and to_edge takes half a second. `keep_delegates`
    puts the bytes of delegates into the program itself, which lives as long as its methods. Else they are
    segments, which ExecuTorch frees once a delegate is made.
    """
    manager = EdgeProgramManager({"forward": program}, dict(texts), EDGE)
    state = list(state_of(program))
    # Else ExecuTorch lets a buffer that is written begin with whatever lies in its memory.
    passes: list[Any] = [InitializedMutableBufferPass(state)] if state else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mutation on a buffer")  # which says that
        config = ExecutorchBackendConfig(passes=passes, extract_delegate_segments=not keep_delegates)
        return bytes(manager.to_executorch(config).buffer)


class _StandIn(torch.nn.Module):
    """What ExecuTorch runs for a delegate while it traces: tensors of the right shapes, strides and types."""

    def __init__(
        self, results: Sequence[Tensor], shapes: Sequence[Sequence[int | SizeFormula]] | None = None
    ) -> None:
        super().__init__()
        self.results = [(is_channels_last(r), r.dtype) for r in results]
        self.shapes = [tuple(r.shape) for r in results] if shapes is None else shapes

    def forward(self, *operands: Tensor) -> list[Tensor]:
        sizes = [size for operand in operands for size in operand.shape]
        made = [[each(sizes) if callable(each) else each for each in shape] for shape in self.shapes]
        return [
            torch.zeros([shape[d] for d in TO_NHWC], dtype=dtype).permute(TO_NCHW)
            if nhwc
            else torch.zeros(shape, dtype=dtype)
            for shape, (nhwc, dtype) in zip(made, self.results, strict=True)
        ]
