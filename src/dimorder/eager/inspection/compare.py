"""Measure a model's gain from channels-last, as a whole and by region, with both orders in turn."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dimorder.eager.channels_last import snapshot
from dimorder.eager.inspection.inspection import ORDERS, args_and_keywords, in_order
from dimorder.eager.inspection.order_errors import naming_the_order
from dimorder.eager.inspection.trace import synchronize
from dimorder.errors import UsageError
from dimorder.modules import eval_mode, left_as_it_was, one_at_a_time

ROUNDS = 11
LEAST_SHARE = 0.02  # of the time: smaller regions are omitted


@dataclass(frozen=True)
class Ratio:
    """Row-major time over channels-last time: above 1, channels-last is faster.

    `noise` bounds the median of the rounds (95 %, by their quartiles: 1.57 · range / √rounds).
    """

    value: float
    noise: float

    @staticmethod
    def of(rounds: Sequence[float]) -> Ratio:
        """Return the median of the rounds, with its noise.

        >>> Ratio.of([2.0, 2.1, 1.9, 2.0])
        Ratio(value=2.0, noise=0.11775)
        """
        low, _, high = quantiles(rounds, n=4)
        return Ratio(median(rounds), round(1.57 * (high - low) / len(rounds) ** 0.5, 6))

    @property
    def order(self) -> str | None:
        """The faster order, or None if noise hides it."""
        if self.value - self.noise > 1:
            return "channels_last"
        return "contiguous" if self.value + self.noise < 1 else None

    def __str__(self) -> str:
        return f"{self.value:.2f}× ± {self.noise:.2f}"


@dataclass(frozen=True)
class Comparison:
    """The times of a model in both orders; `regions` are its modules that take time, with row-major µs."""

    name: str
    whole: Ratio
    contiguous_us: float
    channels_last_us: float
    regions: Mapping[str, tuple[Ratio, float]]
    rounds: int

    @property
    def recommendation(self) -> str:
        """One line: the order for the whole, and the regions that are faster in the other."""
        if self.whole.order is None:
            return f"either order: {self.whole} is within noise"
        order = self.whole.order
        apart = [name for name, (ratio, _) in self.regions.items() if ratio.order not in (order, None)]
        other = "contiguous" if order == "channels_last" else "channels-last"
        kept = f"; keep {', '.join(apart)} {other}" if apart else ""
        return f"{order.replace('_', '-')}: {self.whole}{kept}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder inspect --compare --json` under "compare"."""
        return {
            "contiguous_us": round(self.contiguous_us, 1),
            "channels_last_us": round(self.channels_last_us, 1),
            "ratio": self.whole.value,
            "noise": self.whole.noise,
            "rounds": self.rounds,
            "recommendation": self.recommendation,
            "regions": {
                name: {"ratio": ratio.value, "noise": ratio.noise, "contiguous_us": round(us, 1)}
                for name, (ratio, us) in self.regions.items()
            },
        }

    def __str__(self) -> str:
        wide = max((len(name) for name in self.regions), default=0)
        words = {"channels_last": "channels-last", "contiguous": "contiguous", None: "either"}
        return "\n".join(
            [
                f"compare   {self.contiguous_us / 1000:,.1f} ms row-major, "
                f"{self.channels_last_us / 1000:,.1f} ms channels-last, {self.rounds} rounds in turn",
                *(
                    f"  {name:{wide}}  {us / 1000:8,.2f} ms  {ratio!s:>15}  {words[ratio.order]}"
                    for name, (ratio, us) in self.regions.items()
                ),
                f"advice    {self.recommendation}",
            ]
        )


@one_at_a_time
def compare(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    rounds: int = ROUNDS,
) -> Comparison:
    """Time a model row-major and channels-last, one after the other in each of `rounds`, regions included.

    Regions are its direct submodules. A Sequential or a list is replaced by its own submodules. The model
    runs in eval mode without gradients and is restored afterwards.

    Raises `UsageError` for fewer than 3 rounds, and `UnsupportedError` as `inspect` does.

    >>> import torch
    >>> found = compare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.randn(1, 3, 9, 9), rounds=3)
    >>> found.rounds, set(found.regions) <= {"0", "1"}
    (3, True)
    """
    if rounds < 3:
        raise UsageError(f"rounds={rounds}", "too few to tell noise from gain", "give 3 or more")
    given = args_and_keywords(model, args, kwargs)
    parts = dict(_regions(model))
    times: dict[str, dict[str, list[float]]] = {order: defaultdict(list) for order in ORDERS}
    with naming_the_order(model, *given), left_as_it_was(model, given):
        runs = {order: _prepare(model, given, order) for order in ORDERS}
        for round_ in range(rounds + 1):
            for order in ORDERS if round_ % 2 else ORDERS[::-1]:
                seen: dict[str, float] = defaultdict(float)
                with _time_parts(parts, seen):
                    seen[""] = runs[order]()
                for name, us in seen.items() if round_ else ():  # the first round warms up
                    times[order][name].append(us)
    last, first = times["channels_last"], times["contiguous"]
    ratios = {
        name: (Ratio.of([a / b for a, b in zip(first[name], last[name], strict=True)]), median(first[name]))
        for name in ("", *(name for name in parts if name in first and len(first[name]) == len(last[name])))
    }
    whole, whole_us = ratios.pop("")
    regions = {name: found for name, found in ratios.items() if found[1] >= LEAST_SHARE * whole_us}
    return Comparison(type(model).__name__, whole, whole_us, median(last[""]), regions, rounds)


def _regions(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)) and not prefix:
            yield from _regions(child, f"{name}.")
        else:
            yield prefix + name, child


def _prepare(model: nn.Module, given: Any, order: str) -> Callable[[], float]:
    """Return a function that runs the model in an order and returns its µs; weights are converted here."""
    with in_order(model, given, order) as (args, kwargs):
        put_in_order = snapshot(model)

    def run() -> float:
        put_back = snapshot(model)
        try:
            put_in_order()
            with eval_mode(model), torch.no_grad():
                start = time.perf_counter()
                model(*args, **kwargs)
                synchronize(pytree.tree_leaves(given))
                return (time.perf_counter() - start) * 1e6
        finally:
            put_back()

    return run


@contextmanager
def _time_parts(parts: Mapping[str, nn.Module], seen: dict[str, float]) -> Iterator[None]:
    """Add up the µs of each part while the block runs."""
    with ExitStack() as stack:
        for name, part in parts.items():
            started: list[float] = []

            def enter(module: nn.Module, args: Any, started: list[float] = started) -> None:
                synchronize(pytree.tree_leaves(args))
                started.append(time.perf_counter())

            def leave(
                module: nn.Module, args: Any, output: Any, name: str = name, started: list[float] = started
            ) -> None:
                synchronize(pytree.tree_leaves(output))
                seen[name] += (time.perf_counter() - started.pop()) * 1e6

            stack.callback(part.register_forward_pre_hook(enter).remove)
            stack.callback(part.register_forward_hook(leave).remove)
        yield
