"""Name the axes of an operator's tensors: a token is one axis of a label, or a label that stays together."""

from __future__ import annotations

from dataclasses import dataclass

from dimorder.ops.operator import Relation

AxisOrder = tuple[int, ...]  # a buffer's axes, slowest first
Token = tuple[str, int]  # a shared axis of a label, or (label, -1) for a label whose axes stay together


@dataclass(frozen=True)
class AxedTensor:
    """One tensor as one operator sees it: the sizes of its axes, and the axes of each label.

    `sizes` and `dims` are in logical order, and axes of size 1 do not exist. `dims` says which dimension each
    axis belongs to.
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    labels: dict[str, tuple[int, ...]]


def token_axes(tensor: AxedTensor, relation: Relation) -> dict[Token, AxisOrder]:
    """Return the tokens of one tensor under a relation, with the positions of their axes in logical order."""
    tokens: dict[Token, AxisOrder] = {}
    for label, axes in tensor.labels.items():
        if label in relation.blocks or label in relation.absorbed:
            if axes:
                tokens[label, -1] = axes
        else:
            tokens.update({(label, j): (axis,) for j, axis in enumerate(axes)})
    return tokens


def is_named(token: Token, name: str) -> bool:
    """Return whether a token belongs to the label `name` or to a label `name.…`."""
    return any(part == name or part.startswith(f"{name}.") for part in token[0].split("+"))
