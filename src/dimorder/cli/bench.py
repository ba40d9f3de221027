"""Run `dimorder bench`: time a network, conversions between orders, or XNNPACK's kernels on this machine."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dimorder.cli import models
from dimorder.cli.console import Console
from dimorder.cli.options import (
    DONE,
    NO,
    Command,
    CommandParser,
    check_outputs,
    json_option,
    model_options,
    read_json,
    report_option,
    write_json,
)
from dimorder.errors import UsageError

EXAMPLES = """\
  dimorder bench torchvision.models:resnet18 --input 1x3x224x224
  dimorder bench torchvision.models:resnet18 --input 1x3x224x224 --against executorch --against onnxruntime
  dimorder bench torchvision.models:mobilenet_v3_small --input 1x3x224x224 --profile --report net.html
  dimorder bench mymodels:Ranker --input ids=1x128:int64 --target torch --threads 1 --chart ranker.png
  dimorder bench convert
  dimorder bench convert -o src/dimorder/eager/conversion.json
  dimorder bench ops --threads 2 -o src/dimorder/targets/xnnpack/times.json

A network is lowered by dimorder, and run in turn with what one would take instead: {runtimes}.
Leave the machine alone meanwhile. `bench convert` measures which way of moving memory is fastest here, and
`bench ops` how long the kernels of XNNPACK take, by which --objective time plans (about eight minutes);
-o puts the result, for this kind of CPU, into a table."""

_RUNTIMES = (
    *("executorch", "eager", "eager-channels-last", "compile", "compile-frozen"),
    *("onnxruntime", "openvino", "litert"),
)
_CONVERT, _OPS = "convert", "ops"


def add_options(parser: CommandParser) -> None:
    model_options(parser)
    parser.add_argument(
        "--target",
        action="append",
        metavar="TARGET[:OBJECTIVE]",
        help="what dimorder lowers it to: xnnpack (the default), torch or inductor, and by which objective; "
        "the first is what others are compared with",
    )
    parser.add_argument(
        "--against",
        action="append",
        choices=_RUNTIMES,
        help="a runtime to compare with; once for each (default: all that are installed)",
    )
    parser.add_argument(
        "--rounds", type=int, default=30, metavar="N", help="timed calls of each (default 30)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of each (default: as many as torch has)"
    )
    parser.add_argument(
        "--limit",
        action="store_true",
        help="measure also what this machine could do at most, and how far from it each is",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="time also each operator of the program for xnnpack alone, beside what the machine takes at "
        "least for it: those first that are farthest above",
    )
    parser.add_argument("--chart", metavar="FILE", help="the medians as a bar chart (.png)")
    report_option(parser, "the times as bars, and with --profile each operator's")
    json_option(parser, "every round of each runtime")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="of `bench convert` and `bench ops`: the table to add to"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    written = {"--json": options.json, "--chart": options.chart, "--report": options.report}
    check_outputs({"-o": options.output, **written})
    if options.model == _CONVERT:
        return _convert(options, console)
    if options.model == _OPS:
        return _ops(options, console)
    if options.output:
        raise UsageError(
            f"-o {options.output}",
            "a table, for a network",
            "give --json FILE, --chart FILE or --report FILE",
        )
    if options.chart and Path(options.chart).suffix != ".png":
        raise UsageError(f"--chart {options.chart}", "no .png", "name it so")
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import files, latency

        progress(f"loading {options.model}")
        model = models.runnable(models.load_model(options.model, dict(options.arg)))
        args, kwargs = models.example_inputs(model, options.input)
        models.check_runs(model, args, kwargs)
        found = latency.measure(
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
        console.check_interrupt()
        if options.chart:
            from dimorder.latency.chart import png

            files.write_whole(options.chart, png(found))
        if options.report:
            from dimorder import report

            files.write_whole(options.report, report.render_bench(found, options.model).encode())
    write_json(options.json, found.to_dict(), console)
    if options.json != "-":
        console.print(found)
    return DONE if found.rows[0].ms else NO


def _convert(options: argparse.Namespace, console: Console) -> int:
    with console.progress() as progress:
        progress("loading torch")
        from dimorder.cpu import family
        from dimorder.eager import transposition

        table = transposition.measure(progress=progress)
        console.check_interrupt()
    _add_to_table(options.output, family(), table)
    console.print(f"{family()}, one thread, over torch's copy; elsewhere torch's copy is taken")
    for itemsize, cells in table.items():
        for cell, gains in cells.items():
            ways = ", ".join(f"{way} {gain:.2f}×" for way, gain in gains.items())
            console.print(f"  {itemsize} bytes  {cell:10}  {ways}")
    return DONE


def _ops(options: argparse.Namespace, console: Console) -> int:
    if options.target not in (None, ["xnnpack"]):
        raise UsageError(f"--target {options.target[0]}", "no target whose kernels are timed", "take xnnpack")
    with console.progress() as progress:
        progress("loading torch")
        import torch

        from dimorder.cpu import family
        from dimorder.latency import kernel_times

        threads = torch.get_num_threads() if options.threads is None else options.threads
        found = kernel_times.measure(family(), threads, progress=progress)
        console.check_interrupt()
    _add_to_table(options.output, found.family, found.to_dict())
    console.print(f"{found.family}, {threads} threads: {len(found.measured)} kernels of XNNPACK")
    console.print(f"at most {found.flops:,.0f} products and sums, and {found.bandwidth:,.0f} bytes in a ns")
    slower: dict[str, list[float]] = {}
    for kernel, ns in found.measured:
        slower.setdefault(kernel.name, []).append(ns / found.least(kernel))
    for name, times in slower.items():
        console.print(f"  {name:24} {min(times):6.1f} to {max(times):6.1f} times what that takes")
    return DONE


def _add_to_table(path: str | None, family: str, table: Mapping[str, Any]) -> None:
    """Add the measurements of a family of CPUs to a file that has others."""
    from dimorder import files

    if path:
        old = read_json(path) if Path(path).exists() else {}
        told = json.dumps({**old, family: table}, indent=1)
        told = re.sub(r"\[[\d\s,.]+\]", lambda row: " ".join(row[0].split()), told)  # a row in a line
        files.write_whole(path, f"{told}\n".encode())


COMMAND = Command(
    "bench",
    "time a network in dimorder and in other runtimes, or conversions between orders",
    EXAMPLES.format(runtimes=", ".join(_RUNTIMES)),
    add_options,
    run,
)
