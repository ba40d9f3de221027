"""Define how networks are quantised for target litert: by ExecuTorch's XNNPACKQuantizer.

LiteRT runs the kernels that this quantizer is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dimorder.targets.base import Recipe


def _quantizer() -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack.XNNPACKQuantizer().set_global(config)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {"int8": Recipe(_quantizer, "pip install 'dimorder[executorch]'")}
)
