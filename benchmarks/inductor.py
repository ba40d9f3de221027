"""Compare the speed of target inductor's programs with what PyTorch makes of the same networks.

    python -m benchmarks.inductor [--networks NAME ...] [--rounds 30]

Each network is compiled by dimorder, and as it is by AOTInductor and torch.compile (frozen). Eager PyTorch
runs beside them. Inputs and weights are row-major, and then channels-last. Each way takes the inputs that it
was made for. Every program is checked against eager. Then all are timed in turn, each timed call after a
pause and untimed ones. Results are kept in benchmarks/results/inductor.json after every network; the .md
beside it is the table.
"""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dimorder
from benchmarks.command import Row, command_line, measured
from benchmarks.record import failed, record_lines
from dimorder.latency.bench import TOLERANCE
from dimorder.latency.timing import Invocation, geometric_mean, interleaved, ratio
from dimorder.verification.relative_error import relative_errors
from tests import zoo

PACKAGES = ("torch", "torchvision", "timm")
NETWORKS = (
    *("resnet18", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0"),
    *("shufflenet_v2_x1_0", "regnet_y_400mf", "densenet121", "convnext_tiny", "swin_t", "vit_b_16"),
)
OURS = ("ours", "ours, channels-last")

Make = Callable[[nn.Module, "list[Tensor]", Path], Invocation]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _flat(model: Callable[..., Any], inputs: Sequence[Tensor]) -> Invocation:
    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return pytree.tree_leaves(model(*inputs))

    return call


def _compiled(model: nn.Module, inputs: list[Tensor], folder: Path) -> Invocation:
    with torch._inductor.config.patch(freezing=True):
        call = _flat(torch.compile(model), inputs)
        call()  # which is when it is compiled
    return call


def _ahead(model: nn.Module, inputs: list[Tensor], folder: Path) -> Invocation:
    exported = torch.export.export(model, tuple(inputs))
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(folder / "peer.pt2"), inductor_configs={"freezing": True}
        )
    return _flat(torch._inductor.aoti_load_package(path), inputs)


def _eager(model: nn.Module, inputs: list[Tensor], folder: Path) -> Invocation:
    return _flat(model, inputs)


# How each is made, of a network and inputs that lie row-major, or channels-last.
PEERS: Mapping[str, tuple[Make, bool]] = {
    "AOTInductor": (_ahead, False),
    "AOTInductor, channels-last": (_ahead, True),
    "torch.compile": (_compiled, False),
    "torch.compile, channels-last": (_compiled, True),
    "PyTorch": (_eager, False),
    "PyTorch, channels-last": (_eager, True),
}


def _ours(model: nn.Module, inputs: list[Tensor], folder: Path, is_last: bool) -> tuple[Invocation, Row]:
    orders = ["NHWC" if is_last and x.dim() == 4 else None for x in inputs]
    lowered = dimorder.lower(model, tuple(inputs), target="inductor", input_orders=orders)
    told = {"conversions": len(lowered.plan.conversions), "bytes": lowered.plan.cost[0]}
    program = dimorder.load(lowered.save(folder / "ours.pt2"))
    return _flat(program.run, [_channels_last(x) if is_last else x for x in inputs]), told


def timed(name: str, rounds: int) -> Row:
    """One row: the milliseconds of every round of each way, or its error."""
    model, inputs = zoo.network(name).build(), [torch.randn(zoo.SQUARE_224)]
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    wanted = _flat(model, inputs)()
    row: Row = {"network": name, "input": list(inputs[0].shape), "ways": {}}
    calls: dict[str, Invocation] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in (*OURS, *PEERS):
            told = row["ways"][way] = {}
            start = time.perf_counter()
            torch.compiler.reset()
            try:
                if way in OURS:
                    calls[way], more = _ours(model, inputs, Path(folder), way.endswith("last"))
                    told.update(more)
                else:
                    make, is_last = PEERS[way]
                    given = (last, [_channels_last(x) for x in inputs]) if is_last else (model, inputs)
                    calls[way] = make(*given, Path(folder))
                told["made_in_s"] = round(time.perf_counter() - start, 1)
                told["error_share"] = max(relative_errors(calls[way](), wanted))
                if not told["error_share"] <= TOLERANCE:
                    told["error"] = f"wrong by {told['error_share']:.1e}"
                    del calls[way]
            except Exception as error:  # whatever is raised is what is recorded of it
                told.update(failed(error))
        for way, ms in interleaved(calls, rounds).items():
            row["ways"][way]["ms"] = [round(each, 4) for each in ms]
    return row


def best(row: Row, ways: Sequence[str]) -> tuple[str, list[float]] | None:
    """The fastest of these, and its rounds."""
    found = {way: row["ways"][way]["ms"] for way in ways if row.get("ways", {}).get(way, {}).get("ms")}
    return min(found.items(), key=lambda item: statistics.median(item[1])) if found else None


def share(row: Row) -> tuple[float, float, float] | None:
    """The milliseconds of our better way over those of PyTorch's best, with the interval of 95 %."""
    ours, theirs = best(row, OURS), best(row, tuple(PEERS))
    return ratio(ours[1], theirs[1]) if ours and theirs else None


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    head = ("network", "input", *OURS, *PEERS, "ours / the best of the others (95 %)")
    shares = [found[0] for row in rows if (found := share(row))]
    lines = [
        "# Latency of target inductor",
        "",
        "Milliseconds, medians. Each way takes inputs that lie as it was made for.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- | --- |{' ---: |' * (len(head) - 2)}",
        *map(_line, rows),
        "",
        f"Geometric mean of ours over the best of the others: {geometric_mean(shares):.2f}.",
        "",
    ]
    for row in rows:
        for way, told in row.get("ways", {"all": row}).items():
            if told.get("error"):
                lines += [f"{row['network']}, {way}: `{told['error']}`", ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    found, ways = share(row), row.get("ways", {})
    cells = [
        row["network"],
        "x".join(map(str, row.get("input", ()))),
        *(
            f"{statistics.median(ways[way]['ms']):.2f}" if ways.get(way, {}).get("ms") else "fails"
            for way in (*OURS, *PEERS)
        ),
        "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    options = command_line("inductor", __doc__, NETWORKS).parse_args()

    def measure(name: str) -> Row:
        return timed(name, options.rounds)

    measured("inductor", options, NETWORKS, PACKAGES, measure, table, _line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
