"""How fast target inductor's programs are, on the CPU or a GPU, beside what PyTorch makes of the network.

    python -m benchmarks.inductor [--device cpu|cuda] [--dtype float32|float16] [--batch N] [--networks ...]

Each network is compiled by dimorder and, of the network as it is, by AOTInductor and torch.compile (frozen),
with its inputs and weights row-major and channels-last; eager PyTorch runs beside. All take the inputs that
they were made for. Every program is checked against eager, then all are timed in turn, each timed call after
a pause and untimed ones; a call on a GPU ends when its results are there. What was measured is kept in
benchmarks/results/inductor_DEVICE.json after every network; the .md beside it is the table of it.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import shlex
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dimorder
from benchmarks.record import failed, record_lines, rows_kept
from dimorder.files import write_whole
from dimorder.latency.bench import ROUNDS, TOLERANCE
from dimorder.latency.machine import machine
from dimorder.latency.timing import Invocation, geometric_mean, interleaved, ratio
from dimorder.lowering.verify import relative_errors
from dimorder.targets.inductor.target import target
from tests import zoo

PACKAGES = ("torch", "torchvision", "timm")
NETWORKS = (
    *("resnet18", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0"),
    *("shufflenet_v2_x1_0", "regnet_y_400mf", "densenet121", "convnext_tiny", "swin_t", "vit_b_16"),
)
OURS = ("ours", "ours, channels-last")
PEERS = {
    "AOTInductor": (lambda *given: _ahead(*given), False),
    "AOTInductor, channels-last": (lambda *given: _ahead(*given), True),
    "torch.compile": (lambda *given: _compiled(*given), False),
    "torch.compile, channels-last": (lambda *given: _compiled(*given), True),
    "PyTorch": (lambda model, inputs, device, folder: _flat(model, inputs, device), False),
    "PyTorch, channels-last": (lambda model, inputs, device, folder: _flat(model, inputs, device), True),
}
HALF_TOLERANCE = 3e-2

Row = dict[str, Any]
Make = Callable[[nn.Module, "list[Tensor]", str, Path], Invocation]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _finished(call: Callable[[], Sequence[Tensor]], device: str) -> Invocation:
    """The call, which ends when its results are there."""

    def run() -> Sequence[Tensor]:
        with torch.no_grad():
            results = call()
        if device != "cpu":
            torch.cuda.synchronize()
        return results

    return run


def _flat(model: Callable[..., Any], inputs: Sequence[Tensor], device: str) -> Invocation:
    return _finished(lambda: pytree.tree_leaves(model(*inputs)), device)


def _compiled(model: nn.Module, inputs: list[Tensor], device: str, folder: Path) -> Invocation:
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        call = _flat(torch.compile(model), inputs, device)
        call()  # which is when it is compiled
    return call


def _ahead(model: nn.Module, inputs: list[Tensor], device: str, folder: Path) -> Invocation:
    exported = torch.export.export(model, tuple(inputs))
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(folder / "peer.pt2"), inductor_configs={"freezing": True}
        )
    return _flat(torch._inductor.aoti_load_package(path), inputs, device)


def _ours(
    model: nn.Module, inputs: list[Tensor], device: str, folder: Path, order: str | None
) -> tuple[Invocation, Row]:
    lowered = dimorder.lower(
        model,
        tuple(inputs),
        target=target(device),
        input_orders=order and [order if x.dim() == 4 else None for x in inputs],
    )
    program = dimorder.load(lowered.save(folder / "ours.pt2"))
    fed = [x.to(device) for x in inputs]
    if order:
        fed = [_channels_last(x) for x in fed]
    told = {
        "conversions": len(lowered.plan.conversions),
        "bytes": lowered.plan.cost[0],
        "seconds": dict(lowered.seconds),
    }
    return _finished(lambda: program.run(*fed), device), told


def timed(name: str, device: str, dtype: torch.dtype, batch: int, rounds: int) -> Row:
    """One row: the milliseconds of every round of each way, or its error."""
    network = zoo.network(name)
    model = network.build().to(dtype)
    shape = (batch, *zoo.SQUARE_224[1:])
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)]
    row: Row = {"network": name, "dtype": str(dtype).removeprefix("torch."), "input": list(shape), "ways": {}}
    calls: dict[str, Invocation] = {}
    tolerance = TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE
    with tempfile.TemporaryDirectory() as folder:
        there, fed = copy.deepcopy(model).to(device), [x.to(device) for x in inputs]
        last = copy.deepcopy(there).to(memory_format=torch.channels_last)
        wanted = [y.cpu() for y in _flat(there, fed, device)()]
        for way in (*OURS, *PEERS):
            told = row["ways"][way] = {}
            start = time.perf_counter()
            torch.compiler.reset()
            try:
                if way in OURS:
                    order = "NHWC" if way.endswith("last") else None
                    calls[way], more = _ours(model, inputs, device, Path(folder), order)
                    told.update(more)
                else:
                    make, is_last = PEERS[way]
                    given = (last, [_channels_last(x) for x in fed]) if is_last else (there, fed)
                    calls[way] = make(*given, device, Path(folder))
                told["made_in_s"] = round(time.perf_counter() - start, 1)
                told["error_share"] = max(relative_errors([y.cpu() for y in calls[way]()], wanted))
                if not told["error_share"] <= tolerance:
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
    head = ("network", "input", "type", *OURS, *PEERS, "ours / the best of the others (95 %)")
    shares = [found[0] for row in rows if (found := share(row))]
    lines = [
        "# Latency of target inductor",
        "",
        "Milliseconds, medians. Each way takes inputs that lie as it was made for.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- | --- | --- |{' ---: |' * (len(head) - 3)}",
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
        row.get("dtype", ""),
        *(
            f"{statistics.median(ways[way]['ms']):.2f}" if ways.get(way, {}).get("ms") else "fails"
            for way in (*OURS, *PEERS)
        ),
        "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inductor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--networks", nargs="+", metavar="NAME", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--limit", type=float, default=1e9, metavar="S", help="begin no network after S seconds"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    here = machine(PACKAGES)
    if options.device == "cuda":
        here["device"] = torch.cuda.get_device_name()
    kept = options.results / f"inductor_{options.device}.json"

    def key(row: Row) -> tuple[Any, ...]:
        return row["network"], row["dtype"], row["input"][0]

    done = {key(row): row for row in rows_kept(kept, here)}
    begun = time.perf_counter()
    for name in options.networks:
        if time.perf_counter() - begun > options.limit:
            break
        start = time.perf_counter()
        row = timed(name, options.device, getattr(torch, options.dtype), options.batch, options.rounds)
        done[key(row)] = row
        command = shlex.join(["python", "-m", "benchmarks.inductor", *sys.argv[1:]])
        record = {"command": command, "environment": here, "rows": list(done.values())}
        write_whole(kept, (json.dumps(record, indent=1) + "\n").encode())
        write_whole(kept.with_suffix(".md"), table(record).encode())
        print(f"{_line(row)}  {time.perf_counter() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
