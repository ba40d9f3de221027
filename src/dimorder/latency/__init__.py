"""Measure how long a network takes: lowered by dimorder, and in the alternative runtimes."""

from __future__ import annotations

from dimorder.latency.bench import Bench, Timed, measure

__all__ = ["Bench", "Timed", "measure"]
