"""Call a network, and programs that were made of it, on inputs in the shapes of its examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.capture.captured import Captured
from dimorder.capture.state import restart
from dimorder.contract import Contract
from dimorder.errors import VerificationError, first_line, summary
from dimorder.layout.rewrite import at_boundary
from dimorder.verification.flat_network import flat_network, takes_floats
from dimorder.verification.numerics import FunctionalProgram
from dimorder.verification.reference import Outputs
from dimorder.verification.selections import Numerics

CALLS = 10  # in a row, for a network that writes buffers

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Inputs = tuple[torch.Tensor, ...]


class NetworkCalls:
    """A network, and how it and its programs are called on the same inputs.

    If the network writes buffers, inputs and outputs are those of several calls in a row, one after another.

    Args:
        model: the network as it was passed to `capture`.
        program: the captured program.
        contract: what the program promises.
        exported: returns the exported program of these sizes, if that is not `program.exported`. It is asked
            for only if an error is above the tolerance.
        calls: the leaves of each call in a row, of any sizes.

    Attributes:
        calls: The number of calls in a row.
        network: Takes the tensors of all calls, and returns those of all results.
        examples: The tensors among the calls' leaves.
    """

    def __init__(
        self,
        model: Any,
        program: Captured,
        contract: Contract,
        exported: Callable[[], ExportedProgram] | None,
        calls: Sequence[Sequence[Any]],
    ) -> None:
        self.contract, self.program = contract, program
        self.calls, self.leaves = len(calls), [leaf for call in calls for leaf in call]
        self.network = flat_network(model, program, calls)
        self.examples = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self._exported = exported or (lambda: program.exported)

    @cached_property
    def exported(self) -> ExportedProgram:
        """The exported program of these sizes."""
        return self._exported()

    @cached_property
    def functional(self) -> FunctionalProgram:
        """The exported program as a graph that writes to nothing."""
        return FunctionalProgram(self.exported, self.program.in_pairs)

    @cached_property
    def eps(self) -> float:
        """The coarsest spacing of the floats about 1 that the network, or a part of it, computes with."""
        parts = self.program.exported.graph_module.modules()
        graphs = [part.graph for part in parts if isinstance(part, torch.fx.GraphModule)]
        values = (node.meta.get("val") for graph in graphs for node in graph.nodes)
        floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
        return max((torch.finfo(dtype).eps for dtype in floats), default=0.0)

    @property
    def real_examples(self) -> Inputs:
        """The examples, as numbers where integers stand for floats."""
        specs = self.contract.inputs * self.calls
        return tuple(spec.real(x) for spec, x in zip(specs, self.examples, strict=True))

    def named(self, i: int) -> str:
        """Return the name of an output in errors."""
        call, output = divmod(i, len(self.contract.outputs))
        return f"output {output}" + (f" of call {call}" if self.calls > 1 else "")

    def draw(self, like: Callable[..., Inputs], seed: int) -> tuple[Inputs, Inputs]:
        """Return inputs as the program takes them, and as the network does: integers may stand for floats.

        Args:
            like: draws numbers in the shapes of examples, from these and a seed.
            seed: the seed.
        """
        specs = self.contract.inputs * self.calls
        floats = takes_floats(self.program.exported) * self.calls
        drawn = like(self.real_examples, seed)
        held = [spec.quantized(x) for spec, x in zip(specs, drawn, strict=True)]
        return tuple(held), tuple(
            spec.real(x) if is_float else x for spec, x, is_float in zip(specs, held, floats, strict=True)
        )

    def outputs(
        self, inputs: Sequence[torch.Tensor], network: Callable[..., Outputs] | None = None
    ) -> Outputs | str:
        """Return the outputs of the network, or of some of its calls, or the error that it raises."""
        try:
            with torch.no_grad():
                return (network or self.network)(*inputs)
        except Exception as error:  # whatever a network says about inputs that it does not accept
            return summary(error)

    def exported_outputs(self, numerics: Numerics, inputs: Sequence[torch.Tensor]) -> Outputs:
        """Return the outputs of the exported program in other numerics."""
        return self.functional.run(self.leaves_of(inputs), numerics)

    def program_outputs(self, run: Run, inputs: Sequence[torch.Tensor]) -> Outputs:
        """Return a program's outputs as logical tensors.

        Raises:
            VerificationError: if the program does not run.
        """
        specs, got = self.contract.inputs, list[torch.Tensor]()
        if self.program.state:
            restart(run)
        for first in range(0, len(inputs), len(specs)):
            held = [
                at_boundary(*pair) for pair in zip(inputs[first : first + len(specs)], specs, strict=True)
            ]
            try:
                with torch.no_grad():
                    given = run(held)
            except RuntimeError as error:
                found = f"it does not run: {first_line(error)}"
                raise VerificationError(
                    "what was made of the network", found, "report this network, or lower it for target torch"
                ) from error
            outputs = zip(given, self.contract.outputs, strict=True)
            got += [spec.from_boundary(tensor) for tensor, spec in outputs]
        return got

    def leaves_of(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the exported program's arguments, call by call, with these tensors in place of its own."""
        feed = iter(inputs)
        return [next(feed) if isinstance(x, torch.Tensor) else x for x in self.leaves]
