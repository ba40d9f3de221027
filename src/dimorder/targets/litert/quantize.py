"""Write quantize, dequantize and dynamic quantization as LiteRT operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.targets.integer_kernels import unfit_dynamic
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.table import Arguments, Row, View

_RANGES: Mapping[torch.dtype, tuple[int, int]] = MappingProxyType(
    {torch.int8: (-128, 127), torch.uint8: (0, 255)}
)


def _quantize(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    return w.quantize(w.dense(a.input), IntegerType(a.dtype, a.scale, a.zero_point))


def _dequantize(w: LiteRtWriter, a: Arguments) -> View[LiteRtValue]:
    """Return the integers themselves. An operator that computes in floats dequantizes them later."""
    view: View[LiteRtValue] = a.input
    assert view.value.of is not None, f"nothing says what {view.value} stands for"
    return view


def _check(a: Arguments) -> str | None:
    if (a.quant_min, a.quant_max) != _RANGES.get(_integers(a)):
        return f"integers from {a.quant_min} to {a.quant_max}; LiteRT has those of 8 bits"
    if not torch.finfo(torch.float32).tiny <= a.scale < torch.inf:
        return f"the scale {a.scale:g}; LiteRT has positive ones"
    if not a.quant_min <= a.zero_point <= a.quant_max:
        return f"the zero point {a.zero_point}, outside of {a.quant_min} to {a.quant_max}"
    return None


def _integers(a: Arguments) -> torch.dtype:
    """Return the type of the integers of a quantize, or of what a dequantize reads."""
    value = a.input.meta["val"].dtype
    dtype: torch.dtype = a.dtype if value.is_floating_point else value
    return dtype


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        QUANTIZE: Row(_quantize, _check, integers=True),
        DEQUANTIZE: Row(_dequantize, _check, integers=True),
        FAKE_QUANTIZE_DYNAMIC: Row(lambda w, a: a.x, unfit_dynamic),  # the reader quantizes, or reads floats
    }
)
