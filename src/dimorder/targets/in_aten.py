"""State the capabilities of targets whose kernels are torch's own operators."""

from __future__ import annotations

from dimorder.layout.capabilities import Capabilities
from dimorder.ops.convolution import OTHER_KERNELS
from dimorder.ops.resize import BY_PRODUCTS

# torch resizes by the few taps of each pixel itself, and has its own kernels for convolutions.
CAPABILITIES = Capabilities(declines=(OTHER_KERNELS | BY_PRODUCTS,))
