"""Declare target tosa: physical programs as TOSA 1.0 flatbuffers, and the reference model to run them.

Writing, running and reading a graph (`graph.py`) need tosa-tools, and import it when called.
"""

from __future__ import annotations

from dimorder.errors import install_of
from dimorder.targets.target_info import TargetInfo

RECIPES = {
    "int8": "weights and activations of 8 bits, with scales from a calibration",
    "int16x8": "weights of 8 bits and activations of 16, with scales from a calibration",
}
INFO = TargetInfo(
    ".tosa",
    "a TOSA 1.0 graph for NPUs, its contract in a second file",
    install_of("tosa"),
    "dimorder.targets.tosa.target:TARGET",
    kind="a .tosa graph",
    begins=(4, b"TOSA"),
    recipes=RECIPES,
)
