"""List the types of TOSA, with torch's and numpy's type for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

# torch dtype -> TOSA's. TOSA 1.0 has no 64 bits: indices are INT32, float64 is computed in FP32, and `run`
# casts both at the boundary. A graph of floats holds uint8 as FP32, and as the bits of INT8 at the boundary.
DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "FP32",
        torch.int64: "INT32",
        torch.int32: "INT32",
        torch.int16: "INT16",
        torch.int8: "INT8",
        torch.bool: "BOOL",
        torch.float16: "FP16",
        torch.bfloat16: "BF16",  # an extension of the profile
        torch.float64: "FP32",
        torch.uint8: "FP32",
    }
)
AT_BOUNDARY: Mapping[torch.dtype, str] = MappingProxyType({**DTYPES, torch.uint8: "INT8"})
# TOSA's -> the first of torch's types that it stands for, which is the widest.
WIDEST: Mapping[str, torch.dtype] = MappingProxyType({name: dtype for dtype, name in [*DTYPES.items()][::-1]})
# The same, with the widths that TOSA has.
TORCH: Mapping[str, torch.dtype] = MappingProxyType({**WIDEST, "INT32": torch.int32, "INT48": torch.int64})
NUMPY: Mapping[str, Any] = MappingProxyType(
    {
        "FP32": np.float32,
        "INT32": np.int32,
        "INT16": np.int16,
        "INT8": np.int8,
        "BOOL": np.bool_,
        "INT48": np.int64,  # sums of products of int16
        "SHAPE": np.int64,
        "FP16": np.float16,
        "BF16": np.float32,  # numpy lacks bfloat16, so these are numbers that are rounded to it
    }
)
FLOATS = frozenset(("FP32", "FP16", "BF16"))
HALVES = FLOATS - {"FP32"}


def accumulator_type(dtype: str) -> str:
    """Return the TOSA type in which products of values with that type are added up."""
    return "FP32" if dtype in FLOATS else "INT48" if dtype == "INT16" else "INT32"


def sum_type(dtype: str) -> str:
    """Return the TOSA type of a sum of products of values with that type."""
    return dtype if dtype in FLOATS else accumulator_type(dtype)
