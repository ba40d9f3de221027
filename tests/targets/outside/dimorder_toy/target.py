"""Target toy: its capabilities and costs, and how its files are written and read."""

import io
import math
from collections import Counter
from importlib import import_module

import numpy as np
import toy_format

from dimorder.contract import Contract
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs, counted
from dimorder.targets.base import OperatorCounts, Recipe, Target, TargetFiles
from dimorder.targets.program_io import read_signature
from dimorder.targets.table import whole
from dimorder_toy import INFO
from dimorder_toy.interpreter import ToyProgram
from dimorder_toy.writer import TABLE, Writer


def emit(program, contract):
    """A line of JSON with the calls and the contract, and an archive of the constants."""
    signature, writer = read_signature(program), Writer()
    inputs = {node: writer.value(node.meta["val"].shape) for node in signature.inputs}
    values = {**signature.constants, **{node: whole(value) for node, value in inputs.items()}}
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in values:
            values[node] = TABLE.build(writer, node, values.__getitem__)
    outputs = [writer.dense(values[node]).index for node in signature.outputs]
    np.savez(body := io.BytesIO(), **writer.arrays)
    head = {"inputs": [value.index for value in inputs.values()], "outputs": outputs, "calls": writer.calls}
    return ToyProgram(toy_format.encode({**head, "contract": contract.to_json()}, body.getvalue()))


def load(file):
    program = ToyProgram(file.read_bytes())
    return Contract.from_json(program.head["contract"]), program.run


def check(path, data):
    return OperatorCounts("toy", Counter(name for name, *_ in ToyProgram(data).head["calls"]))


def _runs(buffer, source, target):
    """Count what a transpose moves one by one: innermost rows, or elements if the innermost axis moves."""
    row = buffer.tensor.sizes[source[-1]] if source[-1] == target[-1] else 1
    return math.prod(buffer.shape) // row, 1


TARGET = Target(
    "toy",
    INFO,
    emit,
    Capabilities(TABLE.supports, max_rank=4, takes=lambda value: TABLE.unfit(value, False)),
    {"runs": Costs(("runs", "conversions"), _runs, lambda *way: (0, 0)), **counted()},
    recipes={
        "int8-products": Recipe(
            lambda: import_module("dimorder_toy.quantizer").ToyQuantizer(), "pip install torchao"
        )
    },
    files=TargetFiles(load, check, channels_last=()),
)
