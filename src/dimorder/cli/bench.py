"""Run `dimorder bench`: time a network, conversions between orders, or XNNPACK's kernels on this machine."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dimorder.cli import models
from dimorder.cli.answer import DONE, NO, Answer, read_json
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import (
    MODULE_HELP,
    Command,
    CommandParser,
    json_option,
    model_options,
    output_path,
    report_option,
)
from dimorder.errors import UsageError, install_of, installed

EXAMPLES = """\
  dimorder bench torchvision.models:resnet18 --input 1x3x224x224
  dimorder bench torchvision.models:resnet18 --input 1x3x224x224 --against executorch --against onnxruntime
  dimorder bench torchvision.models:mobilenet_v3_small --input 1x3x224x224 --profile --report net.html
  dimorder bench mymodels:Ranker --input ids=1x128:int64 --target torch --threads 1 --chart ranker.png
  dimorder bench convert
  dimorder bench convert -o src/dimorder/eager/conversion.json
  dimorder bench ops --threads 2 -o src/dimorder/targets/xnnpack/times.json

A network is lowered by dimorder, and run in turn with the runtimes of --against.
Leave the machine alone meanwhile. `bench convert` measures which way of moving memory is fastest here, and
`bench ops` how long the kernels of XNNPACK take, by which --objective time plans (about eight minutes);
-o puts the result, for this kind of CPU, into a table."""

_RUNTIMES = (
    *("executorch", "eager", "eager-channels-last", "compile", "compile-frozen"),
    *("onnxruntime", "openvino", "litert-torch"),
)
_CONVERT, _OPS = "convert", "ops"


def add_options(parser: CommandParser) -> None:
    model_options(parser, f"{MODULE_HELP}; or convert or ops, for what no network needs")
    parser.add_argument(
        "--target",
        action="append",
        metavar="TARGET[:OBJECTIVE]",
        help="what dimorder lowers it to, of the targets below whose files a CPU runs, and the objective "
        "(default: xnnpack); others are compared with the first",
    )
    parser.lists_targets = True
    parser.add_argument(
        "--against",
        action="append",
        choices=_RUNTIMES,
        help="a runtime to compare with; once for each (default: all that are installed)",
    )
    parser.add_argument(
        "--rounds", type=int, default=30, metavar="N", help="timed calls of each, 5 at least (default 30)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of each (default: as many as torch has)"
    )
    parser.add_argument(
        "--limit",
        action="store_true",
        help="also measure the most that this machine can do, and how far each runtime is from it",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also time each operator of the program for xnnpack alone, and compute its least time on this "
        "machine; operators farthest above that come first",
    )
    parser.add_argument(
        "--chart",
        type=output_path("--chart", ".png"),
        metavar="FILE",
        help="the medians as a bar chart (.png)",
    )
    report_option(parser, "the times as bars, and with --profile each operator's")
    json_option(parser, "every round of each runtime")
    parser.add_argument(
        *("-o", "--output"),
        type=output_path("-o", ".json"),
        metavar="FILE",
        help="the table (.json) to add to, for `bench convert` and `bench ops`",
    )


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    if options.model == _CONVERT:
        return _convert(options, progress)
    if options.model == _OPS:
        return _ops(options, progress)
    if options.output:
        raise UsageError(
            f"-o {options.output}",
            "a table, for a network",
            "give --json FILE, --chart FILE or --report FILE",
        )
    progress("loading torch")
    from dimorder.latency.bench import measure, png, require_charts
    from dimorder.report.bench_page import bench_page

    if options.chart:
        require_charts()  # before the measurement, which may take minutes
    progress(f"loading {options.model}")
    model = models.runnable(models.load_model(options.model, dict(options.arg)))
    args, kwargs = models.example_inputs(model, options.input)
    models.check_runs(model, args, kwargs)
    found = measure(
        model,
        args,
        kwargs,
        targets=options.target or ("xnnpack",),
        against=options.against,
        rounds=options.rounds,
        threads=options.threads,
        limit=options.limit,
        operators=options.profile,
        progress=progress,
    )
    files = [(options.chart, png(found))] if options.chart else []
    if options.report:
        files.append((options.report, bench_page(found, options.model).encode()))
    return Answer(found, found.to_dict(), files, DONE if found.rows[0].ms else NO)


def _convert(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    progress("loading torch")
    from dimorder.cpu import family
    from dimorder.eager import transposition

    old = _read_table(options.output, _parse_gains)
    table = transposition.measure(progress=progress)
    lines = [f"{family()}, one thread, over torch's copy; elsewhere torch's copy is taken"]
    for itemsize, cells in table.items():
        for cell, gains in cells.items():
            ways = ", ".join(f"{way} {gain:.2f}×" for way, gain in gains.items())
            lines.append(f"  {itemsize} bytes  {cell:10}  {ways}")
    return Answer("\n".join(lines), files=_with_table(options.output, old, family(), table))


def _ops(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    if options.target not in (None, ["xnnpack"]):
        raise UsageError(f"--target {options.target[0]}", "no target whose kernels are timed", "take xnnpack")
    progress("loading torch")
    import torch

    from dimorder.cpu import family
    from dimorder.latency import kernel_times
    from dimorder.targets.xnnpack.times import Times

    threads = torch.get_num_threads() if options.threads is None else options.threads
    old = _read_table(options.output, Times.from_dict)
    with installed("the kernels of XNNPACK", install_of("executorch")):
        found = kernel_times.measure(family(), threads, progress=progress)
    slower: dict[str, list[float]] = {}
    for kernel, ns in found.measured:
        slower.setdefault(kernel.name, []).append(ns / found.least(kernel))
    lines = [
        f"{found.family}, {threads} threads: {len(found.measured)} kernels of XNNPACK",
        f"at most {found.flops:,.0f} products and sums, and {found.bandwidth:,.0f} bytes in a ns",
    ]
    for name, times in slower.items():
        lines.append(f"  {name:24} {min(times):6.1f} to {max(times):6.1f} times what that takes")
    return Answer("\n".join(lines), files=_with_table(options.output, old, found.family, found.to_dict()))


def _read_table(path: str | None, parse: Callable[[str, Any], object]) -> dict[str, Any]:
    """Return the table to add to, of which `parse` reads each family of CPUs.

    Raises:
        UsageError: if the file has another content. This is known before the measurement.
    """
    if not path or not Path(path).exists():
        return {}
    fix = "name a new file, or a table to add to"
    table = read_json(path, fix)
    if not isinstance(table, dict):
        raise UsageError(path, f"a {type(table).__name__}, where a table has families of CPUs", fix)
    for family, told in table.items():
        try:
            parse(family, told)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(path, f"{family!r}, which has no measurements of this command", fix) from error
    return table


def _parse_gains(family: str, told: Any) -> dict[int, dict[str, dict[str, float]]]:
    """Return the gains of each way of moving memory, by the size of an element and the shape."""
    return {
        int(itemsize): {
            cell: {way: float(gain) for way, gain in gains.items()} for cell, gains in cells.items()
        }
        for itemsize, cells in told.items()
    }


def _with_table(
    path: str | None, old: Mapping[str, Any], family: str, table: Mapping[str, Any]
) -> list[tuple[str, bytes]]:
    """Return a file of measurements to which those of one family of CPUs are added."""
    if not path:
        return []
    text = json.dumps({**old, family: table}, indent=1)
    text = re.sub(r"\[[\d\s,.]+\]", lambda row: " ".join(row[0].split()), text)  # a row in a line
    return [(path, f"{text}\n".encode())]


COMMAND = Command(
    "bench",
    "time a network in dimorder and in other runtimes, or conversions between orders",
    EXAMPLES,
    add_options,
    run,
)
