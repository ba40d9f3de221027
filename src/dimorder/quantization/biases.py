"""Correct biases so that rounded weights do not change the mean of a channel.

The rounding errors of one channel's weights do not cancel, least of all those of the few weights in a
depthwise convolution. The next operator then reads values with the same offset everywhere (Nagel et al.,
Data-Free Quantization Through Weight Equalization and Bias Correction, 2019).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from dimorder.graph.interpreter import GraphRun
from dimorder.graph.nodes import module_of, only_reader
from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.modules import unwritten
from dimorder.quantization.batch_norms import NORMS
from dimorder.quantization.constants import written_buffers

aten = torch.ops.aten

# Convolution or linear → the dimension of its result along which its bias lies. A batch may be missing.
_CHANNELS: Mapping[Any, int] = {
    aten.conv1d.default: -2,
    aten.conv2d.default: -3,
    aten.conv3d.default: -4,
    aten.convolution.default: 1,
    aten.linear.default: -1,
}
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar)


def correct_biases(quantised: GraphModule, original: GraphModule, examples: Sequence[Sequence[Any]]) -> None:
    """Change the biases of a quantised network so that each convolution and linear keeps its float means.

    The network runs operator by operator on all examples, each of them flat inputs. Each convolution or
    linear is corrected after those before it. One without a bias of its own is left unchanged. Each example
    finds the state as it is now, and leaves it so.
    """
    wanted: dict[Node, Tensor] = {}
    pairs = {
        _result(twin, node): (twin, node) for twin, node in _twins(original, quantised) if _own_bias(node)
    }

    def record(node: Node, values: _Each) -> _Each:
        if node in pairs:
            twin, product = pairs[node]
            wanted[product] = _mean(values, _CHANNELS[twin.target])
        return values

    def correct(node: Node, values: _Each) -> _Each:
        if node not in wanted:
            return values
        dim = _CHANNELS[node.target]
        change = wanted[node] - _mean(values, dim)
        added = _add_to_bias(quantised, node, change)
        shape = [1] * values[0].dim()
        shape[dim] = -1
        return _Each(value + added.reshape(shape) for value in values)

    with unwritten(leaf for example in examples for leaf in example):
        _OverExamples(original, record).over(examples)
    with unwritten(leaf for example in examples for leaf in example):
        _OverExamples(quantised, correct).over(examples)


class _Each(list[Any]):
    """The values of one node, one per example."""


class _OverExamples(GraphRun):
    """A run of several examples at once; `seen` may change an operator's results."""

    def __init__(self, module: GraphModule, seen: Callable[[Node, _Each], _Each]) -> None:
        super().__init__(module)
        self.seen = seen
        self.count = 0
        self._states = dict.fromkeys(written_buffers(module), _Each())

    def over(self, examples: Sequence[Sequence[Any]]) -> None:
        self.count = len(examples)
        self.run(*(_Each(leaf) for leaf in zip(*examples, strict=True)))

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if node.op == "get_attr" and node.target in self._states:
            name = str(node.target)
            self._states[name] = self._states[name] or _Each(result.clone() for _ in range(self.count))
            return self._states[name]
        return self.seen(node, result) if isinstance(result, _Each) else result

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda x: isinstance(x, _Each))
        count = next((len(leaf) for leaf in leaves if isinstance(leaf, _Each)), None)
        if count is None:
            return super().call(target, args, kwargs)
        results = _Each()
        for i in range(count):
            chosen = [leaf[i] if isinstance(leaf, _Each) else leaf for leaf in leaves]
            results.append(super().call(target, *pytree.tree_unflatten(chosen, spec)))
        return results


def _twins(original: GraphModule, quantised: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Yield the convolutions and linears of both networks in pairs.

    A quantizer may write a recurrent layer out as linears. So the calls of one module are paired only if both
    networks have equally many.
    """
    of_original, of_quantised = _products_by_module(original), _products_by_module(quantised)
    for module, products in of_original.items():
        others = of_quantised.get(module, [])
        if len(products) == len(others):
            yield from zip(products, others, strict=True)


def _products_by_module(network: GraphModule) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in network.graph.nodes:
        if node.op == "call_function" and node.target in _CHANNELS:
            found.setdefault(module_of(node), []).append(node)
    return found


def _own_bias(node: Node) -> Node | None:
    """Return the constant that is the bias of a convolution or linear, and of nothing else."""
    if len(node.args) < 3:
        return None
    bias = node.args[2]
    while isinstance(bias, Node) and len(bias.users) == 1:
        if bias.op == "get_attr":
            return bias
        if bias.target not in (DEQUANTIZE, DEQUANTIZE_CHANNELS):
            return None
        bias = bias.args[0]
    return None


def _result(twin: Node, product: Node) -> Node:
    """Return what the float network has for the result of `product`, whose twin there is given.

    A norm after the twin, or a product with a constant, may be a part of the weights of `product`.
    """
    result, reader = twin, only_reader(twin)
    if reader is not None and reader.target in NORMS:
        result, reader = reader, only_reader(reader)
    is_folded = reader is not None and reader.target in _FACTORS
    return reader if is_folded and not _is_multiplied(product) else result  # type: ignore[return-value]


def _is_multiplied(value: Node) -> bool:
    """Return whether a product reads a value, or what it is quantised to."""
    return any(
        _is_multiplied(reader) if reader.target in (QUANTIZE, DEQUANTIZE) else reader.target in _FACTORS
        for reader in value.users
    )


def _mean(values: _Each, dim: int) -> Tensor:
    """Return the mean of each channel over all examples."""
    first = [value[0] if isinstance(value, (tuple, list)) else value for value in values]
    kept = dim % first[0].dim()
    others = [d for d in range(first[0].dim()) if d != kept]
    return torch.stack([value.double().mean(others) if others else value.double() for value in first]).mean(0)


def _add_to_bias(module: GraphModule, product: Node, change: Tensor) -> Tensor:
    """Give a linear or convolution another bias, and return what was added, rounded if it is of integers."""
    bias = _own_bias(product)
    assert bias is not None
    *path, name = str(bias.target).split(".")
    owner = module.get_submodule(".".join(path))
    old: Tensor = getattr(owner, name)
    if old.is_floating_point():
        new = old.detach() + change.to(old.dtype)
        added = new - old
    else:
        (dequantize,) = bias.users
        scale: Any = dequantize.args[1]
        if isinstance(scale, Node):
            scale = operator.attrgetter(str(scale.target))(module)
        steps = (change / scale).round()
        new, added = old + steps.to(old.dtype), (steps * scale).float()
    is_parameter = isinstance(old, torch.nn.Parameter)
    setattr(owner, name, torch.nn.Parameter(new, requires_grad=False) if is_parameter else new)
    return added
