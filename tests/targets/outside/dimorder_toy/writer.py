"""The graph of target toy under construction, and the table of the operators that it computes."""

from collections import namedtuple
from functools import partial

import torch

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, Scaled
from dimorder.targets.table import Row, Table, View, is_conversion

Value = namedtuple("Value", "index shape")  # a dense array of the file, by its number
aten, nhwc = torch.ops.aten, torch.ops.dimorder
_POOL = "kernel_size stride padding dilation ceil_mode"
_MOVE = partial(Row, relabel=True, integers=True)


def _of_8_bits(a):
    return None if a.quant_min == -128 else "integers that are not of 8 bits"


class Writer:
    """The calls and the constants of a file, in the order in which they are written."""

    def __init__(self):
        self.calls, self.arrays, self.count = [], {}, 0

    def value(self, shape):
        self.count += 1
        return Value(self.count - 1, tuple(shape))

    def call(self, name, shape, /, *operands, **options):
        read = [None if operand is None else self.dense(operand).index for operand in operands]
        result = self.value(shape)
        self.calls.append([name, result.index, read, options])
        return result

    def reshape(self, value, shape):
        return value if value.shape == tuple(shape) else self.call("reshape", shape, value, shape=list(shape))

    def dense(self, operand):
        """A call's operand as a value. An order that only a copy could fix is a fault of the plan."""
        if isinstance(operand, View):
            assert operand.is_dense, "no conversion is written that is not in the plan"
            return self.reshape(operand.value, operand.shape)
        return operand if isinstance(operand, Value) else self.constant(operand)

    def constant(self, tensor):
        if isinstance(tensor, Scaled):  # integers stay integers, and follow the order of the weight
            scales, dim = tensor.integers.per_channel()
            return self.call("scaled", tensor.shape, tensor.integers.values, scales, dim=dim)
        array = torch.as_tensor(tensor).detach().contiguous()  # it may be a number
        result = self.value(array.shape)
        self.arrays[str(result.index)] = array.numpy()
        return result


def _row(name, operands, options="", check=lambda a: None, **more):
    """A row that writes one call of that name, with these arguments of the schema."""

    def build(w, a):
        read = [getattr(a, operand) for operand in operands.split()]
        return w.call(name, a.shape, *read, **{option: getattr(a, option) for option in options.split()})

    return Row(build, check, **more)


def _clone(w, a):
    return a.self if a.self.is_dense else w.call("transpose", a.shape, a.self.value, order=a.self.order)


TABLE = Table(
    "target toy",
    {
        nhwc.conv2d_nhwc.default: _row("conv2d", "x weight_ohwi bias", "stride padding dilation groups"),
        nhwc.max_pool2d_nhwc.default: _row("max_pool2d", "x", _POOL),
        aten.linear.default: _row("linear", "input weight bias"),
        aten.add.Tensor: _row("add", "self other", "alpha"),
        aten.mean.dim: _row("mean", "self", "dim keepdim"),
        aten.relu.default: _row("relu", "self"),
        aten.hardtanh.default: _row("hardtanh", "self", "min_val max_val"),
        QUANTIZE: _row("quantize", "input", "scale zero_point", _of_8_bits, integers=True),
        DEQUANTIZE: _row("dequantize", "input", "scale zero_point", _of_8_bits, integers=True),
        aten.view.default: _MOVE(lambda w, a: w.reshape(w.dense(a.self), a.shape)),
        aten.permute.default: _MOVE(lambda w, a: a.self.permute(a.dims)),
        aten.clone.default: _MOVE(_clone, lambda a: None if is_conversion(a) else "a copy"),
    },
    unfit=lambda value, is_constant: None if value.dtype == torch.float32 else f"a tensor of {value.dtype}",
)
