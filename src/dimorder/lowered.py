"""Run, save and show a lowered network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.capture.calls import call_leaves
from dimorder.capture.captured import Captured
from dimorder.capture.fold import fold_constants
from dimorder.capture.state import restart
from dimorder.contract import Contract
from dimorder.errors import UsageError
from dimorder.files import as_path, write_whole
from dimorder.ops.dialect import SLICE_CONSTANT, decompose
from dimorder.ops.quantization import is_quantized
from dimorder.physical.quantized_to_aten import quantized_to_aten
from dimorder.physical.wasted_levels import WastedLevels, wasted_levels
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.printing import captured_text, physical_text
from dimorder.runtime.guard import OnMismatch, check, restore
from dimorder.runtime.program import bind_inputs
from dimorder.sizes.merge_specializations import merge_programs
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.base import Artifact, Target
from dimorder.text import notebook_html
from dimorder.verification.network_calls import Run
from dimorder.verification.verify import Verified


@dataclass(frozen=True, eq=False)
class Lowered:
    """A lowered network: its plan, its contract, its physical program, and the target's artifact.

    `lower` makes it, and `print` shows its size, its error and its plan.

    Attributes:
        plan: The proven plan, with every conversion.
        physical: The program that the artifact was emitted from; it runs in torch.
        artifact: The program in the target's format.
        program: The network in normal form.
        verified: The result of comparing it with the network on random inputs.
        constant_bytes_added: The bytes by which constants grew, because one is kept in two orders.
        target: The target.
        seconds: The seconds of each step of the pipeline.
        specializations: For a network with dynamic sizes, the physical programs at a few sizes, and the table
            of sizes. `physical` was merged from them.

    >>> from dimorder.api import lower
    >>> lower(torch.nn.ReLU(), (torch.ones(2, 3),))  # doctest: +ELLIPSIS
    Lowered for torch, ... bytes, max_rel_error=0.0e+00
    input   input    2 x 3  float32  NC (0, 1)
    output  output0  2 x 3  float32  NC (0, 1)
    target  torch: 3 steps, 3 configurations
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
    seconds: Mapping[str, float]
    specializations: tuple[Sequence[ExportedProgram], SizeTable] | None = None

    @property
    def contract(self) -> Contract:
        """Return what the program promises: the shape, type and order of each input and output.

        >>> from dimorder.api import lower
        >>> print(lower(torch.nn.Conv2d(3, 8, 3), (torch.ones(2, 3, 5, 7),), output_orders="NHWC").contract)
        input   input    2 x 3 x 5 x 7  float32  NCHW (0, 1, 2, 3)
        output  output0  2 x 8 x 3 x 5  float32  NHWC (0, 2, 3, 1)
        """
        return self.plan.contract

    @property
    def max_rel_error(self) -> float:
        """Return the largest relative error against the network, of the physical program and the artifact.

        >>> from dimorder.api import lower
        >>> lower(torch.nn.ReLU(), (torch.ones(2, 3),)).max_rel_error
        0.0
        """
        return self.verified.max_rel_error

    @property
    def wasted(self) -> list[WastedLevels]:
        """Return the quantised values with a clamp beside them, and how many integers each clamp wastes.

        >>> from dimorder.api import lower
        >>> lower(torch.nn.ReLU(), (torch.ones(2, 3),)).wasted  # a float network has none
        []
        """
        return wasted_levels(self.program.module.graph)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact and the files that belong beside it: whole, or not at all.

        Args:
            path: the file to write, with the target's suffix.

        Returns:
            The path of the file.

        Raises:
            UsageError: if the name has another suffix, or if the file cannot be written.

        >>> import tempfile
        >>> from dimorder.api import lower
        >>> lower(torch.nn.ReLU(), (torch.ones(2, 3),)).save(Path(tempfile.mkdtemp(), "relu.pt2")).name
        'relu.pt2'
        """
        self.target.check_name(as_path(path, "saving"))
        return write_whole(path, self.artifact.data, self.artifact.companions)

    def text(self, what: str) -> str:
        """Return a program or the plan as readable text.

        Args:
            what: "captured" for the network in normal form, "plan", or "physical" for the physical program.

        Returns:
            A table with one line per value, or the plan.

        Raises:
            UsageError: if there is no text of that name.

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
        if what == "captured":
            return captured_text(self.program)
        if what != "plan":
            raise UsageError("text", f"no text {what!r}", "choose captured, plan or physical")
        return str(self.plan)

    def decomposed(self) -> ExportedProgram:
        """Return the physical program in ATen between permutes, for ExecuTorch's own partitioners.

        Such a partitioner puts permutes of its own around convolutions. They cancel against those of this
        program, so that the plan's conversions are what is left.

        In a quantised network the permutes move integers, and the partitioners of ExecuTorch's Arm backend
        take all of it. Inputs and outputs are a flat list. They are as the contract's boundary shows them,
        except that ExecuTorch makes each output contiguous.

        >>> from dimorder.api import lower
        >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> program = lower(conv, (torch.randn(2, 3, 5, 7),)).decomposed()
        >>> [n.target._opname for n in program.graph.nodes if n.op == "call_function"]
        ['permute', 'clone', 'permute', 'conv2d', 'permute', 'permute', 'clone', 'relu']
        """
        if self.specializations is None:
            program = decompose(self.physical, taps_as_linear=True)
            return (
                quantized_to_aten(program) if is_quantized(program.graph_module) else fold_constants(program)
            )
        programs, sizes = self.specializations
        folded = [
            fold_constants(decompose(each, taps_as_linear=True, kept=(SLICE_CONSTANT,))) for each in programs
        ]
        return merge_programs([decompose(each) for each in folded], sizes)

    def __copy__(self) -> Lowered:
        """Return a program of the same parts, which no call changes; it has the state before the first call.

        >>> import copy
        >>> from dimorder.api import lower
        >>> copy.copy(lower(torch.nn.ReLU(), (torch.ones(2),)))(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
        """
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowered:
        return replace(self)

    def __reduce__(self) -> Any:
        fix = "write it with .save(path), and load it in the other process"
        raise UsageError("a lowered network", "it cannot be pickled: a runtime holds its program", fix)

    def __repr__(self) -> str:
        return f"{self._summary}\n{self.plan}"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the size, the error, and the plan."""
        return notebook_html(self._summary, [], ()) + self.plan._repr_html_()

    @property
    def _summary(self) -> str:
        size, error = f"{len(self.artifact.data):,} bytes", f"max_rel_error={self.max_rel_error:.1e}"
        return f"Lowered for {self.plan.target}, {size}, {error}"

    def __call__(self, *args: Any, on_mismatch: OnMismatch = "adapt", **kwargs: Any) -> Any:
        """Run the artifact like the network, guarded by the contract.

        A `Program` takes and returns the tensors alone, because a file has no dicts or named tuples. A
        network that writes buffers goes on where its last call ended, until `reset`.

        Args:
            args: the network's positional arguments.
            on_mismatch: what happens to an input in another order than promised: "adapt" copies it, "warn"
                copies it with a warning, and "error" refuses it.
            kwargs: the network's keyword arguments, or its tensors by the contract's names.

        Returns:
            The outputs, in the structure that the network returns.

        Raises:
            UsageError: if an argument that is not a tensor differs from the one that the network was lowered
                for.
            ContractError: if a tensor does not keep the contract.

        >>> from dimorder.api import lower
        >>> x = torch.randn(2, 3)
        >>> lowered = lower(torch.nn.ReLU(), (x,))
        >>> torch.equal(lowered(x), x.relu()), torch.equal(lowered(input=x), x.relu())
        (True, True)
        """
        devices = {x.device.type for x in self.program.examples if isinstance(x, torch.Tensor)}
        device = devices.pop() if len(devices) == 1 else None
        guarded = check(self.contract, self._tensors(args, kwargs), on_mismatch, device)
        raw = self._started(guarded.tensors) if self.program.state else self.artifact.run(guarded.tensors)
        outputs = restore(self.contract, raw, on_mismatch).tensors
        return self.program.result(outputs)

    def run(self, *args: Any, on_mismatch: OnMismatch = "adapt", **kwargs: Any) -> Any:
        """Return the result of a call.

        >>> from dimorder.api import lower
        >>> lower(torch.nn.ReLU(), (torch.ones(2),)).run(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
        """
        return self(*args, on_mismatch=on_mismatch, **kwargs)

    def _tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call, in the sequence of the contract."""
        try:
            given = call_leaves(self.program.exported, args, kwargs)
        except UsageError:
            if not kwargs or not set(kwargs) <= {spec.name for spec in self.contract.inputs}:
                raise
            return bind_inputs(self.contract, args, kwargs, "the lowered network")
        fed = []
        for value, example in zip(given, self.program.examples, strict=True):
            if isinstance(example, torch.Tensor):
                fed.append(value)
            elif (type(value), value) != (type(example), example):
                found = f"{value!r}, where the network was lowered for {example!r}"
                raise UsageError("the arguments", found, "lower it again for that value")
        return fed

    def reset(self) -> None:
        """Restore the state before the first call; this does nothing for a program without state.

        >>> from dimorder.api import lower
        >>> class Counter(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("count", torch.zeros(1))
        ...     def forward(self, x):
        ...         self.count += x
        ...         return self.count.clone()
        >>> one = torch.ones(1)
        >>> counter = lower(Counter(), (one,))
        >>> counter(one), counter(one), counter.reset(), counter(one)
        (tensor([1.]), tensor([2.]), None, tensor([1.]))
        """
        if self.program.state:
            restart(self._started)

    @cached_property
    def _started(self) -> Run:
        return self.artifact.start()

    def to_dict(self) -> dict[str, Any]:
        """Return what `dimorder lower --json` writes; the keys are stable.

        >>> from dimorder.api import lower
        >>> data = lower(torch.nn.Conv2d(3, 8, 3), (torch.ones(2, 3, 5, 7),)).to_dict()
        >>> data["conversion_count"], data["cost"], data["optimal"]
        (2, 1800, True)
        """
        return {
            **self.plan.to_dict(),
            "constant_bytes_added": self.constant_bytes_added,
            "delegates": self.artifact.delegates,
            "outside": dict(self.artifact.outside),
            "npu": None if self.artifact.npu is None else self.artifact.npu.to_dict(),
            "verify": asdict(self.verified),
            "wasted_levels": [each.to_dict() for each in self.wasted],
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }
