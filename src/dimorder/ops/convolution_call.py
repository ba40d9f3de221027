"""Read a convolution as channels-last kernels take it, and write such kernels.

The constant weight is re-laid, so that the channels lie in any order on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dimorder.graph.nodes import args_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.tokens import Token


@dataclass(frozen=True)
class Convolution:
    """A convolution with channels-last operands and results; its weight is (O, kernel…, I / groups)."""

    dims: list[list[Token]]
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int

    @staticmethod
    def of(c: Call) -> Convolution:
        """Read the arguments of a call; a 1-D convolution becomes 2-D with height 1."""
        _, _, _, stride, padding, dilation, transposed, output_padding, groups = args_of(c.node)
        weight, bias = c.weight(1), c.weight(2)
        assert weight is not None
        spatial = [[f"s.{i}"] for i in range(weight.dim() - 2)]
        if len(spatial) == 1:
            weight, spatial = weight.unsqueeze(2), [[], *spatial]
        stride, padding, dilation, output_padding = (
            [fill] * (len(spatial) - len(values)) + list(values)
            for values, fill in ((stride, 1), (padding, 0), (dilation, 1), (output_padding, 0))
        )
        outputs, inputs = c.permutation(c.result, "g", "c"), c.permutation(0, "g", "c")
        return Convolution(
            c.by_label(["n"], *spatial, ["g", "c"]),
            _relaid_weight(weight, inputs, outputs, groups, bool(transposed)),
            None if bias is None else bias[outputs],
            stride,
            padding,
            dilation,
            output_padding,
            groups,
        )

    def write(
        self, c: Call, x: torch.fx.Node, weight: torch.Tensor, sides: Sequence[int], **others: Any
    ) -> torch.fx.Node:
        """Write a 2-D or 3-D convolution that differs from this one.

        Args:
            c: The call that is lowered.
            x: The operand.
            weight: The other weight.
            sides: The padding before and after each dimension: above, below, left and right in 2-D.
            others: Other fields of this class.
        """
        conv = replace(self, weight=weight, **others)
        constants = c.constant(conv.weight, 1), c.constant(conv.bias, 2)
        rest = (conv.stride, list(sides), conv.dilation, conv.groups)
        target = OPS.conv2d_nhwc if len(conv.stride) == 2 else OPS.conv3d_ndhwc
        return c.b.call(target.default, x, *constants, *rest)


def _relaid_weight(
    weight: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, groups: int, transposed: bool
) -> torch.Tensor:
    """Re-lay a weight to (O, kernel…, I / groups) for channels in other orders; groups move as wholes."""
    if transposed:  # (I, O / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    else:  # (O, I / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1))
    per_out, per_in = grouped.shape[1], grouped.shape[2]
    blocks = outputs.reshape(groups, per_out)
    group, within_out = blocks[:, 0] // per_out, blocks[0] % per_out
    within_in = inputs.reshape(groups, per_in)[0] % per_in
    relaid: torch.Tensor = grouped[group][:, within_out][:, :, within_in]
    return relaid.flatten(0, 1).movedim(1, -1).contiguous()
