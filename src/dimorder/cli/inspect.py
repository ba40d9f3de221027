"""Run `dimorder inspect`: run a network, and show the operators that lose its order."""

from __future__ import annotations

import argparse
import os

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
    report_option,
    write_json,
)

_ORDERS = {"channels-last": "channels_last", "contiguous": "contiguous", "as-is": None}

EXAMPLES = """\
  dimorder inspect torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --compare --report unet.html
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --order as-is --json

The network is run for real, in channels-last unless --order says otherwise. The exit code is 1 where an
order is lost, memory is copied into another, or operands are mixed."""


def add_options(parser: CommandParser) -> None:
    model_options(parser)
    parser.add_argument(
        "--order",
        choices=tuple(_ORDERS),
        default="channels-last",
        help="what weights and images are put in for the run (default channels-last)",
    )
    parser.add_argument("--compare", action="store_true", help="time both orders, and recommend one")
    json_option(parser, "the findings")
    report_option(parser, "every operator in the order it wrote, and what was found")


def run(options: argparse.Namespace, console: Console) -> int:
    check_outputs({"--json": options.json, "--report": options.report})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import files, report
        from dimorder.eager import inspection

        progress(f"loading {options.model}")
        model = models.load_model(options.model, dict(options.arg))
        module = models.runnable(model)
        args, kwargs = models.example_inputs(model, options.input)
        progress("running")
        try:
            found = inspection.inspect(module, args, kwargs, order=_ORDERS[options.order])
        except Exception:
            models.check_runs(module, args, kwargs)
            raise
        compared = None
        if options.compare:
            progress("running in both orders in turn")
            compared = inspection.compare(module, args, kwargs)
        console.check_interrupt()
        if options.report:
            files.write_whole(
                options.report, report.render_inspection(found, options.model, compared).encode()
            )
    data = found.to_dict() | ({"compare": compared.to_dict()} if compared else {})
    write_json(options.json, data, console)
    if options.json != "-":
        console.print(found.text(colour=console.out.isatty() and "NO_COLOR" not in os.environ))
        if compared:
            console.print(compared)
    return DONE if found.keeps else NO


COMMAND = Command("inspect", "run a network, and show where it loses its order", EXAMPLES, add_options, run)
