"""Write ExecuTorch delegates: their bytes, and a stand-in module that returns tensors like their results.

A 4-D channels-last tensor keeps its logical shape in the program, and is NHWC to the delegate.
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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram

from dimorder.graph.exported import state_of
from dimorder.targets.program_io import is_channels_last

EDGE = EdgeCompileConfig(_check_ir_validity=False)
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
# computes a size from the sizes of all operands, in one flat sequence
SizeFormula = Callable[[Sequence[Any]], Any]


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
    """Return a delegate with these bytes, for operands and results like the given ones.

    `backend` is the name that the runtime registers, and `options` are its compile specs. For dynamic sizes,
    `varying` lists the dynamic dimensions of each operand. `shapes` are the results' shapes, computed from
    one flat sequence of the operands' sizes.
    """
    symbols = (tuple(dict.fromkeys(dims, Dim.AUTO) for dims in varying),) if varying else None
    stand_in = torch.export.export(_StandIn(gives, shapes), tuple(reads), dynamic_shapes=symbols)
    return LoweredBackendModule(stand_in, backend, blob, list(options), constants)


def written(program: ExportedProgram, texts: Mapping[str, str], *, keep_delegates: bool = False) -> bytes:
    """Return the .pte of a program in edge dialect; `texts` become methods that return them.

    Calls of delegates are edge dialect already, so `to_edge`, which takes half a second, is skipped.
    `keep_delegates` puts the bytes of delegates into the program itself, which lives as long as its methods.
    Otherwise they are segments, which ExecuTorch frees after it has made the delegate.
    """
    manager = EdgeProgramManager({"forward": program}, dict(texts), EDGE)
    state = list(state_of(program))
    # Without this pass ExecuTorch starts a mutable buffer with whatever its memory contains.
    passes: list[Any] = [InitializedMutableBufferPass(state)] if state else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mutation on a buffer")  # the pass warns about just that
        config = ExecutorchBackendConfig(passes=passes, extract_delegate_segments=not keep_delegates)
        data = bytes(manager.to_executorch(config).buffer)
    _drop_cached_delegates()
    return data


def _drop_cached_delegates() -> None:
    """Drop delegates from PyTorch's cache of fake results, which would keep their weights forever."""
    cache = FakeTensorMode.cache
    for entry in [entry for entry in cache if LoweredBackendModule in map(type, entry.key)]:
        del cache[entry]


class _StandIn(torch.nn.Module):
    """The module that ExecuTorch runs for a delegate while it traces.

    Its tensors have the right shapes, strides and types.
    """

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
