"""Find linears and convolutions with constant weights, and compute new weights for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import add_constant, args_of
from dimorder.graph.prediction import add_predicted
from dimorder.graph.quantized import Scaled
from dimorder.graph.tracing import shape_of
from dimorder.ops.table import elements_of

aten = torch.ops.aten

# Operators with a constant after a linear or convolution: the scale and the shift for that constant.
SCALE_AND_SHIFT: dict[Any, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    aten.mul.Tensor: lambda c: (c, torch.zeros_like(c)),
    aten.div.Tensor: lambda c: (1 / c, torch.zeros_like(c)),
    aten.add.Tensor: lambda c: (torch.ones_like(c), c),
    aten.sub.Tensor: lambda c: (torch.ones_like(c), -c),
}
_SYMMETRIC = (aten.mul.Tensor, aten.add.Tensor)


@dataclass(frozen=True)
class Linear:
    """A linear or convolution of floats with a constant weight that nothing else reads.

    Its bias is a constant or None. `features` is the dimension of the channels in its result.
    """

    module: GraphModule
    node: Node
    weight: Tensor
    bias: Tensor | None
    features: int

    @staticmethod
    def of(
        module: GraphModule, node: Node, dtypes: Collection[torch.dtype] = (torch.float32,)
    ) -> Linear | None:
        """Return the `Linear` of a call; None for any other call, and for integers or another type.

        New weights are computed in float32 alone. Weights that are only moved may have half precision.
        """
        if node.target not in (aten.linear.default, aten.convolution.default) or node.kwargs:
            return None
        weight, bias = (_floats(module, each, dtypes) for each in (*node.args[1:3], None)[:2])
        named: Any = node.args[1]
        if weight is None or len(named.users) > 1 or (bias is None and node.args[2:3] not in ((), (None,))):
            return None
        is_linear = node.target is aten.linear.default
        rank = len(shape_of(node))
        if weight.dim() != (2 if is_linear else rank):
            return None
        return Linear(module, node, weight, bias, rank - 1 if is_linear else 1)

    @property
    def options(self) -> tuple[Any, ...]:
        """Stride, padding, dilation, transposed, output padding and groups; empty for a linear."""
        return tuple(self.node.args[3:])

    @property
    def transposed(self) -> bool:
        return bool(self.options) and bool(self.options[3])

    @property
    def groups(self) -> int:
        return int(self.options[5]) if self.options else 1

    @property
    def dims(self) -> int:
        """The number of dimensions with taps; 0 for a linear."""
        return self.weight.dim() - 2

    @property
    def pads(self) -> bool:
        return bool(self.options) and any(self.options[1])

    def with_constants(self, weight: Tensor, bias: Tensor | None, name: str) -> Node:
        """Write the same call before it with new constants, whose names end in `name`."""
        with self.node.graph.inserting_before(self.node):
            weight_node = self.add_constant(name, weight)
            bias_node = None if bias is None else self.add_constant(f"{name}_bias", bias)
            given = (weight_node,) if bias_node is None and not self.options else (weight_node, bias_node)
            return add_predicted(self.node, self.node.target, self.node.args[0], *given, *self.options)

    def add_constant(self, role: str, value: Tensor) -> Node:
        """Write a constant of the weight's type where the graph inserts, named after the weight and role."""
        name = f"{self.node.args[1].target}_{role}"  # type: ignore[union-attr]
        free = (name, *(f"{name}_{i}" for i in range(1, len(self.node.graph.nodes))))
        name = next(each for each in free if not hasattr(self.module, each))
        self.module.register_buffer(name, value.to(self.weight.dtype).contiguous())
        return add_constant(self.node.graph, name, getattr(self.module, name))


def _floats(
    module: GraphModule, value: Any, dtypes: Collection[torch.dtype] = (torch.float32,)
) -> Tensor | None:
    """Return the constant of a node; None for computed values, other types and integers."""
    if not isinstance(value, Node) or value.op != "get_attr":
        return None
    tensor: Tensor = getattr(module, str(value.target))
    return None if isinstance(tensor, Scaled) or tensor.dtype not in dtypes else tensor


def is_relabel(node: Node) -> bool:
    """Return whether a call is one of the normal form's views: reshape or permute."""
    return elements_of(node.target) is Elements.RELABELS


def linear_before(module: GraphModule, value: Node) -> tuple[Linear, list[Node]] | None:
    """Return the linear whose result a value is, and the views in between, the last first.

    The result is None if anything else reads the linear or the views.
    """
    moves, first = list[Node](), value
    while is_relabel(first) and len(first.users) == 1:
        moves.append(first)
        first = args_of(first)[0]
    linear = Linear.of(module, first) if len(first.users) == 1 else None
    return None if linear is None else (linear, moves)


def constant(module: GraphModule, value: Any) -> Tensor | None:
    """Return a number or a float32 constant in float64, or None for anything else."""
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float64)
    tensor = _floats(module, value)
    return None if tensor is None else tensor.double()


def with_constant(module: GraphModule, node: Node) -> tuple[Node, Tensor] | None:
    """Return the operands of arithmetic with a constant: a value of the result's shape, and the constant."""
    if node.target not in SCALE_AND_SHIFT or len(node.args) != 2 or node.kwargs:
        return None
    for place in (1, 0) if node.target in _SYMMETRIC else (1,):
        source, value = node.args[1 - place], constant(module, node.args[place])
        if value is None or not isinstance(source, Node) or source.op == "get_attr":
            continue
        if source.meta["val"].dtype == torch.float32 and shape_of(source) == shape_of(node):
            return source, value
    return None


def of_features(linear: Linear, moves: Sequence[Node], value: Tensor) -> Tensor | None:
    """Return a constant as one number per channel of a linear, or None if it differs within a channel.

    `value` is in the shape after `moves`, the views and permutes after the linear (the last first), or a
    single number.
    """
    features = shape_of(linear.node)[linear.features]
    if value.numel() == 1:
        return value.reshape(1).expand(features)
    for move in moves:
        if move.target is aten.permute.default:
            value = value.permute(torch.tensor(move.args[1]).argsort().tolist())
        else:
            value = value.reshape(shape_of(move.args[0]))
    for dim, step in enumerate(value.stride()):
        if step == 0 and dim != linear.features:
            value = value.narrow(dim, 0, 1)
    first = value
    for dim in range(value.dim()):
        first = first if dim == linear.features else first.narrow(dim, 0, 1)
    return first.reshape(-1) if bool((value == first).all()) else None


def scaled_inputs(
    weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the float64 weight and bias of a linear whose input channels are scaled, then shifted.

    The linear or convolution must have no groups and no padding. Its weight is (outputs, inputs, taps…).

    >>> w, b = scaled_inputs(torch.ones(2, 3), None, torch.tensor([2.0, 5.0, 7.0]), torch.ones(3))
    >>> w.tolist(), b.tolist()
    ([[2.0, 5.0, 7.0], [2.0, 5.0, 7.0]], [3.0, 3.0])
    """
    weight, along = weight.double(), [1, -1] + [1] * (weight.dim() - 2)
    if shift is not None:
        added = (weight * shift.reshape(along)).flatten(1).sum(1)
        bias = added if bias is None else added + bias.double()
    return weight * scale.reshape(along), bias


def is_normal(factors: Tensor) -> bool:
    """Return whether all factors are normal numbers in float32."""
    sizes = factors.float().abs()
    return bool((sizes.isfinite() & (sizes >= torch.finfo(torch.float32).tiny)).all())


def is_safe(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Return whether the second, new constant of each pair is finite, and normal where the old one is."""
    tiny = torch.finfo(torch.float32).tiny
    return all(
        bool((after.float().isfinite() & ((after.abs() >= tiny) == (before.abs() >= tiny))).all())
        for before, after in pairs
    )
