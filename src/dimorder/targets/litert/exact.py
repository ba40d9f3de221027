"""Compute the exact outputs of a file that computes in integers, to check the runtime bit for bit.

The model computes integers anew. It may round floats differently in some places. So a second file has more
outputs: the integers that the runtime rounded floats to. The model continues from these.

The model comes from the graph that was written, so it cannot show that the wrong graph was written. It is
therefore also compared with the physical program, value by value, and so are the roundings of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor
from torch.export import ExportedProgram

from dimorder.contract import Contract
from dimorder.errors import VerificationError
from dimorder.sizes.specialize_shapes import shapes_at
from dimorder.targets.litert.emit import WrittenGraph
from dimorder.targets.litert.flatbuffer import SIGNATURE, serialize
from dimorder.targets.litert.model import LiteRtModel, is_by_rows
from dimorder.targets.litert.runtime import LiteRtProgram, as_in_file, from_file
from dimorder.verification.differences import QUANTA, Differences
from dimorder.verification.verify_integers import require_meant


@dataclass(frozen=True)
class ExactRun:
    """A written program as a function for the bits that LiteRT gives with XNNPACK.

    Raises `VerificationError` if the outputs differ from the physical program's.
    """

    written: WrittenGraph
    physical: ExportedProgram
    contract: Contract
    state: Sequence[Tensor] = ()  # before the first call; the first inputs, and the first outputs

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        graph, feed = self.written.graph, as_in_file(inputs, self.contract)
        rounded = dict[str, Tensor]()
        if self._model.rounded:
            outputs = self._with_roundings.run(feed)
            rounded = dict(zip((*graph.outputs.values(), *self._rounded), outputs, strict=True))
            rounded = {name: rounded[name] for name in self._model.rounded}
        integers = {node: view.value.tensor for node, view in self.written.integers.items()}
        values = self._model.run(feed, rounded, {*graph.outputs.values(), *integers.values()})
        results = from_file([values[name] for name in graph.outputs.values()], self.contract)
        shape_of = shapes_at(self.physical, inputs)
        found = {
            node: self.written.integers[node].of(values[name], shape_of(node))
            for node, name in integers.items()
            if name in values  # else nothing reads it
        }
        require_meant(self.physical, inputs, results, found, "LiteRT")
        return results

    @cached_property
    def _model(self) -> LiteRtModel:
        return LiteRtModel(self.written.graph)

    @cached_property
    def _rounded(self) -> list[str]:
        return [name for name in self._model.rounded if name not in self.written.graph.outputs.values()]

    @cached_property
    def _with_roundings(self) -> LiteRtProgram:
        graph = self.written.graph
        more = {f"rounded {i}": name for i, name in enumerate(self._rounded)}
        made = serialize({SIGNATURE: replace(graph, outputs={**graph.outputs, **more})}, {})
        return LiteRtProgram(made, self.contract)


@dataclass(frozen=True)
class OperatorsRun:
    """A written program as a function by LiteRT's own kernels, each held to the model within a quantum.

    Each operator of integers is compared with what the model makes of the operands that it had.

    Raises `VerificationError` if an integer is farther off.
    """

    written: WrittenGraph
    contract: Contract
    kernels: str

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs, model = self._program.run(as_in_file(inputs, self.contract)), LiteRtModel(self.written.graph)
        nodes = [node for node in model.graph.nodes if is_by_rows(node) or model.has_integers(node)]
        tensors = self._program.tensors({name for n in nodes for name in (*n.inputs, *n.outputs) if name})
        for node in nodes:
            result = tensors[node.outputs[0]]
            if is_by_rows(node):
                model.require_near(node, [tensors[name] for name in node.inputs if name], result)
                continue
            wanted = model.result(node, [tensors[name] for name in node.inputs if name])
            off = Differences.between(result, wanted).most
            if off > QUANTA:
                raise VerificationError(
                    f"{node.kind} for {node.outputs[0]}, by LiteRT's {self.kernels} kernels",
                    f"integers are off by up to {off}",
                    "report this network",
                )
        return from_file(outputs, self.contract)

    @cached_property
    def _program(self) -> LiteRtProgram:
        return LiteRtProgram(self.written.data, self.contract, self.kernels, keeps=True)
