"""Define the recipes: for each way of quantising, the quantizer that says what is quantised, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from types import MappingProxyType
from typing import Any

from dimorder.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """One way of quantising.

    Attributes:
        target: the target that the quantizer was written for, or a pattern of several targets.
        scheme: the name of the arithmetic, such as "int8".
        quantizer: returns torchao's `Quantizer`.
        install: what to do if a module is missing.
        dynamic: whether the scales of values are found as the network runs, without calibration.
    """

    target: str
    scheme: str
    quantizer: Callable[[], Any]
    install: str
    dynamic: bool = False


def _xnnpack(dynamic: bool) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    return xnnpack.XNNPACKQuantizer().set_global(config)


def _tosa(bits: int) -> Any:
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.tosa.specification import TosaSpecification

    profile = "TOSA-1.0+INT" if bits == 8 else "TOSA-1.0+INT+int16"
    return _of_arm(TOSAQuantizer(TosaSpecification.create_from_string(profile)), bits)


def _ethos_u(bits: int) -> Any:
    from executorch.backends.arm.ethosu.compile_spec import EthosUCompileSpec
    from executorch.backends.arm.quantizer import EthosUQuantizer

    return _of_arm(EthosUQuantizer(EthosUCompileSpec("ethos-u85-256")), bits)


def _of_arm(quantizer: Any, bits: int) -> Any:
    """Configure a quantizer for activations of 8 or 16 bits.

    With 16 bits the least scale is small enough for values below 1.
    """
    from executorch.backends.arm import quantizer as arm

    if bits == 8:
        return quantizer.set_global(arm.get_symmetric_quantization_config(is_per_channel=True))
    return quantizer.set_global(arm.get_symmetric_a16w8_quantization_config(epsilon=2.0**-24))


_EXECUTORCH, _BOTH = (f"pip install 'dimorder[{extras}]'" for extras in ("executorch", "executorch,tosa"))
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "xnnpack": Recipe("xnnpack", "int8", partial(_xnnpack, False), _EXECUTORCH),
        "xnnpack_dynamic": Recipe(
            "xnnpack", "int8-dynamic", partial(_xnnpack, True), _EXECUTORCH, dynamic=True
        ),
        "tosa": Recipe("tosa", "int8", partial(_tosa, 8), _BOTH),
        "tosa_16x8": Recipe("tosa", "int16x8", partial(_tosa, 16), _BOTH),
        "ethos-u": Recipe("ethos-u*", "int8", partial(_ethos_u, 8), _BOTH),
        "ethos-u_16x8": Recipe("ethos-u*", "int16x8", partial(_ethos_u, 16), _BOTH),
    }
)


def find(name: str) -> Recipe:
    """Return the recipe of a name.

    Raises:
        UsageError: if there is no such recipe.

    >>> find("xnnpack").scheme
    'int8'
    """
    if name not in RECIPES:
        raise UsageError(f"recipe {name}", "no such recipe", f"choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def needs_calibration(scheme: str) -> bool:
    """Return whether a scheme needs inputs like those that the network will get.

    >>> needs_calibration("int8"), needs_calibration("int8-dynamic")
    (True, False)
    """
    return any(not recipe.dynamic for recipe in RECIPES.values() if recipe.scheme == scheme)


def name_for(scheme: str, target: str) -> str:
    """Return the name of the first recipe of a scheme for a target.

    Args:
        scheme: the name of the arithmetic, such as "int8".
        target: the name of a target.

    Raises:
        UsageError: if there is no such recipe.

    >>> name_for("int8", "xnnpack"), name_for("int8", "ethos-u55-128")
    ('xnnpack', 'ethos-u')
    """
    fits = [name for name, r in RECIPES.items() if r.scheme == scheme and fnmatch(target, r.target)]
    if not fits:
        had = ", ".join(f"{recipe.scheme} for {recipe.target}" for recipe in RECIPES.values())
        raise UsageError(f"quantising to {scheme}", f"no recipe for target {target}", f"there is {had}")
    return fits[0]
