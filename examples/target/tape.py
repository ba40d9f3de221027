"""A whole small target: a file is a list of calls on dense tensors, which torch runs one by one.

docs/tutorials/new-target.md explains it, and adds the operators that SqueezeNet needs.
"""

from __future__ import annotations

import pickle
from collections import namedtuple

import torch

from dimorder.contract import Contract
from dimorder.layout.capabilities import Capabilities
from dimorder.targets.base import Artifact, Target, TargetFiles
from dimorder.targets.graph_writer import ViewWriter
from dimorder.targets.program_io import read_signature
from dimorder.targets.table import Row, Table, is_conversion, whole
from dimorder.targets.target_info import TargetInfo

aten, nhwc = torch.ops.aten, torch.ops.dimorder
Value = namedtuple("Value", "index shape")  # a dense tensor of the file, by its number


class Writer(ViewWriter):
    """The calls and the constants of a file, in the order in which they are written."""

    def __init__(self):
        super().__init__()
        self.calls, self.constants, self.count = [], {}, 0

    def value(self, shape):
        self.count += 1
        return Value(self.count, tuple(shape))

    def call(self, name, shape, operands, /, **options):
        read, result = [self.dense(operand).index for operand in operands], self.value(shape)
        self.calls.append((name, result.index, read, options))
        return result

    def constant(self, data):
        value = self.value(data.shape)
        self.constants[value.index] = data.detach().contiguous()
        return value

    def reshape(self, value, shape):
        same = value.shape == tuple(shape)
        return value if same else self.call("reshape", shape, [whole(value)], shape=shape)

    def _transpose(self, view):
        return self.call("permute", view.shape, [whole(view.value)], dims=view.order)


def row(name, operands, options=""):
    """Return a row that writes one call. It reads these arguments of the operator's schema."""

    def build(writer, a):
        chosen = {option: getattr(a, option) for option in options.split()}
        return writer.call(name, a.shape, [getattr(a, operand) for operand in operands.split()], **chosen)

    return Row(build)


ROWS = {
    nhwc.conv2d_nhwc.default: row("conv2d", "x weight_ohwi bias", "stride padding dilation groups"),
    aten.relu.default: row("relu", "self"),
    aten.view.default: Row(lambda writer, a: writer.reshape(writer.dense(a.self), a.shape), relabel=True),
    aten.permute.default: Row(lambda writer, a: a.self.permute(a.dims), relabel=True),
    aten.clone.default: Row(
        lambda writer, a: writer.transposed(a.self),
        lambda a: None if is_conversion(a) else "a copy",
        relabel=True,
    ),
}
TABLE = Table("target tape", ROWS, lambda value, is_constant: None)  # it takes tensors of every type
KERNELS = {"conv2d": nhwc.conv2d_nhwc, "relu": torch.relu, "reshape": torch.reshape, "permute": torch.permute}


class Tape(Artifact):
    """A file, and how it is run."""

    def __init__(self, data):
        self.data, self.file = data, pickle.loads(data)

    def run(self, inputs):
        values = self.file["constants"] | dict(zip(self.file["inputs"], inputs, strict=True))
        for name, result, read, options in self.file["calls"]:
            values[result] = KERNELS[name](*(values[i] for i in read), **options).contiguous()
        return [values[i] for i in self.file["outputs"]]


def emit(program, contract):
    signature, writer = read_signature(program), Writer()
    inputs = {node: writer.value(node.meta["val"].shape) for node in signature.inputs}
    values = signature.constants | {node: whole(value) for node, value in inputs.items()}
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in values:
            values[node] = TABLE.build(writer, node, values.__getitem__)
    outputs = [writer.dense(values[node]).index for node in signature.outputs]
    file = {"inputs": [value.index for value in inputs.values()], "outputs": outputs, "calls": writer.calls}
    return Tape(pickle.dumps(file | {"constants": writer.constants, "contract": contract.to_json()}))


def load(path):
    tape = Tape(path.read_bytes())
    return Contract.from_json(tape.file["contract"]), tape.run


INFO = TargetInfo(".tape", "a list of calls", "pip install tape", "examples.target.tape:TARGET")
TARGET = Target(
    "tape", INFO, emit, Capabilities(TABLE.supports, max_rank=4), files=TargetFiles(load, channels_last=())
)
