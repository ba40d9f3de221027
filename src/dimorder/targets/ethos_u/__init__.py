"""Declare targets ethos-u55-*, ethos-u65-* and ethos-u85-*: quantised networks for Arm's NPUs.

Each is target tosa, whose graph of integers Vela compiles. ExecuTorch's Ethos-U runtime takes the `.pte`.
"""

from __future__ import annotations

from dimorder.errors import install_of
from dimorder.targets.target_info import COUNTED, TargetInfo
from dimorder.targets.tosa import RECIPES

# Vela's names: the NPU, and its multiply-accumulates per cycle.
ACCELERATORS = (
    *("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"),
    *("ethos-u65-256", "ethos-u65-512"),
    *("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048"),
)


def is_u85(accelerator: str) -> bool:
    """Return whether it is of the family U85, which has operators that U55 and U65 lack.

    >>> is_u85("ethos-u85-256"), is_u85("ethos-u65-256")
    (True, False)
    """
    return accelerator.startswith("ethos-u85-")


def macs(accelerator: str) -> int:
    """Return its multiply-accumulates per cycle.

    >>> macs("ethos-u85-256")
    256
    """
    return int(accelerator.rsplit("-", 1)[1])


def accelerator_named(module: str, attribute: str) -> str:
    """Return the accelerator that a module here calls by `attribute`. Raises `AttributeError` for others.

    >>> accelerator_named(__name__, "ETHOS_U85_256")
    'ethos-u85-256'
    """
    name = attribute.lower().replace("_", "-")
    if name not in ACCELERATORS:
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
    return name


def __getattr__(attribute: str) -> TargetInfo:
    return info(accelerator_named(__name__, attribute))


def info(accelerator: str) -> TargetInfo:
    """Return what is known of an accelerator's target."""
    family = accelerator.rsplit("-", 1)[0].title()
    return TargetInfo(
        ".pte",
        f"an ExecuTorch program for Arm's {family} with {macs(accelerator)} MACs a cycle, "
        "of a quantised network",
        install_of("executorch", "tosa"),
        f"dimorder.targets.ethos_u.target:{accelerator.upper().replace('-', '_')}",
        family="ethos-u…",
        objectives={
            **COUNTED,
            "cycles": "cycles by Vela, the fewest of several plans that are all lowered; for lower alone",
        },
        recipes=RECIPES,
        options={
            "system_config": "a section of Vela's Arm/vela.ini",
            "memory_mode": "another section of Arm/vela.ini",
        },
    )
