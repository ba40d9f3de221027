"""Measure what each operator of this build of torch does with channels-last, by running it.

A row of the table is run on a tensor of 3, 4 and 5 dims in both orders, on one device.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from dimorder.clock import Progress, report_each
from dimorder.cpu import torch_threads
from dimorder.eager.channels_last import RANKS, to_channels_last
from dimorder.eager.inspection.findings import COSTLY, judge
from dimorder.eager.inspection.probes import PROBES
from dimorder.eager.inspection.trace import record_calls
from dimorder.eager.inspection.traced import Kind, TracedValue
from dimorder.errors import UsageError

Support = Literal["keeps", "copies inside", "drops", "wrong"]
SUPPORTS: tuple[Support, ...] = ("keeps", "copies inside", "drops", "wrong")
SHAPES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {3: (2, 12, 18), 4: (2, 12, 8, 10), 5: (2, 12, 4, 6, 10)}
)
THREADS = 2  # with one thread torch computes some calls, such as a 1×1 conv3d, in another order
_TOLERANCE = 1e-4  # of values around 1, summed over some hundred elements
_MARKS = {"keeps": "keeps", "copies inside": "copies", "drops": "drops", "wrong": "WRONG"}


@dataclass(frozen=True)
class Cell:
    """An operator's behaviour at one rank; `predicted` is the order that torch.export expects, if another."""

    support: Support
    predicted: Kind | None = None

    def __str__(self) -> str:
        return _MARKS[self.support] + ("*" if self.predicted else "")


@dataclass(frozen=True)
class Change:
    """An operator whose behaviour changed."""

    operator: str
    rank: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.operator}, {self.rank} dims: {self.before} → {self.after}"


@dataclass(frozen=True)
class OperatorTable:
    """The behaviour of a torch build's operators with channels-last; None for a rank without one."""

    torch: str
    device: str
    cells: Mapping[str, Mapping[int, Cell | None]]

    def diff(self, old: Mapping[str, Any]) -> tuple[Change, ...]:
        """Return the changes since an older table's `to_dict`, including operators that came or went."""
        try:
            before = {
                name: {int(rank): None if cell is None else Cell(**cell) for rank, cell in row.items()}
                for name, row in old["operators"].items()
            }
        except (KeyError, AttributeError, ValueError, TypeError) as error:
            raise UsageError(
                "--diff", "no table of operators", "give what `dimorder ops --json` wrote"
            ) from error
        return tuple(
            Change(name, rank, _cell_text(a), _cell_text(b))
            for name in dict.fromkeys((*before, *self.cells))
            for rank in RANKS
            for a, b in [(table.get(name, {}).get(rank) for table in (before, self.cells))]
            if a != b
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder ops --json`; the keys are stable."""
        return {
            "torch": self.torch,
            "device": self.device,
            "threads": THREADS,
            "operators": {
                name: {
                    str(rank): cell and {"support": cell.support, "predicted": cell.predicted}
                    for rank, cell in row.items()
                }
                for name, row in self.cells.items()
            },
        }

    def markdown(self) -> str:
        """Return the page of the docs."""
        where = f"torch {self.torch} on {self.device} with {THREADS} threads"
        counts = "\n".join(f"| {rank} | " + " | ".join(self._counts(rank)) + " |" for rank in RANKS)
        rows = "\n".join(f"| `{name}` | {' | '.join(cells)} |" for name, cells in self._rows())
        return (
            f"# What torch's operators do with channels-last\n\n"
            f"Probed with {where} by `dimorder ops --markdown`. Run it to probe your build.\n"
            "`dimorder ops --diff old.json` shows what an upgrade changed.\n\n"
            "- **keeps**: channels-last in, channels-last out;\n"
            "- **copies**: as keeps, but an operator inside moved memory into another order;\n"
            "- **drops**: the result is row-major, or in some third order;\n"
            "- **WRONG**: the values differ from those on a row-major input;\n"
            "- **\\***: torch.export predicts another order for the result than it has;\n"
            "- empty: not defined at this rank.\n\n"
            f"| dims | {' | '.join(_MARKS[s] for s in SUPPORTS)} |\n| --- |{' --- |' * 4}\n{counts}\n\n"
            f"| operator | (N, C, L) | (N, C, H, W) | (N, C, D, H, W) |\n| --- | --- | --- | --- |\n{rows}\n"
        )

    def __str__(self) -> str:
        wide = max(map(len, self.cells))
        where = f"torch {self.torch} on {self.device}, {THREADS} threads"
        lines = [
            f"{where}: {len(self.cells)} operators, channels-last in",
            f"{'operator':{wide}}  {'3 dims':8} {'4 dims':8} {'5 dims':8}",
            *(f"{name:{wide}}  " + " ".join(f"{c:8}" for c in cells) for name, cells in self._rows()),
            *(f"{rank} dims: {_counts_text(self._counts(rank))}" for rank in RANKS),
            "* torch.export predicts another order for the result than it has",
        ]
        return "\n".join(line.rstrip() for line in lines)

    def _rows(self) -> Iterator[tuple[str, list[str]]]:
        for name, row in self.cells.items():
            yield name, [str(row[rank] or "") for rank in RANKS]

    def _counts(self, rank: int) -> list[str]:
        counts = Counter(cell.support for row in self.cells.values() if (cell := row[rank]))
        return [str(counts[support]) for support in SUPPORTS]


def operators(device: str = "cpu", progress: Progress = lambda step: None) -> OperatorTable:
    """Probe every operator of the table at 3, 4 and 5 dims on a device, in seconds.

    >>> probe("relu", 4).support, probe("softmax C", 4).support, probe("grid_sample", 3)
    ('keeps', 'drops', None)
    """
    _check_device(device)
    cells = {}
    for name in report_each(PROBES, "probing operators", progress):
        cells[name] = MappingProxyType({rank: probe(name, rank, device) for rank in RANKS})
    return OperatorTable(torch.__version__, device, MappingProxyType(cells))


def probe(name: str, rank: int, device: str = "cpu") -> Cell | None:
    """Return the behaviour of one operator at one rank; None if it is not defined there.

    `wrong`: other values than on a row-major input. `drops`: the result is not channels-last. `copies
    inside`: the result is channels-last, but a value was moved into another order on the way.
    """
    function = PROBES[name](rank)
    if function is None:
        return None
    plain = _example(rank).to(device)
    with torch.no_grad(), warnings.catch_warnings(), torch_threads(THREADS):
        warnings.simplefilter("ignore")
        try:
            expected = _first(function(plain.clone()))
        except (RuntimeError, NotImplementedError, ValueError):
            return None  # an operator that torch refuses for a row-major tensor is not defined at this rank
        x = to_channels_last(plain.clone())
        result = _first(function(x.clone()))
        predicted = _predict_kind(function, x)
        with record_calls(
            nn.Identity(), x
        ) as calls:  # a run of its own: max_pool1d checks whether it is watched
            function(x)
    value = _traced_value(result)
    if value.shape != tuple(expected.shape) or not _close(result, expected):
        return Cell("wrong")
    differs = None if predicted in (None, value.kind) else predicted
    if value.kind not in ("channels-last", "ambiguous"):
        return Cell("drops", differs)
    moved = any(found.verdict in COSTLY for found in judge(calls))
    return Cell("copies inside" if moved else "keeps", differs)


def _predict_kind(function: Callable[[Tensor], Any], x: Tensor) -> Kind | None:
    """Return the kind of order of the fake tensors on which torch.export traces; None if tracing fails."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            return _traced_value(_first(function(mode.from_tensor(x)))).kind
    except Exception:  # a fake tensor may refuse in any way: then nothing is predicted
        return None


def _example(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(SHAPES[rank], generator=generator) * 0.8 + 0.1


def _first(result: Any) -> Tensor:
    return next(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))


def _traced_value(x: Tensor) -> TracedValue:
    return TracedValue(tuple(x.shape), x.stride(), x.numel() * x.element_size(), 0, 0)


def _close(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _check_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except Exception as error:  # torch's kinds of error differ by device
        first = str(error).partition("\n")[0]
        raise UsageError(f"--device {device}", first, "give a device that this build of torch has") from error


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "not defined"
    return f"{cell.support}, predicted {cell.predicted}" if cell.predicted else f"{cell.support}"


def _counts_text(counts: list[str]) -> str:
    return ", ".join(f"{count} {_MARKS[s]}" for count, s in zip(counts, SUPPORTS, strict=True))
