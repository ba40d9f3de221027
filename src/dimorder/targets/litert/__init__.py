"""Declare target litert: physical programs as `.tflite` files, which ai-edge-litert runs.

Writing, running and reading a file need ai-edge-litert, and import it when called.
"""

from __future__ import annotations

from dimorder.errors import install_of
from dimorder.targets.target_info import XNNPACK_RECIPES, TargetInfo

INFO = TargetInfo(
    ".tflite",
    "a .tflite for LiteRT on phones, its contract inside",
    install_of("litert"),
    "dimorder.targets.litert.target:TARGET",
    kind="a .tflite file",
    begins=(4, b"TFL3"),
    recipes=XNNPACK_RECIPES,
    options={"kernels": "what runs a file here: xnnpack (default), builtin or reference"},
)
