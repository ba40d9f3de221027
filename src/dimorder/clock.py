"""Time the steps of the pipeline, and report each as it begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Progress = Callable[[str], None]
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Clock:
    """The seconds of each step, added up if it runs several times; `progress` is called as a step begins.

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
        """Call a function, count its seconds for the step `name`, and return its result."""
        self.progress(name)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return result
