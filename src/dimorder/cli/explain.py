"""Run `dimorder explain`: print the reasons for a plan's conversions."""

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
    write_json,
)
from dimorder.errors import UsageError

EXAMPLES = """\
  dimorder explain torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
  dimorder explain net.pt2 --conversion 2 --target torch"""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    parser.add_argument("--conversion", type=int, metavar="N", help="only this one, from 0 (default: all)")
    json_option(parser, "the reasons")


def run(options: argparse.Namespace, console: Console) -> int:
    from dimorder.plans.state_plan import explain_state

    check_outputs({"--json": options.json})
    found = plan_network(options, console)
    count = len(found.conversions)
    if options.conversion is not None and not 0 <= options.conversion < count:
        raise UsageError(
            f"--conversion {options.conversion}",
            f"a plan of {count or 'no'} conversions",
            f"give 0 to {count - 1}" if count else "leave --conversion out: there is nothing to explain",
        )
    chosen = range(count) if options.conversion is None else [options.conversion]
    with console.progress() as progress:
        reasons = []
        for index in chosen:
            progress(f"explaining conversion {index}")
            reasons.append(found.explain(index))
        state = explain_state(found) if options.conversion is None else []
    told = [*(reason.to_dict() for reason in reasons), *(each.to_dict() for each in state)]
    write_json(options.json, told, console)
    if options.json == "-":
        return DONE
    if not count:
        console.print("no conversions" if state else "no conversions: nothing to explain")
    for index, reason in zip(chosen, reasons, strict=True):
        console.print(f"{index}  {reason}")
    for each in state:
        console.print(each)
    return DONE


COMMAND = Command(
    "explain", "say why a plan's conversions are there, and what would avoid them", EXAMPLES, add_options, run
)
