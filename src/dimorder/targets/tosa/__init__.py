"""Target tosa: physical programs as TOSA 1.0 flatbuffers, and the reference model to run them.

Only writing a graph, running it and reading one need tosa-tools; they import it when called.
"""

from __future__ import annotations

from dimorder.targets.tosa.graph import TosaSummary, inspect_tosa

__all__ = ["TosaSummary", "inspect_tosa"]
