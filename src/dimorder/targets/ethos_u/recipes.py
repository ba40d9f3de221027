"""Define how Arm's quantizer quantises a network for an Ethos-U."""

from __future__ import annotations

from typing import Any

from dimorder.targets.tosa.recipes import recipes_of


def _ethos_u(bits: int) -> Any:
    from executorch.backends.arm.ethosu.compile_spec import EthosUCompileSpec
    from executorch.backends.arm.quantizer import EthosUQuantizer

    return EthosUQuantizer(EthosUCompileSpec("ethos-u85-256"))


RECIPES = recipes_of(_ethos_u)
