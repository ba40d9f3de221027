"""Refuse the operators that Vela would refuse, since its own errors name no operator of the network.

Ethos-U85 takes everything in TOSA's level 8K. For U55 and U65 these are the conditions of `vela
--supported-ops-report` that Vela 5.1.0 checks in a graph. Vela splits other operators into supported ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import torch

from dimorder.errors import UnsupportedError
from dimorder.plans.explanation import Place
from dimorder.targets.ethos_u import is_u85
from dimorder.targets.tosa.integers.forms import are_crossed
from dimorder.targets.tosa.integers.model import TosaModel, TosaNode
from dimorder.targets.tosa.resize import is_doubling

FIX = "choose an ethos-u85, which has this, or replace it in the module"


@dataclass(frozen=True)
class TosaCall:
    """An operator of a graph with its operands: their sizes, and their values if constant."""

    node: TosaNode
    shapes: Sequence[tuple[int, ...]]
    values: Sequence[torch.Tensor | None]


def _unknown(call: TosaCall) -> str | None:
    return f"{call.node.kind}, which these have not"


def _stride(call: TosaCall) -> str | None:
    worst = max(call.node.attributes["stride"])
    return f"a depthwise stride of {worst}, where these have 3 at most" if worst > 3 else None


def _upsampling(call: TosaCall) -> str | None:
    """Refuse transposed convolutions that do not double the elements or keep them, as the hardware does."""
    stride, kernel = tuple(call.node.attributes["stride"]), call.shapes[1][1:3]
    flat = [call.shapes[0][d + 1] == kernel[d] == 1 for d in range(2)]
    if stride in ((1, 1), (2, 2)) or (stride == (1, 2) and flat[0]) or (stride == (2, 1) and flat[1]):
        return None
    return f"a transposed convolution of stride {stride}, where these have (2, 2)"


def _resize(call: TosaCall) -> str | None:
    """Refuse resizes but nearest by two, four or eight.

    They have bilinear only if the sole rescaling is by 2 ** n, which our graphs do not have. Graphs for them
    have convolutions in place of other resizes, unless a weight is above 127.
    """
    numbers = call.values[1]
    assert numbers is not None, "the writer makes the factors constants"
    rows, to_rows, columns, to_columns = numbers.tolist()
    factors = [Fraction(rows, to_rows), Fraction(columns, to_columns)]
    if call.node.attributes["mode"] == "NEAREST" and is_doubling(factors):
        return None
    told = f"{call.node.attributes['mode'].lower()} by {factors[0]} and {factors[1]}"
    return f"a resize, {told}, where these have nearest by 2, 4 or 8 in both, and weights up to 127"


def _argmax(call: TosaCall) -> str | None:
    shape, axis = call.shapes[0], call.node.attributes["axis"]
    if axis != len(shape) - 1:
        return f"an argmax along dimension {axis} of {len(shape)}, where these have the last"
    return f"an argmax of {shape[-1]} channels, where these have 127 at most" if shape[-1] > 127 else None


def _depth(call: TosaCall) -> str | None:
    taps = call.shapes[1][1]
    return f"a convolution with {taps} taps in depth, where these have 1" if taps > 1 else None


def _crossed(call: TosaCall) -> str | None:
    """Refuse operands for which Vela ends the process; graphs for U55 and U65 tile one of them."""
    if not are_crossed(*call.shapes[:2]):
        return None
    return f"operands of {call.shapes[0]} and {call.shapes[1]}, for which Vela 5.1.0 ends the process"


OF_TWO = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT")

# For Ethos-U55 and U65, by operator. Vela takes other operators as they are, or splits them into ones that
# these have.
CONSTRAINTS: Mapping[str, Callable[[TosaCall], str | None]] = MappingProxyType(
    {
        "CONV3D": _depth,
        "DEPTHWISE_CONV2D": _stride,
        "TRANSPOSE_CONV2D": _upsampling,
        "RESIZE": _resize,
        "ARGMAX": _argmax,
        **dict.fromkeys(OF_TWO, _crossed),
        **dict.fromkeys(("GATHER", "EQUAL", "GREATER", "GREATER_EQUAL", "SELECT"), _unknown),
    }
)


def refusals(model: TosaModel, accelerator: str) -> Iterator[tuple[TosaNode, str]]:
    """Return the operators of a graph that Vela does not compile for an accelerator, each with the reason."""
    if is_u85(accelerator):
        return
    shapes = {**model.inputs, **{node.output: node.shape for node in model.nodes}}
    shapes |= {name: tuple(held.shape) for name, held in model.constants.items()}
    for node in model.nodes:
        if node.kind in CONSTRAINTS:
            read = [shapes[name] for name in node.inputs], [model.constants.get(name) for name in node.inputs]
            reason = CONSTRAINTS[node.kind](TosaCall(node, *read))
            if reason is not None:
                yield node, reason


def require_compilable(model: TosaModel, accelerator: str, place_of: Callable[[str], Place]) -> None:
    """Raise `UnsupportedError` for what Vela would refuse.

    The error has the operator of the network, its place, and the reason.
    """
    found = [(place_of(node.output), reason) for node, reason in refusals(model, accelerator)]
    if found:
        place, reason = found[0]
        others = len({each for each, _ in found} - {place})
        more = f" (and {others} more such operators)" if others else ""
        raise UnsupportedError(f"{place} on {accelerator}", f"{reason}{more}", FIX)
