"""Decides what targets compute that have torch's own operators."""

from __future__ import annotations

from dimorder.layout.capabilities import Ability
from dimorder.ops.convolution import OTHER_KERNELS
from dimorder.ops.resize import BY_PRODUCTS

# torch resizes by the few taps of each pixel itself, and has kernels of its own for convolutions.
ABILITY = Ability(declines=(OTHER_KERNELS | BY_PRODUCTS,))
