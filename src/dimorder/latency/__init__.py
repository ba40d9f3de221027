"""How long a network takes: lowered by dimorder, and in the runtimes that one would take instead."""

from __future__ import annotations

from dimorder.latency.bench import Bench, Timed, measure

__all__ = ["Bench", "Timed", "measure"]
