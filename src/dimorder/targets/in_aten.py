"""Decides what targets compute that have torch's own operators."""

from __future__ import annotations

from dimorder.lowering.ability import Ability
from dimorder.lowering.operators.convolution import OTHER_KERNELS

# torch resizes by the few taps of each pixel itself, and has kernels for transposed convolutions. The taps
# that read padding follow from the sizes, which may be symbols.
_DECLINED = OTHER_KERNELS | frozenset(
    f"aten.{name}.vec/by products"
    for name in (
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    )
)

ABILITY = Ability(declines=(_DECLINED,))
