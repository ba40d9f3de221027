"""Define how networks are quantised for target litert: by ExecuTorch's XNNPACKQuantizer.

LiteRT runs the kernels that this quantizer is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from dimorder.targets.base import Recipe

_INSTALL = "pip install 'dimorder[executorch]'"


def _quantizer(is_dynamic: bool) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    return xnnpack.XNNPACKQuantizer().set_global(config)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "int8": Recipe(partial(_quantizer, False), _INSTALL),
        "int8-dynamic": Recipe(partial(_quantizer, True), _INSTALL, dynamic=True),
    }
)
