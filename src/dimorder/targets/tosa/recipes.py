"""Define how Arm's quantizers quantise a network for target tosa."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from dimorder.errors import install_of
from dimorder.targets.base import Recipe

_PROFILES = {8: "TOSA-1.0+INT", 16: "TOSA-1.0+INT+int16"}


def recipes_of(quantizer: Callable[[int], Any]) -> Mapping[str, Recipe]:
    """Return the recipes of one of Arm's quantizers, which `quantizer` makes for a number of bits."""
    install = install_of("executorch", "tosa")
    return MappingProxyType(
        {
            name: Recipe(partial(_configured, quantizer, bits), install, in_parts=True)
            for name, bits in (("int8", 8), ("int16x8", 16))
        }
    )


def _configured(quantizer: Callable[[int], Any], bits: int) -> Any:
    """Return a quantizer for activations of 8 or 16 bits.

    With 16 bits the least scale is small enough for values below 1.
    """
    from executorch.backends.arm import quantizer as arm

    configured = (
        arm.get_symmetric_quantization_config(is_per_channel=True)
        if bits == 8
        else arm.get_symmetric_a16w8_quantization_config(epsilon=2.0**-24)
    )
    return quantizer(bits).set_global(configured)


def _tosa(bits: int) -> Any:
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.tosa.specification import TosaSpecification

    return TOSAQuantizer(TosaSpecification.create_from_string(_PROFILES[bits]))


RECIPES = recipes_of(_tosa)
