"""Run a model, and report or assert where the order of its values changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.eager.channels_last import weights_in_order
from dimorder.eager.conversion import convert
from dimorder.eager.inspection.findings import COSTLY, VERDICTS, Finding, FindingVerdict, judge
from dimorder.eager.inspection.order_errors import naming_the_order
from dimorder.eager.inspection.trace import record_calls
from dimorder.eager.inspection.traced import TracedCall
from dimorder.errors import DimorderError, UsageError, require_type
from dimorder.modules import eval_mode, left_as_it_was, one_at_a_time
from dimorder.text import notebook_html, shape_text

ORDERS = ("channels_last", "contiguous")
SHOWN = 8  # places in a failure
_KINDS = {"channels_last": "channels-last", "contiguous": "row-major", None: "channels-last"}
_COLOURS: Mapping[str, int] = MappingProxyType(
    {"lost": 31, "hidden copy": 33, "mixed operands": 35, "ambiguous": 36, "free view": 32}
)


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one kind at one line of one function: a block that repeats is one place."""

    findings: tuple[Finding, ...]

    @property
    def bytes(self) -> int:
        return sum(found.bytes for found in self.findings)

    @property
    def time_us(self) -> float:
        return sum(found.time_us for found in self.findings)

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(found.module for found in self.findings))


@dataclass(frozen=True)
class Inspection:
    """The places where a model changed the order of its values, from one real run.

    Attributes:
        name: The name of the model.
        order: The order of weights and inputs in the run, or None for their own.
        inputs: The shapes of the inputs.
        findings: The places, one per call.
        calls: Every operator that ran.
        model_us: The time of the first run, which was not watched.

    >>> found = inspect(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 5, 7))
    >>> found.keeps, found.moved_bytes, found.of("lost")[0].operator
    (False, 960, 'aten._softmax')
    >>> [place.findings[0].verdict for place in found.places], found.to_dict()["counts"]["lost"]
    (['lost', 'hidden copy'], 1)
    >>> print(found.text().splitlines()[0])
    network   Sequential: 2 x 3 x 5 x 7, in channels-last
    """

    name: str
    order: str | None
    inputs: tuple[tuple[int, ...], ...]
    findings: tuple[Finding, ...]
    calls: tuple[TracedCall, ...]
    model_us: float

    def of(self, verdict: FindingVerdict) -> tuple[Finding, ...]:
        """Return the findings with that verdict."""
        return tuple(found for found in self.findings if found.verdict == verdict)

    @cached_property
    def places(self) -> tuple[FindingGroup, ...]:
        """The findings grouped by line, the costly verdicts first, then by bytes."""
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for found in self.findings:
            key = (found.verdict, found.operator, found.function, found.source, found.before, found.after)
            groups.setdefault(key, []).append(found)
        places = (FindingGroup(tuple(group)) for group in groups.values())
        return tuple(
            sorted(
                places, key=lambda p: (VERDICTS.index(p.findings[0].verdict), -p.bytes, p.findings[0].call)
            )
        )

    @property
    def keeps(self) -> bool:
        """Whether no order was lost, copied or mixed."""
        return not any(found.verdict in COSTLY for found in self.findings)

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that were read in another order than they were written in."""
        return sum(found.bytes for found in self.findings if found.verdict in COSTLY)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder inspect --json`; the keys are stable."""
        counts = Counter(found.verdict for found in self.findings)
        return {
            "model": self.name,
            "order": self.order,
            "inputs": [list(shape) for shape in self.inputs],
            "operators": len(self.calls),
            "model_us": round(self.model_us, 1),
            "moved_bytes": self.moved_bytes,
            "counts": {verdict: counts[verdict] for verdict in VERDICTS},
            "findings": [found.to_dict() for found in self.findings],
        }

    def text(self, colour: bool = False) -> str:
        """Return the text of `print`; with `colour`, for a terminal."""
        return "\n".join(self._lines(colour))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the counts, and a table of the places."""
        places = [(place, place.findings[0]) for place in self.places]
        rows = [
            (
                *(f"{first.verdict} ×{len(place.findings)}", first.operator, first.place),
                *(_join_names(place.modules), shape_text(first.shape), first.before, first.after),
                *(f"{place.bytes:,}", f"{place.time_us:,.0f}", first.what_to_do),
            )
            for place, first in places
        ]
        return notebook_html("\n".join(self._summary()), rows, _COLUMNS)

    def _lines(self, colour: bool) -> Iterator[str]:
        yield from self._summary()
        for number, place in enumerate(self.places):
            yield from format_group(number, place, colour)

    def _summary(self) -> Iterator[str]:
        counts = Counter(found.verdict for found in self.findings)
        shapes = ", ".join(shape_text(shape, " x ") for shape in self.inputs) or "no tensors"
        yield f"network   {self.name}: {shapes}, {_IN_ORDER[self.order]}"
        yield f"operators {len(self.calls)} in {self.model_us / 1000:,.1f} ms"
        yield "orders    " + ", ".join(f"{counts[v]} {_plural(v, counts[v])}" for v in VERDICTS)
        if self.moved_bytes:
            yield f"moved     {self.moved_bytes:,} bytes read in another order than they were written in"
        elif not any(place.findings[0].verdict in COSTLY for place in self.places):
            yield "moved     nothing: the order is kept throughout"


_COLUMNS = ("verdict", "operator", "at", "in", "shape", "before", "after", "bytes", "µs", "what to do")
_IN_ORDER = {"channels_last": "in channels-last", "contiguous": "row-major", None: "as it is"}


@one_at_a_time
def inspect(
    model: nn.Module,
    args: Sequence[Any] | Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    order: str | None = "channels_last",
) -> Inspection:
    """Run a model for real, and report each place at which the order of its values changed.

    It runs twice in eval mode, without gradients. Its buffers, its weights and the inputs are restored
    afterwards. Inputs of 3 dims are images only to a model with 1-D convolutions.

    Args:
        model: the network.
        args: example positional inputs, or a tensor.
        kwargs: example keyword inputs.
        order: "channels_last" or "contiguous" puts the convolutions' weights and the image inputs in that
            order for the run. None keeps their own.

    Returns:
        The inspection.

    Raises:
        UsageError: for another order, and for arguments of other types.
        UnsupportedError: for a model that runs in its own order, but not in `order`: the error names the
            line. Errors that the model has in its own order pass through.

    >>> found = inspect(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 5, 7))
    >>> [(x.verdict, x.operator, x.module, x.before, x.after) for x in found.of("lost")]
    [('lost', 'aten._softmax', '1', 'NHWC', 'NCHW')]
    """
    if order is not None and (not isinstance(order, str) or order not in ORDERS):
        found, fix = "no order to inspect in", f"give {' or '.join(ORDERS)}, or None"
        raise UsageError(f"order {order!r:.60}", found, fix)
    given = args_and_keywords(model, args, kwargs)
    in_own_order = nullcontext() if order is None else naming_the_order(model, *given)
    with in_own_order, in_order(model, given, order) as (args, keywords):
        start = time.perf_counter()
        model(*args, **keywords)
        model_us = (time.perf_counter() - start) * 1e6
        with record_calls(model, (args, keywords)) as calls:
            model(*args, **keywords)
    tensors = [x for x in pytree.tree_leaves((args, keywords)) if isinstance(x, Tensor)]
    shapes = tuple(tuple(x.shape) for x in tensors if not x.is_nested)
    findings = judge(calls, _KINDS[order])
    return Inspection(type(model).__name__, order, shapes, findings, tuple(calls), model_us)


def args_and_keywords(
    model: nn.Module, args: Sequence[Any] | Tensor, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call. Raises `UsageError` for other types than those of `inspect`."""
    require_type(model, nn.Module, "the model", "pass a module; that of an exported program is .module()")
    require_type(args, (Tensor, Sequence), "args", "pass a tuple of the inputs, or a tensor")
    require_type(kwargs, (Mapping, type(None)), "kwargs", "pass a dict of inputs by their names")
    given = (args,) if isinstance(args, Tensor) else tuple(args), dict(kwargs or {})
    for tensor in (*model.parameters(), *model.buffers(), *pytree.tree_leaves(given)):
        if isinstance(tensor, FakeTensor) or (isinstance(tensor, Tensor) and tensor.is_meta):
            found = "a tensor without memory, where the network is run for real"
            raise UsageError("the model and its inputs", found, "put all on one device with memory, as cpu")
    return given


@contextmanager
def in_order(model: nn.Module, inputs: Any, order: str | None) -> Iterator[Any]:
    """Yield the inputs in an order; meanwhile the weights have it too, in eval mode without gradients."""
    of_rank = DimOrder.contiguous if order == "contiguous" else DimOrder.channels_last
    own = inputs
    if order is not None:
        ranks = {2 + len(m.kernel_size) for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)}
        image_ranks = {4, 5} | ranks

        def in_its_order(x: Tensor) -> Tensor:
            is_image = x.dim() in image_ranks and x.is_floating_point() and x.layout == torch.strided
            return convert(x, of_rank(x.dim())) if is_image and not x.is_nested else x

        inputs = pytree.tree_map_only(Tensor, in_its_order, inputs)
    weights = nullcontext() if order is None else weights_in_order(model, of_rank)
    with left_as_it_was(model, own), eval_mode(model), torch.no_grad(), weights:
        yield inputs


def format_group(number: int, place: FindingGroup, colour: bool = False) -> Iterator[str]:
    """Return the lines for a place, two or three."""
    found, count = place.findings[0], len(place.findings)
    verdict = f"\x1b[{_COLOURS[found.verdict]}m{found.verdict}\x1b[0m" if colour else found.verdict
    called = f" by {found.function}" if found.function else ""
    where = ", ".join(filter(None, [found.place, f"in {_join_names(place.modules)}" if found.module else ""]))
    times = f" ×{count}" if count > 1 else ""
    yield f"  {number}  {verdict}{times}  {found.operator}{called} ({where})"
    shapes = _join_names([shape_text(f.shape) for f in place.findings], most=2)
    cost = f", {place.bytes:,} bytes" if place.bytes else ""
    yield f"       {shapes}: {found.before} → {found.after}{cost}, {place.time_us:,.0f} µs"
    if found.verdict != "free view":
        yield f"       {found.what_to_do}"


def _join_names(names: Sequence[str], most: int = 3) -> str:
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return ", ".join(different[:most]) + more


def _plural(verdict: str, count: int) -> str:
    if count == 1 or verdict in ("lost", "ambiguous", "mixed operands"):
        return verdict
    return {"hidden copy": "hidden copies", "free view": "free views"}[verdict]


# Tests of an order


class OrderError(DimorderError, AssertionError):
    """A model that does not keep channels-last. `inspection` holds all findings."""

    def __init__(self, inspection: Inspection, places: Sequence[FindingGroup]) -> None:
        count, name = len(places), inspection.name
        super().__init__(
            f"{name} in channels-last",
            f"{count} place{'s' * (count != 1)} where the order is lost or memory is moved",
            "fix them, or allow=[operator, function, module or file:line, with * for anything]",
        )
        self.inspection = inspection
        self.places = tuple(places)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inspection, self.places)

    def __str__(self) -> str:
        shown = [
            line for number, place in enumerate(self.places[:SHOWN]) for line in format_group(number, place)
        ]
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
            ("softmax"), a module's path ("head.*"), or a line ("net.py:12"). Python 3.10 knows the names of
            functions in torch.nn.functional alone.

    Returns:
        The inspection.

    Raises:
        OrderError: an AssertionError that shows the places.
        UsageError: for patterns that are not a list. Errors of `inspect` pass through.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1))
    >>> expect_channels_last(net, torch.randn(2, 3, 5, 7), allow=["softmax"]).keeps
    False
    """
    if isinstance(allow, str) or not isinstance(allow, Sequence):  # each letter of a text would be a pattern
        raise UsageError(
            "allow", f"{allow!r:.60}, which is no list", "give a list of patterns, as ['head.*']"
        )
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
