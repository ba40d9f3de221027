"""How long a lowering to TOSA takes, and what it leaves: target tosa beside ExecuTorch's TOSA partitioner.

python -m benchmarks.tosa [--networks NAME ...] [--repeats 3] [--limit 1800] [--results FOLDER]

Both are timed in one process, in turn, from the module to the flatbuffer, export included. What was measured
is kept in FOLDER/tosa.json after every network, and not measured again in the same environment unless
--networks names it; FOLDER/tosa.md is the table of it. Ends with 1 where a bound of `BOUNDS` does not hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import dimorder
from benchmarks.record import described, machine
from dimorder.files import write_whole
from dimorder.targets.tosa.graph import TosaSummary, inspect_tosa
from tests import zoo

NETWORKS = (
    *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0"),
    *("squeezenet1_1", "densenet121", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "unet", "vit_128"),
    *("swin_t", "onet", "se_linear", "groupnorm_residual", "conv_flatten_linear", "tcn", "conv3d"),
)
SMALL = (1, 3, 64, 64)
OBJECTIVE = "count"
CHEAP_S = 20.0  # what took longer is not timed again
BOUNDS = {
    "mean_ratio": 10.0,
    "ours_s": 20.0,
}  # at least so many times as fast, and each network within so long
PACKAGES = ("torch", "executorch", "tosa-tools", "torchvision", "timm", "numpy", "scipy")

Lowering = Callable[[nn.Module, tuple[torch.Tensor]], tuple[list[bytes], int]]
Row = dict[str, Any]


def ours(model: nn.Module, args: tuple[torch.Tensor]) -> tuple[list[bytes], int]:
    """The TOSA graph, and how many operators stay outside of it."""
    lowered = dimorder.lower(model, args, target="tosa", objective=OBJECTIVE)
    return [lowered.artifact.data], sum(lowered.artifact.outside.values())


def stock(model: nn.Module, args: tuple[torch.Tensor]) -> tuple[list[bytes], int]:
    """The TOSA graphs of ExecuTorch's delegates, and how many operators stay outside of them."""
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    edge = to_edge_transform_and_lower(torch.export.export(model, args), partitioner=[partitioner])
    program = edge.exported_program()
    held = [getattr(program.graph_module, n.target) for n in program.graph.nodes if n.op == "get_attr"]
    called = [getattr(n.target, "__name__", n.name) for n in program.graph.nodes if n.op == "call_function"]
    outside = [name for name in called if name not in ("executorch_call_delegate", "getitem")]
    return [bytes(h.processed_bytes) for h in held if hasattr(h, "processed_bytes")], len(outside)


def measure(name: str, repeats: int, limit_s: float) -> Row:
    """One row of the table. A way that fails has its error there instead of figures."""
    network = zoo.network(name)
    shape = SMALL if network.shape == zoo.SQUARE_224 else network.shape
    args = (torch.randn(shape, generator=torch.Generator().manual_seed(1)),)
    model = network.build()
    row: Row = {"network": name, "input": "x".join(map(str, shape)), "ours": {}, "stock": {}}
    for turn in range(repeats):
        for way, lowering in (("ours", ours), ("stock", stock)):
            cell = row[way]
            if "error" in cell or (turn and max(cell["seconds"]) > CHEAP_S):
                continue
            try:
                with _limit(limit_s):
                    start = time.perf_counter()
                    graphs, outside = lowering(model, args)
                    seconds = time.perf_counter() - start
            # Whatever a lowering raises is what is recorded of it.
            except Exception as error:
                row[way] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
                continue
            cell.setdefault("seconds", []).append(round(seconds, 2))
            cell.update(_left(list(map(inspect_tosa, graphs))), graphs=len(graphs), outside=outside)
    return row


def _left(graphs: Sequence[TosaSummary]) -> dict[str, int]:
    return {
        "transposes": sum(graph.transposes for graph in graphs),
        "transpose_bytes": sum(graph.transpose_bytes for graph in graphs),
        "operators": sum(graph.operators.total() for graph in graphs),
    }


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What is kept, and what is made of it


def ratio(row: Row) -> float | None:
    """How many times as fast ours is, by medians; None where one of the two failed."""
    times = [row[way].get("seconds") for way in ("stock", "ours")]
    return statistics.median(times[0]) / statistics.median(times[1]) if all(times) else None


def mean_ratio(rows: Sequence[Row]) -> float:
    """Geometric; no number where nothing can be compared."""
    ratios = [r for r in map(ratio, rows) if r is not None]
    return statistics.geometric_mean(ratios) if ratios else float("nan")


def missed(rows: Sequence[Row]) -> list[str]:
    """The bounds that do not hold."""
    found = [
        f"ours fails on {row['network']}: {row['ours']['error']}" for row in rows if "error" in row["ours"]
    ]
    slow = [row for row in rows if max(row["ours"].get("seconds", [0])) >= BOUNDS["ours_s"]]
    found += [f"ours takes {max(row['ours']['seconds'])} s on {row['network']}" for row in slow]
    if not mean_ratio(rows) >= BOUNDS["mean_ratio"]:
        found.append(f"ours is {mean_ratio(rows):.1f} times as fast, not {BOUNDS['mean_ratio']:g}")
    return found


HEADER = (
    *("network", "input", "ours, s", "ExecuTorch, s", "times as fast"),
    *("TRANSPOSEs", "ExecuTorch's", "KB moved", "ExecuTorch's", "ExecuTorch's graphs + operators outside"),
)


def line(row: Row) -> str:
    """A row under `HEADER`."""
    mine, theirs, times = row["ours"], row["stock"], ratio(row)
    cells = [
        *(row["network"], row["input"], _seconds(mine), _seconds(theirs)),
        "" if times is None else f"{times:.1f}",
        *(_figure(cell, "transposes") for cell in (mine, theirs)),
        *(_figure(cell, "transpose_bytes", 1000) for cell in (mine, theirs)),
        "" if "error" in theirs else f"{theirs['graphs']} + {theirs['outside']}",
    ]
    return f"| {' | '.join(cells)} |"


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    lines = [
        "# Lowering to TOSA",
        "",
        f"Target `tosa` (objective `{OBJECTIVE}`, contract in torch's own orders) beside ExecuTorch's TOSA "
        "partitioner (TOSA-1.0+FP), in one process, in",
        "turn: seconds from the module to the flatbuffer, export included, medians of the runs in brackets. "
        f"What took over {CHEAP_S:g} s ran once.",
        "",
        f"    {record['command']}",
        "",
        described(record["environment"]) + ".",
        "",
        f"| {' | '.join(HEADER)} |",
        f"| --- | --- |{' ---: |' * 7} --- |",
        *map(line, rows),
    ]
    compared = sum(ratio(row) is not None for row in rows)
    lines += ["", f"Geometric mean (networks: {compared}): {mean_ratio(rows):.1f} times as fast."]
    for row in rows:
        for way, who in (("ours", "target `tosa`"), ("stock", "ExecuTorch")):
            if "error" in row[way]:
                lines += ["", f"{row['network']} is left out of the mean; {who}: `{row[way]['error']}`"]
    return "\n".join(lines) + "\n"


def _seconds(cell: Row) -> str:
    if "error" in cell:
        return "fails"
    return f"{statistics.median(cell['seconds']):.1f} ({len(cell['seconds'])})"


def _figure(cell: Row, key: str, unit: int = 1) -> str:
    return "" if "error" in cell else f"{round(cell[key] / unit):,}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, metavar="NAME", help="measure these anew")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one lowering")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    kept, here = options.results / "tosa.json", machine(PACKAGES)
    record = json.loads(kept.read_text()) if kept.exists() else {}
    if record.get("environment") != here:
        record = {"rows": []}
    done = {row["network"]: row for row in record["rows"]}
    wanted = options.networks or [name for name in NETWORKS if name not in done]
    for lowering in (ours, stock):  # neither pays for imports, nor for the first export of a process
        lowering(nn.Conv2d(3, 2, 3).eval(), (torch.randn(1, 3, 5, 7),))
    for name in wanted:
        done[name] = measure(name, options.repeats, options.limit)
        rows = [done[name] for name in NETWORKS if name in done]
        record = {"command": "python -m benchmarks.tosa", "environment": here, "rows": rows}
        write_whole(kept, (json.dumps(record, indent=1) + "\n").encode())
        write_whole(options.results / "tosa.md", table(record).encode())
        print(line(done[name]), flush=True)
    faults = missed(record["rows"])
    print(f"{mean_ratio(record['rows']):.1f} times as fast; {'; '.join(faults) or 'every bound holds'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
