"""Run `dimorder explain`: print the reasons for a plan's conversions."""

from __future__ import annotations

import argparse

from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser, json_option, network_options, plan_network
from dimorder.errors import UsageError

EXAMPLES = """\
  dimorder explain torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224 --target xnnpack
  dimorder explain net.pt2 --conversion 2"""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    parser.add_argument("--conversion", type=int, metavar="N", help="only this one, from 0 (default: all)")
    json_option(parser, "the reasons")


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    from dimorder.plans.state_plan import explain_state

    found = plan_network(options, progress)
    count = len(found.conversions)
    if options.conversion is not None and not 0 <= options.conversion < count:
        raise UsageError(
            f"--conversion {options.conversion}",
            f"a plan of {count or 'no'} conversions",
            f"give 0 to {count - 1}" if count else "leave --conversion out: there is nothing to explain",
        )
    reasons = {}
    for index in range(count) if options.conversion is None else [options.conversion]:
        progress(f"explaining conversion {index}")
        reasons[index] = found.explain(index)
    state = explain_state(found) if options.conversion is None else []
    lines = [f"{index}  {reason}" for index, reason in reasons.items()] + list(map(str, state))
    if not count:
        lines.insert(0, "no conversions" if state else "no conversions: nothing to explain")
    data = [reason.to_dict() for reason in reasons.values()] + [each.to_dict() for each in state]
    return Answer("\n".join(lines), data)


COMMAND = Command(
    "explain", "say why a plan's conversions are there, and what would avoid them", EXAMPLES, add_options, run
)
