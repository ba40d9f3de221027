"""Compare our quantised networks on Arm's NPUs with ExecuTorch's own Ethos-U backend, by Vela's estimates.

python -m benchmarks.npu [--networks NAME ...] [--accelerators NAME ...] [--cycles] [--ours]

Both lower the same network, quantised by Arm's quantizer, from the exported program to the .pte. Pictures are
of int8 in NHWC, as input and as output. Ours lowers by each objective. Cycles are Vela's estimates of whole
graphs, and the sum for several graphs; they depend on the packages alone. Seconds are of one lowering each,
in turn, and need a quiet machine. Results are kept in benchmarks/results/npu.json after every network; npu.md
beside it is the table. A network is not measured again in the same environment, unless --networks names it,
or --ours asks for ours alone. With --cycles no seconds are measured: known seconds stay. So does all that was
measured with the same packages on another machine. Ends with 1 if a plan by another objective, or ExecuTorch,
beats a plan by cycles.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import dimorder
from benchmarks.record import failed, record_kept, record_lines
from dimorder.cpu import machine
from dimorder.files import write_whole
from dimorder.latency.timing import geometric_mean
from dimorder.plans.network_plan import Place
from tests import zoo
from tests.zoo import timm

SMALL = (1, 3, 64, 64)
PACKAGES = ("torch", "executorch", "tosa-tools", "ethos-u-vela", "torchvision", "timm", "torchao")
ACCELERATORS = ("ethos-u85-256", "ethos-u55-128")
OBJECTIVES = ("bytes", "count", "cycles")

Row = dict[str, Any]
Built = tuple[nn.Module, Tensor]


def _zoo(name: str, square: tuple[int, ...] = SMALL) -> Callable[[], Built]:
    """A network of the zoo, or of the tests of integer networks; pictures of 224 × 224 are `square` here."""

    def build() -> Built:
        from tests.targets.test_tosa_integer_networks import OURS

        network = OURS.get(name) or zoo.network(name)
        shape = square if network.shape == zoo.SQUARE_224 else network.shape
        return network.build(), torch.randn(shape, generator=torch.Generator().manual_seed(1))

    return build


def _timm(name: str, **options: Any) -> Callable[[], Built]:
    return lambda: (timm(name, **options)(), torch.randn(SMALL, generator=torch.Generator().manual_seed(1)))


def _lite0() -> Built:
    from tests.quantization import photos

    (crop,) = photos.crops(1, seed=1)
    return photos.efficientnet_lite0(), crop


NETWORKS: Mapping[str, Callable[[], Built]] = {
    **{
        name: _zoo(name)
        for name in (
            *("conv_flatten_linear", "se_linear", "groupnorm_residual", "onet", "unet", "tcn", "resnet18"),
            *("mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "squeezenet1_1"),
        )
    },
    "shufflenet_v2_x1_0, 224": _zoo("shufflenet_v2_x1_0", zoo.SQUARE_224),
    "vit of 4 layers": _timm("vit_tiny_patch16_224", img_size=64, depth=4),
    "swin blocks": _zoo("swin blocks"),
    "convnext_atto": _timm("convnext_atto"),
    "efficientnet_b0": _zoo("efficientnet_b0"),
    "efficientnet_lite0, 224": _lite0,
    "deeplabv3_mobilenet_v3_large": _zoo("deeplabv3_mobilenet_v3_large"),
}


def ours(program: ExportedProgram, x: Tensor, accelerator: str, timed: bool) -> Row:
    found: Row = {}
    (output,) = program.graph.output_node().args[0][:1]
    orders = ["NHWC" if value.dim() == 4 else None for value in (x, output.meta["val"])]
    for objective in OBJECTIVES:
        start = time.perf_counter()
        made = dimorder.lower(
            program,
            (x,),
            target=accelerator,
            input_orders=orders[0],
            output_orders=orders[1],
            objective=objective,
        )
        seconds = time.perf_counter() - start
        npu = made.artifact.npu
        assert npu is not None
        found[objective] = {"cycles": npu.cycles, "transposes": len(made.plan.conversions)}
        if objective == "cycles":
            found |= {"sram_bytes": npu.sram_bytes, "flash_bytes": npu.flash_bytes}
            found |= {"cpu_operators": npu.cpu_operators, "optimal": made.plan.certificate.optimal}
        elif timed and objective == "bytes":
            found["seconds"] = round(seconds, 2)
    return found


def stock(program: ExportedProgram, accelerator: str, timed: bool) -> Row:
    """ExecuTorch's own, as its page for Ethos-U does it; what it hands to Vela is compiled once more."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from dimorder.targets.ethos_u.vela import compile_by_vela
    from dimorder.targets.tosa.graph import inspect_tosa
    from tests.targets.vela import handed_over

    with handed_over() as graphs:
        start = time.perf_counter()
        partitioner = EthosUPartitioner(EthosUCompileSpec(accelerator))
        to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
        seconds = time.perf_counter() - start
    reports = [
        compile_by_vela(graph, accelerator, lambda tensor: Place(tensor, "")).report for graph in graphs
    ]
    return {
        "cycles": sum(report.cycles for report in reports),
        "transposes": sum(inspect_tosa(graph).transposes for graph in graphs),
        "graphs": len(graphs),
        **({"seconds": round(seconds, 2)} if timed else {}),
    }


def stock_apart(name: str, accelerator: str, timed: bool) -> Row:
    """In a process of its own: Vela crashes on some of ExecuTorch's graphs, as on swin blocks for U55."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(_built_stock, name, accelerator, timed).result()


def _built_stock(name: str, accelerator: str, timed: bool) -> Row:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    return stock(exported(name)[0], accelerator, timed)


def exported(name: str) -> tuple[ExportedProgram, Tensor]:
    """A network quantised by Arm's quantizer, and its input."""
    from tests.targets.quantised import by_arm

    model, x = NETWORKS[name]()
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    return torch.export.export(by_arm(model.eval(), x), (x,)), x


def measure(name: str, accelerator: str, timed: bool, kept: Row) -> Row:
    """One row of the table, by what is kept of a way: all, or its seconds. A way that fails has its error
    there instead of figures."""
    program, x = exported(name)
    row: Row = {"network": name, "accelerator": accelerator, "input": "x".join(map(str, x.shape))}
    for way, lowering in (
        ("ours", lambda: ours(program, x, accelerator, timed)),
        ("stock", lambda: stock_apart(name, accelerator, timed)),
    ):
        try:
            known = kept.get(way, {})
            row[way] = known if known.keys() - {"seconds"} else known | lowering()
        # Whatever a lowering raises is what is recorded of it.
        except Exception as error:
            row[way] = failed(error)
    return row


# -- what is kept, and what is made of it


def share(row: Row, figure: str = "cycles") -> float | None:
    """Ours over ExecuTorch's, of the plan by cycles; None where one of the two failed."""
    mine, theirs = row["ours"], row["stock"]
    if "error" in mine or "error" in theirs or not theirs.get(figure):
        return None
    ours_figure = mine["cycles"]["cycles"] if figure == "cycles" else mine.get(figure)
    return ours_figure / theirs[figure] if ours_figure else None


def beaten(rows: Sequence[Row]) -> list[str]:
    """List where a plan by another objective, or ExecuTorch's, takes fewer cycles than the plan by cycles."""
    found = []
    for row in rows:
        plans = {} if "error" in row["ours"] else {name: row["ours"][name]["cycles"] for name in OBJECTIVES}
        place = f"{row['network']} on {row['accelerator']}"
        found += [f"{place}: {name}" for name in plans if plans[name] < plans["cycles"]]
        if (share(row) or 0) > 1:
            found.append(f"{place}: ExecuTorch")
    return found


HEADER = (
    *("network", "input", "accelerator", "by bytes", "by count", "by cycles", "ExecuTorch"),
    *("ours / ExecuTorch", "TRANSPOSEs", "ExecuTorch's", "SRAM, KB", "flash, KB", "s", "ExecuTorch's"),
)


def line(row: Row) -> str:
    """A row under `HEADER`."""
    mine, theirs, part = row["ours"], row["stock"], share(row)
    ours_cells = ["fails"] * 3 if "error" in mine else [f"{mine[name]['cycles']:,}" for name in OBJECTIVES]
    cells = [
        *(row["network"], row["input"], row["accelerator"], *ours_cells),
        "fails" if "error" in theirs else f"{theirs['cycles']:,}",
        "" if part is None else f"{part:.2f}",
        "" if "error" in mine else str(mine["cycles"]["transposes"]),
        "" if "error" in theirs else str(theirs["transposes"]),
        *("" if "error" in mine else f"{mine[key] / 1000:,.0f}" for key in ("sram_bytes", "flash_bytes")),
        *(f"{way['seconds']:.1f}" if "seconds" in way else "" for way in (mine, theirs)),
    ]
    return f"| {' | '.join(cells)} |"


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    lines = [
        "# Quantised networks on Ethos-U",
        "",
        "By Arm's quantizer, input of int8 in NHWC, for ours by three objectives and for ExecuTorch's own",
        "Ethos-U backend: cycles of whole graphs as Vela estimates them, in ExecuTorch's default memories.",
        "",
        *record_lines(record),
        f"| {' | '.join(HEADER)} |",
        f"| --- | --- | --- |{' ---: |' * (len(HEADER) - 3)}",
        *map(line, rows),
        "",
    ]
    for accelerator in ACCELERATORS:
        for figure in ("cycles", "seconds"):
            parts = [share(row, figure) for row in rows if row["accelerator"] == accelerator]
            shares = [part for part in parts if part is not None]
            if shares:
                mean = geometric_mean(shares)
                lines.append(
                    f"Geometric mean of ours / ExecuTorch, {figure}, {accelerator} "
                    f"(networks: {len(shares)}): {mean:.3f}."
                )
    for row in rows:
        for way, who in (("ours", "ours"), ("stock", "ExecuTorch")):
            if "error" in row[way]:
                lines += ["", f"{row['network']} on {row['accelerator']}, {who}: `{row[way]['error']}`"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, metavar="NAME", help="measure these anew")
    parser.add_argument("--accelerators", nargs="+", default=ACCELERATORS, metavar="NAME")
    parser.add_argument("--cycles", action="store_true", help="no seconds: the machine need not be quiet")
    parser.add_argument("--ours", action="store_true", help="anew, beside what is kept of ExecuTorch's")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    path, here = options.results / "npu.json", machine(PACKAGES)
    record = record_kept(path, here, PACKAGES if options.cycles else tuple(here))
    environment = record.get("environment", here)
    commands = [
        *filter(None, [record.get("command")]),
        "python -m benchmarks.npu" + " --cycles" * options.cycles,
    ]
    done = {(row["network"], row["accelerator"]): row for row in record.setdefault("rows", [])}
    wanted = [(name, each) for name in options.networks or NETWORKS for each in options.accelerators]
    order = [(name, each) for name in NETWORKS for each in ACCELERATORS]
    for key in wanted:
        if key in done and options.networks is None and not options.ours:
            continue
        done[key] = measure(*key, timed=not options.cycles, kept=_kept(done.get(key, {}), options))
        rows = sorted(done.values(), key=lambda row: order.index((row["network"], row["accelerator"])))
        record = {"command": "; ".join(dict.fromkeys(commands)), "environment": environment, "rows": rows}
        write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
        write_whole(path.with_suffix(".md"), table(record).encode())
        print(line(done[key]), flush=True)
    faults = beaten(record["rows"])
    print("; ".join(faults) or "no plan is beaten")
    return 1 if faults else 0


def _kept(row: Row, options: argparse.Namespace) -> Row:
    """Return what is not measured again of a row: ExecuTorch's with --ours, and all seconds with --cycles."""
    kept = {"stock": row["stock"]} if options.ours and "stock" in row else {}
    for way in ("ours", "stock"):
        if options.cycles and way not in kept and "seconds" in row.get(way, {}):
            kept[way] = {"seconds": row[way]["seconds"]}
    return kept


if __name__ == "__main__":
    sys.exit(main())
