"""Compare how long our lowering and ExecuTorch's own take, and what they leave, for XNNPACK or TOSA.

python -m benchmarks.lowering --target xnnpack|tosa [--networks NAME ...] [--repeats 3] [--limit 1800]

Both are timed in one process, in turn, from the module to the file, export included; ours also verifies the
program. Results are kept in benchmarks/results/lowering_TARGET.json after every network; the .md beside it is
the table. A network is not measured again in the same environment unless --networks names it. Ends with 1 if
a bound does not hold.
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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import dimorder
from benchmarks.record import failed, record_lines, rows_kept
from dimorder.cpu import machine
from dimorder.files import write_whole
from dimorder.latency.timing import geometric_mean
from tests import zoo

SMALL = (1, 3, 64, 64)
CHEAP_S = 20.0  # what took longer is not timed again
PACKAGES = ("torch", "executorch", "tosa-tools", "torchvision", "timm", "transformers", "numpy", "scipy")

Row = dict[str, Any]


@dataclass(frozen=True)
class Left:
    """The counts of a lowered network: its parts (delegates, or graphs), the operators outside of them, the
    conversions, and the bytes that these conversions move."""

    parts: int
    outside: int
    conversions: int
    bytes: int


Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position and by name
Lowering = Callable[[nn.Module, Arguments], Any]


@dataclass(frozen=True)
class Peers:
    """Our lowering and ExecuTorch's to one target. `look` reads what either has written.

    `mean` bounds the geometric mean of ours over ExecuTorch's seconds, `worst` that of each network, `ours_s`
    our seconds.
    """

    title: str
    stock: Lowering
    look: Callable[[Any], Left]
    networks: tuple[str, ...]
    options: Mapping[str, Any]
    is_small: bool  # whether pictures are of 64x64, for a stock lowering that takes minutes
    mean: float
    worst: float
    ours_s: float

    def ours(self, model: nn.Module, given: Arguments) -> Any:
        lowered = dimorder.lower(model, *given, **self.options)
        return [lowered.artifact.data], sum(lowered.artifact.outside.values())

    def inputs(self, network: zoo.Network) -> Arguments:
        args, kwargs = network.call()
        if self.is_small and network.shape == zoo.SQUARE_224:
            args = (args[0][..., : SMALL[2], : SMALL[3]].contiguous(),)
        return args, kwargs


# -- to TOSA


def _stock_tosa(model: nn.Module, given: Arguments) -> tuple[list[bytes], int]:
    """The TOSA graphs of ExecuTorch's delegates, and how many operators stay outside of them."""
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    edge = to_edge_transform_and_lower(torch.export.export(model, *given), partitioner=[partitioner])
    program = edge.exported_program()
    held = [getattr(program.graph_module, n.target) for n in program.graph.nodes if n.op == "get_attr"]
    called = [getattr(n.target, "__name__", n.name) for n in program.graph.nodes if n.op == "call_function"]
    outside = [name for name in called if name not in ("executorch_call_delegate", "getitem")]
    return [bytes(h.processed_bytes) for h in held if hasattr(h, "processed_bytes")], len(outside)


def _look_tosa(written: tuple[list[bytes], int]) -> Left:
    from dimorder.targets.tosa.graph import inspect_tosa

    graphs = list(map(inspect_tosa, written[0]))
    moved = (sum(graph.transposes for graph in graphs), sum(graph.transpose_bytes for graph in graphs))
    return Left(len(graphs), written[1], *moved)


# -- to XNNPACK


def _stock_xnnpack(model: nn.Module, given: Arguments) -> tuple[list[bytes], None]:
    """The .pte that ExecuTorch makes with its XNNPACK partitioner."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(torch.export.export(model, *given), partitioner=[XnnpackPartitioner()])
    return [edge.to_executorch().buffer], None


def _look_xnnpack(written: tuple[list[bytes], Any]) -> Left:
    from dimorder.executorch.file_conversions import conversions_in
    from dimorder.executorch.lowering_paths import read_calls

    found = conversions_in(written[0][0])
    outside = [call for call in read_calls(written[0][0]) if not call.delegate]
    return Left(len(found.delegates), len(outside), found.conversion_count, found.bytes)


PEERS = {
    "tosa": Peers(
        title="TOSA (objective `count`, contract in torch's own orders) beside ExecuTorch's TOSA partitioner "
        "(TOSA-1.0+FP)",
        stock=_stock_tosa,
        look=_look_tosa,
        networks=(
            *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0"),
            *("squeezenet1_1", "densenet121", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "unet"),
            *("vit_128", "swin_t", "onet", "se_linear", "groupnorm_residual", "conv_flatten_linear"),
            *("tcn", "conv3d"),
        ),
        options={"target": "tosa", "objective": "count"},
        is_small=True,
        mean=0.1,
        worst=1.0,
        ours_s=20.0,
    ),
    "xnnpack": Peers(
        title="XNNPACK (contract in torch's own orders) beside ExecuTorch's XNNPACK partitioner",
        stock=_stock_xnnpack,
        look=_look_xnnpack,
        networks=tuple(row.name for row in zoo.networks() if not row.targets),
        options={"target": "xnnpack"},
        is_small=False,
        mean=0.35,
        worst=1.0,
        ours_s=120.0,
    ),
}


def measure(peers: Peers, name: str, repeats: int, limit_s: float) -> Row:
    """One row of the table. A way that fails has its error there instead of figures."""
    network = zoo.network(name)
    given, model = peers.inputs(network), network.build()
    row: Row = {"network": name, "input": _told(given), "ours": {}, "stock": {}}
    for turn in range(repeats):
        for way, lowering in (("ours", peers.ours), ("stock", peers.stock)):
            cell = row[way]
            if "error" in cell or (turn and max(cell["seconds"]) > CHEAP_S):
                continue
            try:
                with _limit(limit_s):
                    start = time.perf_counter()
                    written = lowering(model, given)
                    seconds = time.perf_counter() - start
            # Whatever a lowering raises is what is recorded of it.
            except Exception as error:
                row[way] = failed(error)
                continue
            cell.setdefault("seconds", []).append(round(seconds, 2))
            if not turn:
                cell.update(vars(peers.look(written)))
    return row


def _told(given: Arguments) -> str:
    tensors = [each for each in pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]
    return ", ".join("x".join(map(str, each.shape)) for each in tensors)


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


# -- what is kept, and what is made of it


def share(row: Row) -> float | None:
    """Our seconds over ExecuTorch's, by medians; None where one of the two failed."""
    times = [row[way].get("seconds") for way in ("ours", "stock")]
    return statistics.median(times[0]) / statistics.median(times[1]) if all(times) else None


def mean_share(rows: Sequence[Row]) -> float:
    """Geometric; no number where nothing can be compared."""
    return geometric_mean([s for s in map(share, rows) if s is not None])


def missed(peers: Peers, rows: Sequence[Row]) -> list[str]:
    """The bounds that do not hold."""
    found = [
        f"ours fails on {row['network']}: {row['ours']['error']}" for row in rows if "error" in row["ours"]
    ]
    for row in rows:
        if max(row["ours"].get("seconds", [0])) >= peers.ours_s:
            found.append(f"ours takes {max(row['ours']['seconds'])} s on {row['network']}")
        if (share(row) or 0) > peers.worst:
            found.append(f"ours takes {share(row):.2f} of ExecuTorch's seconds on {row['network']}")
    if not mean_share(rows) <= peers.mean:
        found.append(f"ours takes {mean_share(rows):.2f} of ExecuTorch's seconds, not {peers.mean:g}")
    return found


HEADER = (
    *("network", "input", "ours, s", "ExecuTorch, s", "ours / ExecuTorch", "conversions", "ExecuTorch's"),
    *("KB moved", "ExecuTorch's", "parts + operators outside", "ExecuTorch's"),
)


def line(row: Row) -> str:
    """A row under `HEADER`."""
    mine, theirs, part = row["ours"], row["stock"], share(row)
    cells = [
        *(row["network"], row["input"], _seconds(mine), _seconds(theirs)),
        "" if part is None else f"{part:.2f}",
        *(_figure(cell, "conversions") for cell in (mine, theirs)),
        *(_figure(cell, "bytes", 1000) for cell in (mine, theirs)),
        *("" if "error" in cell else f"{cell['parts']} + {cell['outside']}" for cell in (mine, theirs)),
    ]
    return f"| {' | '.join(cells)} |"


def table(peers: Peers, record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    lines = [
        f"# Lowering to {peers.title.split()[0]}",
        "",
        f"{peers.title}, in one process, in turn:",
        "seconds from the module to the file, export included, ours verified; medians of the runs in "
        f"brackets. What took over {CHEAP_S:g} s ran once.",
        "",
        *record_lines(record),
        f"| {' | '.join(HEADER)} |",
        f"| --- | --- |{' ---: |' * 7} --- | --- |",
        *map(line, rows),
    ]
    compared = sum(share(row) is not None for row in rows)
    lines += ["", f"Geometric mean of ours / ExecuTorch (networks: {compared}): {mean_share(rows):.2f}."]
    for row in rows:
        for way, who in (("ours", "ours"), ("stock", "ExecuTorch")):
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
    parser.add_argument("--target", choices=PEERS, required=True)
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="measure these anew")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one lowering")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    peers = PEERS[options.target]
    unknown = set(options.networks or ()) - set(peers.networks)
    if unknown:
        parser.error(f"no such networks: {', '.join(sorted(unknown))}; there are {', '.join(peers.networks)}")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    kept, here = options.results / f"lowering_{options.target}.json", machine(PACKAGES)
    record: dict[str, Any] = {"rows": rows_kept(kept, here)}
    done = {row["network"]: row for row in record["rows"]}
    wanted = options.networks or [name for name in peers.networks if name not in done]
    for lowering in (peers.ours, peers.stock):  # neither pays for imports, nor for a process's first export
        lowering(nn.Conv2d(3, 2, 3).eval(), ((torch.randn(1, 3, 5, 7),), {}))
    for name in wanted:
        done[name] = measure(peers, name, options.repeats, options.limit)
        rows = [done[name] for name in peers.networks if name in done]
        command = f"python -m benchmarks.lowering --target {options.target}"
        record = {"command": command, "environment": here, "rows": rows}
        write_whole(kept, (json.dumps(record, indent=1) + "\n").encode())
        write_whole(kept.with_suffix(".md"), table(peers, record).encode())
        print(line(done[name]), flush=True)
    faults = missed(peers, record["rows"])
    print(f"{mean_share(record['rows']):.2f} of ExecuTorch's; {'; '.join(faults) or 'every bound holds'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
