"""Run a `.tflite` in this process. Needs ai-edge-litert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from dimorder.contract import Contract
from dimorder.targets.litert.file import (
    TfLiteSummary,
    is_sealed,
    read_contracts,
    read_operators,
    read_signatures,
)
from dimorder.targets.litert.subgraph import Subgraph
from dimorder.targets.program_io import as_called, as_promised

# The kernels that may run a file, by the names of ai-edge-litert's resolvers.
KERNELS: Mapping[str, str] = MappingProxyType(
    {"xnnpack": "BUILTIN", "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}
)
DEFAULT_KERNELS = "xnnpack"
DELEGATE = "DELEGATE"
# The operators that LiteRT has no reference kernels for.
NO_REFERENCE = frozenset({"CEIL", "ELU", "ROUND", "STABLEHLO_AND"})
_THREADS: ContextVar[int | None] = ContextVar("threads", default=None)


class LiteRtProgram:
    """A `.tflite` as a function of tensors, in the shapes of the program's own signature.

    `keeps` says that the tensors between operators can be read after a run. XNNPACK has none.

    A file has dense tensors in the contract's orders, also where the signature has the logical shape.
    """

    def __init__(
        self, data: bytes, contract: Contract, kernels: str = DEFAULT_KERNELS, *, keeps: bool = False
    ) -> None:
        self._data, self._contract, self._kernels, self._keeps = data, contract, kernels, keeps
        self._threads = _THREADS.get()
        self._lock = Lock()  # an interpreter computes one call at a time
        self._interpret()

    def reset(self) -> None:
        """Begin with the state that the file has, whose bytes are interpreted again."""
        with self._lock:
            self._interpret()

    def _interpret(self) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self._interpreter: Any = Interpreter(
            model_content=self._data,
            num_threads=self._threads,
            experimental_op_resolver_type=getattr(OpResolverType, KERNELS[self._kernels]),
            experimental_preserve_all_tensors=self._keeps,
        )
        self._interpreter.allocate_tensors()
        calls = self._interpreter._interpreter  # reads no names of tensors, which may not be UTF-8
        self._outputs = list(calls.OutputIndices())
        self._main = Subgraph(self._interpreter, 0, list(calls.InputIndices()), self._outputs)
        self._signatures = dict[str, Subgraph]()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return from_file(self.run(as_in_file(inputs, self._contract)), self._contract)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the file's outputs for its inputs, all dense in the file's own shapes."""
        with self._lock:
            return _run(self._main, inputs)

    def run_signature(
        self, name: str, contract: Contract, inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the outputs of one of the file's signatures, as `run` does."""
        with self._lock:
            if name not in self._signatures:
                self._signatures[name] = self._signature(name, contract)
            return _run(self._signatures[name], inputs)

    def _signature(self, name: str, contract: Contract) -> Subgraph:
        runner = self._interpreter.get_signature_runner(name)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        return Subgraph(
            self._interpreter,
            runner._subgraph_index,
            [inputs[spec.name]["index"] for spec in contract.inputs],
            [outputs[spec.name]["index"] for spec in contract.outputs],
        )

    def tensors(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the tensors of these names as the last run left them."""
        details = self._interpreter.get_tensor_details()
        return {each["name"]: self._tensor(each) for each in details if each["name"] in names}

    def _tensor(self, details: Mapping[str, Any]) -> torch.Tensor:
        if not np.all(details["shape"]):  # LiteRT reads no tensor without elements
            return torch.from_numpy(np.empty(details["shape"], details["dtype"]))
        value = self._interpreter.get_tensor(details["index"])
        return torch.from_numpy(np.asarray(value))  # a number has no dimensions

    def partitions(self) -> tuple[int, Counter[str]]:
        """Return how many parts delegates compute, and how often each operator runs outside of them."""
        delegates, outside = self._partitions()
        return delegates, Counter(operator["op_name"] for operator in outside)

    def computed_outside(self) -> set[str]:
        """Return the names of the tensors that operators outside of the delegates compute."""
        names = {each["index"]: each["name"] for each in self._interpreter.get_tensor_details()}
        return {names[index] for operator in self._partitions()[1] for index in operator["outputs"]}

    def _partitions(self) -> tuple[int, list[Mapping[str, Any]]]:
        """Return how many parts delegates compute, and the operators outside of them.

        LiteRT also lists the operators that a delegate computes. Those are outside that the outputs need, and
        those that assign a variable whose handle is no delegate's own.
        """
        calls = self._interpreter._interpreter
        listed: list[Mapping[str, Any]] = [
            {
                "index": index,
                "op_name": calls.NodeName(index),
                "inputs": calls.NodeInputs(index),
                "outputs": calls.NodeOutputs(index),
            }
            for index in range(calls.NumNodes())
        ]
        operators = {index: each for each in listed for index in each["outputs"]}  # a delegate is listed last
        delegates, outside, seen = set[int](), dict[int, Mapping[str, Any]](), set[int]()

        def follow(wanted: list[int]) -> None:
            while wanted:
                index = wanted.pop()
                if index not in seen and index in operators:
                    seen.add(index)
                    wanted.extend(counted(operators[index]))

        def counted(operator: Mapping[str, Any]) -> Sequence[int]:
            if operator["op_name"] == DELEGATE:
                delegates.add(operator["index"])
            else:
                outside[operator["index"]] = operator
            return operator["inputs"]  # type: ignore[no-any-return]

        follow(list(self._outputs))
        given = {index for each in listed if each["op_name"] == DELEGATE for index in each["outputs"]}
        for each in listed:
            is_outside = each["op_name"] == DELEGATE or (seen | given).issuperset(each["inputs"][:1])
            if not len(each["outputs"]) and (not given or is_outside):
                follow(list(counted(each)))
        return len(delegates), list(outside.values())


def as_in_file(inputs: Sequence[torch.Tensor], contract: Contract) -> list[torch.Tensor]:
    """Return a program's inputs as the file has them: dense in the order that the contract promises."""
    return [as_promised(x, spec) for x, spec in zip(inputs, contract.inputs, strict=True)]


def from_file(outputs: Sequence[torch.Tensor], contract: Contract) -> list[torch.Tensor]:
    """Return a file's outputs in the shapes of the program's own signature."""
    return [as_called(y, spec) for y, spec in zip(outputs, contract.outputs, strict=True)]


class LiteRtSignature:
    """One signature of a file, as a function like `LiteRtProgram`."""

    def __init__(self, file: LiteRtProgram, name: str, contract: Contract) -> None:
        self._file, self._name, self._contract = file, name, contract

    def reset(self) -> None:
        """Begin with the state that the file has, for all of its signatures."""
        self._file.reset()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outputs = self._file.run_signature(self._name, self._contract, as_in_file(inputs, self._contract))
        return from_file(outputs, self._contract)


def _run(subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    arrays = [tensor.detach().cpu().contiguous().numpy() for tensor in inputs]
    return [torch.from_numpy(array) for array in subgraph(arrays)]


class ReferenceProgram(LiteRtProgram):
    """A file run by LiteRT's reference kernels, whose arithmetic makes the largest float of an infinity."""

    def __init__(self, data: bytes, contract: Contract) -> None:
        super().__init__(data, contract, "reference")

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results, largest = super().__call__(inputs), torch.finfo(torch.float32).max
        return [torch.where(y.abs() == largest, y * 2, y) if y.is_floating_point() else y for y in results]


def set_threads(count: int) -> None:
    """Set the number of threads for each program that is loaded from now on."""
    _THREADS.set(count)


def load(file: Path, kernels: str = DEFAULT_KERNELS) -> tuple[Contract, LiteRtProgram]:
    """Return the contract of a saved file, and the file as a function."""
    data = file.read_bytes()
    contract = next(iter(read_contracts(data).values()))
    return contract, LiteRtProgram(data, contract, kernels)


def load_signatures(
    data: bytes, kernels: str = DEFAULT_KERNELS
) -> dict[str, tuple[Contract, LiteRtSignature]]:
    """Return each signature of a file: its contract and its function. They share one state."""
    contracts = read_contracts(data)
    file = LiteRtProgram(data, next(iter(contracts.values())), kernels)
    return {name: (contract, LiteRtSignature(file, name, contract)) for name, contract in contracts.items()}


def check(path: str, data: bytes) -> TfLiteSummary:
    """Return the content of any tool's `.tflite`, and what LiteRT's delegate computes of it.

    Raises `ValueError` for a damaged file. LiteRT may load another tool's.
    """
    operators, signatures = read_operators(data), tuple(read_signatures(data))
    is_sealed(data)
    try:
        delegates, outside = LiteRtProgram(data, Contract((), ())).partitions()
    except (RuntimeError, ValueError) as error:  # an operator that LiteRT lacks, or one of Flex
        said = " ".join(str(error).split())
        return TfLiteSummary(operators, signatures, error=said or "LiteRT gives no reason")
    return TfLiteSummary(operators, signatures, delegates, outside)
