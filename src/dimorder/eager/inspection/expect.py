"""Assert in a test that a model keeps its order, and show the places of a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from dimorder.eager.inspection.findings import COSTLY, Finding
from dimorder.eager.inspection.inspection import FindingGroup, Inspection, inspect, told
from dimorder.errors import DimorderError

SHOWN = 8  # places in a failure


class OrderError(DimorderError, AssertionError):
    """A model that does not keep channels-last. `inspection` holds all findings."""

    def __init__(self, inspection: Inspection, places: Sequence[FindingGroup]) -> None:
        count, name = len(places), inspection.name
        super().__init__(
            f"{name} in channels-last",
            f"{count} place{'s' * (count != 1)} where the order is lost or memory is moved",
            "mend them, or allow=[operator, function, module or file:line, with * for anything]",
        )
        self.inspection = inspection
        self.places = tuple(places)

    def __str__(self) -> str:
        shown = [line for number, place in enumerate(self.places[:SHOWN]) for line in told(number, place)]
        more = len(self.places) - SHOWN
        return "\n".join([super().__str__(), *shown, *([f"  and {more} more"] if more > 0 else [])])


def expect_channels_last(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    allow: Sequence[str] = (),
) -> Inspection:
    """Assert that a model in channels-last loses, copies and mixes no order.

    Args:
        model: the network.
        args: example positional inputs, or a tensor.
        kwargs: example keyword inputs.
        allow: patterns, with `*` for anything, of allowed places: an operator ("aten.cat"), a function
            ("softmax"), a module's path ("head.*"), or a line ("net.py:12").

    Returns:
        The inspection.

    Raises:
        OrderError: an AssertionError that shows the places.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1))
    >>> expect_channels_last(net, torch.randn(2, 3, 5, 7), allow=["softmax"]).keeps
    False
    """
    found = inspect(model, args, kwargs)
    places = [
        place
        for place in found.places
        if place.findings[0].verdict in COSTLY and not all(_allowed(f, allow) for f in place.findings)
    ]
    if places:
        raise OrderError(found, places)
    return found


def _allowed(found: Finding, allow: Sequence[str]) -> bool:
    names = (found.operator, found.function, found.module, found.place)
    return any(fnmatchcase(name, pattern) for pattern in allow for name in names)
