"""Define what targets xnnpack and litert have in common: XNNPACK computes the files of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from torch.fx import Graph

from dimorder.capture.rewrite_linears import LinearLimits
from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.errors import install_of
from dimorder.layout.capabilities import Capabilities
from dimorder.ops.contraction import few_features_first, has_two_dynamic_rows
from dimorder.ops.convolution import depthwise_in_parts
from dimorder.ops.convolution_taps import tap_by_tap
from dimorder.ops.resize import has_dynamic_resize
from dimorder.ops.table import BY_MATMUL, IN_SIMPLER, PLAIN
from dimorder.targets.base import Recipe
from dimorder.targets.windows import PART_TAPS

# 28²×58: interleaving single elements adds 176 µs to a cat, transposing explicitly adds 85.
MIN_RUN = 8
# XNNPACK computes 16 or 32 channels at a time. 8 pieces of 4 take 2.6 times as long as one linear and its
# slices, 8 of 8 take 1.7 times, and 8 of 16 as long. Attention with heads of 32 or 64 takes 0.88 to 0.98 of
# the time, with heads of 16 to 24 as long, with heads of 36 or 48 1.03 times. More than 32 slices take longer
# than one delegate saves.
LINEARS = LinearLimits(split_channels=16, heads=HeadLimits(channels=32, most_joined=32))
# Its matmul packs the right operand, as a transposition would: both take as long for 4 to 64 features.
_FEW_FEATURES = 16
_LINEAR = "aten.linear"
IN_PHASES = "aten.convolution/transposed in phases"
# XNNPACK computes these too, but no measurement has shown that they save more than they cost.
_NOT_WORTH_IT = frozenset({"aten.linear/features first", "aten.layer_norm/any", "aten.matmul/transposed"})
IMPLEMENTATIONS = (PLAIN - _NOT_WORTH_IT) | IN_SIMPLER | {IN_PHASES}
# An AVX-512 core multiplies 60 times while it moves 8 bytes.
_MACS_PER_BYTE = 8
OWN = {
    "aten.convolution": (depthwise_in_parts(PART_TAPS), tap_by_tap(_MACS_PER_BYTE)),
    _LINEAR: (few_features_first(_FEW_FEATURES),),
}


def sized(capabilities: Capabilities, graph: Graph, missing: frozenset[str] = frozenset()) -> Capabilities:
    """Return the capabilities for a captured graph with dynamic sizes.

    The matrices of a resize are constants of fixed sizes. `missing` are further implementations that need
    fixed ones.
    """
    if has_dynamic_resize(graph):
        missing |= BY_MATMUL
    implementations = tuple(names - missing for names in capabilities.implementations)
    own = dict(capabilities.own_implementations)
    if has_two_dynamic_rows(graph):
        own.pop(_LINEAR, None)
    return replace(capabilities, implementations=implementations, own_implementations=own)


def _quantizer(is_dynamic: bool) -> Any:
    from dimorder.targets.pattern_quantizer import pattern_quantizer

    return pattern_quantizer(is_dynamic=is_dynamic)


_INSTALL = install_of("executorch")
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "int8": Recipe(partial(_quantizer, False), _INSTALL),
        "int8-dynamic": Recipe(partial(_quantizer, True), _INSTALL, dynamic=True),
    }
)
