"""Decides what a lowered network is for its caller: how it is run, saved and told of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from dimorder.capture.captured import Captured, arguments
from dimorder.capture.fold import fold_constants
from dimorder.capture.state import restart
from dimorder.contract import Contract
from dimorder.errors import UsageError
from dimorder.files import write_whole
from dimorder.ops.dialect import SLICE_CONSTANT, decompose
from dimorder.ops.quantization import is_quantised
from dimorder.physical.quantized_to_aten import in_integers
from dimorder.physical.wasted_levels import WastedLevels, wasted_levels
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.printing import captured_text, physical_text
from dimorder.runtime.guard import OnMismatch, check, restore
from dimorder.sizes.symbolic import SizeTable, symbolic
from dimorder.targets.base import Artifact, StatefulArtifact, Target
from dimorder.verification.verify import Run, Verified


@dataclass(frozen=True)
class Lowered:
    """A lowered network: its plan, its contract, the physical program it came from, and the target's
    artifact.

    `seconds` is per step. Of a network with symbolic sizes, `specimens` are the physical programs at a few of
    them, of which `physical` was made.

    >>> from dimorder.api import lower
    >>> lower(torch.nn.ReLU(), (torch.ones(2, 3),))  # doctest: +ELLIPSIS
    Lowered for torch, ... bytes, max_rel_error=0.0e+00
    input   input    2 x 3  float32  NC (0, 1)
    output  output0  2 x 3  float32  NC (0, 1)
    target  torch: 3 operators, 3 configurations
    cost    0 bytes, 0 conversions
    proof   no plan costs less than 0 bytes: optimal over complete candidates (default)
    conversions  none
    """

    plan: NetworkPlan
    physical: ExportedProgram
    artifact: Artifact
    program: Captured
    verified: Verified
    constant_bytes_added: int
    target: Target
    seconds: Mapping[str, float] = field(compare=False)
    specimens: tuple[Sequence[ExportedProgram], SizeTable] | None = None

    @property
    def contract(self) -> Contract:
        return self.plan.contract

    @property
    def max_rel_error(self) -> float:
        return self.verified.max_rel_error

    @property
    def wasted(self) -> list[WastedLevels]:
        """The quantised values with a clamp beside them, and how many of their integers it takes away."""
        return wasted_levels(self.program.module.graph)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact, and what lies beside it: whole, or not at all.

        Raises `UsageError` for a name that has not the target's suffix, or that cannot be written.
        """
        self.target.check_name(Path(path))
        return write_whole(path, self.artifact.data, self.artifact.beside)

    def text(self, what: str) -> str:
        """The `captured` program, the `plan` or the `physical` program, to be read.

        >>> from dimorder.api import lower
        >>> conv = torch.nn.Conv2d(3, 8, 3)
        >>> print(lower(conv, (torch.ones(2, 3, 5, 7),), input_orders="NHWC").text("physical"))
        input        2×5×7×3  NHWC  input
        conv2d       2×3×5×8  NHWC  conv2d_nhwc(input, weight[8×3×3×3], bias[8])
        conv2d.NCHW  2×8×3×5  NCHW  convert conv2d, 960 bytes
        output0      2×8×3×5  NCHW  conv2d.NCHW
        """
        if what == "physical":
            return physical_text(self.physical, self.plan)
        return captured_text(self.program) if what == "captured" else str(self.plan)

    def decomposed(self) -> ExportedProgram:
        """The physical program in ATen between permutes, for ExecuTorch's own partitioners.

        Round its convolutions such a partitioner puts permutes of its own, which cancel against these; the
        plan's conversions are what is left. Of a quantised network the permutes move integers, and
        the partitioners of ExecuTorch's Arm backend take all of it. Inputs and outputs are flat, and as the
        contract's boundary shows them, except that ExecuTorch makes each output contiguous.

        >>> from dimorder.api import lower
        >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> program = lower(conv, (torch.randn(2, 3, 5, 7),)).decomposed()
        >>> [n.target._opname for n in program.graph.nodes if n.op == "call_function"]
        ['permute', 'clone', 'permute', 'conv2d', 'permute', 'permute', 'clone', 'relu']
        """
        if self.specimens is None:
            program = decompose(self.physical, taps_as_linear=True)
            return in_integers(program) if is_quantised(program.graph_module) else fold_constants(program)
        programs, sizes = self.specimens
        folded = [
            fold_constants(decompose(each, taps_as_linear=True, kept=(SLICE_CONSTANT,))) for each in programs
        ]
        return symbolic([decompose(each) for each in folded], sizes)

    def __repr__(self) -> str:
        told = f"{len(self.artifact.data):,} bytes, max_rel_error={self.max_rel_error:.1e}"
        return f"Lowered for {self.plan.target}, {told}\n{self.plan}"

    def run(self, *args: Any, on_mismatch: OnMismatch = "adapt", **kwargs: Any) -> Any:
        """Run the artifact like the network, guarded by the contract; the result has its structure.

        A network that writes buffers goes on where its last call ended, until `reset`.
        """
        given = arguments(self.program.exported, args, kwargs)
        fed = []
        for value, example in zip(given, self.program.examples, strict=True):
            if isinstance(example, torch.Tensor):
                fed.append(value)
            elif (type(value), value) != (type(example), example):
                found = f"{value!r}, where the network was lowered for {example!r}"
                raise UsageError("the arguments", found, "lower it again for that value")
        guarded = check(self.contract, fed, on_mismatch)
        raw = self._started(guarded.tensors) if self.program.state else self.artifact.run(guarded.tensors)
        outputs = restore(self.contract, raw, on_mismatch).tensors
        return self.program.result(outputs)

    def reset(self) -> None:
        """The state as it was before the first `run`; of a program without, nothing."""
        if self.program.state:
            restart(self._started)

    @cached_property
    def _started(self) -> Run:
        return cast(StatefulArtifact, self.artifact).started()

    def to_dict(self) -> dict[str, Any]:
        """What `dimorder lower --json` writes; the keys are stable."""
        return {
            **self.plan.to_dict(),
            "constant_bytes_added": self.constant_bytes_added,
            "delegates": self.artifact.delegates,
            "outside": dict(self.artifact.outside),
            "float_islands": [
                {"operator": place.operator, "source": place.source, "reason": reason}
                for place, reason in self.artifact.float_islands
            ],
            "npu": None if self.artifact.npu is None else self.artifact.npu.to_dict(),
            "verify": asdict(self.verified),
            "wasted_levels": [each.to_dict() for each in self.wasted],
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }
