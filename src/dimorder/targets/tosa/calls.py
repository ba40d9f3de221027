"""What a row of the target's table is, and how the call of a physical program is given to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.targets.tosa.writer import DTYPES, GraphWriter, Value, View

# The arguments of a node by their schema's names, defaults filled in, each tensor a View or a constant
# Tensor, `shape` and `dtype` (a torch.dtype): the result's. For a check they hold the fx nodes themselves.
Arguments = SimpleNamespace
Build = Callable[[GraphWriter, Arguments], "Value | View | list[Value]"]
Check = Callable[[Arguments], "str | None"]


@dataclass(frozen=True)
class Row:
    """How one operator is written, and what of it cannot be (None: nothing)."""

    build: Build
    check: Check = lambda arguments: None


def bind(node: Node, resolve: Callable[[Node], Any]) -> Arguments:
    """The arguments of `node` by name, each node among them replaced by what `resolve` says."""
    arguments = {}
    for position, parameter in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]  # an OpOverload
        given = node.kwargs.get(parameter.name, parameter.default_value)
        if position < len(node.args):
            given = node.args[position]
        arguments[parameter.name] = torch.fx.map_arg(given, resolve)
    values = results(node)
    shapes = [tuple(value.shape) for value in values]
    return SimpleNamespace(**{**arguments, "shape": shapes[0], "shapes": shapes, "dtype": values[0].dtype})


def results(node: Node) -> list[Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def size(operand: Any) -> tuple[int, ...]:
    """The shape of an operand: of a View, a constant, or the node that a check is given."""
    return tuple((operand.meta["val"] if isinstance(operand, Node) else operand).shape)


def dtype_of(operand: Any) -> str:
    """The TOSA type of a View, a constant or a number."""
    if isinstance(operand, View):
        return operand.value.dtype
    if isinstance(operand, Tensor):
        return "FP32" if operand.is_floating_point() else DTYPES[operand.dtype]
    return "FP32" if isinstance(operand, float) else "INT32"
