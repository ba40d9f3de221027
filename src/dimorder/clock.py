"""Time the steps of the pipeline, and report each as it begins, with how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import ParamSpec, TypeVar

from dimorder.errors import UsageError

Progress = Callable[[str], None]
Given = ParamSpec("Given")
Item = TypeVar("Item")
Result = TypeVar("Result")


class StepPart(str):
    """A step with how far it is; whoever expects the name of a step gets it as text.

    Attributes:
        name: The name of the step.
        done: How many parts are done.
        total: How many parts there are, or None if that is not known.
        limit_s: The seconds after which the step ends in any case, if there is such a limit.

    >>> StepPart("calibrating", 3, 8), StepPart("calibrating", 3), StepPart("solve", limit_s=60)
    ('calibrating, 3 of 8', 'calibrating, 3 done', 'solve')
    """

    name: str
    done: int | None
    total: int | None
    limit_s: float | None

    def __new__(
        cls, name: str, done: int | None = None, total: int | None = None, limit_s: float | None = None
    ) -> StepPart:
        count = "" if done is None else f", {done} done" if total is None else f", {done} of {total}"
        self = super().__new__(cls, name + count)
        self.name, self.done, self.total, self.limit_s = name, done, total, limit_s
        return self


def report_each(items: Collection[Item], name: str, progress: Progress) -> Iterator[Item]:
    """Yield the items of a step, and report before each how many are done.

    >>> list(report_each("ab", "reading", print))
    reading, 0 of 2
    reading, 1 of 2
    ['a', 'b']
    """
    for done, item in enumerate(items):
        progress(StepPart(name, done, len(items)))
        yield item


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
        if not callable(progress):
            raise UsageError("progress", f"a {type(progress).__name__}", "give a function, such as print")
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
