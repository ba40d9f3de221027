"""Decides how the steps of the pipeline are timed and told of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Progress = Callable[[str], None]
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Clock:
    """Seconds per step, added up where it has several parts, and a word of progress as each begins.

    >>> clock = Clock(print)
    >>> clock.step("compare", max, 2, 3)
    compare
    3
    >>> list(clock.seconds)
    ['compare']
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    def step(
        self, name: str, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """What the function returns for these arguments; its seconds count for the step of that name."""
        self.progress(name)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return result
