"""Run `dimorder inspect`: run a network, and show the operators that lose its order."""

from __future__ import annotations

import argparse
import os

from dimorder.cli import models
from dimorder.cli.answer import DONE, NO, Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser, json_option, model_options, report_option

_ORDERS = {"channels-last": "channels_last", "contiguous": "contiguous", "as-is": None}

EXAMPLES = """\
  dimorder inspect torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --compare --report unet.html
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --order as-is --json

The network is run for real, in channels-last unless --order says otherwise. The exit code is 1 if an order
is lost, memory is copied into another order, or operands are mixed."""


def add_options(parser: CommandParser) -> None:
    model_options(parser)
    parser.add_argument(
        "--order",
        choices=tuple(_ORDERS),
        default="channels-last",
        help="the order of weights and images in the run (default channels-last)",
    )
    parser.add_argument("--compare", action="store_true", help="time both orders, and recommend one")
    json_option(parser, "the findings")
    report_option(parser, "the order that every operator wrote, and the findings")


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    progress("loading torch")
    from dimorder.eager.inspection.compare import compare
    from dimorder.eager.inspection.inspection import inspect
    from dimorder.report.inspection_page import inspection_page

    progress(f"loading {options.model}")
    module = models.runnable(models.load_model(options.model, dict(options.arg)))
    args, kwargs = models.example_inputs(module, options.input)
    progress("running")
    try:
        found = inspect(module, args, kwargs, order=_ORDERS[options.order])
    except Exception:
        models.check_runs(module, args, kwargs)
        raise
    text = found.text(colour=progress.console.out.isatty() and "NO_COLOR" not in os.environ)
    data, compared, pages = found.to_dict(), None, []
    if options.compare:
        progress("running in both orders in turn")
        compared = compare(module, args, kwargs)
        data, text = {**data, "compare": compared.to_dict()}, f"{text}\n{compared}"
    if options.report:
        page = inspection_page(found, options.model, compared)
        pages.append((options.report, page.encode()))
    return Answer(text, data, pages, DONE if found.keeps else NO)


COMMAND = Command("inspect", "run a network, and show where it loses its order", EXAMPLES, add_options, run)
