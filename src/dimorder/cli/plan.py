"""Run `dimorder plan`: plan a network's orders and print the plan, without lowering."""

from __future__ import annotations

import argparse

from dimorder.cli.console import Console
from dimorder.cli.options import (
    DONE,
    Command,
    CommandParser,
    check_outputs,
    json_option,
    network_options,
    plan_network,
    report_option,
    report_page,
    write_json,
)

EXAMPLES = """\
  dimorder plan torchvision.models:swin_t --input 1x3x224x224
  dimorder plan mypackage.nets:unet --input 1x3x64x96 --output-order NHWC --objective count
  dimorder plan net.pt2 --json > plan.json"""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    json_option(parser, "the plan")
    report_option(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    check_outputs({"--json": options.json, "--report": options.report})
    found = plan_network(options, console)
    if options.report:
        from dimorder import files

        with console.progress() as progress:
            report = report_page(options, found, progress)
        console.check_interrupt()
        files.write_whole(options.report, report)
    write_json(options.json, found.to_dict(), console)
    if options.json != "-":
        console.print(found)
    return DONE


COMMAND = Command(
    "plan", "plan a network's orders and print the plan; nothing is lowered", EXAMPLES, add_options, run
)
