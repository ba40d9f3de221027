"""Time programs side by side: in turn, each after a pause and calls that are not timed."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dimorder.clock import Progress, StepPart

PAUSE_S = 0.02  # in which the idle threads of the runtime before fall asleep
WARM_S = 0.03  # of calls that are not timed: a thread that wakes may share a core with another for a while
MOST_S = 120.0  # of all rounds, unless they are fewer than 5
AT_ONCE = 32  # programs, of many, that are timed in turn

Invocation = Callable[[], Any]  # runs a program once, on its own inputs, and returns the outputs


def interleaved(
    ways: Mapping[str, Invocation], rounds: int, progress: Progress = lambda step: None
) -> dict[str, list[float]]:
    """Return the milliseconds of each way, one per round, in random sequence.

    No round begins after `MOST_S`, except the first 5.
    """
    draw = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in ways}
    begun = time.perf_counter()
    for done in range(rounds):
        if done >= 5 and time.perf_counter() - begun > MOST_S:
            break
        progress(StepPart("running rounds", done, rounds))
        for name in draw.sample(list(ways), len(ways)):
            time.sleep(PAUSE_S)
            woken = start = time.perf_counter()
            while start - woken < WARM_S:
                ways[name]()
                start = time.perf_counter()
            ways[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two medians, and its interval of 95 %, by resampling the rounds.

    >>> ratio([2.0, 2.0, 2.0], [4.0, 4.0, 4.0])
    (0.5, 0.5, 0.5)
    """
    pairs = list(zip(ours, theirs, strict=True))
    draw = random.Random(0)

    def of(chosen: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in chosen) / statistics.median(b for _, b in chosen)

    found = sorted(of(draw.choices(pairs, k=len(pairs))) for _ in range(1000))
    return of(pairs), found[24], found[974]


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean, or NaN if there are no ratios."""
    return statistics.geometric_mean(ratios) if ratios else math.nan
