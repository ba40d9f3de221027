"""Write quantize, dequantize and dynamic quantization as LiteRT operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.targets.integer_kernels import unfit_dynamic, unfit_quantize
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.table import Arguments, Row, View


def _quantize(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    return w.quantize(w.dense(a.input), IntegerType(a.dtype, a.scale, a.zero_point))


def _dequantize(w: LiteRtWriter, a: Arguments) -> View[LiteRtValue]:
    """Return the integers themselves. An operator that computes in floats dequantizes them later."""
    view: View[LiteRtValue] = a.input
    if view.value.of is not None:
        return view
    of = IntegerType(view.value.dtype, a.scale, a.zero_point)  # gathered from a table
    return View(w.standing_for(view.value, of), view.order)


def _check(a: Arguments) -> str | None:
    return unfit_quantize(a, "LiteRT")


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        QUANTIZE: Row(_quantize, _check, integers=True),
        DEQUANTIZE: Row(_dequantize, _check, integers=True),
        FAKE_QUANTIZE_DYNAMIC: Row(lambda w, a: a.x, unfit_dynamic),  # the reader quantizes, or reads floats
    }
)
